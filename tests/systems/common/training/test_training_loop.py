"""The loop of any system, with a learner of one number: what is saved, what is refused, what goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from pinchpoint.core.errors import Diverged
from pinchpoint.core.records import Record
from pinchpoint.systems.common.settings import TrainSettings
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.optimizer import Updates
from pinchpoint.systems.common.training.runs import Run
from pinchpoint.systems.common.training.torch_loop import take_steps
from pinchpoint.systems.common.training.training_loop import Ended, Report, preparing


@dataclass(frozen=True)
class Told(Record):
    kind: ClassVar[str] = "told"
    step: int
    loss: float | None
    validation: float | None

    def summary(self) -> list[tuple[str, str]]:
        return []


class Toy:
    """Learns the number 3. `after(step)`: called when a step is done."""

    holds_back = True

    def __init__(self, told: TrainSettings, *, score: Any = None, after: Any = None) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.updates, self.score, self.after = Updates(self.model, told), score, after

    def step(self, number: int) -> Tensor:
        self.updates.begin(number)
        loss = (self.model.weight - 3).square().sum()
        loss.backward()
        found = torch.stack([loss.detach(), self.updates.finish(number)])
        if self.after is not None:
            self.after(self, number)
        return found

    def validate(self) -> float:
        value = float((self.updates.trained().weight.detach() - 3).abs())
        return value if self.score is None else self.score(value)

    def state(self) -> dict[str, Any]:
        return self.updates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.updates.restore(state)


def go(
    folder: Path, told: TrainSettings, learner: Toy | None = None, seen: list[Report] | None = None
) -> Told:
    def record(ended: Ended) -> Told:
        return Told(ended.step, ended.loss, ended.validation)

    tell = (lambda report: None) if seen is None else seen.append
    return take_steps(Run(folder, told), learner or Toy(told), device="cpu", record=record, tell=tell)


def test_steps_lead_to_the_answer_and_are_logged_one_by_one(tmp_path: Path) -> None:
    told = TrainSettings(steps=200, lr=0.1, clip=1e9, weight_decay=0.0)
    made = go(tmp_path / "run", told)
    rows = logs.read(tmp_path / "run" / "log.csv")
    assert [row.step for row in rows] == list(range(1, 201))
    assert rows[0].loss == 9.0, "(0 - 3)²: before the first step"
    assert made.validation is not None and made.validation < 0.01
    assert Told.from_json((tmp_path / "run" / "record.json").read_text(encoding="utf-8")) == made


def test_averaged_weights_follow_their_formula(tmp_path: Path) -> None:
    told = TrainSettings(steps=30, lr=0.1, ema=0.9)
    seen = []
    toy = Toy(told, after=lambda toy, number: seen.append(float(toy.model.weight.detach())))
    go(tmp_path / "run", told, toy)
    mean = 0.0
    for number, weight in enumerate(seen, start=1):
        decay = min(0.9, number / (9 + number))
        mean = decay * mean + (1 - decay) * weight
    assert float(toy.updates.trained().weight.detach()) == pytest.approx(mean, rel=1e-5)


def spoil(toy: Toy, number: int) -> None:
    """The step whose loss was a number makes a weight that is none."""
    if number == 5:
        with torch.no_grad():
            toy.model.weight.fill_(math.inf)


def test_weights_that_are_no_numbers_reach_no_checkpoint_though_the_loss_was_one(tmp_path: Path) -> None:
    told = TrainSettings(steps=20, checkpoint_every=1)
    with pytest.raises(
        Diverged, match=r"weights are not finite at step 5\. The last good checkpoint is step-00000004\.pt"
    ):
        go(tmp_path / "run", told, Toy(told, after=spoil, score=lambda value: 1.0))
    last = Run(tmp_path / "run", told).checkpoints.last()
    assert last is not None and last.step == 4


def test_an_error_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    told = TrainSettings(steps=20, checkpoint_every=1)
    with pytest.raises(
        Diverged, match=r"validation error is not finite at step 1\. No checkpoint was written"
    ):
        go(tmp_path / "run", told, Toy(told, score=lambda value: math.nan))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_what_diverges_in_bf16_is_told_of_fp32(tmp_path: Path) -> None:
    told = TrainSettings(steps=20, precision="bf16", lr=0.8)
    with pytest.raises(Diverged) as caught:
        go(tmp_path / "run", told, Toy(told, after=spoil))
    assert caught.value.hint == "Train again with --set lr=0.2 or --precision fp32 and another -o."


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_an_error_while_preparing_leaves_no_run_and_a_stop_leaves_one(
    tmp_path: Path, stop: BaseException
) -> None:
    run, seen = Run(tmp_path / "run", TrainSettings(steps=9)), []
    with pytest.raises(ValueError), preparing(run, seen.append):
        raise ValueError("bad data")
    assert not run.folder.exists() and seen == []
    with pytest.raises(type(stop)), preparing(run, seen.append):
        raise stop
    assert (run.folder / "config.json").exists()
    assert [(report.stage, report.done, report.total) for report in seen] == [("stopped", 0, 9)]


def test_a_stop_while_preparing_to_resume_says_where_the_run_is(tmp_path: Path) -> None:
    told = TrainSettings(steps=6)
    go(tmp_path / "run", told)
    seen: list[Report] = []
    with pytest.raises(KeyboardInterrupt), preparing(Run(tmp_path / "run", told), seen.append):
        raise KeyboardInterrupt
    assert [(report.stage, report.done) for report in seen] == [("stopped", 6)]
