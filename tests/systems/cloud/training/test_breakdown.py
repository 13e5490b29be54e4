"""The breakdown of a step: seconds of a fake clock, and a log that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.systems.cloud.training.breakdown import PARTS, Log, Parts, Row, mean_seconds
from pinchpoint.systems.common.training import logs


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_parts_add_up_within_a_step_and_restart_with_the_next() -> None:
    clock = Clock()
    parts = Parts("cpu", clock=clock)
    with parts.part("data"):
        clock.now += 100.0  # before the first step, so not counted
    for step in (1, 2):
        parts.begin(step)
        for seconds in (1.0, 0.5):
            with parts.part("forward"):
                clock.now += seconds * step
        clock.now += 7.0
        with parts.part("backward"):
            clock.now += 2.0
    assert parts.pop_step(1) == {**dict.fromkeys(PARTS, 0.0), "forward": 1.5, "backward": 2.0}
    assert (parts.pop_step(2) or {})["forward"] == 3.0
    assert parts.pop_step(2) is None, "times are dropped once they are read"


def test_on_cuda_only_steps_whose_losses_are_read_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr("pinchpoint.backends.torch.measurement.wait_stream", waits.append)
    parts = Parts("cuda", clock=Clock())
    for step in range(1, 21):
        parts.begin(step)
        with parts.part("sampling"):
            pass
    assert waits == ["cuda"] * 4, "before and after the part, at steps 10 and 20"
    assert [step for step in range(1, 21) if parts.pop_step(step) is not None] == [10, 20]


def test_a_log_keeps_the_parts_when_resumed_and_reads_like_any_log(tmp_path: Path) -> None:
    clock = Clock()
    parts = Parts("cpu", clock=clock)
    log = Log(tmp_path / "log.csv", keep_to=0)
    for step in (1, 2, 3):
        parts.begin(step)
        with parts.part("sampling"):
            clock.now += step
        log.add([parts.complete_row(logs.Row(step, 1.0 / step, 1e-3, 0.5, 100))])
    log.add([parts.complete_row(logs.Row(4, 0.1, 1e-3, 0.5, 100, 0.25))])  # this step was not timed
    again = Log(tmp_path / "log.csv", keep_to=4).read(tmp_path / "log.csv")
    assert [row.sampling_s for row in again if isinstance(row, Row)] == [1.0, 2.0, 3.0, None]
    assert [row.validation for row in logs.read(tmp_path / "log.csv")] == [None, None, None, 0.25]
    assert mean_seconds(again)["sampling"] == pytest.approx(2.5), (
        "the mean of steps 2 and 3, because the first is mostly warm-up"
    )
