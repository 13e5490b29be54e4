"""Volume: an electron density on the grid of a cell, the common form of all volumetric files.

Letters: nx, ny, nz points along the three lattice vectors. Points are at fractions i / n along each vector,
not at voxel centres. Densities are in electrons per cubic angstrom; readers and writers convert other units
(VASP stores the density times the cell volume). Augmentation occupancies are text that is passed through
unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.grid.structure import Structure, check_structure

SMALLEST_GRID = 2


@dataclass(frozen=True, eq=False)
class Volume:
    """A density on a grid. total and spin (up - down): (nx, ny, nz) float64, electrons per cubic angstrom."""

    structure: Structure
    total: np.ndarray
    spin: np.ndarray | None = None
    augmentation: str = ""  # the text after the total in a CHGCAR
    spin_augmentation: str = ""
    comment: str = ""

    @property
    def lattice(self) -> np.ndarray:
        return self.structure.lattice

    @property
    def species(self) -> tuple[str, ...]:
        return self.structure.species

    @property
    def positions(self) -> np.ndarray:
        return self.structure.positions

    @property
    def grid(self) -> tuple[int, int, int]:
        nx, ny, nz = self.total.shape
        return nx, ny, nz

    @property
    def electrons(self) -> float:
        """The integral of the density over the cell."""
        return float(self.total.mean()) * self.structure.volume

    @property
    def moment(self) -> float:
        """Spin-up minus spin-down electrons; 0 if there is no spin density."""
        return 0.0 if self.spin is None else float(self.spin.mean()) * self.structure.volume


def grid_points(grid: tuple[int, int, int]) -> np.ndarray:
    """Return fractional coordinates (nx * ny * nz, 3), z fastest, in the order of `total.reshape(-1)`."""
    axes = np.meshgrid(*(np.arange(n) / n for n in check_grid(grid)), indexing="ij")
    return np.stack(axes, axis=-1).reshape(-1, 3)


def check_grid(grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the grid if it is valid; raise BadInput otherwise."""
    if (
        not hasattr(grid, "__len__")
        or len(grid) != 3
        or not all(isinstance(n, int | np.integer) for n in grid)
    ):
        raise BadInput(f"{grid!r:.60} is not a grid.", hint="Give three whole numbers, such as (80, 80, 80).")
    if min(grid) < SMALLEST_GRID:
        text = " x ".join(map(str, grid))
        raise BadInput(
            f"A grid of {text} points is too small.",
            hint=f"Give at least {SMALLEST_GRID} points along each lattice vector.",
        )
    return grid


def check_volume(volume: Volume) -> Volume:
    """Return the volume if it and its structure are valid; raise BadInput otherwise."""
    check_structure(volume.structure)
    if volume.total.ndim != 3:
        raise BadInput(f"The density has shape {volume.total.shape}.", hint="Give it as (nx, ny, nz).")
    check_grid(volume.grid)
    if volume.spin is not None and volume.spin.shape != volume.total.shape:
        raise BadInput(
            f"The spin density has shape {volume.spin.shape}, but the total has {volume.total.shape}.",
            hint="Give both on the same grid.",
        )
    for name, part in (("density", volume.total), ("spin density", volume.spin)):
        if part is not None and not np.isfinite(part).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(part))[0])
            raise BadInput(
                f"The {name} at grid point {at} is {part[at]}.",
                hint="Give finite values; NaN often means overflow.",
            )
    return volume


def missing_augmentation(volume: Volume) -> str | None:
    """Return a note for users who want to start VASP from this density; None if nothing is missing."""
    missing_parts = [] if volume.augmentation else ["the density"]
    if volume.spin is not None and not volume.spin_augmentation:
        missing_parts.append("the spin density")
    if not missing_parts:
        return None
    return (
        f"no augmentation occupancies for {' and '.join(missing_parts)}: VASP needs them to start from a "
        "CHGCAR (ICHARG = 1 or 11); copy them from a short run of the same structure, or use this file only "
        "for analysis and plots"
    )
