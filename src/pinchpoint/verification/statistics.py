"""What can be told of a random result: its values, their order, and their sameness between seeds.

A draw is one seed's array, `points: (P, ...)`; P points, D columns, K seeds. Each test turns the
draws of both sides into features a seed, (K, F), of which `swap` takes the difference. Scales are
taken from both sides together, so exchanging the sides changes nothing but the sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pinchpoint.verification.permutation_tests import Floats, Norm, largest, squared

COLUMNS = 8  # more columns than this are looked at through as many random directions
DIRECTIONS = 4
QUANTILES = 33
CATEGORIES = 64
LEAST_POINTS = 8  # fewer have no order to speak of


Sides = tuple[tuple[Floats, ...], ...]  # baseline and variant, K draws of (P, D) each


@dataclass(frozen=True)
class Feature:
    """One test: (K, F) differences, variant less baseline, with a name for each of the F."""

    name: str
    differences: Floats
    norm: Norm
    places: tuple[str, ...]
    refused: str  # what it means when the test is refused

    def worst(self) -> str:
        return self.places[int(np.abs(self.differences.sum(axis=0)).argmax())]


def features(before: Sequence[Floats], after: Sequence[Floats]) -> list[Feature]:
    """Every test that applies. before, after: K arrays of one shape, all finite."""
    sides = tuple(tuple(_columns(draw) for draw in side) for side in (before, after))
    categories = _categories(before, after)
    narrow = _narrow(sides)  # (2, K, P, D)
    scaled = _by_deviation(narrow - narrow.mean(axis=(0, 1, 2)), axis=(0, 1, 2))
    found = [_values(narrow), _energy(scaled)] if categories is None else [_shares(sides, categories)]
    found += [_moments(scaled), _spread(scaled), _sameness(scaled)]
    if scaled.shape[2] >= LEAST_POINTS:
        found += [_order(scaled, sides), _position(scaled)]
    return found


def gradient_features(
    before: Sequence[dict[str, Floats]], after: Sequence[dict[str, Floats]]
) -> list[Feature]:
    """Means and spreads of the gradients of a random computation, seen through a few directions an array."""
    parts, names = [], []
    for name, first in before[0].items():
        through = _directions(first.size, DIRECTIONS)
        seen = np.array(
            [[one[name].reshape(-1).astype(np.float64) @ through for one in side] for side in (before, after)]
        )
        parts.append(_by_deviation(seen))
        names += [name] * DIRECTIONS
    means = np.concatenate(parts, axis=-1)  # (2, K, arrays * DIRECTIONS)
    spreads = _by_deviation((means - means.mean(axis=(0, 1))) ** 2)
    places = tuple(names)
    return [
        Feature("mean", means[1] - means[0], squared, places, "the gradients' means differ"),
        Feature("spread", spreads[1] - spreads[0], squared, places, "the gradients' spreads differ"),
    ]


def _values(both: Floats) -> Feature:
    """Kolmogorov-Smirnov: distribution functions of each column, at quantiles of both sides together."""
    parts, places = [], []
    for d in range(both.shape[-1]):
        at = np.unique(np.quantile(both[..., d], np.linspace(0, 1, QUANTILES + 2)[1:-1]))
        parts.append(_below(both[..., d], at))
        places += [f"column {d}, near {value:.4g}" for value in at]
    share = np.concatenate(parts, axis=-1)
    return Feature(
        "values", share[1] - share[0], largest, tuple(places), "the values are distributed differently"
    )


def _shares(sides: Sides, categories: Floats) -> Feature:
    """Chi-square: how often each whole number comes."""
    share = np.array([[[(draw == value).mean() for value in categories] for draw in side] for side in sides])
    scale = np.sqrt(share.mean(axis=(0, 1)))
    places = tuple(f"value {value:g}" for value in categories)
    return Feature(
        "values", (share[1] - share[0]) / scale, squared, places, "the values come with different shares"
    )


def _energy(scaled: Floats) -> Feature:
    """Energy distance through random directions: squared differences of distribution functions, columns together."""
    columns = scaled.shape[-1]
    seen = scaled @ _directions(columns, DIRECTIONS) if columns > 1 else scaled
    at = np.linspace(-3, 3, QUANTILES)
    share = np.concatenate([_below(seen[..., d], at) for d in range(seen.shape[-1])], axis=-1)
    places = tuple(
        f"direction {d}, near {value:.1f} deviations" for d in range(seen.shape[-1]) for value in at
    )
    return Feature(
        "joint", share[1] - share[0], squared, places, "the columns are distributed differently together"
    )


def _moments(scaled: Floats) -> Feature:
    """Means and mean squares of each column: where a small shift shows first."""
    seen = _by_deviation(np.concatenate([scaled.mean(axis=2), (scaled**2).mean(axis=2)], axis=-1))
    columns = range(scaled.shape[-1])
    places = (*(f"mean of column {d}" for d in columns), *(f"size of column {d}" for d in columns))
    return Feature("moments", seen[1] - seen[0], largest, places, "the means or sizes differ")


def _spread(scaled: Floats) -> Feature:
    """How far a draw's mean strays from seed to seed: too far when points share their noise, too little when they cancel."""
    means = scaled.mean(axis=2)
    strayed = _by_deviation((means - means.mean(axis=(0, 1))) ** 2)
    places = tuple(f"column {d}" for d in range(scaled.shape[-1]))
    return Feature(
        "spread",
        strayed[1] - strayed[0],
        largest,
        places,
        "the points of one draw are correlated, as its mean shows",
    )


