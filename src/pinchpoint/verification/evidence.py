"""What the results of a variant show beside its baseline's: comparisons of values, or of distributions.

Raises where nothing can be compared in the way asked for; in the others a baseline that fails
is noted, and a variant that fails where its baseline runs is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.workload import Probe
from pinchpoint.verification.comparison import Comparison, compare, gradient, points
from pinchpoint.verification.distribution import ALPHA, can_refuse, compare_draws
from pinchpoint.verification.probes import Bench, Way

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Evidence:
    """What the results showed: every comparison, and remarks."""

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    doubt: str = ""  # why the results can neither be refused nor trusted

    @property
    def worst(self) -> Comparison | None:
        """The refused comparison farthest beyond its tolerance, else the one nearest to it; rounding noise and counts last."""
        return max(
            self.comparisons,
            key=lambda c: (not c.ok, not c.noise, c.strain, c.what != "points"),
            default=None,
        )

    @property
    def refused(self) -> list[Comparison]:
        return [c for c in self.comparisons if not c.ok]


def of_values(bench: Bench, names: tuple[str, str], tried: Sequence[Way], say: Progress) -> Evidence:
    """Values and gradients in every way the baseline can be built."""
    found: list[Comparison] = []
    notes: list[str] = []
    noisy: list[tuple[Comparison, Any, Any]] = []
    seen: list[tuple[int, dict[str, tuple[int, ...]]]] = []
    for way in tried:
        say(f"results at {way}")
        try:
            case, before = bench.probed(names[0], way)
        except PinchpointError as error:
            if way is tried[0]:
                raise
            notes.append(f"not compared at {way}, where the baseline itself fails: {error.what}")
            continue
        seen.append((case.processed, {n: np.shape(g) for n, g in before.gradients.items() if g is not None}))
        if bench.mode == "train" and not before.gradients and way is tried[0]:
            notes.append("the baseline's probe gives no gradients, so none were compared")
        try:
            other, after = bench.probed(names[1], way)
        except PinchpointError as error:
            if way is tried[0]:
                raise
            found.append(_cannot(way, error))
            continue
        found.append(points(case.processed, other.processed, at=str(way)))
        fresh = compare(before, after, bench.workload.tolerance, at=str(way))
        if not all(c.ok for c in fresh) and all(c.ok for c in found):
            notes += _unsteady(compare(before, bench.probed(names[0], way)[1], bench.workload.tolerance))
        found += fresh
        noisy += [(c, before.gradients[c.name], after.gradients[c.name]) for c in fresh if c.noise]
    inputs = inputs_among(seen)
    again = {
        c: replace(gradient(c.name, old, new, bench.workload.tolerance.gradients), where=c.where)
        for c, old, new in noisy
        if c.name in inputs
    }
    found = [again.get(c, c) for c in found]
    names_of_noise = sorted({c.name for c in found if c.noise})
    if names_of_noise:
        notes.append(
            f"the baseline's gradient is rounding and no more, and was held against that: {', '.join(names_of_noise)}"
        )
    return Evidence(tuple(found), tuple(notes))


def inputs_among(seen: Sequence[tuple[int, dict[str, tuple[int, ...]]]]) -> set[str]:
    """Gradients of inputs, by the points processed and their shapes: a shape that follows the points is no parameter's.

    Where all ran with the same points, an axis as long as they are many tells.
    """
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for _, named in seen:
        for name, shape in named.items():
            shapes.setdefault(name, set()).add(shape)
    counts = {count for count, _ in seen}
    if len(counts) > 1:
        return {name for name, found in shapes.items() if len(found) > 1}
    return {name for name, found in shapes.items() if any(counts & set(shape) for shape in found)}


def _unsteady(again: Sequence[Comparison]) -> list[str]:
    """A remark when the baseline differs from itself: the variant may not be to blame."""
    worst = max((c for c in again if not c.ok and c.error is not None), key=lambda c: c.strain, default=None)
    if worst is None:
        return []
    return [
        f"the baseline does not repeat itself: {worst.what} {worst.name}, {worst.reason}; seed it, or declare it random"
    ]


def of_draws(
    bench: Bench, names: tuple[str, str], tried: Sequence[Way], say: Progress, draws: int
) -> Evidence:
    """Distributions over `draws` seeds, in the last (most ragged) way the baseline can be built."""
    notes: list[str] = []
    way = tried[0]
    for other in reversed(tried[1:]):
        try:
            bench.probed(names[0], other)
        except PinchpointError as error:
            notes.append(f"not drawn at {other}, where the baseline itself fails: {error.what}")
        else:
            way = other
            break
    seeds = [replace(way, seed=way.seed + i) for i in range(draws)]
    found: list[Comparison] = []
    before: list[Probe] = []
    after: list[Probe] = []
    for one in seeds:
        say(f"draws at {one}")
        case, probe = bench.probed(names[0], one)
        before.append(probe)
        try:
            other_case, probe = bench.probed(names[1], one)
        except PinchpointError as error:
            if way is tried[0]:
                raise
            return Evidence((_cannot(one, error),), tuple(notes))
        after.append(probe)
        found.append(points(case.processed, other_case.processed, at=str(one)))
    tested = compare_draws(before, after, at=[str(one) for one in seeds])
    count = sum(c.what == "distribution" for c in tested)
    notes.append(
        f"{count} two-sample tests over {draws} seeds; together they refuse a right variant {ALPHA:.0%} of the time"
    )
    doubt = (
        "" if can_refuse(draws, count) else f"{draws} seeds are too few to refuse anything in {count} tests"
    )
    return Evidence((*found, *tested), tuple(notes), doubt)


def _cannot(way: Way, error: PinchpointError) -> Comparison:
    return Comparison("probe", "output", None, 0.0, False, str(way), f"{error.what}; the baseline runs there")
