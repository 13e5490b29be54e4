"""Distributions of a random variant against its baseline's: two-sample tests over seeds, one false alarm rate.

Each output is tested for its values (Kolmogorov-Smirnov and energy distance, chi-square where they
are few whole numbers), for the correlation of points inside a draw, by position, and between seeds;
gradients for their means and spreads. P-values are exact (`swap`) and adjusted for their number
(Holm): a variant that draws from the baseline's distribution is refused once in 1 / ALPHA verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pinchpoint.core.workload import Probe
from pinchpoint.verification.comparison import Comparison, unusable
from pinchpoint.verification.permutation_tests import holm, p_value, smallest_p
from pinchpoint.verification.statistics import Feature, features, gradient_features

ALPHA = 0.01  # how often a whole verdict may refuse a variant that is right


def compare_draws(
    before: Sequence[Probe], after: Sequence[Probe], *, at: Sequence[str], alpha: float = ALPHA
) -> list[Comparison]:
    """Probes of the same seeds, in order; `at` names each seed. What cannot be tested is refused outright."""
    found: list[Comparison] = []
    tests: list[tuple[str, str, Feature]] = []
    for name in dict.fromkeys([*before[0].outputs, *after[0].outputs]):
        refused = _refused_output(name, before, after, at)
        if refused is not None:
            found.append(refused)
            continue
        drawn = [[np.asarray(probe.outputs[name]) for probe in side] for side in (before, after)]
        tests += [(name, "distribution", feature) for feature in features(*drawn)]
    refused, usable = _gradients(before, after, at)
    found += refused
    if usable:
        drawn_by_name = [
            [{n: np.asarray(p.gradients[n]) for n in usable} for p in side] for side in (before, after)
        ]
        tests += [("gradients", "distribution", feature) for feature in gradient_features(*drawn_by_name)]
    adjusted = holm([p_value(feature.differences, feature.norm) for _, _, feature in tests])
    found += [
        _judged(name, what, feature, p, alpha)
        for (name, what, feature), p in zip(tests, adjusted, strict=True)
    ]
    return found


def can_refuse(seeds: int, tests: int, *, alpha: float = ALPHA) -> bool:
    """Whether so few seeds can refuse anything at all once the p-values are adjusted."""
    return smallest_p(seeds) * tests <= alpha


def _judged(name: str, what: str, feature: Feature, p: float, alpha: float) -> Comparison:
    ok = p > alpha
    reason = "" if ok else f"{feature.refused} (p = {p:.1e} after adjustment, refused below {alpha:g})"
    return Comparison(f"{name}: {feature.name}", what, 1 - p, 1 - alpha, ok, feature.worst(), reason)


def _refused_output(
    name: str, before: Sequence[Probe], after: Sequence[Probe], at: Sequence[str]
) -> Comparison | None:
    for old, new, where in zip(before, after, at, strict=True):
        if name not in old.outputs or name not in new.outputs:
            owner = "baseline" if name in old.outputs else "variant"
            return Comparison(name, "output", None, 0.0, False, where, f"only the {owner} has this output")
        said = unusable(np.asarray(old.outputs[name]), np.asarray(new.outputs[name])) or unusable(
            np.asarray(before[0].outputs[name]), np.asarray(old.outputs[name])
        )
        if said:
            return Comparison(name, "output", None, 0.0, False, f"{said[0]} ({where})".strip(), said[1])
    return None


def _gradients(
    before: Sequence[Probe], after: Sequence[Probe], at: Sequence[str]
) -> tuple[list[Comparison], list[str]]:
    """Gradients refused outright, and the names of those whose distributions can be tested."""
    refused: list[Comparison] = []
    usable: list[str] = []
    for name in dict.fromkeys([*before[0].gradients, *after[0].gradients]):
        old = [probe.gradients.get(name) for probe in before]
        new = [probe.gradients.get(name) for probe in after]
        had, has = _ever(old), _ever(new)
        if not had and not has:
            continue
        if had != has:
            kind = "no gradient" if all(value is None for value in new) else "a zero gradient"
            reason = f"{kind} where the baseline has one" if had else "a gradient where the baseline has none"
            refused.append(Comparison(name, "gradient", 1.0 if had else None, 0.0, False, at[0], reason))
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
            refused.append(
                Comparison(
                    name, "gradient", None, 0.0, False, at[missing], f"the {owner} has no gradient here"
                )
            )
            continue
        said = [
            (unusable(np.asarray(a), np.asarray(b)), place) for a, b, place in zip(old, new, at, strict=True)
        ]
        bad = next((item for item in said if item[0]), None)
        if bad is not None and bad[0] is not None:
            refused.append(
                Comparison(name, "gradient", None, 0.0, False, f"{bad[0][0]} ({bad[1]})".strip(), bad[0][1])
            )
        else:
            usable.append(name)
    return refused, usable


def _ever(values: Sequence[object]) -> bool:
    return any(value is not None and bool(np.any(np.asarray(value))) for value in values)
