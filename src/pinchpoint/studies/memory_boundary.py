"""The memory boundary: the largest size that fits and the smallest that does not, within 1 %.

The search predicts, then bisects: two runs just below and above a good guess are enough, and a poor
guess costs no more than the bisection it replaces. Sizes are compared on a log scale, because the
ladder is geometric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

TOLERANCE = 0.01
MAX_RUNS = 8


@dataclass(frozen=True)
class Boundary:
    """The size `fits` ran and `fails` ran out of memory; the search between them took `runs` runs."""

    fits: int
    fails: int
    runs: int


def find_boundary(
    fits: int,
    fails: int,
    *,
    guess: float | None,
    run: Callable[[int], bool | None],
    tolerance: float = TOLERANCE,
    max_runs: int = MAX_RUNS,
) -> Boundary:
    """Narrow [fits, fails]. `run(size)` returns whether the size fits; None, for a crash, ends the search."""
    runs = 0
    guesses = [] if guess is None else [guess * (1 - tolerance / 3), guess * (1 + tolerance / 3)]
    while fails > fits * (1 + tolerance) and fails - fits > 1 and runs < max_runs:
        inside = [g for g in guesses if fits + 1 <= g < fails]
        size = int(inside[0]) if inside else round(math.sqrt(fits * fails))
        guesses = inside[1:]
        size = min(max(size, fits + 1), fails - 1)
        runs += 1
        size_fits = run(size)
        if size_fits is None:
            break
        if size_fits:
            fits = size
        else:
            fails = size
    return Boundary(fits, fails, runs)
