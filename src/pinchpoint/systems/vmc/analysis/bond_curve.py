"""The minimum of energies along a bond, with error bars, from a Morse curve.

A Morse curve is a parabola in y = exp(-a r); with y = r^-p the same parabola is a Mie curve. Both are fitted
to the points around the lowest one. Their difference shows how much the result depends on the form of the
curve, and is part of the error bar: the points of a scan are often far apart. It changes sign with the
number of points and may vanish by chance: the largest difference of these and of fewer points counts. Uses
numpy only. K points, lengths in bohr, energies in hartree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

LEAST_POINTS = 4  # a Morse curve has four parameters
_DRAWS = 100  # sets of energies within their error bars, whose minima give the statistical error
_VALID = 0.9  # fraction of these sets that must have a minimum between the points
_SMALLEST_HA = 1e-7  # error bars below this count as this much
_EXPONENTS = np.geomspace(0.05, 8.0, 500)  # of both curves


@dataclass(frozen=True)
class Minimum:
    """The minimum of a Morse curve. Errors are standard errors and include the choice of the curve."""

    bond: float
    bond_error: float
    energy_ha: float
    energy_error_ha: float
    points: int  # the curve is fitted to so many
    steepness: float  # a, in 1 / bohr
    depth_ha: float  # of the minimum below the separate atoms; rough where no point is far from it
    low: float  # shortest and longest of the points
    high: float

    def energy_at(self, bonds: np.ndarray) -> np.ndarray:
        """Return the energies of the curve."""
        return self.energy_ha + self.depth_ha * (1 - np.exp(-self.steepness * (bonds - self.bond))) ** 2


@dataclass(frozen=True)
class _Window:
    """The minimum of some of the points with statistical errors only, and its distance from a Mie curve's."""

    minimum: Minimum
    bond_change: float
    energy_change_ha: float


@dataclass(frozen=True)
class _Fit:
    """Minima of one curve for many sets of energies; NaN where a set has none between the points."""

    bonds: np.ndarray
    energies: np.ndarray
    exponent: float  # of the first set
    curvature: float
    bottom: float  # y at the minimum
    chi2: float


def find_minimum(bonds: Sequence[float], energies: Sequence[float], errors: Sequence[float]) -> Minimum | str:
    """Return the minimum, or a clause that says why there is none."""
    if len(bonds) < LEAST_POINTS:
        return f"a curve needs at least {LEAST_POINTS} mixed points, and there are {len(bonds)}"
    order = np.argsort(bonds)
    r, e = np.asarray(bonds, float)[order], np.asarray(energies, float)[order]
    s = np.maximum(np.asarray(errors, float)[order], _SMALLEST_HA)
    at = int(np.argmin(e))
    if at in (0, len(r) - 1):
        end, more = ("shortest", "shorter") if at == 0 else ("longest", "longer")
        return f"the lowest point is the {end}: add {more} lengths"
    nearest = np.argsort(np.abs(r - r[at]), kind="stable")
    minima: list[Minimum] = []
    bond_change = energy_change = 0.0
    # Few points close to the minimum depend least on the form of the curve, many have the smallest noise.
    for count in range(LEAST_POINTS, len(r) + 1):
        part = np.sort(nearest[:count])
        if part[0] < at < part[-1] and (window := _fit_window(r[part], e[part], s[part])):
            bond_change = max(bond_change, window.bond_change)
            energy_change = max(energy_change, window.energy_change_ha)
            minima.append(
                replace(
                    window.minimum,
                    bond_error=math.hypot(window.minimum.bond_error, bond_change),
                    energy_error_ha=math.hypot(window.minimum.energy_error_ha, energy_change),
                )
            )
    if not minima:
        return "the points do not show where the minimum is: add lengths around the lowest"
    return min(minima, key=lambda minimum: minimum.energy_error_ha)


def _fit_window(r: np.ndarray, e: np.ndarray, s: np.ndarray) -> _Window | None:
    noise = np.random.default_rng(0).normal(size=(len(r), _DRAWS)) * s[:, None]
    sets = np.concatenate([e[:, None], e[:, None] + noise], axis=1)
    middle = r.mean()
    morse = _fit(r, sets, s, lambda r, a: np.exp(-a * (r - middle)), lambda y, a: middle - np.log(y) / a)
    mie = _fit(r, sets, s, lambda r, p: (r / middle) ** -p, lambda y, p: middle * y ** (-1 / p))
    if morse is None or mie is None:
        return None
    # Residuals beyond the error bars: the curve does not describe the points, and the error grows with them.
    freedom = len(r) - LEAST_POINTS
    scale = max(1.0, morse.chi2 / freedom) ** 0.5 if freedom else 1.0
    minimum = Minimum(
        bond=float(morse.bonds[0]),
        bond_error=float(scale * np.nanstd(morse.bonds[1:])),
        energy_ha=float(morse.energies[0]),
        energy_error_ha=float(scale * np.nanstd(morse.energies[1:])),
        points=len(r),
        steepness=morse.exponent,
        depth_ha=float(morse.curvature * morse.bottom**2),
        low=float(r[0]),
        high=float(r[-1]),
    )
    bond_change = float(abs(morse.bonds[0] - mie.bonds[0]))
    # Where the energies of both curves agree by chance, their lengths do not: the energy rises by this much
    # half-way between the two minima.
    rise = minimum.depth_ha * (minimum.steepness * bond_change / 2) ** 2
    return _Window(minimum, bond_change, max(float(abs(morse.energies[0] - mie.energies[0])), rise))


def _fit(
    r: np.ndarray,
    sets: np.ndarray,
    s: np.ndarray,
    variable: Callable[[np.ndarray, np.ndarray], np.ndarray],
    bond_at: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> _Fit | None:
    """Fit parabolas in a variable y to sets of energies (K, N), weighted by errors (K,); the first is real.

    variable: y of lengths (1, K) and exponents (A, 1); bond_at: the length of a y. For each exponent the
    parabola is a linear fit; the best exponent of each set is taken from a fine grid.
    """
    y = variable(r[None], _EXPONENTS[:, None])
    columns = np.stack([np.ones_like(y), y, y * y], axis=2) / s[:, None]  # (A, K, 3)
    scaled = sets / s[:, None]
    coefficients = np.linalg.pinv(columns) @ scaled  # (A, 3, N)
    chi2 = ((columns @ coefficients - scaled) ** 2).sum(axis=1)  # (A, N)
    constant, slope, curvature = np.moveaxis(coefficients, 1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bottom = -slope / (2 * curvature)
        bonds = bond_at(bottom, _EXPONENTS[:, None])
        is_valid = (curvature > 0) & (bottom > 0) & (bonds > r[0]) & (bonds < r[-1])
        energies = constant + slope * bottom / 2
    best = np.where(is_valid, chi2, np.inf).argmin(axis=0), np.arange(sets.shape[1])
    if not is_valid[best][0] or is_valid[best].mean() < _VALID:
        return None
    at = best[0][0]
    return _Fit(
        np.where(is_valid[best], bonds[best], np.nan),
        np.where(is_valid[best], energies[best], np.nan),
        float(_EXPONENTS[at]),
        float(curvature[at, 0]),
        float(bottom[at, 0]),
        float(chi2[at, 0]),
    )
