"""Ends the process soon after SIGTERM or Ctrl-C even while XLA compiles, which Python cannot interrupt.

A signal handler of Python runs only when the main thread returns from a call of C, and compiling for a GPU
takes minutes. The wake-up descriptor is written by the C handler itself; a thread reads it and ends the
process if the main thread has not done so within a grace period.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

GRACE_S = 8.0
_STOPS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"  # a progress bar that is cut off would leave the cursor hidden


def leave_at_once(code: int) -> None:
    """End the process without waiting for threads. Files are written under another name, so none is half."""
    os.write(2, _SHOW_CURSOR * os.isatty(2) + b"stopped without waiting for the compiler\n")
    os._exit(code)


class QuickStop:
    """A `with` block that ends the process within `grace_s` after a signal, while `is_armed` is true.

    Set `is_armed` to false while a stop writes something that is worth waiting for. Outside the main thread
    it does nothing.
    """

    def __init__(self, *, grace_s: float = GRACE_S, leave: Callable[[int], object] = leave_at_once) -> None:
        self.is_armed = True
        self._grace_s, self._leave = grace_s, leave
        self._done = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._before = -1

    def __enter__(self) -> QuickStop:
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            self._before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, args=(self._pipe[0],), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._pipe is None:
            return
        self._done.set()
        signal.set_wakeup_fd(self._before)
        os.close(self._pipe[1])  # ends the read of the thread
        self._thread.join()
        os.close(self._pipe[0])

    def _watch(self, pipe: int) -> None:
        while number := os.read(pipe, 1):
            if number[0] not in _STOPS:
                continue
            if not self._done.wait(self._grace_s) and self.is_armed:
                self._leave(128 + number[0])
                return
