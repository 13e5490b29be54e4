"""Test statistics of a random result: its values, their order, and their similarity between seeds.

A draw is one seed's array, `points: (P, ...)`, for P points, D columns and K seeds. Each test turns the
draws of both sides into features per seed, (K, F), whose difference `permutation_tests` takes. Scales
come from both sides together, so that exchanging the sides changes only the sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pinchpoint.verification.permutation_tests import Floats, Norm, max_norm, square_norm

COLUMNS = 8  # more columns than this are projected onto this many random directions
DIRECTIONS = 4
QUANTILES = 33
CATEGORIES = 64
MIN_POINTS = 8  # fewer points have no meaningful order


Sides = tuple[tuple[Floats, ...], ...]  # baseline and variant, K draws of (P, D) each


@dataclass(frozen=True)
class Feature:
    """One test: (K, F) differences, variant minus baseline, with a name for each of the F features."""

    name: str
    differences: Floats
    norm: Norm
    places: tuple[str, ...]
    meaning: str  # what it means if the test fails

    def worst(self) -> str:
        return self.places[int(np.abs(self.differences.sum(axis=0)).argmax())]


def features(before: Sequence[Floats], after: Sequence[Floats]) -> list[Feature]:
    """Return every test that applies. before, after: K arrays of one shape, all finite."""
    sides = tuple(tuple(_columns(draw) for draw in side) for side in (before, after))
    categories = _categories(before, after)
    narrow = _narrow(sides)  # (2, K, P, D)
    scores = _by_deviation(narrow - narrow.mean(axis=(0, 1, 2)), axis=(0, 1, 2))
    tests = [_values(narrow), _energy(scores)] if categories is None else [_shares(sides, categories)]
    tests += [_moments(scores), _spread(scores), _seed_similarity(scores)]
    if scores.shape[2] >= MIN_POINTS:
        tests += [_order(scores, sides), _position(scores)]
    return tests


def gradient_features(
    before: Sequence[dict[str, Floats]], after: Sequence[dict[str, Floats]]
) -> list[Feature]:
    """Test means and spreads of random gradients, projected onto a few directions per array."""
    parts, names = [], []
    for name, first in before[0].items():
        directions = _directions(first.size, DIRECTIONS)
        projections = np.array(
            [
                [one[name].reshape(-1).astype(np.float64) @ directions for one in side]
                for side in (before, after)
            ]
        )
        parts.append(_by_deviation(projections))
        names += [name] * DIRECTIONS
    means = np.concatenate(parts, axis=-1)  # (2, K, arrays * DIRECTIONS)
    spreads = _by_deviation((means - means.mean(axis=(0, 1))) ** 2)
    places = tuple(names)
    return [
        Feature("mean", means[1] - means[0], square_norm, places, "the gradients' means differ"),
        Feature("spread", spreads[1] - spreads[0], square_norm, places, "the gradients' spreads differ"),
    ]


def _values(both: Floats) -> Feature:
    """Kolmogorov-Smirnov: compare each column's distribution function at quantiles of both sides together."""
    parts, places = [], []
    for d in range(both.shape[-1]):
        at = np.unique(np.quantile(both[..., d], np.linspace(0, 1, QUANTILES + 2)[1:-1]))
        parts.append(_below(both[..., d], at))
        places += [f"column {d}, near {value:.4g}" for value in at]
    share = np.concatenate(parts, axis=-1)
    return Feature(
        "values", share[1] - share[0], max_norm, tuple(places), "the values are distributed differently"
    )


def _shares(sides: Sides, categories: Floats) -> Feature:
    """Chi-square: compare how often each whole number occurs."""
    share = np.array([[[(draw == value).mean() for value in categories] for draw in side] for side in sides])
    scale = np.sqrt(share.mean(axis=(0, 1)))
    places = tuple(f"value {value:g}" for value in categories)
    return Feature(
        "values",
        (share[1] - share[0]) / scale,
        square_norm,
        places,
        "the values occur with different frequencies",
    )


def _energy(scores: Floats) -> Feature:
    """Energy distance: compare distribution functions of all columns together, along random directions."""
    columns = scores.shape[-1]
    projections = scores @ _directions(columns, DIRECTIONS) if columns > 1 else scores
    at = np.linspace(-3, 3, QUANTILES)
    share = np.concatenate([_below(projections[..., d], at) for d in range(projections.shape[-1])], axis=-1)
    places = tuple(
        f"direction {d}, near {value:.1f} deviations" for d in range(projections.shape[-1]) for value in at
    )
    return Feature(
        "joint", share[1] - share[0], square_norm, places, "the joint distribution of the columns differs"
    )


def _moments(scores: Floats) -> Feature:
    """Compare means and mean squares of each column, which show a small shift first."""
    moments = _by_deviation(np.concatenate([scores.mean(axis=2), (scores**2).mean(axis=2)], axis=-1))
    columns = range(scores.shape[-1])
    places = (*(f"mean of column {d}" for d in columns), *(f"size of column {d}" for d in columns))
    return Feature("moments", moments[1] - moments[0], max_norm, places, "the means or sizes differ")


def _spread(scores: Floats) -> Feature:
    """Compare how far a draw's mean varies between seeds.

    It varies too much if the points share their noise, and too little if their noise cancels.
    """
    means = scores.mean(axis=2)
    spreads = _by_deviation((means - means.mean(axis=(0, 1))) ** 2)
    places = tuple(f"column {d}" for d in range(scores.shape[-1]))
    return Feature(
        "spread",
        spreads[1] - spreads[0],
        max_norm,
        places,
        "the points of one draw are correlated, which its mean shows",
    )


