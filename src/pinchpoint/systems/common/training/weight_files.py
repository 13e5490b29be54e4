"""Trained weights in one file: the configuration, the weights (matrices in float16 on request), their origin.

A file is read with `weights_only`: tensors and plain values, no code. A JSON file of the same name beside it
gives the origin for readers.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, parse_json, write_bytes, write_text

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
