"""Speed of a variant relative to its baseline: both are timed in turn, and the ratio has an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from pinchpoint.core import targets
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.workload import Case
from pinchpoint.studies.timing import Clock, interleave, ratio_interval

MIN_REPEATS = 8  # fewer pairs do not give a useful interval
WARMUP = 3


@dataclass(frozen=True)
class Speed:
    """The speed-up, baseline / variant, with its bootstrap 95 % interval; below 1 it is a slow-down."""

    speedup: float
    low: float
    high: float
    baseline_s: float
    variant_s: float
    repeats: int


def compare_speed(
    before: Case,
    after: Case,
    *,
    wait: Callable[[Any], None],
    repeats: int,
    limit_s: float,
    clock: Clock,
    seed: int,
    text: str,
) -> Speed | None:
    """Time both steps, with fewer repeats, but at least 8, if `repeats` would take longer than `limit_s`.

    Return None if a step is shorter than the clock can resolve.
    """

    def run(case: Case) -> Callable[[], Any]:
        return lambda: case.step(*case.args)

    a, b = run(before), run(after)
    try:
        # The first call of each may compile; the second shows how long a pair takes.
        for step in (a, b):
            wait(step())
        start = clock()
        for step in (a, b):
            wait(step())
        pair_s = clock() - start
        affordable = int(limit_s / pair_s) if pair_s > 0 else repeats
        pairs = min(repeats, max(MIN_REPEATS, affordable))
        times = interleave(
            a, b, wait=wait, warmup=WARMUP if affordable > repeats else 1, repeats=pairs, clock=clock
        )
    except PinchpointError:
        raise
    except Exception as error:
        raise targets.explain_failure(text, error, "stepping") from error
    if min(*times[0], *times[1]) <= 0:
        return None
    speedup, low, high = ratio_interval(*times, seed=seed)
    return Speed(speedup, low, high, median(times[0]), median(times[1]), pairs)
