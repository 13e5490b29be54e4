"""Growth laws: affine or piecewise affine fits of peak against size, with confidence intervals.

Peaks span decades, so residuals are relative (each row is divided by its peak). A peak is a sum of blocks
rounded up to 512 B, so no fit is trusted beyond that grain: constant peaks get a slope interval that
contains zero, never a "significant" 1e-12. A law needs 3 sizes. With up to 12 sizes there are too few
residuals to resample, so the bootstrap draws them from a normal distribution with the spread of the fit.
That spread is drawn as well, because few sizes determine it badly. Then it refits, breaks included.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pinchpoint.core.records import Law

Floats = NDArray[np.float64]
Numbers = Sequence[float] | Floats
Breaks = tuple[float, ...]

LEAST = 3  # fewest sizes that determine a law
DRAWS = 400
GRAIN_BYTES = 512 / math.sqrt(12)  # standard deviation of a value that is rounded up to 512 B
RESOLUTION = 5e-4  # a break that improves the fit by less than 0.05 % of the peak is not worth naming
PER_GAP = 4  # positions tried for a break in each gap between neighbouring sizes
BAND = 17  # sizes at which the record stores the band of the fit
STEP = 0.01
EXPONENTS: Floats = np.arange(5, 401, dtype=np.float64) * STEP


@dataclass(frozen=True)
class Curve:
    """A continuous piecewise affine line: intercept, first slope, change of slope at each break."""

    breaks: Breaks
    hinges: Floats  # (2 + B,) for B breaks

    @property
    def slopes(self) -> tuple[float, ...]:
        return tuple(float(s) for s in np.cumsum(self.hinges[1:]))

    @property
    def intercepts(self) -> tuple[float, ...]:
        """The value of each segment's line at size 0."""
        shifts = np.cumsum([0.0, *(self.hinges[2:] * np.array(self.breaks))])
        return tuple(float(self.hinges[0] - shift) for shift in shifts)

    def at(self, size: float) -> float:
        return float(
            self.hinges[0]
            + self.hinges[1] * size
            + sum(h * max(0.0, size - b) for h, b in zip(self.hinges[2:], self.breaks, strict=True))
        )

    def size_at(self, peak: float) -> float:
        """The largest size with this peak; infinity if the last segment does not grow."""
        edges = (0.0, *self.breaks)
        for slope, intercept, edge in reversed(list(zip(self.slopes, self.intercepts, edges, strict=True))):
            if slope <= 0 and peak >= intercept + slope * edge:
                return math.inf
            if slope > 0 and (size := (peak - intercept) / slope) >= edge:
                return size
        return 0.0


@dataclass(frozen=True)
class Fit:
    """The chosen curve, and the curves of the bootstrap."""

    sizes: tuple[float, ...]
    curve: Curve
    draws: tuple[Curve, ...]

    def interval(self, of: Callable[[Curve], float]) -> tuple[float, float]:
        """95 % interval of a number read from the curve."""
        return _interval(of(self.curve), [of(curve) for curve in self.draws])

    def largest(self, peak: float) -> tuple[float, float, float]:
        """The largest size with at most this peak, and its 95 % interval; infinity if nothing grows."""
        sizes = sorted(curve.size_at(peak) for curve in self.draws)
        skip = int(0.025 * len(sizes))
        return self.curve.size_at(peak), sizes[skip], sizes[-1 - skip]


def fit(sizes: Numbers, peaks: Numbers, *, seed: int = 0) -> Fit:
    """Fit peaks against ascending, distinct sizes (at least `LEAST`); BIC selects the breaks."""
    x, y = _arrays(sizes, peaks)
    assert len(x) >= LEAST, f"{len(x)} sizes do not give a law"
    curve = _choose(x, y)
    loss = float(np.sum(_residuals(x, y, curve) ** 2))
    rows = _redraw(_design(x, curve.breaks) @ curve.hinges, y, loss, 2 + 2 * len(curve.breaks), seed)
    return Fit(
        tuple(float(size) for size in x),
        curve,
        tuple(_refit(x, y, rows, len(curve.breaks), also=curve.breaks)),
    )