def _sameness(scaled: Floats) -> Feature:
    """How alike two seeds' draws are, point by point.

    The sum over pairs of seeds of (variant-variant less baseline-baseline) products is linear in
    the signs once each pair's mixed products are split between its two seeds.
    """
    seeds = scaled.shape[1]
    flat = scaled - scaled.mean(axis=(0, 1))
    flat = flat.reshape(2 * seeds, -1)
    gram = flat @ flat.T / flat.shape[1]
    bb, bv = gram[:seeds, :seeds], gram[:seeds, seeds:]
    vv = gram[seeds:, seeds:]
    pairs = (vv - bb) + (bv.T - bv)  # row s: variant of s with the others' variant and baseline
    np.fill_diagonal(pairs, 0.0)
    return Feature(
        "seeds",
        pairs.sum(axis=1, keepdims=True) / 2,
        largest,
        ("",),
        "draws of different seeds are correlated",
    )


def _order(scaled: Floats, sides: Sides) -> Feature:
    """Dependence inside a draw: neighbours, the strongest correlation at any distance, and repeated points."""
    points = scaled.shape[2]
    centred = scaled - scaled.mean(axis=2, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * points, axis=2)
    correlation = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * points, axis=2)[:, :, :points].sum(
        axis=3
    )  # (2, K, P)
    total = np.where(correlation[..., :1] > 0, correlation[..., :1], 1.0)
    # By the number of pairs, so that a chunk repeated once far away weighs as much as one close by.
    weight = points / np.arange(points, 0, -1)
    correlation = correlation / total * np.minimum(weight, 4.0)
    strongest = np.abs(correlation[..., 1:]).max(axis=-1)
    repeated = np.array([[1 - len(np.unique(draw, axis=0)) / points for draw in side] for side in sides])
    seen = _by_deviation(np.stack([correlation[..., 1], strongest, repeated], axis=-1))
    places = ("between neighbours", "at some distance", "points that repeat")
    return Feature("order", seen[1] - seen[0], largest, places, "the points of one draw are correlated")


def _position(scaled: Floats) -> Feature:
    """Level and size of the points by where they stand: the last one, the two before it, the four before those, ..."""
    points = scaled.shape[2]
    parts, places = [], []
    stop, width = points, 1
    while stop > 0:
        start = max(0, stop - width)
        block = scaled[:, :, start:stop]
        parts += [block.mean(axis=(2, 3)), np.abs(block).mean(axis=(2, 3))]
        places += [f"level of points {start:,} to {stop - 1:,}", f"size of points {start:,} to {stop - 1:,}"]
        stop, width = start, 2 * width
    seen = _by_deviation(np.stack(parts, axis=-1))
    return Feature(
        "position", seen[1] - seen[0], largest, tuple(places), "some points are drawn otherwise than others"
    )


def _columns(draw: Floats) -> Floats:
    """(P, ...) -> (P, D), real."""
    flat = np.asarray(draw).reshape(len(draw) if np.ndim(draw) else 1, -1)
    if flat.dtype.kind == "c":
        flat = np.concatenate([np.real(flat), np.imag(flat)], axis=1)
    return flat.astype(np.float64)


def _categories(before: Sequence[Floats], after: Sequence[Floats]) -> Floats | None:
    """The few whole numbers all draws are made of; None when they are not."""
    draws = (*before, *after)
    if any(draw.dtype.kind not in "biu" for draw in draws):
        return None
    found = np.unique(np.concatenate([np.unique(draw) for draw in draws]))
    return found if len(found) <= CATEGORIES else None


def _narrow(sides: Sides) -> Floats:
    """(2, K, P, D): the columns as they are, or, when they are many, seen through random directions, evenly weighted."""
    draws = [draw for side in sides for draw in side]
    columns = draws[0].shape[1]
    if columns <= COLUMNS:
        return np.stack([np.stack(side) for side in sides])
    centre = np.mean([draw.mean(axis=0) for draw in draws], axis=0)
    deviation = np.sqrt(np.mean([((draw - centre) ** 2).mean(axis=0) for draw in draws], axis=0))
    through = _directions(columns, COLUMNS) / _safe(deviation)[:, None]
    return np.stack([np.stack([(draw - centre) @ through for draw in side]) for side in sides])


def _by_deviation(values: Floats, axis: tuple[int, ...] = (0, 1)) -> Floats:
    """Divide each feature by its deviation over both sides and all seeds."""
    return values / _safe(values.std(axis=axis))


def _safe(scale: Floats) -> Floats:
    return np.where(scale > 0, scale, 1.0)


def _below(values: Floats, at: Floats) -> Floats:
    """(2, K, P) -> (2, K, Q): the share of points at or below each of Q levels."""
    ordered = np.sort(values, axis=2)
    counts = np.stack([[np.searchsorted(draw, at, side="right") for draw in side] for side in ordered])
    return counts / values.shape[2]


def _directions(columns: int, count: int) -> Floats:
    """Fixed random directions: the same for every call, so that a verdict repeats."""
    return np.random.default_rng(20_240_229).standard_normal((columns, count)) / np.sqrt(columns)
