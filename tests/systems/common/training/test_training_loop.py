"""The training loop with a learner of one number: what is saved, refused and resumed."""

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
from pinchpoint.systems.common.training.records import mean_loss
from pinchpoint.systems.common.training.runs import Run
from pinchpoint.systems.common.training.torch_loop import take_steps
from pinchpoint.systems.common.training.training_loop import Outcome, Report, keep_run_on_stop


@dataclass(frozen=True)
class ToyRecord(Record):
    kind: ClassVar[str] = "toy"
    step: int
    loss: float | None
    validation: float | None
    complete: bool
    seconds: float

    def summary(self) -> list[tuple[str, str]]:
        return []


class Toy:
    """Learns the number 3. after: called after every step."""

    validates = True

    def __init__(self, settings: TrainSettings, *, score: Any = None, after: Any = None) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.updates, self.score, self.after = Updates(self.model, settings), score, after

    def step(self, number: int) -> Tensor:
        self.updates.begin(number)
        loss = (self.model.weight - 3).square().sum()
        loss.backward()
        values = torch.stack([loss.detach(), self.updates.finish(number)])
        if self.after is not None:
            self.after(self, number)
        return values

    def validate(self) -> float:
        value = float((self.updates.trained().weight.detach() - 3).abs())
        return value if self.score is None else self.score(value)

    def state(self) -> dict[str, Any]:
        return self.updates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.updates.restore(state)


def go(
    folder: Path, settings: TrainSettings, learner: Toy | None = None, reports: list[Report] | None = None
) -> ToyRecord:
    def record(ending: Outcome[logs.Row]) -> ToyRecord:
        return ToyRecord(
            ending.step, mean_loss(ending.late), ending.validation, ending.complete, ending.seconds
        )

    tell = (lambda report: None) if reports is None else reports.append
    return take_steps(Run(folder, settings), learner or Toy(settings), device="cpu", record=record, tell=tell)


def test_training_converges_and_logs_every_step(tmp_path: Path) -> None:
    settings = TrainSettings(steps=200, lr=0.1, clip=1e9, weight_decay=0.0)
    record = go(tmp_path / "run", settings)
    rows = logs.read(tmp_path / "run" / "log.csv")
    assert [row.step for row in rows] == list(range(1, 201))
    assert rows[0].loss == 9.0, "(0 - 3)², before the first update"
    assert record.validation is not None and record.validation < 0.01
    assert ToyRecord.from_json((tmp_path / "run" / "record.json").read_text(encoding="utf-8")) == record


def test_a_finished_run_keeps_its_record_and_reports_that_it_is_finished(tmp_path: Path) -> None:
    settings, file = TrainSettings(steps=5), tmp_path / "run" / "record.json"
    record = go(tmp_path / "run", settings)
    written, reports = file.read_bytes(), []
    assert go(tmp_path / "run", settings, reports=reports) == record
    assert file.read_bytes() == written and reports == [Report("finished", 5, 5)]
    file.write_text("{}", encoding="utf-8")
    assert go(tmp_path / "run", settings).step == 5, "a damaged record is written again"
    assert ToyRecord.from_json(file.read_text(encoding="utf-8")).complete


def test_averaged_weights_follow_their_formula(tmp_path: Path) -> None:
    settings = TrainSettings(steps=30, lr=0.1, ema=0.9)
    weights = []
    toy = Toy(settings, after=lambda toy, number: weights.append(float(toy.model.weight.detach())))
    go(tmp_path / "run", settings, toy)
    mean = 0.0
    for number, weight in enumerate(weights, start=1):
        decay = min(0.9, number / (9 + number))
        mean = decay * mean + (1 - decay) * weight
    assert float(toy.updates.trained().weight.detach()) == pytest.approx(mean, rel=1e-5)


def spoil(toy: Toy, number: int) -> None:
    """Set a weight to NaN in a step whose loss is finite."""
    if number == 5:
        with torch.no_grad():
            toy.model.weight.fill_(math.inf)


def test_nan_weights_are_never_saved_even_if_the_loss_is_finite(tmp_path: Path) -> None:
    settings = TrainSettings(steps=20, checkpoint_every=1)
    with pytest.raises(
        Diverged, match=r"weights are not finite at step 5\. The last good checkpoint is step-00000004\.pt"
    ):
        go(tmp_path / "run", settings, Toy(settings, after=spoil, score=lambda value: 1.0))
    last = Run(tmp_path / "run", settings).checkpoints.last()
    assert last is not None and last.step == 4


def test_a_nan_score_is_never_the_best(tmp_path: Path) -> None:
    settings = TrainSettings(steps=20, checkpoint_every=1)
    with pytest.raises(
        Diverged, match=r"validation error is not finite at step 1\. No checkpoint was written"
    ):
        go(tmp_path / "run", settings, Toy(settings, score=lambda value: math.nan))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_divergence_in_bf16_suggests_fp32(tmp_path: Path) -> None:
    settings = TrainSettings(steps=20, precision="bf16", lr=0.8)
    with pytest.raises(Diverged) as excinfo:
        go(tmp_path / "run", settings, Toy(settings, after=spoil))
    assert excinfo.value.hint == "Train again with --lr 0.2 or --precision fp32 and another -o."


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_an_error_during_preparation_leaves_no_run_but_a_stop_leaves_one(
    tmp_path: Path, stop: BaseException
) -> None:
    run, reports = Run(tmp_path / "run", TrainSettings(steps=9)), []
    with pytest.raises(ValueError), keep_run_on_stop(run, reports.append):
        raise ValueError("bad data")
    assert not run.folder.exists() and reports == []
    with pytest.raises(type(stop)), keep_run_on_stop(run, reports.append):
        raise stop
    assert (run.folder / "config.json").exists()
    assert [(report.stage, report.done, report.total) for report in reports] == [("stopped", 0, 9)]


def test_a_stop_during_preparation_to_resume_names_the_run(tmp_path: Path) -> None:
    settings = TrainSettings(steps=6)
    go(tmp_path / "run", settings)
    reports: list[Report] = []
    with pytest.raises(KeyboardInterrupt), keep_run_on_stop(Run(tmp_path / "run", settings), reports.append):
        raise KeyboardInterrupt
    assert [(report.stage, report.done) for report in reports] == [("stopped", 6)]
