"""Search for the largest whole number that fits a budget, with few samples of its need.

The need grows with the number and is nearly affine, with steps of the allocator on top. Two samples far
apart give a slope; the next ones are just below and just above where the line meets the budget. The search
bisects where the line is misleading: at a kink, or where the need jumps. The answer is always a number that
was itself sampled and fits. Uses no framework and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pinchpoint.core.errors import BadInput, TargetFailed, TimedOut
from pinchpoint.core.units import MIB, show_bytes

RUNS = 8
TOLERANCE = 0.01
UP_TO = 10**9
FLAT_REACH = 8  # the factor over which a need that does not grow is flat
_JUMP = 64  # the largest factor by which one guess exceeds what was sampled
_LEAP = 16  # the smallest factor between the first and the second sample
_ASIDE = 0.4  # distance of the two guesses on either side of the estimate, as a share of the tolerance
APART = 0.03  # samples closer than this show steps of the allocator instead of the slope
_BENT = 1.1, 3.9  # exponents treated as a curve; below is a line with noisy small sizes, above a jump
_PATIENCE = 3  # the bracket is bisected after this many guesses in a row that remove less than half of it
_DROP = 0.02  # a fall of the need by more than this share is not a step of the allocator
_LEAST_DROP = 64 * MIB
_FLAT = 1e-3

Ending = Literal["bracketed", "runs", "up_to", "flat", "hopeless", "timed_out", "failed"]


@dataclass(frozen=True)
class Sample:
    """What one number needs.

    live_bytes: without the rounding of the allocator, to distinguish flat from stepped. fixed_bytes: what no
    smaller number would save, as far as is known, such as context and weights. known: whether the need cannot
    be higher; if it can, the number does not count as fitting.
    """

    number: int
    need_bytes: int
    live_bytes: int
    fixed_bytes: int = 0
    known: bool = True

    def fits(self, budget_bytes: int) -> bool:
        return self.known and self.need_bytes <= budget_bytes


@dataclass(frozen=True)
class SearchResult:
    """The largest sampled number that fits and the smallest that does not; None where there is none.

    ending: why the search stopped. "bracketed" means that the two are neighbours or within the tolerance.
    """

    fits: Sample | None
    fails: Sample | None
    ending: Ending
    runs: int
    samples: tuple[Sample, ...]
    reason: str = ""  # why a larger number could not be sampled

    @property
    def gap(self) -> float | None:
        """How far the smallest failing number is above the answer, as a share of it."""
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
    known_samples: Iterable[Sample] = (),
    runs: int = RUNS,
    tolerance: float = TOLERANCE,
    may_fall: bool = False,
    flat_reach: int = FLAT_REACH,
    slope: float | None = None,
) -> SearchResult:
    """Sample at most `runs` numbers in [floor, up_to], starting at `start`.

    known_samples: those that already exist. prove_floor: if false, the floor is not sampled when the line
    through the samples shows clearly that it does not fit either. may_fall: a need that falls as the number
    grows is not an error, as it can happen for chunks; the largest number that fits is still the answer.
    flat_reach: the factor over which a need that does not grow is flat. slope: about the bytes by which the
    need grows with the number, if a similar search has shown it; then `start` is near the answer. A
    `TimedOut` or `TargetFailed` above a number that fits ends the search; if nothing fits it is raised, like
    every other error of `sample`, but after a `TimedOut` of the first sample smaller numbers are tried.
    """
    state = _Search(
        {s.number: s for s in known_samples},
        budget_bytes,
        floor,
        up_to,
        tolerance,
        prove_floor,
        may_fall,
        flat_reach,
        slope,
    )
    run_count = 0
    while True:
        ending = state.ending()
        if ending is None and run_count == runs:
            ending = "runs"
        if ending is not None:
            samples = tuple(sorted(state.samples.values(), key=lambda s: s.number))
            return SearchResult(state.fits, state.fails, ending, run_count, samples, state.reason)
        number = state.guess(start, last=run_count == runs - 1)
        try:
            state.add(sample(number))
        except (TimedOut, TargetFailed) as error:
            if isinstance(error, TimedOut) and not state.samples and number > floor:
                # A smaller number may be fast enough, and its answer is better than none.
                start, state.up_to = (max(floor, number // _JUMP) if run_count == 0 else floor), number - 1
                run_count += 1
                continue
            if state.fits is None or number < state.fits.number:
                raise
            state.early_ending, state.reason = (
                ("timed_out" if isinstance(error, TimedOut) else "failed"),
                error.what,
            )
        run_count += 1


class _Search:
    def __init__(
        self,
        samples: dict[int, Sample],
        budget_bytes: int,
        floor: int,
        up_to: int,
        tolerance: float,
        prove_floor: bool,
        may_fall: bool,
        flat_reach: int,
        slope: float | None,
    ) -> None:
        self.samples = samples
        self.budget = budget_bytes
        self.floor, self.up_to = floor, up_to
        self.tolerance = tolerance
        self.prove_floor = prove_floor
        self.may_fall = may_fall
        self.flat_reach = flat_reach
        self.slope = slope
        self.early_ending: Ending | None = None
        self.reason = ""
        self.descents = 0  # guesses while nothing fits
        self.side = ""  # on which side of the estimate the last guess was
        self.misses = 0  # consecutive guesses whose result was on the other side
        self.width = math.inf  # logarithm of the bracket's width before the last guess
        self.stalls = 0  # consecutive guesses from the curve that removed less than half of the bracket

    @property
    def fits(self) -> Sample | None:
        return max(
            (s for s in self.samples.values() if s.fits(self.budget)),
            key=lambda s: s.number,
            default=None,
        )

    @property
    def fails(self) -> Sample | None:
        least = self.fits.number if self.may_fall and self.fits is not None else 0
        above = (s for s in self.samples.values() if not s.fits(self.budget) and s.number > least)
        return min(above, key=lambda s: s.number, default=None)

    def add(self, new: Sample) -> None:
        fits_budget = new.fits(self.budget)
        miss = fits_budget if self.side == "over" else not fits_budget
        self.misses = self.misses + 1 if self.side and miss else 0
        self.samples[new.number] = new
        if self.fits is not None and self.fails is not None and self.width < math.inf:
            width = math.log(self.fails.number / self.fits.number)
            self.stalls = self.stalls + 1 if self.side and width > 0.5 * self.width else 0
        ordered = sorted(self.samples.values(), key=lambda s: s.number)
        for low, high in () if self.may_fall else pairwise(ordered):
            drop = min(low.need_bytes - high.need_bytes, low.live_bytes - high.live_bytes)
            if drop > max(_LEAST_DROP, _DROP * low.need_bytes):  # what the allocator caches may jump
                raise BadInput(
                    f"The predicted need falls from {show_bytes(low.need_bytes)} at {low.number:,}"
                    f" to {show_bytes(high.need_bytes)} at {high.number:,}, so there is no largest size.",
                    hint="See the curve with `pinchpoint study TARGET --on fake`, or plan for one --size.",
                )

    def ending(self) -> Ending | None:
        fits, fails = self.fits, self.fails
        if self.early_ending is not None:
            return self.early_ending
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
        """Whether the line through the two smallest samples is clearly above the budget at the floor."""
        if len(self.samples) < 2:
            return False
        low, high = sorted(self.samples.values(), key=lambda s: s.number)[:2]
        slope = max(0.0, (high.need_bytes - low.need_bytes) / (high.number - low.number))
        return low.need_bytes - slope * (low.number - self.floor) > 1.02 * self.budget

    def _is_flat(self) -> bool:
        """Whether the last samples agree over a wide range, and no number would exceed the budget."""
        high = max(self.samples.values(), key=lambda s: s.number)
        level = [s for s in self.samples.values() if high.live_bytes - s.live_bytes <= _FLAT * s.live_bytes]
        low = min(level, key=lambda s: s.number)
        if high.number < min(self.flat_reach * low.number, self.up_to):
            return False
        growth = high.live_bytes - low.live_bytes
        slope = growth / (high.number - low.number)
        return high.need_bytes + slope * (self.up_to - high.number) <= self.budget

    def guess(self, start: int, *, last: bool) -> int:
        fits, fails = self.fits, self.fails
        self.side, self.width = "", math.inf
        if not self.samples:
            return min(max(start, self.floor), self.up_to)
        if fits is not None and fails is not None:
            return self._between(fits, fails)
        if fits is not None:
            return self._above(fits)
        assert fails is not None  # a sample that does not fit fails
        return self._below(fails, last=last)

    def _above(self, fits: Sample) -> int:
        """Everything fits so far: go up, to just below where the curve meets the budget."""
        at = self._meets()
        aim = fits.number * _JUMP
        if at is not None and len(self.samples) == 1 and self.slope is None:
            # Far enough away to give a slope, whatever the first sample suggests.
            return min(math.floor(min(max(at, fits.number * _LEAP), aim)), self.up_to)
        if at is not None:
            # Already near the estimate: what is missing is a number just above that does not fit.
            near = fits.number >= at * (1 - 1.5 * _ASIDE * self.tolerance)
            aim = min(
                fits.number * (1 + self.tolerance * 3**self.misses)
                if near
                else at * (1 - _ASIDE * self.tolerance),
                aim,
            )
            self.side = "over" if near else "under"
        return min(max(math.floor(aim), fits.number + 1), self.up_to)

    def _below(self, fails: Sample, *, last: bool) -> int:
        """Nothing fits so far: go down, to the floor if the curve says so or few runs are left."""
        self.descents += 1
        at = self._meets()
        if not fails.known:
            return self.floor  # what is unknown is usually unknown at every number
        if last or self.descents > 3 or at is None or at < 2 * self.floor:
            return self.floor
        # Neighbouring samples would show steps instead of a slope, so each step down is large.
        aim = at * (1 - _ASIDE * self.tolerance)
        if self.slope is None or self.descents > 1:
            aim = min(aim if len(self.samples) > 1 else at * 0.9, 0.5 * fails.number)
        return min(max(math.floor(aim), self.floor), fails.number - 1)

    def _between(self, fits: Sample, fails: Sample) -> int:
        """Approach the estimate of the curve from both sides; bisect where that gains too little."""
        low, high = fits.number, fails.number
        self.width = math.log(high / low)
        middle = math.isqrt(low * high) if high > 4 * low else (low + high) // 2
        at = self._meets()
        if at is None or not low < at < high or self.stalls >= _PATIENCE:
            return middle
        aside = _ASIDE * self.tolerance
        if low < at * (1 - 1.5 * aside):
            aim, self.side = max(math.floor(at * (1 - aside * 3**self.misses)), low + 1), "under"
        else:
            # Already close below the estimate: what is missing is a number just above that does not fit.
            aim, self.side = max(math.floor(low * (1 + self.tolerance * 3**self.misses)), low + 1), "over"
        return aim if aim < high else middle

    def _meets(self) -> float | None:
        """Where the curve through the samples nearest to the budget meets it; None if it does not rise."""
        near = sorted(self.samples.values(), key=lambda s: abs(s.need_bytes - self.budget))
        first = near[0]
        apart = [s for s in near[1:] if abs(math.log(s.number / first.number)) > APART]
        if not apart and self.slope is not None:
            return max(0.0, first.number + (self.budget - first.need_bytes) / self.slope)
        if len(near) == 1:
            # Weights and similar parts do not grow: use a line from there.
            return crossing((Sample(0, min(first.fixed_bytes, first.need_bytes - 1), 0), first), self.budget)
        apart = apart or near[1:]
        third = next((s for s in apart[1:] if abs(math.log(s.number / apart[0].number)) > APART), None)
        if third is not None:
            three = _ordered((first, apart[0], third))
            if _BENT[0] < _power(three) < _BENT[1]:
                return crossing(three, self.budget)
        # On a step of the allocator the need does not rise: then use the line through the outermost samples.
        every = _ordered(self.samples.values())
        return crossing(_ordered((first, apart[0])), self.budget) or crossing(
            (every[0], every[-1]), self.budget
        )


def _ordered(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    return tuple(sorted(samples, key=lambda s: s.number))


def crossing(samples: tuple[Sample, ...], budget_bytes: int) -> float | None:
    """Where `a + b * number ** p` through the samples (p = 1 for two) meets the budget, if it does."""
    low, high = samples[0], samples[-1]
    if high.need_bytes <= low.need_bytes:
        return None
    power = _power(samples) if len(samples) > 2 else 1.0
    base, top = float(low.number) ** power, float(high.number) ** power
    at = base + (budget_bytes - low.need_bytes) * (top - base) / (high.need_bytes - low.need_bytes)
    return at ** (1 / power) if at > 0 else None


def _power(samples: tuple[Sample, ...]) -> float:
    """The exponent, from 1/2 to 4, for which the middle sample is on the curve through the outer two."""
    low, middle, high = samples
    if high.need_bytes <= low.need_bytes:
        return 1.0
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
