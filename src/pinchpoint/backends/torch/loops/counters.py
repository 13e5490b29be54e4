"""`Counter`: an integer of a script's loop that remembers the questions asked about it.

A Counter is the variable of a loop, or what was computed from it with `+ - * / // %`. It behaves as the plain
number does. A comparison with another number is recorded as a `Condition`, so that its answer for later turns
can be computed without running them. So is a quotient or a remainder that has few values and is not compared,
as in `sizes[step // 1000]`. Only what the user's own code does is recorded.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from pinchpoint.backends.torch.ledger import is_library_file
from pinchpoint.backends.torch.loops.marking import syntax

EVALUATED = 4_000_000  # turns whose conditions are evaluated
_RARE = 3  # an answer that is given so rarely is run every time, because it may change what follows
_ATTEMPTS = 2  # turns that are run for an answer of a condition that is then not asked
_OPERANDS = 16  # that one condition is remembered with, as in `step in (100, 200, 300)`
_KINDS = 6  # values of a quotient or remainder that are all run
_CHANGES = 3  # of a condition's operand from turn to turn before the operand is ignored
Values = np.ndarray[Any, Any]


class Step(NamedTuple):
    """One operation with a number. operand: a number, or the steps that lead to it from the same counter."""

    operation: Callable[[Any, Any], Any]
    operand: Any
    is_reflected: bool = False  # whether the operand is on the left
    is_varying: bool = False  # whether the operand is an older value of a counter


def evaluate(steps: Iterable[Step], values: Values) -> Any:
    result: Any = values
    for step in steps:
        operand = evaluate(step.operand, values) if isinstance(step.operand, tuple) else step.operand
        pair = (operand, result) if step.is_reflected else (result, operand)
        result = step.operation(*pair)
    return result


@dataclass(eq=False)
class Condition:
    """A comparison that the script makes with a counter, or a part of it, and the answers that were run.

    before: answers that other conditions had in each turn in which they were asked before this one. A
    condition inside another one is asked only where that has the same answer again.
    """

    steps: tuple[Step, ...]
    ending: bool | None  # the answer that ends the loop around it, if one does
    before: dict[Condition, int]
    is_part: bool = False
    seen: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)

    def answers(self, values: Values) -> Values | None:
        """The answer for each value; None if it cannot be computed, or has too many values."""
        try:
            with np.errstate(all="ignore"):
                answers = np.asarray(evaluate(self.steps, values))
        except (ArithmeticError, TypeError, ValueError):
            return None
        if self.is_part and (answers.dtype.kind != "i" or not len(values) or np.ptp(answers) >= _KINDS):
            return None
        return np.broadcast_to(answers if self.is_part else answers.astype(bool), values.shape)


class Count:
    """One counter of a script: its value now, and the conditions on it."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.value = 0
        self.version = 0  # a Counter of an older version is a plain number
        self._conditions: dict[Any, dict[Any, Condition]] = {}  # place in the code -> operands -> condition
        self._changes: dict[Any, int] = {}  # place in the code -> how often its operands changed
        self._asked: dict[Any, int] = {}  # place in the code -> version when it was last asked
        self._turn: dict[Condition, int] = {}  # answers of this version so far
        self._parts: dict[Any, Condition] = {}  # code and operations -> a quotient or remainder
        self._compared: set[Any] = set()  # the same, of those that are compared

    def give(self, value: int) -> Counter:
        """The next value, as the script gets it."""
        self.value = value
        self.version += 1
        self._turn = {}
        return Counter.of(value, self, ())

    @property
    def was_asked(self) -> bool:
        """Whether there was a condition on the value it has now."""
        return bool(self._turn)

    @property
    def conditions(self) -> list[Condition]:
        asked = [condition for conditions in self._conditions.values() for condition in conditions.values()]
        return [*asked, *(part for key, part in self._parts.items() if key not in self._compared)]

    def places(self) -> set[tuple[str, int, int]]:
        """File, line, and column of the conditions on it."""
        places: set[tuple[str, int, int]] = set()
        for code, instruction, _ in self._conditions:
            line, _, column, _ = list(code.co_positions())[instruction // 2]
            places.add((code.co_filename, line or 0, column or 0))
        return places

    def record_part(self, steps: tuple[Step, ...], value: int, code: CodeType) -> None:
        """Remember that a quotient or a remainder was computed."""
        if _is_followed(code) and not any(step.is_varying for step in steps):
            part = self._parts.setdefault((code, steps), Condition(steps, None, dict(self._turn), True))
            part.seen.add(value)

    def record(self, steps: tuple[Step, ...], answer: bool, frame: FrameType) -> None:
        """Remember a condition that was asked in a frame, and its answer."""
        code = frame.f_code
        if not _is_followed(code):
            return
        self._compared.add((code, steps[:-1]))
        place = code, frame.f_lasti, tuple(step.operation for step in steps)
        operands = tuple(None if step.is_varying else step.operand for step in steps)
        conditions = self._conditions.setdefault(place, {})
        if self._changes.get(place, 0) >= _CHANGES:
            operands = ()
        elif operands not in conditions and conditions and self._asked.get(place) != self.version:
            self._changes[place] = self._changes.get(place, 0) + 1
            if self._changes[place] >= _CHANGES:
                # What it is compared with changes from turn to turn: only the latest one counts.
                merged = next(iter(conditions.values()))
                merged.seen = set().union(*(old.seen for old in conditions.values()))
                conditions.clear()
                conditions[operands := ()] = merged
        self._asked[place] = self.version
        condition = conditions.get(operands)
        if condition is None:
            if len(conditions) >= _OPERANDS:
                return
            condition = Condition(steps, _ending(code, frame.f_lasti), dict(self._turn))
            conditions[operands] = condition
        elif condition not in self._turn:
            condition.before = dict(condition.before.items() & self._turn.items())
        condition.steps = steps
        condition.seen.add(answer)
        self._turn[condition] = answer

    def choose(
        self,
        values: Values,
        chosen: Sequence[int] = (),
        *,
        ignored: Sequence[Condition] = (),
        has_end: bool = True,
    ) -> list[int]:
        """Positions of values with answers that were not run.

        chosen: positions that are run anyway. ignored: conditions that are not looked at. has_end: whether
        the last value is the last one that the counter has.
        """
        known = {c: answers for c in self.conditions if (answers := c.answers(values)) is not None}
        missing: list[Values] = []
        for condition, answers in known.items():
            if condition in ignored:
                continue
            is_asked = np.ones(len(values), dtype=bool)
            for other, answer in condition.before.items():
                if other in known:
                    is_asked &= known[other] == answer
            possible = set(map(int, np.unique(answers))) if condition.is_part else {True, False}
            for answer in possible - condition.seen:
                positions = np.flatnonzero((answers == answer) & is_asked)
                attempts = condition.attempts.get(answer, 0)
                if len(positions) and attempts < _ATTEMPTS:
                    condition.attempts[answer] = attempts + 1
                    missing.append(positions)
        turns: set[int] = set()
        lasts = False
        for positions in sorted(missing, key=len):
            if not np.isin(positions, [*chosen, *turns]).any():
                is_rare = len(positions) <= _RARE
                turns |= set(map(int, positions if is_rare else positions[:1]))
                lasts = lasts or is_rare or positions[-1] - positions[0] == len(positions) - 1
        if lasts and has_end:  # what such a turn changed may show later
            periodic = [answers for condition, answers in known.items() if not condition.is_part]
            turns.add(_busiest(periodic, len(values)))
        return sorted(turns - set(chosen))


def _busiest(answers: Iterable[Values], count: int) -> int:
    """The last turn in which as many of the answers that come and go are the rarer ones as in any."""
    busy = np.zeros(count, dtype=int)
    for ones in answers:
        often = np.count_nonzero(ones)
        if np.count_nonzero(ones[1:] != ones[:-1]) > 1 and _RARE < often < count - _RARE:
            busy += ones if 2 * often <= count else ~ones
    return count - 1 - int(np.argmax(busy[::-1]))


@cache
def _is_followed(code: CodeType) -> bool:
    """Whether conditions in the code may decide about memory."""
    file = code.co_filename
    return not is_library_file(file) and code.co_firstlineno not in syntax.rates(file)


def _ending(code: CodeType, instruction: int) -> bool | None:
    """The answer that ends the loop around a condition in the code, if one does."""
    line, _, column, _ = list(code.co_positions())[instruction // 2]
    return syntax.endings(code.co_filename).get((line or 0, column or 0))


# --- numbers


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, Fraction) else value


def _step(traced: Any, operation: Callable[[Any, Any], Any], other: Any, is_reflected: bool = False) -> Step:
    if not isinstance(other, (Counter, Fraction)):
        return Step(operation, other, is_reflected)
    if other.count is traced.count and other.version == traced.version:
        return Step(operation, other.steps, is_reflected)
    return Step(operation, _plain(other), is_reflected, is_varying=True)


def _arithmetic(operation: Callable[[Any, Any], Any], *, is_reflected: bool = False) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        pair = _plain(self), _plain(other)
        result: Any = operation(*(reversed(pair) if is_reflected else pair))
        kind: Any = Counter if type(result) is int else Fraction if type(result) is float else None
        if kind is None or self.version != self.count.version:
            return result
        steps = (*self.steps, _step(self, operation, other, is_reflected))
        if type(result) is int and operation in (operator.floordiv, operator.mod):
            self.count.record_part(steps, result, sys._getframe(1).f_code)
        return kind.of(result, self.count, steps)

    return method


def _comparison(operation: Callable[[Any, Any], Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        answer = operation(_plain(self), _plain(other))
        if self.version == self.count.version:
            step = _step(self, operation, other)
            self.count.record((*self.steps, step), bool(answer), sys._getframe(1))
        return answer

    return method


class _Traced:
    """What a Counter and a Fraction have in common. steps: how the number follows from the counter."""

    count: Count
    version: int
    steps: tuple[Step, ...]

    __add__, __radd__ = _arithmetic(operator.add), _arithmetic(operator.add, is_reflected=True)
    __sub__, __rsub__ = _arithmetic(operator.sub), _arithmetic(operator.sub, is_reflected=True)
    __mul__, __rmul__ = _arithmetic(operator.mul), _arithmetic(operator.mul, is_reflected=True)
    __mod__, __rmod__ = _arithmetic(operator.mod), _arithmetic(operator.mod, is_reflected=True)
    __floordiv__ = _arithmetic(operator.floordiv)
    __rfloordiv__ = _arithmetic(operator.floordiv, is_reflected=True)
    __truediv__ = _arithmetic(operator.truediv)
    __rtruediv__ = _arithmetic(operator.truediv, is_reflected=True)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)

    def __bool__(self) -> bool:
        answer = _plain(self) != 0
        if self.version == self.count.version:
            self.count.record((*self.steps, Step(operator.ne, 0)), answer, sys._getframe(1))
        return answer

    def __neg__(self) -> Any:
        return 0 - self  # pyright: ignore[reportOperatorIssue]

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # NumPy keeps the type of an array beside a plain number only.
        return getattr(function, method)(*map(_plain, inputs), **options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(_plain(self)), (_plain(self),)


class Counter(_Traced, int):
    """A whole number of a loop."""

    __hash__ = int.__hash__  # pyright: ignore[reportAssignmentType]

    @classmethod
    def of(cls, value: int, count: Count, steps: tuple[Step, ...]) -> Counter:
        counter = int.__new__(cls, value)
        counter.count, counter.version, counter.steps = count, count.version, steps
        return counter


class Fraction(_Traced, float):
    """A number with decimals that was computed from a Counter."""

    __hash__ = float.__hash__  # pyright: ignore[reportAssignmentType]

    @classmethod
    def of(cls, value: float, count: Count, steps: tuple[Step, ...]) -> Fraction:
        fraction = float.__new__(cls, value)
        fraction.count, fraction.version, fraction.steps = count, count.version, steps
        return fraction