def law(
    sizes: Numbers, peaks: Numbers, *, mode: str, variant: str, seed: int = 0, known_fit: Fit | None = None
) -> Law:
    """The `Law` record of one mode and variant. known_fit: the fit of the same data, if it exists already."""
    x, y = _arrays(sizes, peaks)
    peak_fit = known_fit or fit(x, y, seed=seed)
    curve = peak_fit.curve
    slope_low, slope_high = peak_fit.interval(lambda curve: curve.slopes[-1])
    intercept_low, intercept_high = peak_fit.interval(lambda curve: curve.intercepts[-1])
    power, power_low, power_high = exponent(x, y, seed=seed)
    edges = [float(x[0]), *curve.breaks, float(x[-1])]
    return Law(
        mode=mode,
        variant=variant,
        slope_bytes_per_point=curve.slopes[-1],
        slope_low=slope_low,
        slope_high=slope_high,
        intercept_bytes=curve.intercepts[-1],
        exponent=power,
        holdout_error=holdout(x, y),
        breaks=curve.breaks,
        segments=tuple(
            {"from": edges[i], "to": edges[i + 1], "slope": curve.slopes[i], "intercept": curve.intercepts[i]}
            for i in range(len(curve.slopes))
        ),
        intercept_low=intercept_low,
        intercept_high=intercept_high,
        points=len(x),
        residual=float(np.max(np.abs(np.array([curve.at(size) for size in x]) / y - 1))),
        exponent_low=power_low,
        exponent_high=power_high,
        band=tuple(
            (float(size), *peak_fit.interval(lambda curve, size=size: curve.at(size)))
            for size in np.geomspace(x[0], x[-1], BAND)
        ),
    )


def holdout(sizes: Numbers, peaks: Numbers) -> float | None:
    """Relative error at the largest size, predicted from all others; None if too few are left."""
    x, y = _arrays(sizes, peaks)
    if len(x) - 1 < LEAST:
        return None
    return abs(_choose(x[:-1], y[:-1]).at(x[-1]) / float(y[-1]) - 1)


def exponent(
    sizes: Numbers, peaks: Numbers, *, seed: int = 0
) -> tuple[float | None, float | None, float | None]:
    """Fit peak = a + b * size**c and return the exponent c with its 95 % interval.

    The intercept is fitted together with the exponent: an intercept from an affine fit would bias any other
    power towards 1. All three are None if nothing grows or there are too few sizes.
    """
    x, y = _arrays(sizes, peaks)
    if len(x) < LEAST + 1 or y[-1] - y[0] <= 2 * 512:
        return None, None, None
    best, losses = _profile(_powers(x, EXPONENTS), y, y[None])
    at = int(best[0])
    if at in (0, len(EXPONENTS) - 1):
        return None, None, None
    near = EXPONENTS[at] + np.arange(-100, 101) * (STEP / 100)
    fine, loss = _profile(_powers(x, near), y, y[None])
    value = float(near[fine[0]])
    design = _powers(x, near[fine])[0]
    rows = _redraw(design @ _solve(design / y[:, None], np.ones_like(y)), y, float(loss[fine[0], 0]), 3, seed)
    best_draws, draw_losses = _profile(_powers(x, EXPONENTS), y, rows)
    low, high = _interval(
        _parabola(at, losses[:, 0]), [_parabola(int(i), draw_losses[:, d]) for d, i in enumerate(best_draws)]
    )
    coarse = _parabola(at, losses[:, 0])
    return value, value + low - coarse, value + high - coarse


def value(law: Law, size: float) -> float:
    """The fitted peak at a size, from a record."""
    segment = next((s for s in law.segments if size <= s["to"]), law.segments[-1])
    return segment["intercept"] + segment["slope"] * size


def _choose(x: Floats, y: Floats) -> Curve:
    """The curve of 0, 1 or 2 breaks with the lowest BIC, corrected for few sizes."""
    best: tuple[float, Curve] | None = None
    for count in range(3):
        parameters = 2 + 2 * count
        freedom = len(x) - parameters - 1
        if count and freedom < 1:
            break
        curve = _refine(x, y, _refit(x, y, y[None], count)[0])
        loss = float(np.mean(_residuals(x, y, curve) ** 2))
        # Plain BIC finds a break in a third of all ladders of 8 noisy sizes that have none.
        penalty = parameters * math.log(len(x)) * len(x) / max(freedom, 1)
        bic = len(x) * math.log(max(loss, RESOLUTION**2)) + penalty
        if best is None or bic < best[0]:
            best = (bic, curve)
    assert best is not None
    return best[1]


def _refit(x: Floats, scale: Floats, rows: Floats, count: int, *, also: Breaks | None = None) -> list[Curve]:
    """The best curve with `count` breaks for each row of peaks; breaks are from a grid or equal `also`."""
    grid = list(_places(x, count)) + ([also] if also is not None else [])
    designs = np.stack([_design(x, breaks) for breaks in grid])
    best, _ = _profile(designs, scale, rows)
    hinges = np.empty((len(rows), 2 + count))
    for i in np.unique(best):  # rows with the same breaks are solved together
        hinges[best == i] = _solve(designs[i] / scale[:, None], (rows[best == i] / scale).T).T
    return [Curve(grid[i], row) for i, row in zip(best, hinges, strict=True)]


