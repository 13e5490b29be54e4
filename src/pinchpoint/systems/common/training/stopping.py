"""Stopping between steps: the first Ctrl-C or SIGTERM requests a stop, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stop:
    """The signal that requested a stop, if there was one."""

    def __init__(self) -> None:
        self.number: int | None = None

    def leave(self) -> None:
        """Raise what the signal would have: KeyboardInterrupt, or SystemExit with the code of SIGTERM."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number is not None:
            raise SystemExit(128 + self.number)


@contextmanager
def stop_between_steps() -> Iterator[Stop]:
    """Within the block signals are recorded and not raised, so that no step is half done.

    A signal that is ignored (Ctrl-C in a background job) stays so, and one whose handler Python does not
    know is not changed. Outside the main thread, where no handler can be set, no signal is changed.
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
        handler = signal.getsignal(number)
        if handler is signal.SIG_IGN or handler is None:
            continue
        before[number] = handler
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
