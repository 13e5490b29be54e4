"""Exact two-sample tests of paired draws: p-values by swapping baseline and variant, seed by seed.

If both draw from the same distribution, the two results of a seed may be exchanged without anyone
noticing. Every statistic here is a norm of a sum over seeds of (variant - baseline), so exchanging
flips the sign of that seed's term, and the p-value is the share of all sign patterns whose norm is
as large as the one seen. It is exact for any dependence between the points of one draw; it asks
only that seeds are independent. The smallest p-value of K seeds is 1 / 2**(K - 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Floats = np.ndarray
Norm = Callable[[Floats], Floats]  # (patterns, features) -> (patterns,)

MOST_SEEDS = 20
_BLOCK = 4096


def largest(sums: Floats) -> Floats:
    """The Kolmogorov-Smirnov kind: the largest feature."""
    return np.abs(sums).max(axis=1)


def squared(sums: Floats) -> Floats:
    """The energy and chi-square kind: the sum of squares."""
    return np.square(sums).sum(axis=1)


def p_value(differences: Floats, norm: Norm) -> float:
    """differences: (K, F), variant less baseline of each of K seeds, F features each."""
    seeds = len(differences)
    assert 2 <= seeds <= MOST_SEEDS
    seen = norm(differences.sum(axis=0, keepdims=True))[0]
    # All patterns with the first sign fixed: a pattern and its opposite have the same norm.
    count = 2 ** (seeds - 1)
    as_large = 0
    for start in range(0, count, _BLOCK):
        pattern = np.arange(start, min(start + _BLOCK, count))
        bits = (pattern[:, None] >> np.arange(seeds - 1)) & 1
        signs = np.concatenate([np.ones((len(pattern), 1)), 1.0 - 2.0 * bits], axis=1)
        # Equal norms are ties, whatever the last bit of their sums says.
        as_large += int((norm(signs @ differences) >= seen * (1 - 1e-9)).sum())
    return as_large / count


def smallest_p(seeds: int) -> float:
    return 0.5 ** (seeds - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm): refusing those below a rate keeps all false alarms below it."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = running
    return adjusted
