"""The largest whole number that fits a budget, found in few samples of its need.

Needs grow with the number and are nearly affine in it, with the allocator's steps on top: every
guess is read off a curve through the samples, halving takes over where the curve misleads. The
answer is always a number that was itself sampled and fitted. No framework, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pinchpoint.core.errors import BadInput, TimedOut
from pinchpoint.core.units import MIB, show_bytes

RUNS = 8
TOLERANCE = 0.01
UP_TO = 10**9
_JUMP = 64  # the farthest one guess goes beyond what was sampled
_ASIDE = 0.4  # of the tolerance: how far beside the estimate both sides are tried
_DROP = 0.02  # a fall of the need by more than this is no allocator step
_LEAST_DROP = 64 * MIB
_FLAT = 1e-3

Ending = Literal["bracketed", "runs", "up_to", "flat", "hopeless", "timed_out"]


@dataclass(frozen=True)
class Sample:
    """What one number needs. `live_bytes`: without the allocator's rounding, to tell flat from stepped."""

    number: int
    need_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class Found:
    """The largest sampled number that fits and the smallest that does not; None where there is none.

    ending: why the search stopped. "bracketed": the two are neighbours or within the tolerance.
    """

    fits: Sample | None
    fails: Sample | None
    ending: Ending
    runs: int
    samples: tuple[Sample, ...]

    @property
    def gap(self) -> float | None:
        """How far the smallest failing number lies above the answer, as a share of it."""
        if self.fits is None or self.fails is None:
            return None
        return self.fails.number / self.fits.number - 1


def largest_that_fits(
    sample: Callable[[int], Sample],
    *,
    budget_bytes: int,
    start: int,
    floor: int = 1,
    up_to: int = UP_TO,
    prove_floor: bool = True,
    known: Iterable[Sample] = (),
    runs: int = RUNS,
    tolerance: float = TOLERANCE,
) -> Found:
    """Sample at most `runs` numbers in [floor, up_to], beginning at `start`.

    `known` samples cost nothing. Without `prove_floor` the floor is not sampled when the line
    through the samples says clearly that it does not fit either. A `TimedOut` above a number that fits ends the search; without
    one it is raised, as is every other error of `sample`.
    """
    state = _Search({s.number: s for s in known}, budget_bytes, floor, up_to, tolerance, prove_floor)
    done = 0
    while True:
        ending = state.ending()
        if ending is None and done == runs:
            ending = "runs"
        if ending is not None:
            return Found(state.fits, state.fails, ending, done, tuple(sorted(state.samples.values(), key=lambda s: s.number)))
        number = state.guess(start, last=done == runs - 1)
        try:
            state.add(sample(number))
        except TimedOut:
            if state.fits is None:
                raise
            state.timed_out = True
        done += 1


