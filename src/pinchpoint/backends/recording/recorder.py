"""`Recorder`: collects phases, marks and events of a running program at the cost of a list entry each.

Only the thread that created the recorder has phases. Events may come from any thread of this process; a
process that it forks reports nothing.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from pinchpoint.backends.recording.source_lines import Place, SourceLines, library_calls
from pinchpoint.backends.recording.steps import MARKS, OTHER, PAUSE, SKIPPED, Row, Steps, Turns

_ROWS = 40_000  # kept before the older half is folded into steps
# A backward pass or the call of a module may be one of many in a step: a limit of steps does not count them.
_LIMITED = ("optimizer step", "jitted call")
# The device's clock is read in the first steps, and then in one of so many. A reading takes microseconds, or
# tens of them on a virtual machine.
_STAMPED, _STAMPED_LIGHT = (20, 4), (8, 16)
# The memory in use is read at the end of the first steps, and then at most once in so many nanoseconds.
_MEMORY, _MEMORY_LIGHT = (200, 2_000_000), (20, 20_000_000)
_EARLY = 50  # calls of modules or backward passes after which no optimizer is expected
_HISTORY_ROWS, _HISTORY_EVENTS = 100_000, 60_000  # kept in all, if a history is wanted


class History:
    """The first phase changes and events of a run, one by one."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.events: list[tuple[int, int, str, Place | None]] = []  # start, duration, what, where


class LineEvents:
    """What happened at one place, in sum."""

    __slots__ = (
        "bytes",
        "count",
        "detail",
        "first_ns",
        "last_step",
        "longest_ns",
        "phase",
        "repeated",
        "spent_ns",
        "steps",
    )

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.count = self.spent_ns = self.longest_ns = self.steps = self.bytes = self.repeated = 0
        self.first_ns = 0  # before the end of the first step
        self.last_step = -1
        self.detail = ""


