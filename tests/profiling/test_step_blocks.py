"""A script runs a block of steps at each request, reports its time, and stands still with its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.sandbox.run_script import StopScript
from pinchpoint.profiling.step_blocks import StepBlocks


class Loop:
    """A training loop in which each step takes a second."""

    def __init__(self, orders: int, reports: int) -> None:
        self.now_ns = 0
        self.blocks = StepBlocks(orders, reports)
        self.recorder = Recorder(
            step_limit=1,
            on_step_limit=lambda: self.blocks.pass_limit(self.recorder),
            light=True,
            clock_ns=lambda: self.now_ns,
        )

    def step(self) -> None:
        self.now_ns += 10**9
        self.recorder.mark("optimizer step", "adam")


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    """The reading and the writing end of the orders, and those of the reports."""
    ends = (*os.pipe(), *os.pipe())
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            assert end == ends[1]  # closed by the test


def reports_of(end: int) -> list[str]:
    os.set_blocking(end, False)
    try:
        return os.read(end, 1000).decode().split()
    except BlockingIOError:
        return []


def test_blocks_are_timed_without_their_warmup_and_the_waiting(pipes: tuple[int, int, int, int]) -> None:
    orders, write, read, reports = pipes
    loop = Loop(orders, reports)
    waited: list[int] = []

    def wait() -> bool:  # for the device, which is half a second behind
        waited.append(loop.now_ns)
        loop.now_ns += 5 * 10**8
        return True

    loop.recorder.synchronize.append(wait)
    os.write(write, b"2 3\n1 4\n")
    os.close(write)
    loop.step()  # the first step is over, and the first order is there
    assert reports_of(read) == ["ready"]
    for _ in range(4):
        loop.step()
    assert reports_of(read) == []
    loop.step()
    assert reports_of(read) == ["3.5"]
    for _ in range(4):
        loop.step()
    with pytest.raises(StopScript):  # after the last order
        loop.step()
    assert reports_of(read) == ["4.5"]
    with pytest.raises(StopScript):  # again, if the script caught it
        loop.step()
    assert len(waited) == 5


def test_a_block_ends_at_a_later_step_if_the_device_cannot_be_waited_for(
    pipes: tuple[int, int, int, int],
) -> None:
    orders, write, read, reports = pipes
    loop = Loop(orders, reports)
    answers = iter([False, False, True])  # as while a CUDA graph is captured
    loop.recorder.synchronize.append(lambda: next(answers))
    os.write(write, b"1 1\n")
    loop.step()
    loop.step()
    assert reports_of(read) == []
    loop.step()
    assert reports_of(read) == ["ready"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="The system has no /proc.")
def test_the_processes_that_a_script_started_stand_still_while_it_waits(
    pipes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, write, _, reports = pipes
    loop = Loop(orders, reports)
    code = "import sys; print('here', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"here\n"
    stops: list[bool] = []
    next_order: Callable[[StepBlocks], tuple[int, int] | None] = StepBlocks._next_order

    def look(blocks: StepBlocks) -> tuple[int, int] | None:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)  # returns when it stands still
        stops.append(True)
        return next_order(blocks)

    monkeypatch.setattr(StepBlocks, "_next_order", look)
    os.write(write, b"1 1\n")
    loop.step()
    assert stops == [True]
    child.communicate(timeout=600)  # it goes on, and ends with its input
    assert child.returncode == 0
