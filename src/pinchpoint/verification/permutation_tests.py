"""Exact two-sample permutation tests of paired draws, by swapping baseline and variant seed by seed.

If both draw from the same distribution, the two results of a seed are exchangeable. Every statistic
here is a norm of a sum over seeds of (variant - baseline), so a swap flips the sign of that seed's
term, and the p-value is the share of all sign patterns whose norm is at least the observed one. It is
exact for any dependence between the points of one draw; only the seeds must be independent. The
smallest p-value of K seeds is 1 / 2**(K - 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Floats = np.ndarray
Norm = Callable[[Floats], Floats]  # (patterns, features) -> (patterns,)

MAX_SEEDS = 20
_BLOCK = 4096


def max_norm(sums: Floats) -> Floats:
    """Return the largest feature, as in the Kolmogorov-Smirnov statistic."""
    return np.abs(sums).max(axis=1)


def square_norm(sums: Floats) -> Floats:
    """Return the sum of squares, as in the energy and chi-square statistics."""
    return np.square(sums).sum(axis=1)


def p_value(differences: Floats, norm: Norm) -> float:
    """Return the exact p-value. differences: (K, F), variant minus baseline, for K seeds and F features."""
    seeds = len(differences)
    assert 2 <= seeds <= MAX_SEEDS
    observed = norm(differences.sum(axis=0, keepdims=True))[0]
    # The first sign is fixed, because a pattern and its opposite have the same norm.
    count = 2 ** (seeds - 1)
    as_large = 0
    for start in range(0, count, _BLOCK):
        pattern = np.arange(start, min(start + _BLOCK, count))
        bits = (pattern[:, None] >> np.arange(seeds - 1)) & 1
        signs = np.concatenate([np.ones((len(pattern), 1)), 1.0 - 2.0 * bits], axis=1)
        # Norms that differ only by rounding count as ties.
        as_large += int((norm(signs @ differences) >= observed * (1 - 1e-9)).sum())
    return as_large / count


def smallest_p(seeds: int) -> float:
    return 0.5 ** (seeds - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, which keep the probability of any false alarm below the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = highest
    return adjusted
