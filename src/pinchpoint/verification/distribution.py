"""Comparison of a random variant's distributions with its baseline's, by two-sample tests over seeds.

Each output is tested for its values (Kolmogorov-Smirnov and energy distance, or chi-square if they
are a few whole numbers), and for correlation of points inside a draw, by position, and between seeds.
Gradients are tested for their means and spreads. The p-values are exact (`permutation_tests`) and
adjusted for their number (Holm), so all tests share one false alarm rate: a variant that draws from
the baseline's distribution is refused once in 1 / ALPHA verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pinchpoint.core.workload import Probe
from pinchpoint.verification.comparison import Comparison, why_incomparable
from pinchpoint.verification.permutation_tests import holm, p_value, smallest_p
from pinchpoint.verification.statistics import Feature, features, gradient_features

ALPHA = 0.01  # how often a whole verdict may refuse a correct variant


def compare_draws(
    before: Sequence[Probe], after: Sequence[Probe], *, at: Sequence[str], alpha: float = ALPHA
) -> list[Comparison]:
    """Compare probes of the same seeds, in order; `at` names each seed. What cannot be tested fails."""
    comparisons: list[Comparison] = []
    tests: list[tuple[str, str, Feature]] = []
    for name in dict.fromkeys([*before[0].outputs, *after[0].outputs]):
        failure = _untestable_output(name, before, after, at)
        if failure is not None:
            comparisons.append(failure)
            continue
        draws = [[np.asarray(probe.outputs[name]) for probe in side] for side in (before, after)]
        tests += [(name, "distribution", feature) for feature in features(*draws)]
    failures, testable = _sort_gradients(before, after, at)
    comparisons += failures
    if testable:
        gradients = [
            [{n: np.asarray(p.gradients[n]) for n in testable} for p in side] for side in (before, after)
        ]
        tests += [("gradients", "distribution", feature) for feature in gradient_features(*gradients)]
    adjusted = holm([p_value(feature.differences, feature.norm) for _, _, feature in tests])
    comparisons += [
        _judge(name, what, feature, p, alpha)
        for (name, what, feature), p in zip(tests, adjusted, strict=True)
    ]
    return comparisons


def can_refuse(seeds: int, tests: int, *, alpha: float = ALPHA) -> bool:
    """Return whether this many seeds can refuse anything once the p-values are adjusted."""
    return smallest_p(seeds) * tests <= alpha


def _judge(name: str, what: str, feature: Feature, p: float, alpha: float) -> Comparison:
    ok = p > alpha
    reason = "" if ok else f"{feature.meaning} (p = {p:.1e} after adjustment; refused below {alpha:g})"
    return Comparison(f"{name}: {feature.name}", what, 1 - p, 1 - alpha, ok, feature.worst(), reason)


def _untestable_output(
    name: str, before: Sequence[Probe], after: Sequence[Probe], at: Sequence[str]
) -> Comparison | None:
    for old, new, where in zip(before, after, at, strict=True):
        if name not in old.outputs or name not in new.outputs:
            owner = "baseline" if name in old.outputs else "variant"
            return Comparison(name, "output", None, 0.0, False, where, f"only the {owner} has this output")
        refusal = why_incomparable(
            np.asarray(old.outputs[name]), np.asarray(new.outputs[name])
        ) or why_incomparable(np.asarray(before[0].outputs[name]), np.asarray(old.outputs[name]))
        if refusal:
            place, reason = refusal
            return Comparison(name, "output", None, 0.0, False, f"{place} ({where})".strip(), reason)
    return None


def _sort_gradients(
    before: Sequence[Probe], after: Sequence[Probe], at: Sequence[str]
) -> tuple[list[Comparison], list[str]]:
    """Return the gradients that fail untested, and the names of those whose distributions can be tested."""
    failures: list[Comparison] = []
    testable: list[str] = []
    for name in dict.fromkeys([*before[0].gradients, *after[0].gradients]):
        old = [probe.gradients.get(name) for probe in before]
        new = [probe.gradients.get(name) for probe in after]
        had, has = _any_nonzero(old), _any_nonzero(new)
        if not had and not has:
            continue
        if had != has:
            if not had:
                reason = "there is a gradient, but the baseline has none"
            elif all(value is None for value in new):
                reason = "there is no gradient, but the baseline has one"
            else:
                reason = "the gradient is zero, but the baseline's is not"
            failures.append(Comparison(name, "gradient", 1.0 if had else None, 0.0, False, at[0], reason))
            continue
        missing = next(
            (
                i
                for i, pair in enumerate(zip(old, new, strict=True))
                if (pair[0] is None) != (pair[1] is None)
            ),
            None,
        )
        if missing is not None:
            owner = "variant" if new[missing] is None else "baseline"
            failures.append(
                Comparison(
                    name, "gradient", None, 0.0, False, at[missing], f"the {owner} has no gradient here"
                )
            )
            continue
        refusals = [
            (why_incomparable(np.asarray(a), np.asarray(b)), place)
            for a, b, place in zip(old, new, at, strict=True)
        ]
        bad = next((item for item in refusals if item[0]), None)
        if bad is not None and bad[0] is not None:
            failures.append(
                Comparison(name, "gradient", None, 0.0, False, f"{bad[0][0]} ({bad[1]})".strip(), bad[0][1])
            )
        else:
            testable.append(name)
    return failures, testable


def _any_nonzero(values: Sequence[object]) -> bool:
    return any(value is not None and bool(np.any(np.asarray(value))) for value in values)
