"""Evidence on a variant: its values, or its distributions, compared with its baseline's.

At the requested size, a baseline or a variant that fails is an error. At the additional sizes, a
baseline that fails is noted, and a variant that fails where its baseline runs is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.workload import Probe
from pinchpoint.verification.comparison import Comparison, compare, compare_counts, compare_gradient
from pinchpoint.verification.distribution import ALPHA, can_refuse, compare_draws
from pinchpoint.verification.probes import CaseBuilder, CaseSpec

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Evidence:
    """The comparisons of a variant with its baseline, and notes."""

    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    doubt: str = ""  # why the results are neither rejected nor accepted

    @property
    def worst(self) -> Comparison | None:
        """The comparison that exceeds its tolerance most, else the one closest to it.

        Noise and counts come last.
        """
        return max(
            self.comparisons,
            key=lambda c: (not c.ok, not c.noise, c.strain, c.what != "points"),
            default=None,
        )

    @property
    def failures(self) -> list[Comparison]:
        return [c for c in self.comparisons if not c.ok]


def compare_values(
    builder: CaseBuilder, names: tuple[str, str], specs: Sequence[CaseSpec], report: Progress
) -> Evidence:
    """Compare values and gradients at every spec that the baseline can be built with."""
    comparisons: list[Comparison] = []
    notes: list[str] = []
    noisy: list[tuple[Comparison, Any, Any]] = []
    gradient_shapes: list[tuple[int, dict[str, tuple[int, ...]]]] = []
    for spec in specs:
        report(f"results at {spec}")
        try:
            case, before = builder.build_and_probe(names[0], spec)
        except PinchpointError as error:
            if spec is specs[0]:
                raise
            notes.append(f"nothing was compared at {spec}, where the baseline itself fails: {error.what}")
            continue
        shapes = {n: np.shape(g) for n, g in before.gradients.items() if g is not None}
        gradient_shapes.append((case.processed, shapes))
        if builder.mode == "train" and not before.gradients and spec is specs[0]:
            notes.append("the baseline's probe returns no gradients, so none were compared")
        try:
            other, after = builder.build_and_probe(names[1], spec)
        except PinchpointError as error:
            if spec is specs[0]:
                raise
            comparisons.append(_variant_failed(spec, error))
            continue
        comparisons.append(compare_counts(case.processed, other.processed, at=str(spec)))
        fresh = compare(before, after, builder.workload.tolerance, at=str(spec))
        if not all(c.ok for c in fresh) and all(c.ok for c in comparisons):
            _, second_probe = builder.build_and_probe(names[0], spec)
            notes += _unsteady_notes(compare(before, second_probe, builder.workload.tolerance))
        comparisons += fresh
        noisy += [(c, before.gradients[c.name], after.gradients[c.name]) for c in fresh if c.noise]
    inputs = find_inputs(gradient_shapes)
    corrections = {
        c: replace(compare_gradient(c.name, old, new, builder.workload.tolerance.gradients), where=c.where)
        for c, old, new in noisy
        if c.name in inputs
    }
    comparisons = [corrections.get(c, c) for c in comparisons]
    noise_names = sorted({c.name for c in comparisons if c.noise})
    if noise_names:
        notes.append(
            "the baseline's gradients of these parameters are only rounding, and are compared with that"
            " rounding:"
            f" {', '.join(noise_names)}"
        )
    return Evidence(tuple(comparisons), tuple(notes))


def find_inputs(gradient_shapes: Sequence[tuple[int, dict[str, tuple[int, ...]]]]) -> set[str]:
    """Return the names of the gradients of inputs, from pairs of the points processed and the shapes.

    A shape that changes with the number of points is not a parameter's. If all pairs have the same
    number of points, a gradient with an axis of that length counts as an input's.
    """
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for _, named_shapes in gradient_shapes:
        for name, shape in named_shapes.items():
            shapes.setdefault(name, set()).add(shape)
    counts = {count for count, _ in gradient_shapes}
    if len(counts) > 1:
        return {name for name, variety in shapes.items() if len(variety) > 1}
    return {name for name, variety in shapes.items() if any(counts & set(shape) for shape in variety)}


def _unsteady_notes(repeats: Sequence[Comparison]) -> list[str]:
    """Return a note if the baseline differs from itself, in which case the variant may be correct."""
    worst = max(
        (c for c in repeats if not c.ok and c.error is not None), key=lambda c: c.strain, default=None
    )
    if worst is None:
        return []
    return [
        f"the baseline does not repeat itself: {worst.what} {worst.name}: {worst.reason}; seed the baseline,"
        " or declare the workload random"
    ]


def compare_distributions(
    builder: CaseBuilder, names: tuple[str, str], specs: Sequence[CaseSpec], report: Progress, draws: int
) -> Evidence:
    """Compare distributions over `draws` seeds, at the last (most ragged) spec that the baseline supports."""
    notes: list[str] = []
    spec = specs[0]
    for other in reversed(specs[1:]):
        try:
            builder.build_and_probe(names[0], other)
        except PinchpointError as error:
            notes.append(f"nothing was drawn at {other}, where the baseline itself fails: {error.what}")
        else:
            spec = other
            break
    seeds = [replace(spec, seed=spec.seed + i) for i in range(draws)]
    comparisons: list[Comparison] = []
    before: list[Probe] = []
    after: list[Probe] = []
    for one in seeds:
        report(f"draws at {one}")
        case, probe = builder.build_and_probe(names[0], one)
        before.append(probe)
        try:
            other_case, probe = builder.build_and_probe(names[1], one)
        except PinchpointError as error:
            if spec is specs[0]:
                raise
            return Evidence((_variant_failed(one, error),), tuple(notes))
        after.append(probe)
        comparisons.append(compare_counts(case.processed, other_case.processed, at=str(one)))
    tests = compare_draws(before, after, at=[str(one) for one in seeds])
    count = sum(c.what == "distribution" for c in tests)
    notes.append(
        f"{count} two-sample tests over {draws} seeds were run; together they refuse a correct variant"
        f" {ALPHA:.0%} of the time"
    )
    doubt = (
        "" if can_refuse(draws, count) else f"{draws} seeds are too few for {count} tests to refuse anything"
    )
    return Evidence((*comparisons, *tests), tuple(notes), doubt)


def _variant_failed(spec: CaseSpec, error: PinchpointError) -> Comparison:
    reason = f"the variant fails where the baseline runs: {error.what}"
    return Comparison("probe", "output", None, 0.0, False, str(spec), reason)
