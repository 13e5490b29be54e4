"""Which grid points a space group makes equal, so that only one of each set must be computed (spglib).

G operations x -> W x + w on fractions of the lattice vectors, pure shifts of a supercell among them; N grid points, B probes
of a brick. Exact for a model that does not change under rotation, inversion and shift. A grid that an operation does not map
onto itself is refused with one that works: dropping operations quietly would give another saving than was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.streaming.stream import stream
from pinchpoint.systems.density.grid.bricks import Bricks
from pinchpoint.systems.density.grid.grids import smooth_from
from pinchpoint.systems.density.grid.structure import SYMBOLS, Structure

_AT_ONCE = 2**18  # grid points: some 25 MB
PRECISION_A = 1e-5  # atoms that far from their places still count as symmetric: the density changes as little


@dataclass(frozen=True, eq=False)
class Symmetry:
    """group: its symbol and number; rotations: (G, 3, 3) int64; translations: (G, 3) float64; lengths: (3,) of the vectors."""

    group: str
    rotations: np.ndarray
    translations: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, eq=False)
class Orbits:
    """bricks: numbers of those to compute; source: (N,) where in their values (n * B) each grid point's is; points: distinct."""

    bricks: np.ndarray
    source: np.ndarray
    points: int


def symmetry_of(structure: Structure) -> Symmetry:
    """The operations that map a structure onto itself."""
    try:
        import spglib
    except ModuleNotFoundError as error:
        raise Missing(
            "spglib is not installed", hint='pip install "pinchpoint[density]", or leave --symmetry out'
        ) from error
    cell: Any = (
        structure.lattice,
        structure.positions,
        [SYMBOLS.index(symbol) for symbol in structure.species],
    )
    found = spglib.get_symmetry_dataset(cell, symprec=PRECISION_A)
    if found is None:
        raise BadInput("spglib finds no symmetry in this structure", hint="leave --symmetry out")
    return Symmetry(
        f"{found.international} ({found.number})",
        np.asarray(found.rotations, dtype=np.int64),
        np.asarray(found.translations, dtype=np.float64),
        np.linalg.norm(structure.lattice, axis=1),
    )


def on_grid(symmetry: Symmetry, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """(G, 3, 3) and (G, 3) int64: what each operation does to the numbers of grid points; None where one leaves the grid."""
    n = np.array(grid)
    scaled = symmetry.rotations * n[:, None]
    moved = symmetry.translations * n
    whole = np.round(moved)
    off = np.abs(moved - whole) * symmetry.lengths / n
    if (scaled % n != 0).any() or (off > 3 * PRECISION_A).any():
        return None
    return scaled // n, whole.astype(np.int64)


def grid_for(symmetry: Symmetry, grid: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """The grid itself or the next finer smooth one that every operation maps onto itself; None where there is none near."""
    if on_grid(symmetry, grid) is not None:
        return grid
    made = list(grid)
    # Axes that an operation mixes need the same number of points.
    mixed = (symmetry.rotations != 0).any(axis=0)
    joined = np.linalg.matrix_power(mixed | mixed.T | np.eye(3, dtype=bool), 3)
    for axis in range(3):
        together = np.flatnonzero(joined[axis])
        least = max(grid[other] for other in together)
        number = least
        while number <= 2 * least + 48:
            moved = symmetry.translations[:, together] * number
            off = np.abs(moved - np.round(moved)) * symmetry.lengths[together] / number
            if (off <= 3 * PRECISION_A).all():
                break
            number = smooth_from(number + 1)
        made[axis] = number
    found = (made[0], made[1], made[2])
    return found if on_grid(symmetry, found) is not None else None


def check_on_grid(symmetry: Symmetry, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """As `on_grid`; BadInput with a grid that works."""
    if (found := on_grid(symmetry, grid)) is not None:
        return found
    better = grid_for(symmetry, grid)
    shown = " x ".join(map(str, grid))
    raise BadInput(
        f"the space group {symmetry.group} does not map a grid of {shown} points onto itself",
        hint=f"use --grid {','.join(map(str, better))}, or leave --symmetry out"
        if better
        else "leave --symmetry out, or move the structure so that its symmetry elements pass through the origin",
    )


def orbits(
    symmetry: Symmetry, bricks: Bricks, *, device: str, progress: Callable[[int, int], None] | None = None
) -> Orbits:
    """Each grid point's first equal, in the order of bricks: so the points to compute lie in few bricks."""
    rotations, shifts = (found.tolist() for found in check_on_grid(symmetry, bricks.grid))
    nx, ny, nz = bricks.grid
    first = stream(
        lambda planes: _first_equal(planes, rotations, shifts, bricks),
        nx,
        device=device,
        out="numpy",
        chunk=max(1, _AT_ONCE // (ny * nz)),
        progress=progress,
    ).reshape(-1)
    wanted = np.zeros(bricks.count * bricks.probes, dtype=bool)
    wanted[first] = True
    used = np.flatnonzero(wanted.reshape(-1, bricks.probes).any(axis=1))
    place = np.zeros(bricks.count, dtype=np.int64)
    place[used] = np.arange(len(used))
    brick, local = np.divmod(first, bricks.probes)
    return Orbits(used, place[brick] * bricks.probes + local, int(np.count_nonzero(wanted)))


def _first_equal(
    planes: Tensor, rotations: list[list[list[int]]], shifts: list[list[int]], bricks: Bricks
) -> Tensor:
    """planes: (C,) first coordinates of grid points -> (C, ny, nz) the least place, brick by brick, among their images."""
    _, ny, nz = bricks.grid
    point = (
        planes[:, None, None],
        torch.arange(ny, device=planes.device)[:, None],
        torch.arange(nz, device=planes.device),
    )
    least = None
    for turn, move in zip(rotations, shifts, strict=True):
        # A coordinate of the image mostly follows from one or two of the point: what is divided is a line or a plane.
        image = [
            move[axis] + sum(factor * point[of] for of, factor in enumerate(turn[axis]) if factor)
            for axis in range(3)
        ]
        first, second, third = (_share_of_place(at, axis, bricks) for axis, at in enumerate(image))
        place = first + second + third
        least = place if least is None else torch.minimum(least, place)
    assert least is not None, "a group holds the identity"
    return least


def _share_of_place(at: Any, axis: int, bricks: Bricks) -> Tensor:
    """What one coordinate adds to the number of the brick times B and the probe inside it. at: any shape, any cell."""
    (_, by, bz), (_, sy, sz) = bricks.along, bricks.sides
    inside = at.remainder(bricks.grid[axis])
    side = bricks.sides[axis]
    return inside // side * ((by * bz, bz, 1)[axis] * bricks.probes) + inside % side * (sy * sz, sz, 1)[axis]
