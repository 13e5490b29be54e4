"""Trained weights in one file: the configuration, the weights (matrices in float16 on request), their origin.

A file is read with `weights_only`: tensors and plain values, no code. A JSON file of the same name beside it
gives the origin for readers. The configuration of an exported run is its settings, without the folder of its
data.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, parse_json, write_bytes, write_text
from pinchpoint.core.records import now
from pinchpoint.systems.common.settings import S
from pinchpoint.systems.common.training.runs import C, Net, TrainedRun

T = TypeVar("T")


def write_weights(
    path: str | Path,
    weights: Mapping[str, Tensor],
    *,
    format: str,
    config: str,
    about: Mapping[str, Any],
    half: bool = False,
    exact: Collection[str] = (),
) -> Path:
    """Write the weights to `path`, and their configuration and origin to a JSON file beside it.

    config: JSON. half: matrices in float16, except those named in `exact`.
    """
    path = check_output(path)
    if path.suffix == ".json":
        raise BadInput(
            f"Weights cannot be written to {path.name}: its JSON would overwrite them.",
            hint="Give a name that ends in .pt.",
        )
    stored = {
        name: value.half() if half and value.dim() > 1 and name not in exact else value
        for name, value in weights.items()
    }
    buffer = io.BytesIO()
    torch.save(
        {"format": format, "config": config, "weights": stored, "about": json.dumps(dict(about))}, buffer
    )
    write_bytes(path, buffer.getvalue())
    write_text(
        path.with_suffix(".json"), json.dumps({"config": json.loads(config), **about}, indent=1) + "\n"
    )
    return path


def read_weights(
    file: Path,
    parse: Callable[[str, dict[str, Tensor], dict[str, Any]], T],
    *,
    format: str,
    what: str,
    hint: str,
) -> T:
    """Return `parse(config, weights, about)` of a file that `write_weights` wrote; weights are in float32.

    what: the model that the file should hold, such as "a density model".
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"Weights cannot be read from {file}: {error.strerror}.", hint=hint) from error
    try:
        contents = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(contents, dict) or contents.get("format") != format:
            raise ValueError(f"its format is not {format!r}")
        weights = {name: value.float() for name, value in contents["weights"].items()}
        return parse(contents["config"], weights, parse_json(contents["about"]))
    except (
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        OSError,
        pickle.UnpicklingError,
    ) as error:
        # torch's own message for such files is long, and advises running the code in them.
        raise BadInput(f"{file} does not hold weights of {what}.", hint=hint) from error


def load_state(model: torch.nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights into a model; BadInput if they do not match it."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise BadInput(
            f"The weights in {where} do not match their configuration.",
            hint="Restore the file, or train again.",
        ) from error


def load_trained_weights(
    path: str | Path,
    build: Callable[[dict[str, Any]], tuple[Net, C, S]],
    *,
    packaged: Path,
    load_run: Callable[[Path], TrainedRun[Net, C, S]],
    format: str,
    what: str,
    hint: str,
    device: str,
) -> TrainedRun[Net, C, S]:
    """Load the model of a run folder or of a file that `export_trained` wrote; "packaged" loads `packaged`.

    An existing path named `packaged` takes precedence over the packaged file. build: returns the model
    without its weights, its configuration and its settings, from the settings of the file.
    """
    path = Path(path)
    if str(path) == "packaged" and not path.exists() and packaged.exists():
        path = packaged
    if not path.is_file():
        return load_run(path)

    def parse(config: str, weights: dict[str, Tensor], about: dict[str, Any]) -> TrainedRun[Net, C, S]:
        model, model_config, settings = build(parse_json(config))
        load_state(model, weights, str(path))
        return TrainedRun(model.eval(), model_config, settings, about["step"])

    trained = read_weights(path, parse, format=format, what=what, hint=hint)
    return replace(trained, model=trained.model.to(device))


def export_trained(
    trained: TrainedRun[Any, Any, Any],
    path: str | Path,
    *,
    format: str,
    half: bool,
    about: Mapping[str, Any] | None,
) -> Path:
    """Write the weights and settings of a run to one file, with a JSON beside it.

    about: added to their origin.
    """
    # The folder of the data is of this machine; its fingerprint says which data it was.
    settings = replace(trained.settings, data_path="", data_given="")
    return write_weights(
        path,
        trained.model.state_dict(),
        format=format,
        config=json.dumps(settings.to_dict()),
        about={"step": trained.step, "created": now(), **(about or {})},
        half=half,
    )
