"""Means of correlated series with reliable error bars: blocking, R-hat, extrapolation to zero variance.

Uses numpy only. T: steps, C: chains (walkers), which are independent of each other. A series is (T,) or (T,
C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput

LARGEST_RHAT = 1.01  # above it, the walkers have not mixed
_LEAST_BLOCKS = 16  # with fewer blocks, the error bar itself is too uncertain


@dataclass(frozen=True)
class Estimate:
    """A mean with its error bar: error**2 = variance * autocorrelation / samples."""

    mean: float
    error: float  # one standard error of the mean
    variance: float  # of a single sample
    autocorrelation: float  # steps per independent sample; 1 where steps are independent
    samples: int  # T * C
    block: int  # steps per block used for the error


@dataclass(frozen=True)
class Extrapolation:
    """The energy extrapolated to zero variance."""

    energy: float
    error: float
    slope: float  # energy per variance


def block_estimate(series: Any) -> Estimate:
    """Return the mean of a series (T,) or (T, C), with an error bar from block means.

    The block length b is doubled until b**3 > 2 N s**2, with N samples, and s samples per independent one at
    that length: shorter blocks are still correlated, and longer ones are too few. If no length suffices, the
    largest error is returned.
    """
    data = _series(series)
    steps, chains = data.shape
    samples = data.size
    variance = float(data.var(ddof=1))
    if variance == 0.0:
        return Estimate(float(data.mean()), 0.0, 0.0, 1.0, samples, 1)
    plain = variance / samples
    errors: list[tuple[float, int]] = []  # squared error and length, for each block length
    doubled = [2**at for at in range(steps.bit_length()) if 2**at < steps]
    for block in [1, *(b for b in [*doubled[1:], steps] if steps // b * chains >= _LEAST_BLOCKS)]:
        whole = steps // block
        means = data[steps - whole * block :].reshape(whole, block, chains).mean(axis=1)
        errors.append((float(means.var(ddof=1)) / means.size, block))
        if block**3 > 2 * samples * (errors[-1][0] / plain) ** 2:
            break
    else:
        errors = [max(errors)]
    squared, block = errors[-1]
    return Estimate(float(data.mean()), float(np.sqrt(squared)), variance, squared / plain, samples, block)


def rhat(chains: Any) -> float:
    """Return the split R-hat of chains (T, C); above 1.01 they have not mixed."""
    data = _series(chains)
    half = data.shape[0] // 2
    if half < 2:
        raise BadInput(f"R-hat cannot be computed from {data.shape[0]} steps.", hint="Give at least 4 steps.")
    parts = np.concatenate([data[:half], data[-half:]], axis=1)
    within = float(parts.var(axis=0, ddof=1).mean())
    between = float(parts.mean(axis=0).var(ddof=1))
    if within == 0.0:
        return 1.0 if between == 0.0 else float("inf")
    return float(np.sqrt((half - 1) / half + between / within))


def zero_variance(energies: Any, variances: Any, errors: Any = None) -> Extrapolation:
    """Fit a line to energies (K,) over variances (K,) and evaluate it at zero variance.

    Weighted by errors (K,), if given. The error of the energy and the variance both decrease with the square
    of the error of the wave function, so that their ratio stays the same.
    """
    energy, variance = np.asarray(energies, np.float64), np.asarray(variances, np.float64)
    weights = np.ones_like(energy) if errors is None else 1.0 / np.asarray(errors, np.float64)
    least = 2 if errors is not None else 3
    if (
        energy.ndim != 1
        or energy.shape != variance.shape
        or weights.shape != energy.shape
        or len(np.unique(variance)) < least
    ):
        raise BadInput(
            f"Energies {energy.shape} and variances {variance.shape} cannot be extrapolated.",
            hint=f"Give at least {least} different variances with one energy each.",
        )
    if not (np.isfinite(energy).all() and np.isfinite(variance).all() and np.isfinite(weights).all()):
        raise BadInput(
            "Values that are not finite cannot be extrapolated.",
            hint="Leave out those steps; errors must be above 0.",
        )
    columns = np.stack([np.ones_like(variance), variance], axis=1) * weights[:, None]
    (at_zero, slope), *_ = np.linalg.lstsq(columns, energy * weights, rcond=None)
    spread = np.linalg.inv(columns.T @ columns)
    if errors is None:
        rest = energy - at_zero - slope * variance
        spread = spread * float(rest @ rest) / (len(energy) - 2)
    return Extrapolation(float(at_zero), float(np.sqrt(spread[0, 0])), float(slope))


def _series(series: Any) -> np.ndarray:
    data = np.asarray(series, np.float64)
    data = data[:, None] if data.ndim == 1 else data
    if data.ndim != 2 or data.size < 2:
        raise BadInput(
            f"A series of shape {data.shape} has no error bar.",
            hint="Give (steps,) or (steps, chains), with at least two values.",
        )
    if not np.isfinite(data).all():
        bad = int((~np.isfinite(data)).sum())
        raise BadInput(
            f"{bad} of {data.size} values of a series are not finite.",
            hint="Evaluate with --precision float64.",
        )
    return data
