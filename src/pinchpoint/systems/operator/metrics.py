"""Errors of a prediction on a body, and statistics of the training bodies.

Both errors are integrals over the surface, weighted by area, so that a finer mesh of the same body has the
same error:
    relative L1 = sum a |p - t| / sum a |t|        relative L2 = sqrt(sum a (p - t)^2 / sum a t^2)
P points, T targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.studies.timing import timing_of
from pinchpoint.systems.operator.data.sample import Sample

_LEAST = 1e-6  # of the mean: what varies less than this is centred, but not scaled


@dataclass(frozen=True)
class Statistics:
    """Means and deviations over the training bodies, weighted by area: T of the target, K of the features."""

    target_mean: tuple[float, ...]
    target_std: tuple[float, ...]
    feature_mean: tuple[float, ...]
    feature_std: tuple[float, ...]
    feature_low: tuple[float, ...]
    feature_high: tuple[float, ...]
    panel_side: float  # square root of the mean area of a panel; the side of a cube for volumes


def statistics_of(samples: Iterable[Sample], *, measure: int = 2) -> Statistics:
    """Statistics over all bodies in float64, weighted by area. measure: the dimension of the areas.

    Values that hardly vary get a deviation of 1.
    """
    weight, count, sums = 0.0, 0, [torch.zeros((), dtype=torch.float64)] * 4
    lows, highs = [], []
    for sample in samples:
        areas, target, features = sample.areas.double(), sample.target.double(), sample.features.double()
        weight += float(areas.sum())
        count += len(areas)
        values = (target, target.square(), features, features.square())
        sums = [old + areas @ value for old, value in zip(sums, values, strict=True)]
        lows.append(features.amin(0))
        highs.append(features.amax(0))
    target, features = (
        _mean_and_std(sums[0] / weight, sums[1] / weight),
        _mean_and_std(sums[2] / weight, sums[3] / weight),
    )
    low, high = torch.stack(lows).amin(0), torch.stack(highs).amax(0)
    return Statistics(
        *target, *features, tuple(low.tolist()), tuple(high.tolist()), (weight / count) ** (1 / measure)
    )


def _mean_and_std(mean: Tensor, square: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    std = (square - mean.square()).clamp_min(0).sqrt()
    return tuple(mean.tolist()), tuple(
        torch.where(std > _LEAST * mean.abs(), std, torch.ones_like(std)).tolist()
    )


@dataclass(frozen=True)
class Errors:
    """Relative errors on one body: of each field, and their mean over the fields."""

    l1: float
    l2: float
    fields: dict[str, tuple[float, float]]  # l1 and l2 by name


def relative_errors(
    prediction: Tensor, target: Tensor, areas: Tensor, fields: Mapping[str, Sequence[int]] | None = None
) -> Errors:
    """prediction, target: (P, T); areas: (P,). fields: the columns of each; by default all are one field.

    The components of a vector are summed; fields are not, since they have different units.
    """
    errors = {}
    for name, columns in (fields or {"": range(target.shape[1])}).items():
        chosen = list(columns)
        p, t, a = prediction[:, chosen].double(), target[:, chosen].double(), areas.double()[:, None]
        l1 = (a * (p - t).abs()).sum() / (a * t.abs()).sum()
        l2 = ((a * (p - t).square()).sum() / (a * t.square()).sum()).sqrt()
        errors[name] = float(l1), float(l2)
    one, two = (sum(pair[at] for pair in errors.values()) / len(errors) for at in (0, 1))
    return Errors(one, two, errors)


@dataclass(frozen=True)
class Middle:
    """The median over some bodies and its 95 % interval; the whole range for fewer than 6."""

    median: float
    low: float
    high: float


def middle_of(values: Sequence[float]) -> Middle:
    interval = timing_of(values)
    return Middle(interval.median_s, interval.low_s, interval.high_s)
