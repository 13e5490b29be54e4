"""Times of a baseline and a variant, run in turn with the device awaited, and their ratio with its interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from pinchpoint.core import targets
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.workload import Case
from pinchpoint.studies.timing import Clock, interleave, ratio_interval

LEAST_REPEATS = 8  # fewer pairs give no interval worth its name
WARMUP = 3


@dataclass(frozen=True)
class Speed:
    """speedup: baseline / variant, with its bootstrap 95 % interval; under 1 is a slow-down."""

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
    """Time both steps. Fewer repeats, but never under 8, where `repeats` would take longer than `limit_s`.

    None where a step is shorter than the clock can tell.
    """

    def run(case: Case) -> Callable[[], Any]:
        return lambda: case.step(*case.args)

    a, b = run(before), run(after)
    try:
        # The first call of each may compile; the second says what a pair costs.
        for step in (a, b):
            wait(step())
        start = clock()
        for step in (a, b):
            wait(step())
        pair_s = clock() - start
        affordable = int(limit_s / pair_s) if pair_s > 0 else repeats
        used = min(repeats, max(LEAST_REPEATS, affordable))
        times = interleave(
            a, b, wait=wait, warmup=WARMUP if affordable > repeats else 1, repeats=used, clock=clock
        )
    except PinchpointError:
        raise
    except Exception as error:
        raise targets.explain_failure(text, error, "stepping") from error
    if min(*times[0], *times[1]) <= 0:
        return None
    speedup, low, high = ratio_interval(*times, seed=seed)
    return Speed(speedup, low, high, median(times[0]), median(times[1]), used)
