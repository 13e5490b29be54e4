"""The folder of a run: refused, begun, resumed, trained longer.

RUN/config.json holds the settings, RUN/log.csv one row per step, RUN/checkpoints the last two and the best,
and RUN/record.json the summary of a run that ended. A system may keep files of its own beside them.
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_text
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.common.settings import S, TrainSettings, apply_choices, differences
from pinchpoint.systems.common.training.checkpoints import TORCH, Checkpoints, Codec, Entry

if TYPE_CHECKING:
    from torch import nn

Which = Literal["last", "best"]
CONFIG, LOG, RECORD = "config.json", "log.csv", "record.json"
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
        """The settings, as config.json and every checkpoint hold them."""

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints", self.codec)

    def last_path(self) -> Path | None:
        """The file of the last checkpoint."""
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
    """A folder and the settings of the torch run in it."""

    settings: S

    @property
    def steps(self) -> int:
        return self.settings.steps

    def to_dict(self) -> dict[str, Any]:
        return self.settings.to_dict()

    def resumed_state(self) -> dict[str, Any] | None:
        """The state of the last checkpoint; None where there is none yet."""
        entry = self.checkpoints.last()
        if entry is None:
            return None
        state = self.checkpoints.load(entry)
        stored = type(self.settings).from_dict(state["settings"])
        if state["step"] == stored.steps < self.settings.steps:  # a complete run that is now trained longer
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
        """Split the names of the training split: those to train with, and the last ones, held back to
        validate.
        """
        cut = len(names) - (self.settings.validation or 0)
        return names[:cut], names[cut:]

    def load_weights(self, model: nn.Module, entry: Entry, *, key: str = "model") -> None:
        """Load a checkpoint's weights into a model: the averaged ones where the run kept them, else those
        under `key`.
        """
        state = self.checkpoints.load(entry)
        try:
            model.load_state_dict(state["ema"] or state[key])
        except (RuntimeError, KeyError) as error:
            raise BadInput(
                f"{entry.file} in {self.folder} does not hold the {key} that config.json describes.",
                hint="Restore the files that this run wrote.",
            ) from error

    def find_checkpoint(self, which: Which) -> Entry:
        """The last or the best checkpoint; BadInput where there is none."""
        if which not in ("last", "best"):
            raise BadInput(f"There is no checkpoint called {which!r}.", hint="Use last or best.")
        entry = self.checkpoints.last() if which == "last" else self.checkpoints.best()
        if entry is None:
            what, hint = self._lacking()
            raise BadInput(f"The run in {self.folder} has no {what}.", hint=hint)
        return entry

    def _lacking(self) -> tuple[str, str]:
        """What is missing where there is no checkpoint, or none with a score, and the hint."""
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


def data_folder(data: str | Path | None, run: Path, kind: type[S], *, resume: bool, system: str) -> Path:
    """The folder of the data to train on: the one that is given, or that of the run that is resumed."""
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
        f"The data set of the run in {run} is missing: there is no folder {settings.data_path}.",
        hint=f"If it was moved, name its new folder: {shlex.join([*command, '--resume'])}.",
    )


def at_data(run: RunT, data: str | Path) -> RunT:
    """The run with the folder of its data, which config.json then remembers."""
    where = {"data_path": str(Path(data).resolve()), "data_given": str(data)}
    return replace(run, settings=replace(run.settings, **where))


def resume_settings(folder: Path, stored: S, asked: Mapping[str, Any], *, data: str) -> S:
    """The settings to resume the run in a folder with: `stored` with what may change, and more steps if it is
    complete.

    data: the fingerprint of the data set of this call.
    """
    if _longer(folder, stored, asked):
        stored = replace(stored, steps=asked["steps"])
    differ = differences(stored, {**asked, "data": data})
    if differ:
        todo = ["give the data set it was started with"] if data != stored.data else []
        todo += _with_ranks(stored, asked)
        todo += ["leave these options out"] if len(differ) > len(todo) else []
        todo_text = " and ".join(todo)
        raise BadInput(
            f"The run in {folder} was started with other settings: {'; '.join(differ)}.",
            hint=f"{todo_text[0].upper()}{todo_text[1:]} to resume it, or start a new run with another -o.",
        )
    return apply_choices(stored, {name: value for name, value in asked.items() if name != "model"})


def _with_ranks(stored: TrainSettings, asked: Mapping[str, Any]) -> list[str]:
    """How to get the number of processes a run was started with, which torchrun sets and no option does."""
    was = getattr(stored, "ranks", 1)
    if asked.get("ranks", was) == was:
        return []
    return [f"start it with `torchrun --nproc-per-node {was}`" if was > 1 else "start it without torchrun"]


def _longer(folder: Path, stored: TrainSettings, asked: Mapping[str, Any]) -> bool:
    """Whether the run is to be trained longer, which needs a run that is complete.

    Its learning rate then follows the cosine of the new length from the step it is at. Changing the length
    half-way through a schedule would give a run that no command could repeat.
    """
    steps = asked.get("steps", stored.steps)
    if not isinstance(steps, int) or steps <= stored.steps:
        return False
    at = Run(folder, stored).checkpoints.last_step()
    if at < stored.steps:
        raise BadInput(
            f"The run in {folder} is at step {at:,} of {stored.steps:,}; only a finished run can be longer: "
            f"steps (was {stored.steps}, is {steps}).",
            hint=f"Finish it with --resume alone, then train it longer with --resume --steps {steps}.",
        )
    return True


class Config(Protocol):
    """Settings that config.json can hold."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self: ...


ConfigT = TypeVar("ConfigT", bound=Config)


def read_settings(folder: Path, kind: type[ConfigT], *, made_by: str) -> ConfigT:
    """The settings of the run in a folder. made_by: the command that writes such runs."""
    path = folder / CONFIG
    try:
        return kind.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(
            f"There is no run in {folder}: {path} cannot be read.",
            hint=f"Name a folder that `{made_by}` wrote.",
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(
            f"{path} is damaged: {error}.", hint="Restore it, or train again with another -o."
        ) from error


def json_values(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Choices as config.json would hold them, to compare with it."""
    return json.loads(json.dumps(dict(choices)))


def count_held_back(asked: int | None, count: int, *, what: str, hint: str) -> int:
    """How many of `count` items to hold back for validation: by default an eighth of them, at most 4.

    hint: how to make some, where there are none.
    """
    if not count:
        raise BadInput(f"The data set has no {what} to train with.", hint=hint)
    held = min(4, count // 8) if asked is None else asked
    if held >= count:
        raise BadInput(
            f"{held} of {count} training {what} would be held back.",
            hint=f"Give --set validation a smaller number, or make more {what}.",
        )
    return held
