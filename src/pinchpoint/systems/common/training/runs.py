"""Run folders: started, resumed, trained longer, or read for the trained model.

RUN/config.json holds the settings, RUN/log.csv one row per step, RUN/checkpoints the last two and the best,
and RUN/record.json the summary of a run that ended. A system may add files of its own.
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import json_fault, make_folder, parse_json, write_text
from pinchpoint.core.units import show_count
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.common.settings import S, TrainSettings, apply_choices, differences
from pinchpoint.systems.common.training.checkpoints import TORCH, Checkpoints, Codec, Entry

if TYPE_CHECKING:
    from torch import nn

Which = Literal["last", "best"]
CONFIG, LOG, RECORD = "config.json", "log.csv", "record.json"
TRAINING = "-training"  # the end of the kind of every run's record, after the name of its system
C = TypeVar("C")  # the configuration of a model
Net = TypeVar("Net", bound="nn.Module")
RESTORE = "Restore the checkpoints that this run wrote, or start again with another -o."


@dataclass(frozen=True)
class RunFolder(ABC):
    """The folder of a run. A subclass adds the settings."""

    codec: ClassVar[Codec] = TORCH

    folder: Path

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of the whole run."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the settings as config.json and every checkpoint hold them."""

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints", self.codec)

    def last_path(self) -> Path | None:
        """Return the file of the last checkpoint."""
        entry = self.checkpoints.last()
        return None if entry is None else self.checkpoints.folder / entry.file

    @property
    def log_path(self) -> Path:
        return self.folder / LOG

    def exists(self) -> bool:
        return (self.folder / CONFIG).exists()

    def write(self) -> None:
        """Write config.json: from here on the folder holds a run."""
        make_folder(self.folder)
        write_text(self.folder / CONFIG, json.dumps(self.to_dict(), indent=1) + "\n")


