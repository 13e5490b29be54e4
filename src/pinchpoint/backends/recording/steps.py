"""From a log of phase changes and marks to steps: which time belongs to which step and phase.

A mark is the end of something that a training loop does once per step: an optimizer step, else a backward
pass, else a call of a model. Loops with several optimizers, as for a GAN, do several of these per step: a
step ends before the one that repeats an earlier one.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DATA, TO_DEVICE, FORWARD, BACKWARD = "data", "host to device", "forward", "backward"
OPTIMIZER, EVALUATION, OTHER = "optimizer", "evaluation", "other"
PAUSE = "profiler"  # time that the profiler itself takes; it belongs to no step
# Of JAX: calls of jitted functions, what comes before their first call, and standing still for a result.
COMPUTATION, COMPILATION, WAITING = "computation", "compilation", "waiting"
PHASES = (
    DATA,
    TO_DEVICE,
    FORWARD,
    BACKWARD,
    OPTIMIZER,
    COMPUTATION,
    COMPILATION,
    WAITING,
    EVALUATION,
    OTHER,
)
_WORK = (DATA, FORWARD, BACKWARD, OPTIMIZER, COMPUTATION)  # with one of these the first step begins
MARKS = ("optimizer step", "backward pass", "jitted call", "module call")  # the first that occurs counts
DETAILED = 5_000  # steps whose phases are kept; later ones only count in sums
_NEAR_NS = 100_000  # a device that is this close behind the host has nothing left to do


BUILT_AGAIN = "the function was built again"  # why JAX compiles it again
SKIPPED = object()  # instead of a stamp: the device's clock is not read in this step


class Row(NamedTuple):
    """One entry of the log: from `at_ns` on the phase is `phase`, or a mark (kind, key) was passed."""

    at_ns: int
    phase: str
    mark: tuple[str, Hashable] | None = None
    stamp: Any = None  # of the device's clock
    memory_bytes: int | None = None


class Turns:
    """Counts steps: a step ends when one of its marks comes again."""

    def __init__(self) -> None:
        self.closed = 0
        self.group: set[Hashable] = set()
        self._first: frozenset[Hashable] | None = None

    def add(self, key: Hashable) -> bool:
        """Pass a mark; return whether a step ended before it."""
        if key not in self.group:
            self.group.add(key)
            return False
        self.closed += 1
        self._first = self._first or frozenset(self.group)
        self.group = {key}
        return True

    @property
    def count(self) -> int:
        return self.closed + bool(self.group)

    @property
    def is_complete(self) -> bool:
        """Whether all marks of the first step came in the current one too, so that it is over."""
        return bool(self.group) and (self._first is None or self.group >= self._first)


@dataclass
class Times:
    """Host and device nanoseconds by phase.

    idle_ns: the device had no work. near_ns: host time in which the device kept up with the host.
    unknown_ns: host time in which the device's clock was not read.
    """

    host_ns: dict[str, int] = field(default_factory=dict)
    device_ns: dict[str, float] = field(default_factory=dict)
    idle_ns: float = 0.0
    near_ns: int = 0
    unknown_ns: int = 0

    def add(self, other: Times) -> None:
        for name, value in other.host_ns.items():
            self.host_ns[name] = self.host_ns.get(name, 0) + value
        for name, value in other.device_ns.items():
            self.device_ns[name] = self.device_ns.get(name, 0.0) + value
        self.idle_ns += other.idle_ns
        self.near_ns += other.near_ns
        self.unknown_ns += other.unknown_ns

    def extrapolate(self) -> None:
        """Let the times of the device, known for some steps, stand for all of them."""
        whole_ns = sum(self.host_ns.values())
        if 0 < self.unknown_ns < whole_ns:
            factor = whole_ns / (whole_ns - self.unknown_ns)
            self.device_ns = {name: value * factor for name, value in self.device_ns.items()}
            self.idle_ns, self.near_ns = self.idle_ns * factor, round(self.near_ns * factor)
        self.unknown_ns = 0


@dataclass(frozen=True)
class Step:
    """One step: when it began and ended, and what it spent in each phase."""

    start_ns: int
    end_ns: int
    times: Times
    memory_bytes: int | None = None
    pause_ns: int = 0

    @property
    def host_ns(self) -> int:
        return self.end_ns - self.start_ns - self.pause_ns


class Steps:
    """Folds rows of the log into steps; can be called with more rows later.

    device_ns: from a stamp to nanoseconds on the host's clock.
    """

    def __init__(
        self, kind: str | None, *, start_ns: int, device_ns: Callable[[Any], float] | None = None
    ) -> None:
        self.kind = kind
        self.steps: list[Step] = []  # the first ones, with their phases
        self.host_ns, self.memory_bytes = array("q"), array("q")  # of every step
        self.later = Times()  # sum over all steps after the first
        self.outside = Times()  # before the first step and after the last
        self.setup_end_ns: int | None = None
        self._turns = Turns()
        self._phase, self._at_ns, self._begin_ns = OTHER, start_ns, start_ns
        self._device_ns = device_ns
        self._last_stamp_ns: float | None = None
        self._step, self._since = Times(), Times()
        self._gap_host_ns, self._gap_near_ns, self._gap_device_ns = 0, 0, 0.0  # outside all phases
        self._mark_ns, self._memory, self._first_work = start_ns, None, False
        self._after_forward = False
        self._step_pause_ns = self._since_pause_ns = 0

    def fold(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._spend(row)
            if row.mark is not None:
                if row.mark[0] == self.kind:
                    self._pass(row)
                continue
            if not self._first_work and row.phase in _WORK:
                # Whatever came before is not part of the first step.
                self._first_work, self.setup_end_ns, self._begin_ns = True, row.at_ns, row.at_ns
                self._settle(OTHER)
                self.outside.add(self._since)
                self._since, self._since_pause_ns = Times(), 0
            if row.phase != OTHER:
                # The loss is computed between the model's forward pass and the backward pass.
                self._settle(FORWARD if self._after_forward and row.phase in (FORWARD, BACKWARD) else OTHER)
                self._after_forward = row.phase == FORWARD
            self._phase = row.phase

    def restart(self, kind: str) -> None:
        """Count the steps by another mark from now on; what was folded so far belongs to the first step."""
        self.kind = kind
        start_ns = self.steps[0].start_ns if self.steps else self._begin_ns
        whole, pause_ns = Times(), self._step_pause_ns + self._since_pause_ns
        for step in self.steps[:1]:
            whole.add(step.times)
        pause_ns += sum(step.pause_ns for step in self.steps)
        for times in (self.later, self._step, self._since):
            whole.add(times)
        self.steps, self.host_ns, self.memory_bytes = [], array("q"), array("q")
        self.later, self._turns = Times(), Turns()
        self._step, self._since, self._begin_ns = Times(), whole, start_ns
        self._step_pause_ns, self._since_pause_ns = 0, pause_ns

    def finish(self, end_ns: int) -> None:
        """Close the last step."""
        self._spend(Row(end_ns, OTHER))
        self._settle(OTHER)
        if self._turns.group:
            self._close()
        else:
            self.outside.add(self._step)
        self.outside.add(self._since)
        self.later.extrapolate()

    def copy(self) -> Steps:
        """The same steps, to which more can be added apart from these."""
        other = copy.copy(self)
        other.steps, other.host_ns, other.memory_bytes = self.steps[:], self.host_ns[:], self.memory_bytes[:]
        for name in ("later", "outside", "_turns", "_step", "_since"):
            setattr(other, name, copy.deepcopy(getattr(self, name)))
        return other

    def _spend(self, row: Row) -> None:
        spent = row.at_ns - self._at_ns
        if self._phase == PAUSE:
            self._at_ns = row.at_ns
            self._since_pause_ns += spent
            return
        phase, self._at_ns = self._phase, row.at_ns
        host = self._since.host_ns
        if phase == OTHER:
            self._gap_host_ns += spent
        elif spent:
            host[phase] = host.get(phase, 0) + spent
        if row.stamp is SKIPPED:
            self._last_stamp_ns = None
        if self._last_stamp_ns is None:
            self._since.unknown_ns += spent
        if row.stamp is not None and row.stamp is not SKIPPED and self._device_ns is not None:
            self._spend_on_device(row, spent, self._device_ns(row.stamp))

    def _spend_on_device(self, row: Row, spent: int, stamp_ns: float) -> None:
        before, self._last_stamp_ns = self._last_stamp_ns, stamp_ns
        if before is None:
            return
        phase, since = self._phase, self._since
        took = max(stamp_ns - before, 0.0)
        near = spent if phase != DATA and stamp_ns - row.at_ns < _NEAR_NS else 0
        if phase == OTHER:
            self._gap_device_ns += took
            self._gap_near_ns += near
            return
        since.device_ns[phase] = since.device_ns.get(phase, 0.0) + took
        since.near_ns += near
        if phase == DATA:
            since.idle_ns += took

    def _settle(self, phase: str) -> None:
        """Give the time outside all phases to `phase`."""
        if not self._gap_host_ns:
            return
        since = self._since
        since.host_ns[phase] = since.host_ns.get(phase, 0) + self._gap_host_ns
        if self._gap_device_ns:
            since.device_ns[phase] = since.device_ns.get(phase, 0.0) + self._gap_device_ns
        since.near_ns += self._gap_near_ns
        self._gap_host_ns, self._gap_near_ns, self._gap_device_ns = 0, 0, 0.0

    def _pass(self, row: Row) -> None:
        self._settle(OTHER)
        assert row.mark is not None
        if self._turns.add(row.mark[1]):
            self._close()
        self._step.add(self._since)
        self._step_pause_ns += self._since_pause_ns
        self._since_pause_ns = 0
        self._since, self._mark_ns, self._memory = Times(), row.at_ns, row.memory_bytes

    def _close(self) -> None:
        step = Step(self._begin_ns, self._mark_ns, self._step, self._memory, self._step_pause_ns)
        self._step_pause_ns = 0
        if self.host_ns:
            self.later.add(self._step)
        self.host_ns.append(step.host_ns)
        self.memory_bytes.append(-1 if self._memory is None else self._memory)
        if len(self.steps) < DETAILED:
            self.steps.append(step)
        self._begin_ns, self._step = self._mark_ns, Times()