def _refine(x: Floats, y: Floats, curve: Curve) -> Curve:
    """Move each break within its gap to where the lines of its two sides intersect, if that fits better."""
    edges = (-math.inf, *curve.breaks, math.inf)
    sides = [(x > low) & (x <= high) for low, high in itertools.pairwise(edges)]
    lines = [_solve(_design(x[side], ()) / y[side, None], np.ones(side.sum())) for side in sides]
    positions: list[float] = []
    for (left, right), (a, b), (c, d) in zip(itertools.pairwise(sides), lines, lines[1:], strict=False):
        meet = float((a - c) / (d - b)) if d != b else math.inf
        if not x[left][-1] <= meet <= x[right][0]:
            return curve
        positions.append(meet)
    better = Curve(tuple(positions), _solve(_design(x, tuple(positions)) / y[:, None], np.ones_like(y)))
    return better if np.sum(_residuals(x, y, better) ** 2) < np.sum(_residuals(x, y, curve) ** 2) else curve


def _profile(designs: Floats, scale: Floats, rows: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Relative least squares of every row with every design (G, N, K): the best design, all losses (G, R)."""
    basis, _ = np.linalg.qr(designs / scale[None, :, None])
    relative = (rows / scale).T
    parts = np.einsum("gnk,nr->gkr", basis, relative)
    # A design that explains everything leaves rounding noise, which may be negative.
    losses = np.maximum(np.sum(relative**2, axis=0)[None] - np.sum(parts**2, axis=1), 0.0)
    return np.argmin(losses, axis=0), losses


def _places(x: Floats, count: int) -> Iterator[Breaks]:
    """Positions of breaks to try; every segment contains at least two sizes."""
    spots = [
        (gap, float(x[gap] + (x[gap + 1] - x[gap]) * part / PER_GAP))
        for gap in range(1, len(x) - 2)
        for part in range(PER_GAP)
    ]
    for places in itertools.combinations(spots, count):
        if all(right - left >= 2 for (left, _), (right, _) in itertools.pairwise(places)):
            yield tuple(at for _, at in places)


def _redraw(means: Floats, y: Floats, loss: float, parameters: int, seed: int) -> Floats:
    """Peaks (DRAWS, N) that other runs might produce: spread by the residual of the fit, plus the grain."""
    rng = np.random.default_rng(seed)
    left = max(1, len(y) - parameters)
    variance = loss / rng.chisquare(left, size=(DRAWS, 1)) + (GRAIN_BYTES / y) ** 2
    return means + y * np.sqrt(variance) * rng.normal(size=(DRAWS, len(y)))


def _interval(value: float, draws: Sequence[float]) -> tuple[float, float]:
    """The basic bootstrap: draws deviate from `value` as `value` deviates from the truth."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(2 * value - high), float(2 * value - low)


def _solve(rows: Floats, values: Floats) -> Floats:
    """Least squares with columns of unit length, because one column is ones and another has millions.

    values: (N,), or (N, R) for R problems at once.
    """
    lengths = np.linalg.norm(rows, axis=0)
    return (np.linalg.lstsq(rows / lengths, values, rcond=None)[0].T / lengths).T


def _residuals(x: Floats, y: Floats, curve: Curve) -> Floats:
    return (_design(x, curve.breaks) @ curve.hinges - y) / y


def _design(x: Floats, breaks: Breaks) -> Floats:
    return np.stack([np.ones_like(x), x, *(np.maximum(0.0, x - b) for b in breaks)], axis=1)


def _powers(x: Floats, exponents: Floats) -> Floats:
    """Designs (G, N, 2) of intercept and power, one for each exponent."""
    return np.stack([np.stack([np.ones_like(x), (x / x[-1]) ** c], axis=1) for c in exponents])


def _parabola(at: int, losses: Floats) -> float:
    """The exponent, between grid points, with the smallest loss."""
    if at in (0, len(EXPONENTS) - 1):
        return float(EXPONENTS[at])
    left, mid, right = losses[at - 1 : at + 2]
    bend = left - 2 * mid + right
    return float(EXPONENTS[at] + (STEP * 0.5 * (left - right) / bend if bend > 0 else 0.0))


def _arrays(sizes: Numbers, peaks: Numbers) -> tuple[Floats, Floats]:
    x, y = np.asarray(sizes, dtype=float), np.asarray(peaks, dtype=float)
    assert len(x) == len(y), f"{len(x)} sizes, {len(y)} peaks"
    assert np.all(np.diff(x) > 0) and np.all(y > 0), "sizes ascend and peaks are positive"
    return x, y