@dataclass(frozen=True)
class Run(RunFolder, Generic[S]):
    """The folder and the settings of a torch run."""

    settings: S

    @property
    def steps(self) -> int:
        return self.settings.steps

    def to_dict(self) -> dict[str, Any]:
        return self.settings.to_dict()

    def resumed_state(self) -> dict[str, Any] | None:
        """Return the state of the last checkpoint; None if there is none yet."""
        entry = self.checkpoints.last()
        if entry is None:
            return None
        state = self.checkpoints.load(entry)
        try:
            stored, step = type(self.settings).from_dict(state["settings"]), state["step"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(
                f"{self.checkpoints.folder / entry.file} does not hold the state of such a run.", hint=RESTORE
            ) from error
        if step == stored.steps < self.settings.steps:  # a complete run that is now trained longer
            stored = replace(stored, steps=self.settings.steps)
        differ = differences(stored, self.settings.to_dict())
        if differ:
            raise BadInput(
                f"{self.checkpoints.folder / entry.file} was written with other settings: "
                f"{'; '.join(differ)}.",
                hint=RESTORE,
            )
        return state

    def split_names(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Split the training names into those to train with and the last ones, which validate."""
        cut = len(names) - (self.settings.validation or 0)
        return names[:cut], names[cut:]

    def load_weights(self, model: nn.Module, entry: Entry, *, key: str = "model") -> None:
        """Load a checkpoint's weights into a model: averaged ones if there are any, else those of `key`."""
        state = self.checkpoints.load(entry)
        try:
            model.load_state_dict(state["ema"] or state[key])
        except (RuntimeError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInput(
                f"{entry.file} in {self.folder} does not hold the {key} that config.json describes.",
                hint="Restore the files that this run wrote.",
            ) from error

    def find_checkpoint(self, which: Which) -> Entry:
        """Return the last or the best checkpoint; BadInput if there is none."""
        if which not in ("last", "best"):
            raise BadInput(f"There is no checkpoint called {which!r}.", hint="Use last or best.")
        entry = self.checkpoints.last() if which == "last" else self.checkpoints.best()
        if entry is None:
            what, hint = self._lacking()
            raise BadInput(f"The run in {self.folder} has no {what}.", hint=hint)
        return entry

    def _lacking(self) -> tuple[str, str]:
        """Return what is missing if there is no checkpoint, or none with a score, and the hint."""
        last = self.checkpoints.last()
        if last is None:
            return "checkpoint", "Train it, or restore the files of its folder checkpoints."
        if (unscored := self.settings.unscored()) is not None:
            return f"best checkpoint: {unscored[0]}", unscored[1]
        return (
            f"best checkpoint: none was scored up to step {last.step:,}",
            "Use --checkpoint last, or resume the run with --resume: "
            f"checkpoints are scored every {self.settings.eval_steps():,} steps and at the last step.",
        )


RunT = TypeVar("RunT", bound=Run[Any])


@dataclass(frozen=True)
class TrainedRun(Generic[Net, C, S]):
    """A model with its weights, ready to predict."""

    model: Net
    config: C
    settings: S
    step: int  # of the checkpoint


def load_trained(
    run: Run[S], config: C, build: Callable[[C], Net], *, which: Which, device: str, key: str = "model"
) -> TrainedRun[Net, C, S]:
    """Load the model of a run from its last or best checkpoint, with averaged weights if the run has them.

    key: of the weights in the checkpoint.
    """
    entry = run.find_checkpoint(which)
    try:
        model = build(config)
    except (RuntimeError, MemoryError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(
            f"The model that {run.folder / CONFIG} describes cannot be built: "
            f"{str(error)[:200].rstrip('.')}.",
            hint="Restore config.json, or train again with another -o.",
        ) from error
    run.load_weights(model, entry, key=key)
    return TrainedRun(model.to(device).eval(), config, run.settings, entry.step)


def data_folder(data: str | Path | None, run: Path, kind: type[S], *, resume: bool, system: str) -> Path:
    """Return the folder of the data to train on: `data`, or that of the run that is resumed."""
    if data is not None:
        return Path(data)
    command = ["pinchpoint", system, "train", "DATA", "-o", str(run)]
    if not resume:
        raise BadInput("There is no DATA to train on.", hint=f"Name its folder: {shlex.join(command)}.")
    check_run_folder(run, resume=True)
    settings = read_settings(run, kind, made_by=f"{system} train")
    for path in filter(None, (settings.data_path, settings.data_given)):
        if Path(path).is_dir():
            return Path(path)
    raise BadInput(
        f"The dataset of the run in {run} is missing: there is no folder {settings.data_path}.",
        hint=f"If it was moved, name its new folder: {shlex.join([*command, '--resume'])}.",
    )


def at_data(run: RunT, folder: Path, data: str | Path | None) -> RunT:
    """Return the run with the folder of its data, which config.json then holds.

    data: the folder as the user named it; None keeps the name that a resumed run has.
    """
    paths = {"data_path": str(folder.resolve())}
    if data is not None:
        paths["data_given"] = str(data)
    return replace(run, settings=replace(run.settings, **paths))


def resume_settings(folder: Path, stored: S, overrides: Mapping[str, Any], *, data: str) -> S:
    """Return the settings to resume the run in a folder: `stored`, with overrides that a run may change.

    A complete run may get more steps. data: the fingerprint of the dataset of this call.
    """
    if _is_longer(folder, stored, overrides):
        stored = replace(stored, steps=overrides["steps"])
    differ = differences(stored, {**overrides, "data": data})
    steps = overrides.get("steps", stored.steps)
    if len(differ) == 1 and isinstance(steps, int) and steps < stored.steps:
        raise BadInput(
            f"The run in {folder} is of {show_count(stored.steps, 'step')} and cannot be made shorter: "
            f"--steps {steps}.",
            hint=f"Leave --steps out, or give more than {stored.steps:,} to train it longer; start a shorter "
            "run with another -o.",
        )
    if differ:
        actions = ["give the dataset it was started with"] if data != stored.data else []
        actions += _ranks_hint(stored, overrides)
        actions += ["leave these options out"] if len(differ) > len(actions) else []
        hint = " and ".join(actions)
        raise BadInput(
            f"The run in {folder} was started with other settings: {'; '.join(differ)}.",
            hint=f"{hint[0].upper()}{hint[1:]} to resume it, or start a new run with another -o.",
        )
    return apply_choices(stored, {name: value for name, value in overrides.items() if name != "model"})


def _ranks_hint(stored: TrainSettings, overrides: Mapping[str, Any]) -> list[str]:
    """Return how to start as many processes as before: torchrun sets their number, not an option."""
    ranks = getattr(stored, "ranks", 1)
    if overrides.get("ranks", ranks) == ranks:
        return []
    return [
        f"start it with `torchrun --nproc-per-node {ranks}`" if ranks > 1 else "start it without torchrun"
    ]


def _is_longer(folder: Path, stored: TrainSettings, overrides: Mapping[str, Any]) -> bool:
    """Return whether the run is to be trained longer, which needs a complete run.

    Its learning rate then follows the cosine of the new length from the step it is at. Changing the length
    half-way through a schedule would give a run that no command could repeat.
    """
    steps = overrides.get("steps", stored.steps)
    if not isinstance(steps, int) or steps <= stored.steps:
        return False
    last_step = Run(folder, stored).checkpoints.last_step()
    if last_step < stored.steps:
        raise BadInput(
            f"The run in {folder} is at step {last_step:,} of {stored.steps:,}; only a finished run can be "
            f"longer: steps (was {stored.steps}, is {steps}).",
            hint=f"Finish it with --resume alone, then train it longer with --resume --steps {steps}.",
        )
    return True


class Config(Protocol):
    """Settings that config.json can hold."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self: ...


ConfigT = TypeVar("ConfigT", bound=Config)


def read_settings(folder: Path, kind: type[ConfigT], *, made_by: str) -> ConfigT:
    """Return the settings of the run in a folder. made_by: the command that writes such runs: cloud train."""
    path = folder / CONFIG
    _refuse_other_system(folder, made_by)
    try:
        return kind.from_dict(parse_json(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(
            f"There is no run in {folder}: {path} cannot be read.",
            hint=f"Name a folder that `{made_by}` wrote.",
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{path} is damaged: {json_fault(error)}.", hint="Restore it, or train again with another -o."
        ) from error


def _refuse_other_system(folder: Path, made_by: str) -> None:
    """Refuse a run of another system, which its record names: config.json would seem damaged."""
    try:
        kind = parse_json((folder / RECORD).read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no record yet
    system = made_by.split()[0]
    if isinstance(kind, str) and kind.endswith(TRAINING) and kind != system + TRAINING:
        raise BadInput(
            f"{folder} is a run of {kind.removesuffix(TRAINING)}, not {system}.",
            hint=f"Name a folder that `{made_by}` wrote.",
        )


def json_values(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return choices as config.json would hold them, to compare with it."""
    return json.loads(json.dumps(dict(choices)))


def count_held_back(setting: int | None, count: int, *, what: str, hint: str) -> int:
    """Return how many of `count` items to hold back for validation: by default an eighth, at most 4.

    hint: how to make some if there are none.
    """
    if not count:
        raise BadInput(f"The dataset has no {what} to train with.", hint=hint)
    validation_count = min(4, count // 8) if setting is None else setting
    if validation_count >= count:
        raise BadInput(
            f"{validation_count} of {count} training {what} would be held back.",
            hint=f"Give --set validation a smaller number, or make more {what}.",
        )
    return validation_count
