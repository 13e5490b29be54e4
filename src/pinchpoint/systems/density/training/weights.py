"""Trained weights of the package, a run or a file, and the export of a run to a file.

For the format of a file, see `pinchpoint.systems.common.training.weight_files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import parse_json
from pinchpoint.core.records import now
from pinchpoint.systems.common.data.dataset_folder import INDEX
from pinchpoint.systems.common.training.runs import Which
from pinchpoint.systems.common.training.weight_files import load_state, read_weights, write_weights
from pinchpoint.systems.density.data.domain import TrainingDomain
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.error_estimate import ErrorEstimate, split_estimate
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.training.runs import read_domain, trained_state

FORMAT = "pinchpoint density weights 1"
FOLDER = Path(__file__).parents[1] / "model" / "packaged"
PACKAGED = FOLDER / "molecules.pt"  # used if no species are given
_NAME = "Give the folder of a run, a file exported from one, or the name of packaged weights."


def packaged_species() -> dict[str, tuple[str, ...]]:
    """Return the species that each of the packaged weights covers, by name."""
    return {
        file.stem: tuple(parse_json(file.read_text(encoding="utf-8"))["config"]["species"])
        for file in sorted(FOLDER.glob("*.json"))
    }


def packaged_for(species: Iterable[str]) -> Path:
    """Return the packaged weights that cover all species; of several, those that cover the fewest others."""
    wanted, packaged = set(species), packaged_species()
    names = [name for name in packaged if wanted <= set(packaged[name])]
    if not names:
        known = "; ".join(f"{name}: {', '.join(symbols)}" for name, symbols in packaged.items())
        raise BadInput(
            f"The packaged weights do not cover {', '.join(sorted(wanted))} together; they cover {known}.",
            hint="Train a model on these species (pinchpoint density data --from) and give it as --weights.",
        )
    return FOLDER / f"{min(names, key=lambda name: len(packaged[name]))}.pt"


def load_weights(
    path: str | Path | None = None,
    device: str = "cpu",
    *,
    which: Which = "best",
    species: Iterable[str] | None = None,
) -> DensityModel:
    """Return the model of a run folder or of an exported file, or packaged weights by their name.

    None or "packaged": those that cover the species; without species, those of molecules. which: of a run,
    the best checkpoint (the last one where there was no validation data) or the last.
    """
    return _read(path, which, species).to(device).eval()


def for_inference(
    weights: str | Path | DensityModel | None, device: str, *, species: Iterable[str] | None = None
) -> DensityModel:
    """Return the model of the package, a run or a file on the device. A given model is not modified.

    species: those that packaged weights have to cover, if no weights are given.
    """
    if weights is None or isinstance(weights, str | Path):
        return load_weights(weights, device, species=species).eval()
    if not isinstance(weights, DensityModel):
        raise BadInput(
            f"Weights cannot be of type {type(weights).__name__}.",
            hint="Give a run, an exported file or a DensityModel.",
        )
    parameter = next(weights.parameters())
    if parameter.dtype not in (torch.float32, torch.float64):
        raise BadInput(
            f"The model is in {parameter.dtype}, which is too coarse for distances.",
            hint="Give model.float().",
        )
    if parameter.device.type == device and not weights.training:
        return weights
    return deepcopy(weights).to(device).eval()


def without_correction(model: DensityModel) -> DensityModel:
    """Return the first network of a model alone. The given model is not modified."""
    if model.local is None:
        raise BadInput(
            "This model has no local network that could be left out.",
            hint="Leave out --no-correction, or give weights of `density train --first`.",
        )
    first = deepcopy(model)
    first.local = None
    return first


def export(
    run: str | Path,
    path: str | Path,
    *,
    which: Which = "best",
    half: bool = False,
    about: dict[str, Any] | None = None,
) -> Path:
    """Write the weights of a run (averaged where it has them) to one file, with a JSON beside it.

    half: float16.
    """
    trained, weights, step, score = trained_state(Path(run), which=which)
    settings, domain = trained.settings, read_domain(Path(run))
    origin = {
        "step": step,
        "steps": settings.steps,
        "seed": settings.seed,
        "preset": settings.preset,
        "precision": settings.precision,
        "data_sha256": settings.data,
        "held_back_nmae": score,
        "created": now(),
        **({} if domain is None else {"seen": json.loads(domain.to_json())}),
        **(about or {}),
    }
    return write_weights(
        path,
        weights,
        format=FORMAT,
        config=trained.config.to_json(),
        about=origin,
        half=half,
        exact=("prior",),
    )


def _takes_the_name(path: Path) -> bool:
    """Return whether a path goes before packaged weights of its name: a folder with a dataset does not."""
    return path.exists() and not (path / INDEX).exists()


def _read(path: str | Path | None, which: Which, species: Iterable[str] | None) -> DensityModel:
    if (
        path is not None
        and not _takes_the_name(Path(path))
        and str(path) in ("packaged", *packaged_species())
    ):
        path = None if str(path) == "packaged" else FOLDER / f"{path}.pt"
    if path is None and species is not None:
        path = packaged_for(species)
    if path is not None and Path(path).is_dir():
        run, weights, *_ = trained_state(Path(path), which=which)
        return _build(run.config, weights, str(path), read_domain(Path(path)))
    file = PACKAGED if path is None else Path(path)

    def parse(config: str, weights: dict[str, Tensor], about: dict[str, Any]) -> _Contents:
        domain = TrainingDomain.from_json(json.dumps(about["seen"])) if "seen" in about else None
        own, estimate = split_estimate(weights, about)
        return _Contents(DensityConfig.from_json(config), own, domain, estimate)

    contents = read_weights(file, parse, format=FORMAT, what="a density model", hint=_NAME)
    model = _build(contents.config, contents.weights, str(file), contents.domain)
    model.estimate = contents.estimate
    return model


@dataclass(frozen=True)
class _Contents:
    config: DensityConfig
    weights: dict[str, Tensor]
    domain: TrainingDomain | None
    estimate: ErrorEstimate | None


def _build(
    config: DensityConfig, weights: dict[str, Tensor], where: str, domain: TrainingDomain | None
) -> DensityModel:
    model = DensityModel(config)
    load_state(model, weights, where)
    model.domain = domain
    return model
