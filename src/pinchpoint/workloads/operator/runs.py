"""The folder of a run: begun anew, taken up again, or read for its trained model.

RUN/config.json is what it was told, RUN/log.csv a row a step, RUN/checkpoints the last two and the
best, RUN/record.json the summary of a run that ended, RUN/graphs the graphs of its bodies, which may be removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_text
from pinchpoint.workloads.operator.checkpoints import Checkpoints
from pinchpoint.workloads.operator.config import OperatorConfig
from pinchpoint.workloads.operator.dataset import Dataset
from pinchpoint.workloads.operator.metrics import Statistics, statistics_of
from pinchpoint.workloads.operator.model import Operator
from pinchpoint.workloads.operator.settings import Settings, chosen, differing
from pinchpoint.workloads.operator.supply import fingerprint

Which = Literal["last", "best"]
SIDE = "onset_y"  # the feature that changes its sign in the mirror y -> -y


@dataclass(frozen=True)
class Run:
    """A folder and what the run in it is told."""

    folder: Path
    settings: Settings

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints")

    @property
    def config(self) -> OperatorConfig:
        return OperatorConfig.from_json(json.dumps(self.settings.model))

    def write(self) -> None:
        """config.json: from here on the folder holds a run."""
        make_folder(self.folder)
        write_text(self.folder / "config.json", json.dumps(self.settings.to_dict(), indent=1) + "\n")

    def train_names(self, data: Dataset) -> list[str]:
        names = data.names("train")
        return names[: len(names) - (self.settings.validation or 0)]

    def held_names(self, data: Dataset) -> list[str]:
        names = data.names("train")
        return names[len(names) - (self.settings.validation or 0) :]

    def resumed_state(self) -> dict[str, Any] | None:
        """The last checkpoint; None where the run ended before its first."""
        entry = self.checkpoints.last()
        if entry is None:
            return None
        state = self.checkpoints.load(entry)
        differ = differing(Settings.from_dict(state["settings"]), self.settings.to_dict())
        if differ:
            raise BadInput(
                f"{self.folder / 'checkpoints' / entry.file} is of another configuration: {'; '.join(differ)}",
                mend="put back the checkpoints this run wrote, or start again with another -o",
            )
        return state


_OF_OTHERS = ("index.json", "evaluation.json")  # what a data set and an evaluation keep in their folders


def begin(folder: Path, data: Dataset, *, resume: bool, choices: Mapping[str, Any]) -> Run:
    """A new run, or with `resume` the one that is there; nothing is written. `choices`: only what was asked for."""
    there = (folder / "config.json").exists()
    if not there and (other := next((name for name in _OF_OTHERS if (folder / name).exists()), None)) is not None:
        raise BadInput(f"{folder} holds something else: {other} is in it", mend="choose a folder of its own for the run with -o")
    if there and not resume:
        raise BadInput(f"{folder} already holds a run", mend="go on with --resume, or choose another -o")
    if resume and not there:
        raise BadInput(f"no run in {folder} to resume", mend="leave out --resume to begin one, or name the run's folder with -o")
    asked = json.loads(json.dumps(dict(choices)))
    if resume:
        stored = read_settings(folder)
        differ = differing(stored, {**asked, "data": fingerprint(data)})
        if differ:
            raise BadInput(
                f"the run in {folder} was begun with another configuration: {'; '.join(differ)}",
                mend="leave these options out to go on with its own, or start a new run with another -o",
            )
        return Run(folder, chosen(stored, {name: value for name, value in asked.items() if name != "model"}))
    settings = chosen(Settings(), {**asked, "model": {}, "data": fingerprint(data), "kind": data.kind})
    settings = replace(settings, validation=_held(settings.validation, len(data.names("train"))))
    found = statistics_of(data.sample(name) for name in Run(folder, settings).train_names(data))
    ends = zip(found.feature_low, found.feature_high, strict=True)
    ranges = {name: list(both) for name, both in zip(data.features, ends, strict=True)}
    model = _configured(data, found, settings.preset, choices.get("model", {}))
    return Run(folder, replace(settings, ranges=ranges, model=model))


def read_settings(folder: Path) -> Settings:
    """What the run in a folder was told."""
    path = folder / "config.json"
    try:
        return Settings.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"no run in {folder}: {path} cannot be read", mend="name a folder that `operator train` made") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is damaged: {error}", mend="restore it, or train again with another -o") from error


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
    if which not in ("last", "best"):
        raise BadInput(f"unknown checkpoint {which!r}", mend="use last or best")
    entry = run.checkpoints.last() if which == "last" else run.checkpoints.best()
    if entry is None:
        what = "checkpoint" if which == "last" else "best checkpoint: no bodies were held back"
        raise BadInput(f"the run in {folder} has no {what}", mend="train it, or take --checkpoint last")
    state = run.checkpoints.load(entry)
    model = Operator(run.config)
    try:
        model.load_state_dict(state["ema"] or state["model"])
    except RuntimeError as error:
        raise BadInput(
            f"{entry.file} of {folder} does not hold the model of its config.json", mend="put back the files this run wrote"
        ) from error
    return Trained(model.to(device).eval(), run.config, run.settings, entry.step)


def _held(asked: int | None, bodies: int) -> int:
    """How many training bodies are held back; asked for none in particular, an eighth of them and at most 4."""
    if not bodies:
        raise BadInput("the data set has no bodies to train with", mend="make some: operator data --train 64")
    held = min(4, bodies // 8) if asked is None else asked
    if held >= bodies:
        raise BadInput(
            f"{held} of {bodies} training bodies would be held back", mend="give --validation fewer, or make more bodies"
        )
    return held


def _configured(data: Dataset, found: Statistics, preset: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration of the model, with the training bodies' statistics, as JSON values."""
    given = {name for name in ("in_features", "out_features") if name in overrides}
    if given:
        raise BadInput(f"--set {' and '.join(sorted(given))}", mend="they follow from the data set: leave them out")
    vectors = [column for column, name in enumerate(data.features) if name.endswith("_x")]
    # Parts of unit vectors need no other units.
    plain = {column + part for column in vectors for part in range(3)}
    known: dict[str, Any] = {
        "low": data.low, "high": data.high,
        "feature_shift": tuple(0.0 if at in plain else value for at, value in enumerate(found.feature_mean)),
        "feature_scale": tuple(1.0 if at in plain else value for at, value in enumerate(found.feature_std)),
        "target_shift": found.target_mean, "target_scale": found.target_std,
    }  # fmt: skip
    if not overrides.get("compat", preset == "compat"):
        known["vectors"] = tuple(vectors)
        # Bodies have a mirror image only where the wind has: its sign then says which of the two is read.
        known["mirror"] = data.features.index(SIDE) if SIDE in data.features else None
    config = OperatorConfig.preset(
        preset, in_features=len(data.features), out_features=len(data.targets), panel_side=found.panel_side,
        **{**known, **overrides},
    )  # fmt: skip
    return json.loads(config.to_json())
