"""Ctrl-C and SIGTERM, raised where they are heard: not in the midst of an import.

A module that is being imported may catch anything (`except: pass` around an optional part), be half made when it is left,
or be made by C++ that then ends the process. Before a command begins its work nothing is open, and a signal in an import
ends the process at once; later it is kept, and raised as soon as the import is done.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from types import FrameType

_AGAIN_S = 0.02  # between two looks whether the import is done
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"  # a spinner that is left at once would keep it hidden
_IMPORTING = "<frozen importlib._bootstrap>"

Act = Callable[[int, FrameType | None], object]


class Handler:
    """Of the signals in `acts`, and of SIGALRM, which is taken for looking again."""

    def __init__(self, acts: Mapping[int, Act]) -> None:
        self.acts = acts
        self.at_work = False
        self.kept: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number in self.acts:
            self.kept.append(number)
        if not self.kept:
            return
        if _is_importing(frame):
            if not self.at_work:
                os.write(2, _SHOW_CURSOR * os.isatty(2) + b"stopped\n")
                os._exit(128 + number)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        first = self.kept[0]
        self.kept.clear()
        self.acts[first](first, frame)


def install(acts: Mapping[int, Act]) -> None:
    """Handle each signal by its act. One that is ignored, as Ctrl-C is in a background job, stays so."""
    handler = Handler(acts)
    for number in (*acts, signal.SIGALRM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def begin_work() -> None:
    """From here on there is something to tidy up: processes, folders, files half written."""
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
