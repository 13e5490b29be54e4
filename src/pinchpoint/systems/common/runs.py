"""The folder of a run: refused, begun, taken up again, trained longer.

RUN/config.json is what it was told, RUN/log.csv a row a step, RUN/checkpoints the last two and the
best, RUN/record.json the summary of a run that ended. What a system keeps beside them is its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_text
from pinchpoint.systems.common.checkpoints import Checkpoints, Entry
from pinchpoint.systems.common.settings import Common, Told, chosen, differing

if TYPE_CHECKING:
    from torch import nn

Which = Literal["last", "best"]
CONFIG = "config.json"


@dataclass(frozen=True)
class Run(Generic[Told]):
    """A folder and what the run in it is told."""

    folder: Path
    settings: Told

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints")

    def write(self) -> None:
        """config.json: from here on the folder holds a run."""
        make_folder(self.folder)
        write_text(self.folder / CONFIG, json.dumps(self.settings.to_dict(), indent=1) + "\n")

    def resumed_state(self) -> dict[str, Any] | None:
        """The last checkpoint; None where the run ended before its first."""
        entry = self.checkpoints.last()
        if entry is None:
            return None
        state = self.checkpoints.load(entry)
        stored = type(self.settings).from_dict(state["settings"])
        if state["step"] == stored.steps < self.settings.steps:  # the end of a run that is now trained longer
            stored = replace(stored, steps=self.settings.steps)
        differ = differing(stored, self.settings.to_dict())
        if differ:
            raise BadInput(
                f"{self.folder / 'checkpoints' / entry.file} is of another configuration: {'; '.join(differ)}",
                hint="put back the checkpoints this run wrote, or start again with another -o",
            )
        return state

    def parted(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Of the names of the training split those to train with, and those held back: the last."""
        cut = len(names) - (self.settings.validation or 0)
        return names[:cut], names[cut:]

    def fill(self, model: nn.Module, entry: Entry, *, key: str = "model") -> None:
        """Give a model the weights of a checkpoint: averaged ones where the run kept some, else those under `key`."""
        state = self.checkpoints.load(entry)
        try:
            model.load_state_dict(state["ema"] or state[key])
        except (RuntimeError, KeyError) as error:
            raise BadInput(
                f"{entry.file} of {self.folder} does not hold the {key} of its config.json",
                hint="put back the files this run wrote",
            ) from error

    def found(self, which: Which) -> Entry:
        """The last or the best checkpoint; BadInput where there is none."""
        if which not in ("last", "best"):
            raise BadInput(f"unknown checkpoint {which!r}", hint="use last or best")
        entry = self.checkpoints.last() if which == "last" else self.checkpoints.best()
        if entry is None:
            what, hint = self._lacking()
            raise BadInput(f"the run in {self.folder} has no {what}", hint=hint)
        return entry

    def _lacking(self) -> tuple[str, str]:
        """Why there is no checkpoint, or none that has a score: what, and the hint."""
        last = self.checkpoints.last()
        if last is None:
            return "checkpoint", "train it, or put back the files that were in its folder checkpoints"
        if (unscored := self.settings.unscored()) is not None:
            return f"best checkpoint: {unscored[0]}", unscored[1]
        return (
            f"best checkpoint: none was scored up to step {last.step:,}",
            "use --checkpoint last, or go on with --resume: "
            f"scores are taken every {self.settings.eval_steps():,} steps and at the last",
        )


def taken_up(folder: Path, stored: Told, asked: Mapping[str, Any], *, data: str) -> Told:
    """What the run in a folder goes on with: `stored`, with what may change; more steps where it has taken all of its own.

    data: the fingerprint of the data set that is given now.
    """
    if _longer(folder, stored, asked):
        stored = replace(stored, steps=asked["steps"])
    differ = differing(stored, {**asked, "data": data})
    if differ:
        todo = ["give the data set it was begun with"] if data != stored.data else []
        todo += _with_ranks(stored, asked)
        todo += ["leave these options out"] if len(differ) > len(todo) else []
        raise BadInput(
            f"the run in {folder} was begun with another configuration: {'; '.join(differ)}",
            hint=f"{' and '.join(todo)} to go on with its own, or start a new run with another -o",
        )
    return chosen(stored, {name: value for name, value in asked.items() if name != "model"})


def _with_ranks(stored: Common, asked: Mapping[str, Any]) -> list[str]:
    """How to have the processes a run was begun with, where it is not: torchrun chooses them, and no option of ours."""
    was = getattr(stored, "ranks", 1)
    if asked.get("ranks", was) == was:
        return []
    return [f"start it with `torchrun --nproc-per-node {was}`" if was > 1 else "start it without torchrun"]


def _longer(folder: Path, stored: Common, asked: Mapping[str, Any]) -> bool:
    """Whether more steps are asked for, of a run that can take them: one whose schedule has come to its end.

    Its rate then follows the cosine of the new length from the step it is at. Half-way through a schedule another
    length would make a run that no command could repeat.
    """
    steps = asked.get("steps", stored.steps)
    if not isinstance(steps, int) or steps <= stored.steps:
        return False
    last = Run(folder, stored).checkpoints.last()
    at = 0 if last is None else last.step
    if at < stored.steps:
        raise BadInput(
            f"the run in {folder} is at step {at:,} of {stored.steps:,}: steps (was {stored.steps}, is {steps})",
            hint=f"let it end first with --resume alone, then train it longer with --resume --steps {steps}",
        )
    return True


def read_settings(folder: Path, kind: type[Told], *, made_by: str) -> Told:
    """What the run in a folder was told. made_by: the command that makes such runs."""
    path = folder / CONFIG
    try:
        return kind.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(
            f"no run in {folder}: {path} cannot be read", hint=f"name a folder that `{made_by}` made"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path} is damaged: {error}", hint="restore it, or train again with another -o"
        ) from error


def plain(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Choices as config.json would hold them, to be compared with it."""
    return json.loads(json.dumps(dict(choices)))


def held_back(asked: int | None, count: int, *, what: str, hint: str) -> int:
    """How many of `count` are held back; asked for none in particular, an eighth of them and at most 4.

    hint: how to make some, where there are none.
    """
    if not count:
        raise BadInput(f"the data set has no {what} to train with", hint=hint)
    held = min(4, count // 8) if asked is None else asked
    if held >= count:
        raise BadInput(
            f"{held} of {count} training {what} would be held back",
            hint=f"give --validation fewer, or make more {what}",
        )
    return held
