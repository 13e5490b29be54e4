"""Runs of a point-cloud network: start a new run, resume one, or load its trained model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.dataset import Dataset
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.data.sources import Own, Source, fingerprint
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import CloudModel
from pinchpoint.systems.cloud.model.views import parse_views
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.common.training import runs
from pinchpoint.systems.common.training.runs import Which, count_held_back, json_values, resume_settings

_LEAST = 1e-6  # a feature that hardly varies is centred but not scaled
# Determined by the data and the other settings.
_FOLLOWS = ("in_features", "classes", "targets", "views", "feature_shift", "feature_scale")


@dataclass(frozen=True)
class Run(runs.Run[Settings]):
    """A run folder and its settings."""

    @property
    def config(self) -> CloudConfig:
        return CloudConfig.from_json(json.dumps(self.settings.model))


def begin(
    folder: Path,
    data: Dataset | Own,
    *,
    resume: bool,
    choices: Mapping[str, Any],
    ranks: int = 1,
    read: Callable[[str], Scene] | None = None,
) -> Run:
    """Return a new run, or with `resume` the existing one, without writing.

    choices: only explicit settings; read: returns a scene by name (default: `data.scene`).
    """
    check_run_folder(folder, resume=resume)
    overrides = json_values(choices)
    if "views" in overrides:
        overrides["views"] = [view.name for view in parse_views(overrides["views"])]
    if isinstance(edges := overrides.get("cell"), list) and len(edges) == 1:
        overrides["cell"] = edges[0]
    if resume:
        overrides["ranks"] = ranks
        return Run(folder, resume_settings(folder, read_settings(folder), overrides, data=fingerprint(data)))
    known = {
        "features": list(data.features),
        "classes": list(data.classes),
        "data": fingerprint(data),
        "ranks": ranks,
    }
    settings = apply_choices(Settings(), {**overrides, "model": {}, **known})
    validation_count = count_held_back(
        settings.validation,
        len(data.names("train")),
        what="scenes",
        hint="Make some with `pinchpoint cloud data --train 12`.",
    )
    settings = replace(settings, validation=validation_count)
    names, _ = Run(folder, settings).split_names(data.names("train"))
    statistics = statistics_of(map(read or data.scene, names), len(data.classes))
    config = _model_config(data, statistics, settings, choices.get("model", {}))
    return Run(folder, replace(settings, frequency=statistics.frequency, model=json.loads(config.to_json())))


def read_settings(folder: Path) -> Settings:
    """Read the settings of the run in a folder."""
    return runs.read_settings(folder, Settings, made_by="cloud train")


TrainedRun = runs.TrainedRun[CloudModel, CloudConfig, Settings]


def load_trained(folder: str | Path, *, which: Which = "last", device: str = "cpu") -> TrainedRun:
    """Load the model of a run, with averaged weights if the run has them."""
    run = Run(Path(folder), read_settings(Path(folder)))
    return runs.load_trained(run, run.config, CloudModel, which=which, device=device)


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of each feature and share of each class, over all training points."""

    mean: list[float]
    spread: list[float]
    frequency: list[float]


def statistics_of(scenes: Iterable[Scene], classes: int) -> Statistics:
    """Compute statistics in double precision. Features that hardly vary get a spread of 1."""
    points, counts = 0, np.zeros(classes, dtype=np.int64)
    sums, squares = np.zeros(()), np.zeros(())
    for scene in scenes:
        values = scene.features.astype(np.float64)
        points += len(values)
        sums, squares = sums + values.sum(axis=0), squares + (values**2).sum(axis=0)
        if scene.labels is not None:
            counts += np.bincount(scene.labels[scene.labels >= 0], minlength=classes)
    if classes and not counts.sum():
        raise BadInput(
            "No point of the training scenes has a class.", hint="Give scenes with labels of 0 or more."
        )
    mean = sums / points
    spread = np.sqrt(np.maximum(squares / points - mean**2, 0))
    spread = np.where(spread > _LEAST, spread, 1.0)
    return Statistics(mean.tolist(), spread.tolist(), (counts / max(1, counts.sum())).tolist())


def _model_config(
    data: Source, statistics: Statistics, settings: Settings, overrides: Mapping[str, Any]
) -> CloudConfig:
    """Return the configuration of the model, with the statistics of the training scenes."""
    fixed = [name for name in _FOLLOWS if name in overrides]
    if fixed:
        raise BadInput(
            f"--set {' and '.join(fixed)} cannot be chosen: they follow from the dataset and the views.",
            hint="Leave them out.",
        )
    config = CloudConfig.preset(
        settings.preset,
        in_features=len(data.features),
        classes=len(data.classes),
        targets=data.target_width if isinstance(data, Own) else 0,
        feature_shift=tuple(statistics.mean),
        feature_scale=tuple(statistics.spread),
        **overrides,
    )
    if config.norm == "per-view":
        config = replace(config, views=len(settings.views))
    if config.norm == "batch" and settings.views_mode == "accumulate" and settings.views_per_step > 1:
        raise BadInput(
            "The norm batch needs all views together, so views cannot be processed one after another.",
            hint="Give --set norm=layer or norm=per-view, or --set views_mode=batched.",
        )
    return config
