"""The run of an operator: begun anew, taken up again, or read for its trained model.

Beside what every run keeps in its folder, RUN/graphs holds the graphs of its bodies, which may be removed.
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
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.settings import Settings

SIDE = "onset_y"  # the feature that changes its sign in the mirror y -> -y


@dataclass(frozen=True)
class Run(runs.Run[Settings]):
    """A folder and what the run in it is told."""

    @property
    def config(self) -> OperatorConfig:
        return OperatorConfig.from_json(json.dumps(self.settings.model))


def begin(folder: Path, data: Dataset, *, resume: bool, choices: Mapping[str, Any]) -> Run:
    """A new run, or, with `resume`, the existing one; nothing is written. choices: only chosen settings."""
    check_run_folder(folder, resume=resume)
    asked = json_values(choices)
    if resume:
        return Run(folder, resume_settings(folder, read_settings(folder), asked, data=fingerprint(data)))
    settings = apply_choices(Settings(), {**asked, "model": {}, "data": fingerprint(data), "kind": data.kind})
    held = count_held_back(
        settings.validation,
        len(data.names("train")),
        what="bodies",
        hint="make some: operator data --train 64",
    )
    settings = replace(settings, validation=held)
    names, _ = Run(folder, settings).split_names(data.names("train"))
    found = statistics_of(data.sample(name) for name in names)
    ends = zip(found.feature_low, found.feature_high, strict=True)
    ranges = {name: list(both) for name, both in zip(data.features, ends, strict=True)}
    model = _configured(data, found, settings.preset, choices.get("model", {}))
    return Run(folder, replace(settings, ranges=ranges, model=model))


def read_settings(folder: Path) -> Settings:
    """What the run in a folder was told."""
    return runs.read_settings(folder, Settings, made_by="operator train")


@dataclass(frozen=True)
class Trained:
    """A model with its weights, ready to predict."""

    model: Operator
    config: OperatorConfig
    settings: Settings
    step: int


def trained(folder: Path, *, which: Which = "last", device: str = "cpu") -> Trained:
    """The model of a run: averaged weights where the run kept some."""
    run = Run(folder, read_settings(folder))
    entry = run.find_checkpoint(which)
    model = Operator(run.config)
    run.load_weights(model, entry)
    return Trained(model.to(device).eval(), run.config, run.settings, entry.step)


def _configured(
    data: Dataset, found: Statistics, preset: str, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole configuration of the model, with the training bodies' statistics, as JSON values."""
    given = {name for name in ("in_features", "out_features") if name in overrides}
    if given:
        raise BadInput(
            f"--set cannot change {' and '.join(sorted(given))}, which follow from the dataset.",
            hint="Leave them out.",
        )
    vectors = [column for column, name in enumerate(data.features) if name.endswith("_x")]
    # Parts of unit vectors need no other units.
    plain = {column + part for column in vectors for part in range(3)}
    known: dict[str, Any] = {
        "low": data.low,
        "high": data.high,
        "feature_shift": tuple(0.0 if at in plain else value for at, value in enumerate(found.feature_mean)),
        "feature_scale": tuple(1.0 if at in plain else value for at, value in enumerate(found.feature_std)),
        "target_shift": found.target_mean,
        "target_scale": found.target_std,
    }
    if not overrides.get("compat", preset == "compat"):
        known["vectors"] = tuple(vectors)
        if SIDE in data.features:
            # Bodies have a mirror image where the wind has: its sign then says which of the two is read.
            known |= {"mirror": data.features.index(SIDE), "turning": True}
    config = OperatorConfig.preset(
        preset,
        in_features=len(data.features),
        out_features=len(data.targets),
        panel_side=found.panel_side,
        **{**known, **overrides},
    )
    return json.loads(config.to_json())
