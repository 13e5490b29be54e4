"""Runs of a density model: start a new run, resume one, or load its trained weights.

In addition to what every run keeps in its folder, RUN/seen.json holds the domain of its training structures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.common.training import runs
from pinchpoint.systems.common.training.runs import Which, count_held_back, json_values, resume_settings
from pinchpoint.systems.common.training.sample_order import at_turn
from pinchpoint.systems.density.data.atomic import load_table
from pinchpoint.systems.density.data.batches import item_of
from pinchpoint.systems.density.data.dataset import Dataset
from pinchpoint.systems.density.data.domain import TrainingDomain
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.settings import Settings

COUNTED_GEOMETRIES = 32  # whose neighbours are counted before a run
DOMAIN_FILE = "seen.json"
LOCAL_WIDTH = 64  # of the local network that corrects a trained one


@dataclass(frozen=True)
class Run(runs.Run[Settings]):
    """A run folder and its settings."""

    @property
    def config(self) -> DensityConfig:
        return DensityConfig.from_json(json.dumps(self.settings.model))


def begin(
    folder: Path,
    data: Dataset,
    *,
    resume: bool,
    choices: Mapping[str, Any],
    first: DensityConfig | None = None,
) -> Run:
    """Return a new run, or with `resume` the existing one, without writing.

    choices: only explicit settings. first: the configuration of the trained network that a new run corrects.
    """
    check_run_folder(folder, resume=resume)
    overrides = json_values(choices)
    if resume:
        return Run(folder, resume_settings(folder, read_settings(folder), overrides, data=fingerprint(data)))
    settings = apply_choices(Settings(), {**overrides, "model": {}, "data": fingerprint(data)})
    count = len(data.names("train"))
    validation_count = count_held_back(
        settings.validation, count, what="geometries", hint="Make some with `pinchpoint density data`."
    )
    run = Run(folder, replace(settings, validation=validation_count))
    if first is not None:
        config = _corrected_config(data, first, choices)
    else:
        config = _model_config(data, run, choices.get("model", {}))
    return replace(run, settings=replace(run.settings, model=json.loads(config.to_json())))


def read_settings(folder: Path) -> Settings:
    """Read the settings of the run in a folder."""
    return runs.read_settings(folder, Settings, made_by="density train")


def trained_state(folder: Path, *, which: Which = "best") -> tuple[Run, dict[str, Tensor], int, float | None]:
    """Return a run, the weights of its best or last checkpoint (averaged where it has them), their step and
    error.
    """
    run = Run(folder, read_settings(folder))
    if which == "best" and run.checkpoints.best() is None:
        which = "last"
    entry = run.find_checkpoint(which)
    state = run.checkpoints.load(entry)
    weights = state["ema"] or state["model"]
    return run, {name: value.to(torch.float32) for name, value in weights.items()}, entry.step, entry.score


def read_domain(folder: Path) -> TrainingDomain | None:
    """Return the domain of a run's training data; None where the run has no such file."""
    path = folder / DOMAIN_FILE
    if not path.is_file():
        return None
    try:
        return TrainingDomain.from_json(path.read_text(encoding="utf-8"))
    except (BadInput, ValueError, OSError) as error:
        why = error.what if isinstance(error, BadInput) else str(error)
        raise BadInput(
            f"{path} is damaged: {why}",
            hint="Restore it, or remove it; structures are then not compared with the training data.",
        ) from error


def fingerprint(data: Dataset) -> str:
    """Return a hash that identifies a dataset wherever it is stored: that of its training samples' files."""
    files = [(name, data.samples[name]["sha256"]) for name in data.names("train")]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def _model_config(data: Dataset, run: Run, overrides: Mapping[str, Any]) -> DensityConfig:
    """Return the model's configuration, completed from the training geometries."""
    if "species" in overrides:
        raise BadInput(
            "--set species is not allowed: the species follow from the dataset.",
            hint="Leave --set species out.",
        )
    names, _ = run.split_names(data.names("train"))
    # A few geometries represent all of them: reading one draws all its probes again, which is slow. They are
    # chosen at random, because molecules come in turn and every n-th geometry may be of the same molecule.
    some = [
        data.sample(at_turn(names, seed=0, turn=turn)) for turn in range(min(len(names), COUNTED_GEOMETRIES))
    ]
    species = data.species
    # Where the atoms' densities are known, the model only has to learn what bonding changes.
    prior = set(species) <= set(load_table().species)
    known: dict[str, Any] = {"spin": data.spin, "prior": prior, **overrides}
    config = DensityConfig.preset(run.settings.preset, species, **known)
    if "mean_neighbours" in overrides:
        return config
    return replace(config, mean_neighbours=round(_neighbours(some, config), 2))


def _corrected_config(data: Dataset, first: DensityConfig, choices: Mapping[str, Any]) -> DensityConfig:
    """Return the configuration of a trained network with a local network added."""
    model = dict(choices.get("model", {}))
    width = model.pop("local", LOCAL_WIDTH)
    fixed = [f"--set {name}" for name in model] + (["--preset"] if "preset" in choices else [])
    if fixed:
        raise BadInput(
            f"{', '.join(fixed)} cannot change the network of --first, which is kept as it is.",
            hint="Leave out these options, or --first; only --set local is possible with it.",
        )
    if width < 1:
        raise BadInput(
            f"--set local={width} leaves nothing to train: the network of --first is kept as it is.",
            hint="Give the width of the local network, such as --set local=64, or leave out --first.",
        )
    first.index_of(data.species)  # raises BadInput for a species that the first network does not know
    return replace(first, local=width)


def _neighbours(samples: list[Sample], config: DensityConfig) -> float:
    """Return the mean number of atoms within the cutoff of an atom."""
    graphs = [item_of(sample, config).atoms for sample in samples]
    edges, atoms = (sum(len(getattr(graph, name)) for graph in graphs) for name in ("source", "species"))
    return max(1.0, edges / atoms)
