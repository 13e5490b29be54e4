"""The one-electron density of walkers on a grid, as a cube file.

Each electron of each walker is distributed over the eight grid points around it with trilinear weights: the
density is less noisy than a histogram, and its integral is the number of electrons in the box. Lengths are in
bohr. The box contains the nuclei, with space around them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.files.cube import write_cube
from pinchpoint.systems.density.files.volume import Volume
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.vmc.data.system import System

SPACING_BOHR, ROOM_BOHR = 0.2, 6.0
_MOST = 20_000_000  # grid points: 160 MB of counts


class Spread:
    """Collects the electrons of any number of walkers; `volume` is their mean density."""

    def __init__(self, system: System, *, spacing: float = SPACING_BOHR, room: float = ROOM_BOHR) -> None:
        if not (spacing > 0 and np.isfinite(spacing)):
            raise BadInput(
                f"A grid spacing of {spacing:g} bohr is not above 0.",
                hint=f"Use a positive number, such as {SPACING_BOHR:g}.",
            )
        nuclei = np.array(system.positions)
        low, high = nuclei.min(axis=0) - room, nuclei.max(axis=0) + room
        self.system, self.corner = system, low
        self.counts = np.maximum(2, np.ceil((high - low) / spacing)).astype(int)
        points = self.counts.prod()
        if points > _MOST:
            raise BadInput(
                f"The grid of the density would have {' x '.join(map(str, self.counts))} points; "
                f"at most {_MOST:,} are allowed.",
                hint=f"Use a spacing of at least {spacing * (points / _MOST) ** (1 / 3):.2g} bohr.",
            )
        self.step = (high - low) / self.counts
        self.electrons = np.zeros(int(self.counts.prod()))
        self.walkers, self.total, self.outside = 0, 0, 0

    def add(self, x: np.ndarray) -> None:
        """Add walkers (B, n, 3)."""
        self.walkers += len(x)
        place = (np.asarray(x, np.float64).reshape(-1, 3) - self.corner) / self.step
        self.total += len(place)
        inside = ((place >= 0) & (place < self.counts - 1)).all(axis=1)
        self.outside += int(len(place) - inside.sum())
        place = place[inside]
        base = np.floor(place).astype(int)
        part = place - base
        for corner in np.ndindex(2, 2, 2):
            weight = np.where(corner, part, 1 - part).prod(axis=1)
            at = np.ravel_multi_index(tuple((base + corner).T), tuple(self.counts))
            self.electrons += np.bincount(at, weights=weight, minlength=len(self.electrons))

    @property
    def outside_part(self) -> float:
        """The fraction of the electrons that were outside the box."""
        return self.outside / max(1, self.total)

    def volume(self) -> Volume:
        """Return the density in electrons per cubic angstrom."""
        if not self.walkers:
            raise BadInput("There are no walkers to compute a density from.", hint="Call add first.")
        lengths = self.step * self.counts
        places = (np.array(self.system.positions) - self.corner) / lengths
        structure = Structure(np.diag(lengths) * BOHR_A, self.system.symbols, places)
        density = self.electrons / self.walkers / self.step.prod() / BOHR_A**3
        return Volume(
            structure,
            density.reshape(tuple(self.counts)),
            comment=f"{self.system.name} by variational Monte Carlo",
        )

    def write(self, path: str | Path) -> Path:
        return write_cube(path, self.volume())
