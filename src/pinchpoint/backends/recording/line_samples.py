"""`LineSampler`: where the program is, read every few milliseconds by a thread.

Each sample holds the lines of the user's code that are on the stack, so that a line has the time of what it
calls. Nothing is traced, and the program runs at nearly its own speed.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import CodeType

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import is_user_file

_INTERVAL_S = 0.002
_SAMPLES = 50_000  # kept; a longer run is sampled only in its first minutes

Sample = tuple[int, tuple[tuple[CodeType, int], ...]]  # when, and the lines on the stack


class LineSampler:
    """Samples the thread of a recorder between `start` and `stop`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._samples: list[Sample] = []
        self._is_user: dict[CodeType, bool] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(1.0)

    def shares(self, since_ns: int = 0) -> tuple[int, dict[tuple[str, int], int]]:
        """The number of samples since a time, and in how many of them each line was on the stack."""
        samples = [lines for at_ns, lines in list(self._samples) if at_ns >= since_ns]
        counts: Counter[tuple[str, int]] = Counter()
        for lines in samples:
            counts.update({(code.co_filename, line) for code, line in lines})
        return len(samples), dict(counts)

    def _watch(self) -> None:
        thread, clock_ns = self._recorder.thread, self._recorder.clock_ns
        while not self._over.wait(_INTERVAL_S) and len(self._samples) < _SAMPLES:
            frame, lines = sys._current_frames().get(thread), []
            at_ns = clock_ns()
            while frame is not None:
                code = frame.f_code
                user = self._is_user.get(code)
                if user is None:
                    user = self._is_user[code] = is_user_file(code.co_filename)
                if user:
                    lines.append((code, frame.f_lineno or code.co_firstlineno))
                frame = frame.f_back
            self._samples.append((at_ns, tuple(lines)))
