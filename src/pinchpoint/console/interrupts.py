"""Handling of Ctrl-C and SIGTERM that never interrupts an import.

An exception raised during an import may be swallowed by the module (`except: pass` around an optional part),
may leave the module half initialised, or may abort the process if it passes through C++ initialisation code.
Before a command starts its work, nothing is open, and a signal during an import ends the process at once.
Later, the signal is stored and handled as soon as the import is finished.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType

_AGAIN_S = 0.02  # time between two checks whether the import is finished
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"  # a spinner that is interrupted would leave the cursor hidden
_IMPORTING = "<frozen importlib._bootstrap>"

Act = Callable[[int, FrameType | None], object]


class Handler:
    """Handles the signals in `acts`, and SIGALRM, which checks again whether the import is finished."""

    def __init__(self, acts: Mapping[int, Act]) -> None:
        self.acts = acts
        self.at_work = False
        self.pending: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number in self.acts:
            self.pending.append(number)
        if not self.pending:
            return
        if _is_importing(frame):
            if not self.at_work:
                os.write(2, _SHOW_CURSOR * os.isatty(2) + b"stopped\n")
                os._exit(128 + number)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        first = self.pending[0]
        self.pending.clear()
        self.acts[first](first, frame)


def install(acts: Mapping[int, Act]) -> None:
    """Handle each signal with its action. A signal that is ignored (Ctrl-C in a background job) stays so."""
    handler = Handler(acts)
    for number in (*acts, signal.SIGALRM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def begin_work() -> None:
    """Declare that from now on there may be processes, folders or incomplete files to clean up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if isinstance(handler, Handler):
            handler.at_work = True


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False
