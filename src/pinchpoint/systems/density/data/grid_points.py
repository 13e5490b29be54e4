"""Points of a cell's own grid: some drawn from a known law, or all of it, or every so manyth where it is too large.

Letters: A atoms, M bricks, P probes. The law gives each brick of neighbouring points a chance that falls off with the distance
of the atoms, and a share that is the same everywhere; within a brick all points are as likely. Its value is known exactly,
whatever the law: sum of weight * f estimates the integral of f over the cell without bias. All follows from a seed.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from pinchpoint.systems.density.data.geometry import uniform
from pinchpoint.systems.density.data.probes import RATE_PER_A, UNIFORM_SHARE
from pinchpoint.systems.density.grid.structure import Structure

Grid = tuple[int, int, int]
BRICK_A = 0.25  # side of a brick: over it a density changes little
BRICKS = 32_768  # of a cell; in a larger one they grow
_CHUNK = 1 << 18  # bricks times atoms at one time


@dataclass(frozen=True, eq=False)
class Picked:
    """index: (P,) int64 of grid points, z fastest; weights: (P,) float64 in cubic angstrom; stride: along each vector."""

    index: np.ndarray
    weights: np.ndarray
    stride: Grid | None = None  # of a grid; (1, 1, 1) for all of it

    @property
    def sha256(self) -> str:
        """Of the points, which a file's values must belong to."""
        return hashlib.sha256(self.index.astype("<i8").tobytes()).hexdigest()


def draw_points(structure: Structure, grid: Grid, *, count: int, key: tuple[int, ...]) -> Picked:
    """`count` points, decided by the key; all of them, each once and in no order, where the grid has no more."""
    total = math.prod(grid)
    voxel = structure.volume / total
    if count >= total:
        return Picked(np.argsort(uniform(total, *key), kind="stable"), np.full(total, voxel))
    starts, sizes = _bricks(structure, grid)
    centres = [(start + (size - 1) / 2) / n for start, size, n in zip(starts, sizes, grid, strict=True)]
    points = np.einsum("i,j,k->ijk", *sizes).reshape(-1)  # (M,)
    law = _law(structure, np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 3)) * points
    chance = (1 - UNIFORM_SHARE) * law / law.sum() + UNIFORM_SHARE * points / total
    which, *inside = uniform(4 * count, *key).reshape(4, count)
    summed = np.cumsum(chance)
    brick = np.minimum(np.searchsorted(summed, which * summed[-1], side="right"), len(summed) - 1)
    at = np.unravel_index(brick, [len(start) for start in starts])
    place = [
        start[one] + np.minimum(np.floor(share * size[one]).astype(np.int64), size[one] - 1)
        for start, size, one, share in zip(starts, sizes, at, inside, strict=True)
    ]
    each = chance[brick] / summed[-1] / points[brick]
    return Picked(np.ravel_multi_index(place, grid).astype(np.int64), voxel / (count * each))


def grid_part(structure: Structure, grid: Grid, *, most: int) -> Picked:
    """All points, z fastest; of a grid of more than `most` every second or so along the vectors where it is finest."""
    fine = [float(np.linalg.norm(vector)) / n for vector, n in zip(structure.lattice, grid, strict=True)]
    stride = [1, 1, 1]
    while math.prod(-(-n // step) for n, step in zip(grid, stride, strict=True)) > most:
        axis = min(
            (axis for axis in range(3) if stride[axis] < grid[axis]),
            key=lambda axis: fine[axis] * stride[axis],
        )
        stride[axis] += 1
    chosen = [np.arange(0, n, step) for n, step in zip(grid, stride, strict=True)]
    shares = []
    for own, n in zip(chosen, grid, strict=True):
        gap = np.diff(
            own, append=n
        )  # to the next one; the last has a smaller one to the first of the next cell
        shares.append((gap + np.roll(gap, 1)) / 2)
    index = np.ravel_multi_index(np.meshgrid(*chosen, indexing="ij"), grid).reshape(-1)
    weights = np.einsum("i,j,k->ijk", *shares).reshape(-1) * (structure.volume / math.prod(grid))
    return Picked(index.astype(np.int64), weights, (stride[0], stride[1], stride[2]))


def places(index: np.ndarray, grid: Grid, lattice: np.ndarray) -> np.ndarray:
    """(P, 3) cartesian."""
    return (
        np.stack([at / n for at, n in zip(np.unravel_index(index, grid), grid, strict=True)], axis=1)
        @ lattice
    )


def _bricks(structure: Structure, grid: Grid) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """First point and number of points of each brick, along each vector."""
    side = max(BRICK_A, (structure.volume / BRICKS) ** (1 / 3))
    starts, sizes = [], []
    for vector, n in zip(structure.lattice, grid, strict=True):
        across = min(n, max(1, round(side * n / float(np.linalg.norm(vector)))))
        starts.append(np.arange(0, n, across))
        sizes.append(np.minimum(across, n - starts[-1]))
    return starts, sizes


def _law(structure: Structure, centres: np.ndarray) -> np.ndarray:
    """(M,) at fractional centres (M, 3): of each atom the image nearest by its fractions, which near an atom is the nearest."""
    found = np.zeros(len(centres))
    step = max(1, _CHUNK // len(structure.species))
    for start in range(0, len(centres), step):
        apart = centres[start : start + step, None] - structure.positions
        distance = np.linalg.norm((apart - np.round(apart)) @ structure.lattice, axis=2)
        found[start : start + step] = np.exp(-RATE_PER_A * distance).sum(axis=1)
    return found
