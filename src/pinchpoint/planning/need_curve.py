"""A curve of needed bytes against a number: the answer for many budgets, and which sample to add next.

Between two samples the need is interpolated linearly. The lines through neighbouring samples are extended to
the same budget. Where they disagree, at a kink or a jump, the smallest answer is used, and the disagreement
is the uncertainty of the reading. Uses no framework and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pinchpoint.core.errors import CannotFake, PinchpointError, TargetFailed, TimedOut
from pinchpoint.planning.search import APART, Sample, crossing

RESERVE = 0.01  # the share by which a number that was not sampled itself is reduced
ENOUGH = 0.02  # uncertainty, reserve included, below which another sample is not worth its time
_JUMP = 64  # the largest factor by which one sample exceeds the others


@dataclass(frozen=True)
class Reading:
    """The largest number for one budget.

    number: None if no sample fits. sampled: whether the number itself was sampled, or sampling has shown that
    not even the floor fits. doubt: how far the truth may be from it, as a share. aim: what to sample next;
    None if another sample would not help. between: the samples on either side.
    """

    number: int | None
    sampled: bool
    doubt: float
    aim: int | None
    between: tuple[int, int] | None = None


def read(samples: Iterable[Sample], budget_bytes: int, *, floor: int, up_to: int) -> Reading:
    """The answer of the curve for this budget, within [floor, up_to]."""
    ordered = sorted(samples, key=lambda s: s.number)
    low = max((s for s in ordered if s.need_bytes <= budget_bytes), key=lambda s: s.number, default=None)
    if low is None:
        return _under(ordered, budget_bytes, floor)
    high = next((s for s in ordered if s.number > low.number), None)
    if high is None:
        return _beyond(low, ordered, budget_bytes, up_to)
    return _between(low, high, ordered, budget_bytes)


def _under(ordered: Sequence[Sample], budget_bytes: int, floor: int) -> Reading:
    """Nothing fits: follow the line through the smallest sample down to the floor."""
    least = ordered[0]
    if least.number <= floor:
        return Reading(None, True, 0.0, None)
    at = crossing((least, _apart(least, ordered)), budget_bytes) or 0.0
    aim = min(max(floor, math.floor(at * (1 - RESERVE / 2))), least.number - 1)
    return Reading(None, False, least.number / aim, aim)  # a first answer matters more than a better one


def _beyond(low: Sample, ordered: Sequence[Sample], budget_bytes: int, up_to: int) -> Reading:
    """Everything fits: follow the line through the largest sample up to the limit."""
    if low.number >= up_to:
        return Reading(low.number, True, 0.0, None)
    farthest = min(low.number * _JUMP, up_to)
    at = crossing((_apart(low, ordered), low), budget_bytes) or farthest
    aim = min(max(math.floor(at * (1 - RESERVE / 2)), low.number + 1), farthest)
    return Reading(low.number, True, at / low.number - 1, aim)


def _between(low: Sample, high: Sample, ordered: Sequence[Sample], budget_bytes: int) -> Reading:
    chord = crossing((low, high), budget_bytes)
    assert chord is not None  # one fits, the other does not
    before = _apart(low, [s for s in ordered if s.number < low.number])
    after = _apart(high, [s for s in ordered if s.number > high.number])
    least = most = chord
    if before is not low and (at := crossing((before, low), budget_bytes)) is not None:
        least, most = min(least, at), max(most, min(at, high.number))
    if after is not high and (at := crossing((high, after), budget_bytes)) is not None:
        least = min(least, at)  # where the need jumps in between, the upper line is right
        if before is low:
            most = max(most, min(at, high.number))
    number = max(low.number, math.floor(least * (1 - RESERVE)))
    doubt = most / number - 1
    aim: int | None = math.floor(chord * (1 - RESERVE / 2))
    if aim < low.number * (1 + RESERVE / 2):
        aim = math.floor((low.number + most) / 2)
    aim = aim if low.number < aim < high.number else None
    return Reading(number, number == low.number, doubt, aim, (low.number, high.number))


def _apart(sample: Sample, others: Sequence[Sample]) -> Sample:
    """The nearest other sample that is far enough away to give a slope, or else the sample itself."""
    far = [s for s in others if abs(math.log(s.number / sample.number)) > APART]
    return min(far, key=lambda s: abs(math.log(s.number / sample.number)), default=sample)


def refine(
    samples: dict[int, Sample],
    sample: Callable[[int], Sample],
    budgets: Iterable[int],
    *,
    floor: int,
    up_to: int,
    runs: int,
) -> PinchpointError | None:
    """Try at most `runs` numbers, each where the uncertainty is largest, and add them to `samples`.

    A number that cannot be predicted is left out, and above all samples nothing larger is tried after it; the
    others are still tried. Returns the first error.
    """
    budgets_set = set(budgets)
    first_error: PinchpointError | None = None
    failures: set[int] = set()
    for _ in range(runs):
        readings = [
            read(samples.values(), budget, floor=floor, up_to=up_to) for budget in sorted(budgets_set)
        ]
        open_ones = [
            r
            for r in readings
            if r.aim is not None and r.aim not in samples and r.aim not in failures and r.doubt > ENOUGH
        ]
        if not open_ones:
            break
        worst = max(open_ones, key=lambda r: r.doubt)
        # Of the budgets between the same two samples, take the middle one: its sample helps both sides.
        beside = [r for r in open_ones if r.between == worst.between] if worst.between else [worst]
        aim = beside[len(beside) // 2].aim
        assert aim is not None
        try:
            samples[aim] = sample(aim)
        except (TargetFailed, CannotFake, TimedOut) as error:
            first_error = first_error or error
            failures.add(aim)
            if aim > max(samples, default=0):
                up_to = max(samples, default=aim)  # what is larger would take longer, or fail as well
    return first_error
