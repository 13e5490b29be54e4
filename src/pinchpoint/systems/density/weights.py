"""Trained weights: those that come with the package, of a run, or of a file; and the file itself.

A file holds the configuration, the weights of matrices in float16 where that was asked for, and where they come from. It
is read with `weights_only`: tensors and plain values, no code. A JSON of the same name beside it says where it comes
from, for people.
"""

from __future__ import annotations

import io
import json
import pickle
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, write_bytes, write_text
from pinchpoint.core.records import now
from pinchpoint.systems.common.runs import Which
from pinchpoint.systems.density.data.domain import Seen
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.train import seen_by, trained_state

FORMAT = "pinchpoint density weights 1"
PACKAGED = Path(__file__).parent / "model" / "packaged" / "molecules.pt"
_NAME = "name the folder of a run, or a file it exported"


@dataclass(frozen=True)
class Origin:
    """Where weights come from."""

    name: str
    config: DensityConfig
    about: dict[str, Any]


def load_weights(
    path: str | Path | None = None, device: str = "cpu", *, which: Which = "best"
) -> DensityModel:
    """The model of a run's folder or of an exported file; without a path, or by "packaged", the one that comes with the package.

    which: of a run, the best checkpoint (the last one where nothing was held back) or the last.
    """
    return _read(path, which)[0].to(device).eval()


def for_inference(weights: str | Path | DensityModel | None, device: str) -> DensityModel:
    """Those of the package, of a run or of a file, on the device. A model that was given stays where and as it is."""
    if weights is None or isinstance(weights, str | Path):
        return load_weights(weights, device).eval()
    if not isinstance(weights, DensityModel):
        raise BadInput(
            f"weights are {type(weights).__name__}", hint="give a run, an exported file or a DensityModel"
        )
    held = next(weights.parameters())
    if held.dtype not in (torch.float32, torch.float64):
        raise BadInput(f"the model is in {held.dtype}: too coarse for distances", hint="give model.float()")
    if held.device.type == device and not weights.training:
        return weights
    return deepcopy(weights).to(device).eval()


def origin_of(path: str | Path | None = None) -> Origin:
    """What weights are and where they come from."""
    model, about = _read(path, "best")
    return Origin(str(PACKAGED.stem if path is None else path), model.config, about)


def export(
    run: str | Path,
    path: str | Path,
    *,
    which: Which = "best",
    half: bool = False,
    about: dict[str, Any] | None = None,
) -> Path:
    """One file with the weights of a run, averaged where it kept such, and a JSON beside it. half: store float16."""
    path = check_output(path)
    if path.suffix == ".json":
        raise BadInput(f"weights in {path.name}: its JSON would overwrite them", hint="name a file in .pt")
    found, weights, step, score = trained_state(Path(run), which=which)
    told, seen = found.settings, seen_by(Path(run))
    said = {
        "step": step,
        "steps": told.steps,
        "seed": told.seed,
        "preset": told.preset,
        "precision": told.precision,
        "data_sha256": told.data,
        "held_back_nmae": score,
        "created": now(),
        **({} if seen is None else {"seen": json.loads(seen.to_json())}),
        **(about or {}),
    }
    kept = {
        name: value.half() if half and value.dim() > 1 and name != "prior" else value
        for name, value in weights.items()
    }
    buffer = io.BytesIO()
    torch.save(
        {"format": FORMAT, "config": found.config.to_json(), "weights": kept, "about": json.dumps(said)},
        buffer,
    )
    write_bytes(path, buffer.getvalue())
    write_text(
        path.with_suffix(".json"),
        json.dumps({"config": json.loads(found.config.to_json()), **said}, indent=1) + "\n",
    )
    return path


def _read(path: str | Path | None, which: Which) -> tuple[DensityModel, dict[str, Any]]:
    if str(path) == "packaged" and not Path("packaged").exists():
        path = None
    if path is not None and Path(path).is_dir():
        run, weights, step, score = trained_state(Path(path), which=which)
        model = _made(run.config, weights, str(path), seen_by(Path(path)))
        return model, {"step": step, "held_back_nmae": score, "data_sha256": run.settings.data}
    file = PACKAGED if path is None else Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read weights from {file}: {error.strerror}", hint=_NAME) from error
    try:
        held = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(held, dict) or held.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        config, about = DensityConfig.from_json(held["config"]), json.loads(held["about"])
        weights = {name: value.float() for name, value in held["weights"].items()}
        seen = Seen.from_json(json.dumps(about["seen"])) if "seen" in about else None
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
        # What torch says of files that are not its own is long, and advises to run the code in them.
        raise BadInput(f"{file} holds no weights of a density model", hint=_NAME) from error
    return _made(config, weights, str(file), seen), about


def _made(config: DensityConfig, weights: dict[str, Tensor], where: str, seen: Seen | None) -> DensityModel:
    model = DensityModel(config)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise BadInput(
            f"{where} does not hold the model of its configuration", hint="restore it, or train again"
        ) from error
    model.seen = seen
    return model
