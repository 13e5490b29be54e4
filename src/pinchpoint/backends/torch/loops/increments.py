"""`Increments`: counters that a script changes itself, as `step += 1` does, and turns that depend on them.

Where a loop that trains would end, a condition on such a counter may have another answer at a value that the
counter reaches later. The loop then goes on: the counter jumps to that value at its next increment. How far
it gets follows from the lengths of the loops that run, and from conditions that end a loop (`while step < n`,
`if step >= n: break`).
"""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

from pinchpoint.backends.torch.loops.counters import EVALUATED, Condition, Count, Counter, Values
from pinchpoint.core.files import shown_path

_JUMPS = 8  # of one counter
_WAITED = 16  # turns in which a counter that is to jump is not increased
_UNKNOWN = 1_000_000  # increments of a counter whose loops have an unknown length
_LARGEST = 2**62  # that is looked at
_FAR = 100_000  # values that are looked at beyond those that are all looked at
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+=": operator.iadd,
    "+": operator.add,
    "-=": operator.isub,
    "-": operator.sub,
}
Totals = dict["Increment", tuple[int, int]]


class Turns(Protocol):
    """A loop. totals: how often each counter was started and increased before the last turn."""

    number: int
    totals: Totals

    @property
    def length(self) -> int | None: ...


class Increment(Count):
    """A counter that the script increases."""

    def __init__(self, site: str, *, is_used: bool) -> None:
        super().__init__(site)
        self._is_used = is_used  # in ways that decide about sizes without a condition
        self.started = -1  # number of the next loop when it got its first value; -1 if that was not seen
        self.starts = self.total = 0  # how often it was started, and increased
        self._first = 0
        self._by = 1
        self._reach = 0  # the largest value it may reach, by the lengths of loops
        self._queue: list[int] = []
        self._target: int | None = None  # of its next increment
        self._waited = self._jumps = 0
        self._asker = 0  # number of the loop that goes on until then
        self._has_arrived = self._has_last = False

    def start(self, value: int, number: int) -> Counter:
        self.started, self._first, self._reach = number, value, value
        self.starts += 1
        return self.give(value)

    def increase(self, value: int, by: int) -> Counter:
        if not self.total or value != self.value:
            self._first = self._reach = value
        self._by = by
        self.total += 1
        value += by
        if self._target is not None:
            value = max(self._target, value) if by > 0 else min(self._target, value)
            self._target, self._has_arrived = None, True
        return self.give(value)

    def follow(self, value: int, number: int, *, is_first: bool) -> Counter:
        """The next value of the variable of a loop, which counts. number: of the loop."""
        return self.start(value, number - 1) if is_first else self.increase(self.value, self._by)

    def wants_turn(self, loop: Turns, lengths: list[int | None]) -> bool | None:
        """Whether a loop that would end goes on; None if it cannot be followed. lengths: of loops."""
        starts, total = loop.totals.get(self, (0, 0))
        if self._target is not None:
            if loop.number > self._asker and total == self.total:
                return False  # a loop inside the one that goes on, which does not change the counter
            self._waited += 1
            return True if self._waited <= _WAITED else None
        if starts != self.starts or total == self.total:
            return False  # it was not increased in the last turn, or it begins anew in every turn
        is_known = None not in lengths
        turns = math.prod(length or 1 for length in lengths) if is_known else _UNKNOWN
        reach = self._first + self._by * (self.total - total) * turns
        furthest = max(self._reach, reach) if self._by > 0 else min(self._reach, reach)
        self._reach = max(min(furthest, _LARGEST), -_LARGEST)
        values, bounds = self._bounded(self._later_values())
        if self._has_arrived:
            self._has_arrived = False
            here = np.array([min(self.value, _LARGEST)])
            if self._has_last or not self.was_asked or self.choose(here, ignored=bounds):
                return True  # the turn with the value that it jumped to is still to come
        if not len(values):
            return False
        is_known = is_known or bool(bounds)
        self._queue = [value for value in self._queue if (value - self.value) * self._by > 0]
        if not self._queue:
            self._queue = [int(values[at]) for at in self.choose(values, ignored=bounds, has_end=is_known)]
        # A counter that begins anew, as a place in the data does, need not get that far.
        if not self._queue and self._is_used and is_known and self.starts < 2 and not self._has_last:
            self._has_last = True
            self._queue = [int(values[-1])]
        if not self._queue:
            return False
        self._jumps += 1
        self._target, self._waited, self._asker = self._queue.pop(0), 0, loop.number
        return True if self._jumps <= _JUMPS else None

    def give_up(self) -> None:
        self._target, self._queue = None, []

    def _later_values(self) -> Values:
        """The values that the counter may still have; if these are too many, a part of the later ones."""
        numbers = max((self._reach - self.value) // self._by, 0) if abs(self.value) < _LARGEST else 0
        near = np.arange(1, min(numbers, EVALUATED) + 1)
        far = np.linspace(EVALUATED + 1, numbers, _FAR, dtype=int) if numbers > EVALUATED else near[:0]
        return self.value + self._by * np.concatenate([near, far])

    def _bounded(self, values: Values) -> tuple[Values, list[Condition]]:
        """The values before the loop ends, and the conditions that end it."""
        first, bounds = len(values), []
        for condition in self.conditions:
            answers = None if condition.ending is None else condition.answers(values)
            if answers is None:
                continue
            ends = np.flatnonzero(answers == condition.ending)
            if len(ends) == 1 or (len(ends) and ends[0] + len(ends) == len(values)):
                bounds.append(condition)
                first = min(first, int(ends[0]))
        return values[:first], bounds


class Increments:
    """All counters that the script increases itself."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops
        self._counters: dict[tuple[str, str], Increment] = {}
        self._passes: list[weakref.ref[Pass]] = []
        self._lost: set[Increment] = set()

    def start(self, value: Any, name: str, line: int, is_used: bool) -> Any:
        """A counter gets a value that does not follow from its last one."""
        if type(value) not in (int, Counter) or self._loops.observer.dynamic.calibrating:
            return value
        counter = self._counter(sys._getframe(1).f_code.co_filename, name, line, is_used)
        return counter.start(int(value), next(self._loops.numbers))

    def count(self, value: Any, by: Any, name: str, line: int, is_used: bool, kind: str) -> Any:
        """A counter, or something else, is changed: what the operation `kind`, such as `+=`, gives."""
        if type(value) not in (int, Counter) or type(by) not in (int, Counter) or not by:
            return _OPERATIONS[kind](value, by)
        plain, by = int(value), int(by) if kind[0] == "+" else -int(by)
        if not self._loops.progress.trains or self._loops.observer.dynamic.calibrating:
            return plain + by
        counter = self._counter(sys._getframe(1).f_code.co_filename, name, line, is_used)
        return counter.increase(plain, by)

    def _counter(self, file: str, name: str, line: int, is_used: bool) -> Increment:
        key = file, name
        if key not in self._counters:
            self._counters[key] = Increment(f"{file}:{line}", is_used=is_used)
        return self._counters[key]

    def follow(self, things: Any, site: str) -> Any:
        """Count the turns of a loop over batches or over `enumerate`, which is not ended by itself."""
        inner = getattr(things, "iterable", things) if _is_bar(things) else things
        if not isinstance(inner, (torch.utils.data.DataLoader, enumerate)):
            return things
        counter = self.variable(site, is_used=False) if isinstance(inner, enumerate) else None
        turns = Pass(self, things, next(self._loops.numbers), counter, site)
        self._passes = [ref for ref in self._passes if ref() is not None] + [weakref.ref(turns)]
        return turns

    def variable(self, site: str, *, is_used: bool) -> Increment:
        """The variable of a loop over `enumerate` or `itertools.count`."""
        file, _, line = site.rpartition(":")
        return self._counter(file, f"for:{line}", int(line), is_used)

    def places(self) -> set[tuple[str, int, int]]:
        """File, line, and column of the conditions on all counters."""
        return {place for counter in self._counters.values() for place in counter.places()}

    def totals(self) -> Totals:
        return {counter: (counter.starts, counter.total) for counter in self._counters.values()}

    def want_batch(self) -> bool:
        """Whether the innermost loop over batches, which would end, goes on."""
        turns = next((turns for ref in reversed(self._passes) if (turns := ref()) is not None), None)
        if turns is None:
            return False
        return self.want_turn(turns) or (turns.is_training and self._loops.conditions.want_turn(turns.site))

    def passes(self) -> list[Pass]:
        """The loops over batches that run now."""
        return [turns for ref in self._passes if (turns := ref()) is not None]

    def trained(self) -> int:
        return self._loops.progress.trained

    def want_turn(self, loop: Turns) -> bool:
        """Whether a loop that would end goes on, because a counter may decide about a later turn."""
        running = [*self._loops.running_loops(), *self.passes()]
        is_wanted = False
        for counter in [counter for counter in self._counters.values() if counter not in self._lost]:
            lengths = [other.length for other in running if other.number > counter.started]
            answer = counter.wants_turn(loop, lengths)
            is_wanted = is_wanted or bool(answer)
            if answer is None:
                counter.give_up()
                self._lost.add(counter)
                self._loops.observer.ledger.observation.reasons.append(
                    f"the counter at {shown_path(counter.site)} may decide about turns that were not run"
                )
        if is_wanted:
            self._loops.went_on()
        return is_wanted

    def batches(self) -> int | None:
        return self._loops.progress.loaders.batches()


class Pass:
    """One pass of a loop over batches. counter: that of `enumerate`."""

    def __init__(
        self, increments: Increments, things: Any, number: int, counter: Increment | None, site: str
    ) -> None:
        self._increments, self._things, self.number, self.site = increments, things, number, site
        self._trained = increments.trained()
        self._iterator: Iterator[Any] = iter(things)
        self._counter = counter
        self._is_first = True
        self.totals: Totals = {}

    @property
    def length(self) -> int | None:
        try:
            return len(self._things)
        except TypeError:
            return self._increments.batches()

    @property
    def is_training(self) -> bool:
        return self._increments.trained() > self._trained

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        value = next(self._iterator)
        self.totals = self._increments.totals()
        counter = self._counter
        if counter is None or not isinstance(value, tuple) or len(value) != 2:
            return value
        is_first, self._is_first = self._is_first, False
        return counter.follow(value[0], self.number, is_first=is_first), value[1]


def _is_bar(things: Any) -> bool:
    return type(things).__module__.partition(".")[0] == "tqdm"
