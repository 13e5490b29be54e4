"""`StepBlocks`: in the process of a script, run as many steps as ordered, report their time, and wait.

The script waits inside its training step, with its devices idle and the processes that it started stopped, so
that it takes nothing from another script that has its turn. Threads that it started are not stopped.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.sandbox.run_script import StopScript


class StepBlocks:
    """Takes orders, `WARMUP STEPS` in a line each, from a file descriptor.

    It writes a line to another: `ready` at the end of the first step, then the seconds of each block of steps
    without its warm-up. The end of the orders stops the script.
    """

    def __init__(self, orders: int, reports: int) -> None:
        for end in (orders, reports):
            os.set_inheritable(end, False)
        self._orders, self._reports = orders, reports
        self._steps = 0  # of the present block, after its warm-up
        self._start_ns: int | None = None
        self.is_over = False

    def pass_limit(self, recorder: Recorder) -> None:
        """What to do at the end of the last step of a warm-up or block: the `on_step_limit` of a recorder."""
        if self.is_over:
            raise StopScript
        with recorder.paused():
            if not all(wait() for wait in recorder.synchronize):
                return  # try again at the next step
            now_ns = recorder.clock_ns()
            if self._steps and self._start_ns is None:
                recorder.step_limit = (recorder.step_limit or 0) + self._steps
                self._start_ns = recorder.clock_ns()
                return
            seconds = None if self._start_ns is None else (now_ns - self._start_ns) / 1e9
            with _stopped_children():
                os.write(self._reports, f"{'ready' if seconds is None else seconds}\n".encode())
                order = self._next_order()
        if order is None:
            self.is_over = True
            raise StopScript
        warmup, self._steps = order
        self._start_ns = None
        recorder.step_limit = (recorder.step_limit or 0) + warmup

    def _next_order(self) -> tuple[int, int] | None:
        text = b""
        while not text.endswith(b"\n"):
            part = os.read(self._orders, 1)
            if not part:
                return None
            text += part
        warmup, steps = text.split()
        return int(warmup), int(steps)


@contextmanager
def _stopped_children() -> Iterator[None]:
    """Stop the processes that this one started, such as the workers of a DataLoader, and let them go on."""
    children = _descendants(os.getpid())
    try:
        _signal(children, signal.SIGSTOP)
        yield
    finally:
        _signal(children, signal.SIGCONT)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def _descendants(process: int) -> list[int]:
    """The processes started by this one and by those; none where the system has no /proc."""
    children: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            children += [int(child) for child in file.read_text().split()]
    return children + [each for child in children for each in _descendants(child)]
