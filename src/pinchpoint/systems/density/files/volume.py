"""An electron density on the grid of a cell: what every volumetric file is read into and written from.

Letters: nx, ny, nz points along the three lattice vectors. Points sit at i / n along each, not at cell centres. Densities are
in electrons per cubic angstrom; files that hold other units (VASP's hold density times cell volume) are converted at
their own doors. Augmentation occupancies are text that is passed through as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.grid.structure import Structure, check_structure

SMALLEST_GRID = 2


@dataclass(frozen=True, eq=False)
class Volume:
    """total and spin (up - down): (nx, ny, nz) float64, electrons per cubic angstrom."""

    structure: Structure
    total: np.ndarray
    spin: np.ndarray | None = None
    augmentation: str = ""  # what follows the total in a CHGCAR
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
        """Electrons up less electrons down; 0 without spin."""
        return 0.0 if self.spin is None else float(self.spin.mean()) * self.structure.volume


def grid_points(grid: tuple[int, int, int]) -> np.ndarray:
    """(nx * ny * nz, 3) fractional coordinates, z fastest: the order of `total.reshape(-1)`."""
    axes = np.meshgrid(*(np.arange(n) / n for n in check_grid(grid)), indexing="ij")
    return np.stack(axes, axis=-1).reshape(-1, 3)


def check_grid(grid: tuple[int, int, int]) -> tuple[int, int, int]:
    if (
        not hasattr(grid, "__len__")
        or len(grid) != 3
        or not all(isinstance(n, int | np.integer) for n in grid)
    ):
        raise BadInput(f"{grid!r:.60} is no grid", hint="give three whole numbers, such as (80, 80, 80)")
    if min(grid) < SMALLEST_GRID:
        shown = " x ".join(map(str, grid))
        raise BadInput(
            f"a grid of {shown} points",
            hint=f"give at least {SMALLEST_GRID} points along each lattice vector",
        )
    return grid


def check_volume(volume: Volume) -> Volume:
    """The volume itself where it can be written; else BadInput. Its structure is checked too."""
    check_structure(volume.structure)
    if volume.total.ndim != 3:
        raise BadInput(f"the density has shape {volume.total.shape}", hint="give it as (nx, ny, nz)")
    check_grid(volume.grid)
    if volume.spin is not None and volume.spin.shape != volume.total.shape:
        raise BadInput(
            f"the spin density has shape {volume.spin.shape}, the total {volume.total.shape}",
            hint="give both on one grid",
        )
    for name, part in (("density", volume.total), ("spin density", volume.spin)):
        if part is not None and not np.isfinite(part).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(part))[0])
            raise BadInput(
                f"the {name} at grid point {at} is {part[at]}",
                hint="give finite values; NaN often means overflow",
            )
    return volume


def missing_augmentation(volume: Volume) -> str | None:
    """What a user must know who wants to start VASP from this density; None where nothing is missing."""
    lost = [] if volume.augmentation else ["the density"]
    if volume.spin is not None and not volume.spin_augmentation:
        lost.append("the spin density")
    if not lost:
        return None
    return (
        f"no augmentation occupancies for {' and '.join(lost)}: VASP needs them to start from a CHGCAR (ICHARG = 1 or 11); "
        "copy them from a short run of the same structure, or use this file for analysis and plots only"
    )