class _Search:
    def __init__(
        self, samples: dict[int, Sample], budget_bytes: int, floor: int, up_to: int, tolerance: float, prove_floor: bool
    ) -> None:
        self.samples = samples
        self.budget = budget_bytes
        self.floor, self.up_to = floor, up_to
        self.tolerance = tolerance
        self.prove_floor = prove_floor
        self.timed_out = False
        self.descents = 0  # guesses made while nothing fitted
        self.aimed = ""  # beside which side of the estimate the last guess lay
        self.misses = 0  # guesses in a row that came out on the other side

    @property
    def fits(self) -> Sample | None:
        return max((s for s in self.samples.values() if s.need_bytes <= self.budget), key=lambda s: s.number, default=None)

    @property
    def fails(self) -> Sample | None:
        return min((s for s in self.samples.values() if s.need_bytes > self.budget), key=lambda s: s.number, default=None)

    def add(self, new: Sample) -> None:
        fitted = new.need_bytes <= self.budget
        missed = fitted if self.aimed == "over" else not fitted
        self.misses = self.misses + 1 if self.aimed and missed else 0
        self.aimed = ""
        self.samples[new.number] = new
        ordered = sorted(self.samples.values(), key=lambda s: s.number)
        for low, high in pairwise(ordered):
            if low.need_bytes - high.need_bytes > max(_LEAST_DROP, _DROP * low.need_bytes):
                raise BadInput(
                    f"the predicted need falls from {show_bytes(low.need_bytes)} at {low.number:,}"
                    f" to {show_bytes(high.need_bytes)} at {high.number:,}, so no largest one can be told",
                    mend="look at the curve with `pinchpoint study TARGET --on fake`, or ask for one size with --size",
                )

    def ending(self) -> Ending | None:
        fits, fails = self.fits, self.fails
        if self.timed_out:
            return "timed_out"
        if fails is not None and fails.number <= self.floor:
            return "bracketed"
        if fits is None:
            return "hopeless" if not self.prove_floor and self._is_hopeless() else None
        if fits.number >= self.up_to:
            return "up_to"
        if fails is None:
            return "flat" if self._is_flat() else None
        close = fails.number - fits.number <= max(1, self.tolerance * fits.number)
        return "bracketed" if close else None

    def _is_hopeless(self) -> bool:
        """The line through the two smallest samples is clearly above the budget at the floor."""
        if len(self.samples) < 2:
            return False
        low, high = sorted(self.samples.values(), key=lambda s: s.number)[:2]
        slope = max(0.0, (high.need_bytes - low.need_bytes) / (high.number - low.number))
        return low.need_bytes - slope * (low.number - self.floor) > 1.02 * self.budget

    def _is_flat(self) -> bool:
        """The last two samples are the same for eight times the number or more, and no number would fill the budget."""
        if len(self.samples) < 2:
            return False
        low, high = sorted(self.samples.values(), key=lambda s: s.number)[-2:]
        grown = high.live_bytes - low.live_bytes
        if high.number < 8 * low.number or grown > _FLAT * low.live_bytes:
            return False
        slope = grown / (high.number - low.number)
        return high.need_bytes + slope * (self.up_to - high.number) <= self.budget

    def guess(self, start: int, *, last: bool) -> int:
        fits, fails = self.fits, self.fails
        if not self.samples:
            return min(max(start, self.floor), self.up_to)
        if fits is not None and fails is not None:
            return self._between(fits, fails)
        if fits is not None:
            return self._above(fits)
        assert fails is not None  # a sample that does not fit fails
        return self._below(fails, last=last)

    def _above(self, fits: Sample) -> int:
        """Everything fits so far: go up, along the curve through the samples."""
        aim = fits.number * min(max(self.budget / fits.need_bytes, 2.0), _JUMP)
        if len(self.samples) > 1:
            at = _meets(self._spread(), self.budget)
            # A little beyond the estimate: a failing number is still wanted above.
            aim = fits.number * _JUMP if at is None else min(at * (1 + _ASIDE * self.tolerance), fits.number * _JUMP)
        return min(max(math.ceil(aim), fits.number + 1), self.up_to)

    def _below(self, fails: Sample, *, last: bool) -> int:
        """Nothing fits so far: go down, to the floor when the curve says so or chances run out."""
        self.descents += 1
        if last or self.descents > 2:
            return self.floor
        aim = fails.number * min(max(0.5 * self.budget / fails.need_bytes, 1 / _JUMP), 0.5)
        if len(self.samples) > 1:
            at = _meets(self._spread(), self.budget)
            if at is None or at < self.floor:
                return self.floor
            aim = at * (1 - _ASIDE * self.tolerance)
        return min(max(math.floor(aim), self.floor), fails.number - 1)

    def _between(self, fits: Sample, fails: Sample) -> int:
        """Close in from both sides of the curve's estimate, wider each time the same side gives way again."""
        low, high = fits.number, fails.number
        at = _meets(self._spread(), self.budget)
        if at is None or not low < at < high:
            at = _meets((fits, fails), self.budget)
        assert at is not None  # the bracket's needs lie on either side of the budget
        aside = _ASIDE * self.tolerance
        under = math.floor(at * (1 - aside * 3**self.misses))
        if low < min(under, at * (1 - 1.5 * aside)):
            aim, self.aimed = under, "under"
        else:
            # Near enough below the estimate already: what is missing is a failure near above it.
            aim, self.aimed = max(math.floor(low * (1 + self.tolerance * 3**self.misses)), low + 1), "over"
        if aim >= high:
            aim, self.aimed = math.isqrt(low * high) if high > 4 * low else (low + high) // 2, ""
        return max(aim, low + 1)

    def _spread(self) -> tuple[Sample, ...]:
        """Three samples to draw a curve through, or what there is: the bracket, then the nearest needs."""
        bracket = (self.fits, self.fails)
        near = sorted(self.samples.values(), key=lambda s: (s not in bracket, abs(s.need_bytes - self.budget)))[:3]
        return tuple(sorted(near, key=lambda s: s.number))


def _meets(samples: tuple[Sample, ...], budget_bytes: int) -> float | None:
    """Where `a + b * number ** p` through the samples (p = 1 for two) meets the budget; None when it does not rise."""
    low, high = samples[0], samples[-1]
    if high.need_bytes <= low.need_bytes:
        return None
    power = _power(samples) if len(samples) > 2 else 1.0
    base, top = float(low.number) ** power, float(high.number) ** power
    at = base + (budget_bytes - low.need_bytes) * (top - base) / (high.need_bytes - low.need_bytes)
    return at ** (1 / power) if at > 0 else None


def _power(samples: tuple[Sample, ...]) -> float:
    """The exponent for which the middle sample lies on the curve through the outer two, within 1/2 to 4."""
    low, middle, high = samples
    share = (middle.need_bytes - low.need_bytes) / (high.need_bytes - low.need_bytes)
    if not 0 < share < 1:
        return 1.0
    least, most = 0.5, 4.0
    for _ in range(40):
        power = (least + most) / 2
        got = (middle.number / high.number) ** power
        start = (low.number / high.number) ** power
        # The larger the exponent, the smaller the middle's share of the rise.
        least, most = (power, most) if (got - start) / (1 - start) > share else (least, power)
    return (least + most) / 2