class Recorder:
    """The log of a run. `on_step_limit` is called at the end of the last of `step_limit` steps.

    It may raise the limit, to be called again later.
    """

    def __init__(
        self,
        *,
        step_limit: int | None = None,
        on_step_limit: Callable[[], None] | None = None,
        light: bool = False,
        keep_history: bool = False,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.clock_ns = clock_ns
        self.light = light
        self.history = History() if keep_history else None
        self.lines = SourceLines()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        self.phase = OTHER
        self.step = 0  # steps that are over, counted by the most telling marks so far
        self.device = "cpu"
        self.start_ns = clock_ns()
        self.end_ns = 0  # when the program ended; set by who ran it, or by finish
        self.rows: list[Row] = []
        self.events: dict[tuple[str, str, Place | None], LineEvents] = {}
        self.notes: list[str] = []
        self.frameworks: set[str] = set()
        self.stamp: Callable[[], Any] | None = None  # records a time of the device's clock
        self.device_ns: Callable[[Any], float] | None = None
        self.memory_now: Callable[[], int | None] | None = None
        # Each waits for all work of a framework's devices, and returns whether it could.
        self.synchronize: list[Callable[[], bool]] = []
        self._is_stamping = True
        self._memory_bytes: int | None = None
        self._memory_until_ns = 0
        self.parts: dict[str, Any] = {}  # what else the watchers of a framework learned, by name
        self.after_import: dict[str, Callable[[], None]] = {}  # called after the import of a module
        self._stack: list[str] = []
        self._turns = {kind: Turns() for kind in MARKS}
        self._kind: str | None = None
        self.step_limit, self._on_limit = step_limit, on_step_limit
        self._steps: Steps | None = None
        self.on_step: list[Callable[[], None]] = []
        self.on_finish: list[Callable[[], None]] = []
        self.on_close: list[Callable[[], None]] = []
        self._finished = False
        self.is_closed = False  # whether the functions that report are put back; what remains must not report

    def has_passed(self, steps: int) -> bool:
        """Whether so many steps are over; calls of modules do not count while the program may yet train."""
        return self.step >= (steps if self._kind in _LIMITED else steps + _EARLY)

    @property
    def is_here(self) -> bool:
        """Whether this is the thread whose phases are recorded."""
        return threading.get_ident() == self.thread

    def begin(self, phase: str) -> None:
        self._stack.append(phase)
        self.phase = phase
        self.rows.append(Row(self.clock_ns(), phase, None, self._stamp()))

    def end(self) -> None:
        if self._stack:
            self._stack.pop()
        phase = self.phase = self._stack[-1] if self._stack else OTHER
        self.rows.append(Row(self.clock_ns(), phase, None, self._stamp()))

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Everything inside belongs to this phase. Other threads have no phases."""
        if not self.is_here:
            yield
            return
        self.begin(phase)
        try:
            yield
        finally:
            self.end()

    def insert(self, phase: str, spent_ns: int) -> None:
        """The last `spent_ns` belong to a phase, which is known only now that it is over."""
        if not self.is_here:
            return
        now = self.clock_ns()
        # What was reported since then was inside it.
        start = max(now - spent_ns, self.rows[-1].at_ns if self.rows else self.start_ns)
        self.rows += [Row(start, phase), Row(now, self.phase)]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is work of the profiler, and belongs to no step."""
        now, phase = self.clock_ns(), self.phase
        self.rows.append(Row(now, PAUSE))
        try:
            yield
        finally:
            self.rows.append(Row(self.clock_ns(), phase))

    def mark(self, kind: str, key: Hashable) -> None:
        """Pass the end of something that a loop does once per step. May raise what `on_step_limit` raises."""
        turns = self._turns[kind]
        turns.add(key)
        if kind != self._kind and (self._kind is None or MARKS.index(kind) < MARKS.index(self._kind)):
            self._kind = kind
            # So far, calls of modules were taken for steps. All of that belongs to the first step.
            for line in self.events.values():
                line.steps, line.last_step, line.first_ns = 1, 0, line.spent_ns
            if self._steps is not None:
                self._steps.restart(kind)
        memory = None
        if kind == self._kind:
            self.step = turns.count
            first, every = _STAMPED_LIGHT if self.light else _STAMPED
            self._is_stamping = self.step < first or self.step % every == 0
            memory = self._memory()
            for act in self.on_step:
                act()
        # Without a stamp: a mark follows the end of a phase, which has one.
        self.rows.append(Row(self.clock_ns(), self.phase, (kind, key), None, memory))
        if len(self.rows) > _ROWS:
            self._fold(_ROWS // 2)
        is_counted = self.step_limit is not None and kind == self._kind and kind in _LIMITED
        if (
            is_counted
            and (turns.closed + turns.is_complete) >= (self.step_limit or 0)
            and self._on_limit is not None
        ):
            self._on_limit()

    def _stamp(self) -> Any:
        if self.stamp is None:
            return None
        return self.stamp() if self._is_stamping else SKIPPED

    def _memory(self) -> int | None:
        """The memory in use. In long runs it is not read at each of many short steps, to save time."""
        now = self.clock_ns()
        first, interval_ns = _MEMORY_LIGHT if self.light else _MEMORY
        if self.memory_now is not None and (self.step < first or now >= self._memory_until_ns):
            self._memory_bytes, self._memory_until_ns = self.memory_now(), now + interval_ns
        return self._memory_bytes

    def event(
        self,
        kind: str,
        what: str,
        place: Place | None,
        spent_ns: int = 0,
        *,
        size: int = 0,
        detail: str = "",
        repeated: bool = False,
    ) -> None:
        key = (kind, what, place)
        line = self.events.get(key)
        if line is None:
            line = self.events[key] = LineEvents(self.phase if self.is_here else OTHER)
            line.detail = library_calls() if kind == "wait" else ""
        line.count += 1
        line.spent_ns += spent_ns
        if not self.step:
            line.first_ns += spent_ns
        line.bytes += size
        line.repeated += repeated
        if spent_ns > line.longest_ns:
            line.longest_ns = spent_ns
        if line.last_step != self.step:
            line.last_step = self.step
            line.steps += 1
        if detail:
            line.detail = detail
        if self.history is not None and len(self.history.events) < _HISTORY_EVENTS:
            self.history.events.append((self.clock_ns() - spent_ns, spent_ns, what, place))

    def finish(self) -> Steps:
        """The steps of the log so far; no more is recorded afterwards."""
        if not self._finished:
            self._finished = True
            self.end_ns = self.end_ns or self.clock_ns()
            for act in self.on_finish:
                act()
            self._fold(len(self.rows))
            assert self._steps is not None
            self._steps.finish(self.end_ns)
        assert self._steps is not None
        return self._steps

    def copy(self) -> Recorder:
        """What was recorded so far, to be finished while the program goes on; called from another thread."""
        other = copy.copy(self)
        # Stamps are used again once they are read, so only the original may read them.
        other.rows = [row._replace(stamp=None) for row in list(self.rows)]
        other.events, other.history = dict(self.events), None
        other._steps = None if self._steps is None else self._steps.copy()
        other.on_finish = []
        return other

    def _fold(self, count: int) -> None:
        if self._steps is None:
            self._steps = Steps(self._kind, start_ns=self.start_ns, device_ns=self._device_time)
        rows, self.rows = self.rows[:count], self.rows[count:]
        if self.history is not None:
            # Without the stamps, which are used again.
            space = _HISTORY_ROWS - len(self.history.rows)
            self.history.rows += [row._replace(stamp=None) for row in rows[:space]]
        self._steps.fold(rows)

    def _device_time(self, stamp: Any) -> float:
        assert self.device_ns is not None, "stamps come from the clock that reads them"
        return self.device_ns(stamp)
