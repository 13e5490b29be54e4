"""Grid points that are equal by the space group, so that only one of each set is computed (uses spglib).

Letters: G operations x -> W x + w on fractions of the lattice vectors, including pure translations of a
supercell; N grid points, B probes per brick. Exact for a model that is invariant under rotation, inversion
and translation. If an operation does not map the grid onto itself, the grid is refused and one that works is
suggested: silently dropping operations would save less than requested.
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
from pinchpoint.systems.density.grid.elements import SYMBOLS
from pinchpoint.systems.density.grid.grids import smooth_from
from pinchpoint.systems.density.grid.structure import Structure

_AT_ONCE = 2**18  # grid points per chunk: about 25 MB
PRECISION_A = 1e-5  # atoms up to this far from symmetric positions count as symmetric


@dataclass(frozen=True, eq=False)
class Symmetry:
    """The operations of a space group.

    group: symbol and number; rotations: (G, 3, 3) int64; translations: (G, 3) float64; lengths: (3,), those
    of the lattice vectors.
    """

    group: str
    rotations: np.ndarray
    translations: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True, eq=False)
class Orbits:
    """The bricks to compute for a symmetric structure, and how to fill the grid from them.

    bricks: numbers of the n bricks to compute; source: (N,), for each grid point the index into their n * B
    values; points: number of distinct grid points.
    """

    bricks: np.ndarray
    source: np.ndarray
    points: int


def symmetry_of(structure: Structure) -> Symmetry:
    """Return the operations that map a structure onto itself."""
    try:
        import spglib
    except ModuleNotFoundError as error:
        raise Missing(
            "--symmetry needs spglib, which is not installed.",
            hint='Install it: pip install "pinchpoint[density]". Or leave --symmetry out.',
        ) from error
    cell: Any = (
        structure.lattice,
        structure.positions,
        [SYMBOLS.index(symbol) for symbol in structure.species],
    )
    dataset = spglib.get_symmetry_dataset(cell, symprec=PRECISION_A)
    if dataset is None:
        raise BadInput(
            "The symmetry of this structure cannot be determined with spglib.", hint="Leave --symmetry out."
        )
    return Symmetry(
        f"{dataset.international} ({dataset.number})",
        np.asarray(dataset.rotations, dtype=np.int64),
        np.asarray(dataset.translations, dtype=np.float64),
        np.linalg.norm(structure.lattice, axis=1),
    )


def on_grid(symmetry: Symmetry, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the operations on grid indices, (G, 3, 3) and (G, 3) int64.

    Returns None if an operation does not map the grid onto itself.
    """
    n = np.array(grid)
    scaled = symmetry.rotations * n[:, None]
    shifts = symmetry.translations * n
    whole = np.round(shifts)
    off = np.abs(shifts - whole) * symmetry.lengths / n
    if (scaled % n != 0).any() or (off > 3 * PRECISION_A).any():
        return None
    return scaled // n, whole.astype(np.int64)


def grid_for(symmetry: Symmetry, grid: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Return the grid, or the next finer smooth one, that every operation maps onto itself.

    Returns None if there is none close to it.
    """
    if on_grid(symmetry, grid) is not None:
        return grid
    counts = list(grid)
    # Axes that an operation mixes need the same number of points.
    mixed = (symmetry.rotations != 0).any(axis=0)
    linked = np.linalg.matrix_power(mixed | mixed.T | np.eye(3, dtype=bool), 3)
    for axis in range(3):
        together = np.flatnonzero(linked[axis])
        least = max(grid[other] for other in together)
        number = least
        while number <= 2 * least + 48:
            shifts = symmetry.translations[:, together] * number
            off = np.abs(shifts - np.round(shifts)) * symmetry.lengths[together] / number
            if (off <= 3 * PRECISION_A).all():
                break
            number = smooth_from(number + 1)
        counts[axis] = number
    candidate = (counts[0], counts[1], counts[2])
    return candidate if on_grid(symmetry, candidate) is not None else None


def check_on_grid(symmetry: Symmetry, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of `on_grid`; raise BadInput, suggesting a grid that works, if there is none."""
    if (operations := on_grid(symmetry, grid)) is not None:
        return operations
    better = grid_for(symmetry, grid)
    text = " x ".join(map(str, grid))
    raise BadInput(
        f"The space group {symmetry.group} does not map a grid of {text} points onto itself.",
        hint=f"Give --grid {','.join(map(str, better))}, or leave --symmetry out."
        if better
        else "Leave --symmetry out, or move the structure so that its symmetry elements pass through the "
        "origin.",
    )


def orbits(
    symmetry: Symmetry, bricks: Bricks, *, device: str, progress: Callable[[int, int], None] | None = None
) -> Orbits:
    """Map each grid point to the first equal one in the order of bricks, so that few bricks are computed."""
    rotations, shifts = (part.tolist() for part in check_on_grid(symmetry, bricks.grid))
    nx, ny, nz = bricks.grid
    first = stream(
        lambda planes: _first_equal(planes, rotations, shifts, bricks),
        nx,
        device=device,
        out="numpy",
        chunk=max(1, _AT_ONCE // (ny * nz)),
        progress=progress,
    ).reshape(-1)
    is_first = np.zeros(bricks.count * bricks.probes, dtype=bool)
    is_first[first] = True
    used = np.flatnonzero(is_first.reshape(-1, bricks.probes).any(axis=1))
    place = np.zeros(bricks.count, dtype=np.int64)
    place[used] = np.arange(len(used))
    brick, local = np.divmod(first, bricks.probes)
    return Orbits(used, place[brick] * bricks.probes + local, int(np.count_nonzero(is_first)))


def _first_equal(
    planes: Tensor, rotations: list[list[list[int]]], shifts: list[list[int]], bricks: Bricks
) -> Tensor:
    """Return the smallest index among the images of each grid point, (C, ny, nz).

    Indices count brick by brick. planes: (C,), the first coordinates of the grid points.
    """
    _, ny, nz = bricks.grid
    point = (
        planes[:, None, None],
        torch.arange(ny, device=planes.device)[:, None],
        torch.arange(nz, device=planes.device),
    )
    least = None
    for turn, move in zip(rotations, shifts, strict=True):
        # A coordinate of the image usually depends on one or two coordinates of the point, so the divisions
        # below act on a line or a plane.
        image = [
            move[axis] + sum(factor * point[of] for of, factor in enumerate(turn[axis]) if factor)
            for axis in range(3)
        ]
        first, second, third = (_share_of_place(at, axis, bricks) for axis, at in enumerate(image))
        place = first + second + third
        least = place if least is None else torch.minimum(least, place)
    assert least is not None, "a group contains the identity"
    return least


def _share_of_place(at: Any, axis: int, bricks: Bricks) -> Tensor:
    """Return what one coordinate adds to (number of the brick) * B + (number of the probe).

    at: any shape; may lie in any cell.
    """
    (_, by, bz), (_, sy, sz) = bricks.along, bricks.sides
    inside = at.remainder(bricks.grid[axis])
    side = bricks.sides[axis]
    return inside // side * ((by * bz, bz, 1)[axis] * bricks.probes) + inside % side * (sy * sz, sz, 1)[axis]
