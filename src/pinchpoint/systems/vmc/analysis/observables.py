"""Means and error bars of observables, collected from samples of the walkers.

T samples of B walkers, M nuclei. The walkers are averaged in groups, which are independent of each other: an
error bar comes from the blocks of samples of each group. Uses numpy only; lengths are in bohr.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pinchpoint.systems.vmc.analysis.statistics import Estimate, block_estimate
from pinchpoint.systems.vmc.data.system import System

DEBYE = 2.541746473  # one e bohr in debye
SHELLS, FARTHEST_BOHR = 30, 6.0  # of the radial density
_MOST_GROUPS = 64


class Collector:
    """Collects observables; `estimates` has their means and standard errors."""

    def __init__(self, system: System, *, least_spin_squared: float) -> None:
        self.system, self.least_spin_squared = system, least_spin_squared
        self.edges = np.linspace(0.0, FARTHEST_BOHR, SHELLS + 1)
        self._samples: dict[str, list[np.ndarray]] = {}

    def add(self, x: np.ndarray, measurements: Any) -> None:
        """Add one sample: walkers (B, n, 3) and their `Measurements`."""
        spins = np.asarray(measurements.spin_excess, np.float64) + self.least_spin_squared
        values = {
            "spin_squared": spins,
            "dipole": np.asarray(measurements.dipole, np.float64),
            "quadrupole": np.asarray(measurements.quadrupole, np.float64),
            "density": self._shells(np.asarray(x, np.float64)),
        }
        if measurements.forces is not None:
            energy, change, weight = (np.asarray(part, np.float64) for part in measurements.forces)
            values |= {"energy": energy, "change": change, "weight": weight}
            values["energy_weight"] = energy[:, None, None] * weight
        groups = _groups(len(x))
        for name, each in values.items():
            grouped = each.reshape(groups, len(x) // groups, *each.shape[1:]).mean(axis=1)
            self._samples.setdefault(name, []).append(grouped)

    def _shells(self, x: np.ndarray) -> np.ndarray:
        """Return the electrons per volume in each shell around each nucleus, (B, M, shells)."""
        nuclei = np.array(self.system.positions)
        distances = np.linalg.norm(x[:, :, None] - nuclei, axis=-1)  # (B, n, M)
        shell = np.floor(distances / FARTHEST_BOHR * SHELLS).astype(int)
        counts = np.stack([(shell == number).sum(axis=1) for number in range(SHELLS)], axis=-1)
        return counts / (4 / 3 * np.pi * np.diff(self.edges**3))

    def estimates(self) -> dict[str, Any]:
        """Return plain values: `value` and `error` of each observable, as numbers or nested lists."""
        series = {name: np.stack(parts) for name, parts in self._samples.items()}  # (T, groups, ...)
        result = {name: _estimate(series[name]) for name in ("spin_squared", "dipole", "quadrupole")}
        if "energy" in series:
            # dE/dR = mean(dE) + mean((E - mean E) dlog p); a force is its negative.
            mean_energy = series["energy"].mean()
            forces = mean_energy * series["weight"] - series["energy_weight"] - series["change"]
            result["forces"] = _estimate(forces)
        middles = ((self.edges[1:] + self.edges[:-1]) / 2).tolist()
        result["density"] = {"radius_bohr": middles, **_estimate(series["density"])}
        return result


def _groups(walkers: int) -> int:
    """Return the number of groups: the largest one that divides the walkers."""
    return max(count for count in range(1, min(walkers, _MOST_GROUPS) + 1) if walkers % count == 0)


def _estimate(series: np.ndarray) -> dict[str, Any]:
    """Return the mean and its standard error of series (T, groups, ...), component by component."""
    shape = series.shape[2:]
    flat = series.reshape(*series.shape[:2], -1)
    parts: list[Estimate] = [block_estimate(flat[..., at]) for at in range(flat.shape[-1])]
    value, error = (
        np.array([getattr(part, name) for part in parts]).reshape(shape).tolist()
        for name in ("mean", "error")
    )
    return {"value": value, "error": error}
