"""Power laws of how data-dependent counts grow, one per source line, fitted to small real runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Bound = Literal["low", "mid", "high"]


@dataclass(frozen=True)
class Law:
    """count = scale * n ** exponent, with the uncertainty that the small runs leave."""

    scale: float
    exponent: float
    spread: float  # relative half width of the interval at the sizes of the small runs
    largest_n: int  # the largest n of the small runs

    def count(self, n: int, bound: Bound) -> int:
        middle = self.scale * n**self.exponent
        if bound == "mid":
            return max(0, round(middle))
        # Far beyond the small runs, the uncertainty of the exponent matters too.
        reach = self.spread * (1 + math.log(max(n / max(self.largest_n, 1), 1)))
        factor = (1 + reach) if bound == "high" else max(0.0, 1 - reach)
        return max(0, round(middle * factor))


def dynamic_options(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Keyword arguments of `Dynamic` from the results of small real runs.

    Any count is assumed for a line that none of the runs reached.
    """
    pairs = [
        {site: [(int(n), int(count)) for n, count in counts] for site, counts in run["seen"].items()}
        for run in runs
    ]
    return {
        "laws": fit(pairs),
        "values": {site: values[-1] for run in runs for site, values in run["values"].items()},
        "samples": {site: sample for run in runs for site, sample in run["samples"].items()},
        "assume": True,
    }


def fit(runs: list[dict[str, list[tuple[int, int]]]]) -> dict[str, Law]:
    """Fit one power law per site. runs: {site: [(largest possible count, count), ...]} per small real run.

    A site that is reached several times also has one law per turn, `site#1` and so on, whose range
    covers the counts of the other turns: if training changes a mask, the next step may have any of them.
    """
    laws: dict[str, Law] = {}
    for site in {site for run in runs for site in run}:
        means = [_mean(run[site]) for run in runs if site in run]
        n, count = means[-1]
        exponent = 1.0
        if len(means) > 1 and means[0][0] < n and means[0][1] > 0 and count > 0:
            exponent = _exponent(means[0], (n, count))
        every_turn = [pair for run in runs for pair in run.get(site.split("#")[0], run.get(site, []))]
        # A count scatters at least as much as a Poisson count; the range is three standard deviations.
        scatter = max(
            (abs(c / max(_extrapolate(n, count, exponent, m), 1e-9) - 1) for m, c in every_turn), default=0.0
        )
        spread = max(scatter, 3 / math.sqrt(max(count, 1.0)))
        if len({n for n, _ in every_turn}) > 1 and len({c for _, c in every_turn}) == 1:
            # The count is the same for every size: it is a number of classes, not of points.
            exponent, spread = 0.0, 0.0
        laws[site] = Law(count / max(n, 1) ** exponent, exponent, min(spread, 1.0), round(n))
    return laws


def resample(
    sample: list[float], law: Law | None, dtype: Any, size: int, points: int, bound: Bound
) -> np.ndarray[Any, Any]:
    """An array like the one that a calibration read, scaled to the count of the law."""
    if law is not None and np.dtype(dtype) == np.bool_:
        share = min(law.count(size, bound), size)
        return np.diff(np.arange(size + 1) * share // max(size, 1)).astype(dtype)
    values, mean = np.resize(np.asarray(sample), size), np.abs(sample).mean()
    if law is None or mean == 0:
        return values.astype(dtype)
    growth = law.count(points, "mid") / max(size, 1) / mean
    if 0.9 < growth < 1.1:
        return values.astype(dtype)  # labels and indices do not change with the size
    return np.round(values * (law.count(points, bound) / max(size, 1) / mean)).astype(dtype)


def _exponent(small: tuple[float, float], large: tuple[float, float]) -> float:
    """The growth exponent between two runs; 1 (a fixed share) or 0 (a fixed count) if the scatter allows it.

    In a thousandfold extrapolation an exponent that is off by 0.03 changes the count by a quarter.
    """
    reach = math.log(large[0] / small[0])
    exponent = math.log(large[1] / small[1]) / reach
    scatter = 3 * math.sqrt(1 / small[1] + 1 / large[1]) / reach
    return next((whole for whole in (1.0, 0.0) if abs(exponent - whole) <= scatter), exponent)


def _mean(pairs: list[tuple[int, int]]) -> tuple[float, float]:
    return sum(p[0] for p in pairs) / len(pairs), sum(p[1] for p in pairs) / len(pairs)


def _extrapolate(n: float, count: float, exponent: float, at: float) -> float:
    return count * (at / n) ** exponent if n else 0.0
