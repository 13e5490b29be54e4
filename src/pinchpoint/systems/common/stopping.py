"""Stopping between steps: the first Ctrl-C or SIGTERM asks, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stop:
    """Which signal asked to stop, if one did."""

    def __init__(self) -> None:
        self.number: int | None = None

    def leave(self) -> None:
        """Unwind as the signal would have: Ctrl-C, or the exit code of SIGTERM."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number is not None:
            raise SystemExit(128 + self.number)


@contextmanager
def stop_between_steps() -> Iterator[Stop]:
    """Within, signals are noted and not raised, so that a step is done or not done, never half done.

    Outside the main thread, where no handler can be set, signals stay as they are.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.number = number
        signal.signal(number, before[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.getsignal(number)
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
