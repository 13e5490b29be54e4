"""Where memory ends: the largest size that fits and the smallest that does not, within 1 %.

Predict, then bisect: two runs just below and above a good guess are enough; a poor guess costs no
more than the bisection it replaces. Sizes are compared on a log scale, as the ladder is geometric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

TOLERANCE = 0.01
MOST = 8


@dataclass(frozen=True)
class Boundary:
    """`fits` ran, `fails` ran out of memory; `runs` were spent between them."""

    fits: int
    fails: int
    runs: int


def close_in(
    fits: int,
    fails: int,
    *,
    guess: float | None,
    run: Callable[[int], bool | None],
    tolerance: float = TOLERANCE,
    most: int = MOST,
) -> Boundary:
    """Narrow [fits, fails]. `run(size)` says whether it fits; None (it crashed) ends the search."""
    runs = 0
    guesses = [] if guess is None else [guess * (1 - tolerance / 3), guess * (1 + tolerance / 3)]
    while fails > fits * (1 + tolerance) and fails - fits > 1 and runs < most:
        inside = [g for g in guesses if fits + 1 <= g < fails]
        size = int(inside[0]) if inside else round(math.sqrt(fits * fails))
        guesses = inside[1:]
        size = min(max(size, fits + 1), fails - 1)
        runs += 1
        fitted = run(size)
        if fitted is None:
            break
        if fitted:
            fits = size
        else:
            fails = size
    return Boundary(fits, fails, runs)