def _seed_similarity(scores: Floats) -> Feature:
    """Compare how similar the draws of two seeds are, point by point.

    The sum over pairs of seeds of (variant-variant minus baseline-baseline) products is linear in the
    signs once each pair's mixed products are split between its two seeds.
    """
    seeds = scores.shape[1]
    flat = scores - scores.mean(axis=(0, 1))
    flat = flat.reshape(2 * seeds, -1)
    gram = flat @ flat.T / flat.shape[1]
    bb, bv = gram[:seeds, :seeds], gram[:seeds, seeds:]
    vv = gram[seeds:, seeds:]
    pairs = (vv - bb) + (bv.T - bv)  # row s: the variant of s with the other seeds' variant and baseline
    np.fill_diagonal(pairs, 0.0)
    return Feature(
        "seeds",
        pairs.sum(axis=1, keepdims=True) / 2,
        max_norm,
        ("",),
        "the draws of different seeds are correlated",
    )


def _order(scores: Floats, sides: Sides) -> Feature:
    """Compare dependence inside a draw: neighbours, the strongest correlation, and repeated points."""
    points = scores.shape[2]
    centred = scores - scores.mean(axis=2, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * points, axis=2)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * points, axis=2)
    correlation = correlation[:, :, :points].sum(axis=3)  # (2, K, P)
    total = np.where(correlation[..., :1] > 0, correlation[..., :1], 1.0)
    # Weighted by the number of pairs, so that a chunk repeated far away counts as much as one close by.
    weight = points / np.arange(points, 0, -1)
    correlation = correlation / total * np.minimum(weight, 4.0)
    strongest = np.abs(correlation[..., 1:]).max(axis=-1)
    repeats = np.array([[1 - len(np.unique(draw, axis=0)) / points for draw in side] for side in sides])
    statistics = _by_deviation(np.stack([correlation[..., 1], strongest, repeats], axis=-1))
    places = ("between neighbours", "at some distance", "repeated points")
    return Feature(
        "order", statistics[1] - statistics[0], max_norm, places, "the points of one draw are correlated"
    )


def _position(scores: Floats) -> Feature:
    """Compare level and size of the points by position.

    The groups are the last point, the two before it, the four before those, and so on.
    """
    points = scores.shape[2]
    parts, places = [], []
    stop, width = points, 1
    while stop > 0:
        start = max(0, stop - width)
        block = scores[:, :, start:stop]
        parts += [block.mean(axis=(2, 3)), np.abs(block).mean(axis=(2, 3))]
        places += [f"level of points {start:,} to {stop - 1:,}", f"size of points {start:,} to {stop - 1:,}"]
        stop, width = start, 2 * width
    statistics = _by_deviation(np.stack(parts, axis=-1))
    return Feature(
        "position",
        statistics[1] - statistics[0],
        max_norm,
        tuple(places),
        "some points are drawn differently from others",
    )


def _columns(draw: Floats) -> Floats:
    """(P, ...) -> (P, D), real."""
    flat = np.asarray(draw).reshape(len(draw) if np.ndim(draw) else 1, -1)
    if flat.dtype.kind == "c":
        flat = np.concatenate([np.real(flat), np.imag(flat)], axis=1)
    return flat.astype(np.float64)


def _categories(before: Sequence[Floats], after: Sequence[Floats]) -> Floats | None:
    """Return the whole numbers that all draws consist of, or None if they are many or not whole."""
    draws = (*before, *after)
    if any(draw.dtype.kind not in "biu" for draw in draws):
        return None
    values = np.unique(np.concatenate([np.unique(draw) for draw in draws]))
    return values if len(values) <= CATEGORIES else None


def _narrow(sides: Sides) -> Floats:
    """Return (2, K, P, D): the columns, or, if they are many, their projections on random directions."""
    draws = [draw for side in sides for draw in side]
    columns = draws[0].shape[1]
    if columns <= COLUMNS:
        return np.stack([np.stack(side) for side in sides])
    centre = np.mean([draw.mean(axis=0) for draw in draws], axis=0)
    deviation = np.sqrt(np.mean([((draw - centre) ** 2).mean(axis=0) for draw in draws], axis=0))
    directions = _directions(columns, COLUMNS) / _nonzero(deviation)[:, None]
    return np.stack([np.stack([(draw - centre) @ directions for draw in side]) for side in sides])


def _by_deviation(values: Floats, axis: tuple[int, ...] = (0, 1)) -> Floats:
    """Divide each feature by its deviation over both sides and all seeds."""
    return values / _nonzero(values.std(axis=axis))


def _nonzero(scale: Floats) -> Floats:
    return np.where(scale > 0, scale, 1.0)


def _below(values: Floats, at: Floats) -> Floats:
    """Return the share of points at or below each of Q levels: (2, K, P) -> (2, K, Q)."""
    ordered = np.sort(values, axis=2)
    counts = np.stack([[np.searchsorted(draw, at, side="right") for draw in side] for side in ordered])
    return counts / values.shape[2]


def _directions(columns: int, count: int) -> Floats:
    """Return fixed random directions, the same for every call, so that a verdict is reproducible."""
    return np.random.default_rng(20_240_229).standard_normal((columns, count)) / np.sqrt(columns)
