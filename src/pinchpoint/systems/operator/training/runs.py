"""Runs of an operator: start a new run, resume one, or load its trained model.

In addition to what every run keeps in its folder, RUN/graphs holds the graphs of its bodies, which may be
removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.common.training import runs
from pinchpoint.systems.common.training.runs import Which, count_held_back, json_values, resume_settings
from pinchpoint.systems.operator.data.dataset import Dataset
from pinchpoint.systems.operator.data.loading import fingerprint
from pinchpoint.systems.operator.metrics import Statistics, statistics_of
from pinchpoint.systems.operator.model.config import OperatorConfig, lattice_for
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.settings import Settings

SIDE = "onset_y"  # the feature that changes its sign in the mirror y -> -y
# Numbers of a body's shape that differ by less are equal: their digits are rounded.
_SAME = 1e-4  # of the size of the largest body for lengths, and of 1 for the others
_SAME_PLACE = 1e-6  # of the longest side of the box, in addition: coordinates in single precision


@dataclass(frozen=True)
class Run(runs.Run[Settings]):
    """A run folder and its settings."""

    @property
    def config(self) -> OperatorConfig:
        return OperatorConfig.from_json(json.dumps(self.settings.model))


def begin(folder: Path, data: Dataset, *, resume: bool, choices: Mapping[str, Any]) -> Run:
    """Return a new run, or with `resume` the existing one, without writing. choices: only explicit
    settings.
    """
    check_run_folder(folder, resume=resume)
    overrides = json_values(choices)
    if resume:
        return Run(folder, resume_settings(folder, read_settings(folder), overrides, data=fingerprint(data)))
    settings = apply_choices(
        Settings(),
        {
            **overrides,
            "model": {},
            "data": fingerprint(data),
            "kind": data.kind,
            "layout": json_values(data.layout.to_dict()) if data.layout is not None else {},
        },
    )
    validation_count = count_held_back(
        settings.validation,
        len(data.names("train")),
        what="bodies",
        hint="Make some with `pinchpoint operator data --train 64`.",
    )
    settings = replace(settings, validation=validation_count)
    names, _ = Run(folder, settings).split_names(data.names("train"))
    measure = 2 if data.layout is None else data.layout.measure
    statistics = statistics_of((data.sample(name) for name in names), measure=measure)
    ends = zip(statistics.feature_low, statistics.feature_high, strict=True)
    ranges = {name: list(both) for name, both in zip(data.features, ends, strict=True)}
    model = _model_config(data, statistics, settings.preset, choices.get("model", {}))
    return Run(folder, replace(settings, ranges=ranges, model=model))


def read_settings(folder: Path) -> Settings:
    """Read the settings of the run in a folder."""
    return runs.read_settings(folder, Settings, made_by="operator train")


TrainedRun = runs.TrainedRun[Operator, OperatorConfig, Settings]


def load_trained(folder: Path, *, which: Which = "last", device: str = "cpu") -> TrainedRun:
    """Load the model of a run, with averaged weights if the run has them."""
    run = Run(folder, read_settings(folder))
    return runs.load_trained(run, run.config, Operator, which=which, device=device)


def _model_config(
    data: Dataset, statistics: Statistics, preset: str, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration of the model, with the statistics of the training bodies, as JSON values."""
    fixed = {name for name in ("in_features", "out_features") if name in overrides}
    if fixed:
        raise BadInput(
            f"--set cannot change {' and '.join(sorted(fixed))}, which follow from the dataset.",
            hint="Leave them out.",
        )
    vectors = data.vectors
    # Components of unit vectors are not scaled.
    plain = {column + part for column in vectors for part in range(3)}
    known: dict[str, Any] = {
        "low": data.low,
        "high": data.high,
        "feature_shift": tuple(
            0.0 if at in plain else value for at, value in enumerate(statistics.feature_mean)
        ),
        "feature_scale": _feature_scale(data, statistics, plain),
        "target_shift": statistics.target_mean,
        "target_scale": statistics.target_std,
    }
    if data.layout is not None:
        known |= {
            "measure": data.layout.measure,
            "lattice": lattice_for(preset, data.low, data.high, panel_side=statistics.panel_side),
        }
    if not overrides.get("compat", preset == "compat"):
        known["vectors"] = tuple(vectors)
        if SIDE in data.features:
            # Bodies in a side wind have a mirror image: the sign of the wind tells the two apart.
            known |= {"mirror": data.features.index(SIDE), "turning": True}
    config = OperatorConfig.preset(
        preset,
        in_features=len(data.features),
        out_features=len(data.targets),
        panel_side=statistics.panel_side,
        **{**known, **overrides},
    )
    return json.loads(config.to_json())


def _feature_scale(data: Dataset, statistics: Statistics, plain: set[int]) -> tuple[float, ...]:
    """What every feature is divided by: its deviation, and 1 in the columns `plain`.

    A number of a body's shape that is equal in all cases is divided by the size of the largest body, or by
    1 if it is not a length: its deviation is a rounding error, and would tell the cases apart.
    """
    scale = [1.0 if at in plain else value for at, value in enumerate(statistics.feature_std)]
    if data.layout is None or not data.layout.shape:
        return tuple(scale)
    first, dimension = data.features.index(data.layout.shape[0]), data.layout.dimension
    # Places come first, then sizes, then numbers without a unit.
    largest = max(statistics.feature_high[first + dimension : first + 2 * dimension])
    side = max(high - low for low, high in zip(data.low, data.high, strict=True))
    for at in range(len(data.layout.shape)):
        unit, least = (largest, _SAME * largest + _SAME_PLACE * side) if at < 2 * dimension else (1.0, _SAME)
        if statistics.feature_high[first + at] - statistics.feature_low[first + at] <= least:
            scale[first + at] = unit
    return tuple(scale)
