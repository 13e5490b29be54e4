"""Probes, the points where a density is sampled: around molecules, and on the grid of a crystal.

Letters: A atoms, P probes, M bricks. Probes follow from a seed and are not stored in files. Each has a
weight: the sum of weight * f is an unbiased estimate of the integral of f.

Around a molecule (`draw_probes`) the distribution is a mixture of one component per atom that falls off as
exp(-rate r), so that probes are dense where the density is high, and a uniform one in a box, so that no
region is empty. Its value is known in closed form. `grid_probes` returns a regular grid instead.

For a crystal (`draw_points`), points of its own grid are drawn. Each brick of neighbouring points has a
probability that falls off with the distance to the atoms, plus a constant; within a brick, all points are
equally likely. `select_grid` returns the whole grid, or an even subset if it is too large.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import VALENCE, uniform
from pinchpoint.systems.density.grid.structure import Structure

RATE_PER_A = (
    2.5  # falls off more slowly than valence densities, so that no probe in a tail has a large weight
)
UNIFORM_SHARE = 0.15
BOX_PADDING_A = 3.0
_CHUNK = 65_536  # probes times atoms per chunk
Grid = tuple[int, int, int]
BRICK_A = 0.25  # side of a brick: a density changes little over this length
BRICKS = 32_768  # most bricks per cell; in a larger cell the bricks are larger
_BRICK_CHUNK = 1 << 18  # bricks times atoms per chunk


@dataclass(frozen=True, eq=False)
class Probes:
    """Points with weights.

    points: (P, 3) float64 in angstrom; weights: (P,) float64 in cubic angstrom; grid: points along each axis,
    if they are a grid.
    """

    points: np.ndarray
    weights: np.ndarray
    grid: tuple[int, int, int] | None = None


def draw_probes(
    species: tuple[str, ...], positions: np.ndarray, *, count: int, key: tuple[int, ...]
) -> Probes:
    """Draw `count` probes around atoms at positions (A, 3), determined by the key."""
    if count < 1:
        raise BadInput(f"A sample cannot have {count} probes.", hint="Give at least 1 probe.")
    kind, first, second, third, height, turn = uniform(6 * count, *key).reshape(6, count)
    low, high = _box(positions)
    # Each atom has its share of (0, 1); the rest belongs to the box.
    owner = np.searchsorted(np.cumsum(shares(species)), kind, side="right")
    in_box = owner == len(species)
    # In space, the radius of the distribution exp(-rate r) is a sum of three exponential variables.
    radius = -np.log(first * second * third) / RATE_PER_A
    cosine = 2 * height - 1
    sine, angle = np.sqrt(1 - cosine**2), 2 * np.pi * turn
    round_atom = radius[:, None] * np.stack([sine * np.cos(angle), sine * np.sin(angle), cosine], axis=1)
    points = positions[np.where(in_box, 0, owner)] + round_atom
    points[in_box] = low + (high - low) * np.stack([first, second, third], axis=1)[in_box]
    return Probes(points, 1 / (count * likelihood(species, positions, points)))


def likelihood(species: tuple[str, ...], positions: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the probability density (P,) at points (P, 3), per cubic angstrom.

    Its integral over space is 1.
    """
    low, high = _box(positions)
    values = np.where(
        ((points >= low) & (points <= high)).all(axis=1), UNIFORM_SHARE / np.prod(high - low), 0.0
    )
    scale = shares(species) * RATE_PER_A**3 / (8 * np.pi)
    step = max(1, _CHUNK // len(species))
    for start in range(0, len(points), step):
        apart = np.linalg.norm(points[start : start + step, None] - positions, axis=2)
        values[start : start + step] += np.exp(-RATE_PER_A * apart) @ scale
    return values


def shares(species: tuple[str, ...]) -> np.ndarray:
    """Return the share of the probes around each atom, (A,); with the share of the box they sum to 1.

    Hydrogen gets more than in proportion to its electrons.
    """
    weight = np.array([2.0 + VALENCE[symbol] for symbol in species])
    return (1 - UNIFORM_SHARE) * weight / weight.sum()


def grid_probes(positions: np.ndarray, *, spacing_a: float, padding_a: float) -> Probes:
    """Return a grid that extends `padding_a` beyond the atoms (A, 3), z fastest.

    The weights are the volume per grid point.
    """
    if not (spacing_a > 0 and padding_a >= 0):
        raise BadInput(
            f"The spacing {spacing_a:g} or the padding {padding_a:g} angstrom of the grid is out of range.",
            hint="Use a spacing above 0 and a padding of at least 0.",
        )
    low, high = positions.min(axis=0) - padding_a, positions.max(axis=0) + padding_a
    nx, ny, nz = (int(count) for count in np.ceil((high - low) / spacing_a - 1e-9) + 1)
    middle = (low + high) / 2
    axes = [
        centre + spacing_a * (np.arange(count) - (count - 1) / 2)
        for centre, count in zip(middle, (nx, ny, nz), strict=True)
    ]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    return Probes(points, np.full(len(points), spacing_a**3), (nx, ny, nz))


def _box(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return positions.min(axis=0) - BOX_PADDING_A, positions.max(axis=0) + BOX_PADDING_A


@dataclass(frozen=True, eq=False)
class GridSelection:
    """Some or all points of a grid.

    index: (P,) int64, z fastest; weights: (P,) float64 in cubic angstrom; stride: step along each lattice
    vector.
    """

    index: np.ndarray
    weights: np.ndarray
    stride: Grid | None = None  # of a regular subset; (1, 1, 1) is the whole grid

    @property
    def sha256(self) -> str:
        """A hash of the points, stored with the values of a file."""
        return hashlib.sha256(self.index.astype("<i8").tobytes()).hexdigest()


def draw_points(structure: Structure, grid: Grid, *, count: int, key: tuple[int, ...]) -> GridSelection:
    """Draw `count` points, determined by the key.

    A grid with no more points than that is returned whole, in random order.
    """
    total = math.prod(grid)
    voxel = structure.volume / total
    if count >= total:
        return GridSelection(np.argsort(uniform(total, *key), kind="stable"), np.full(total, voxel))
    starts, sizes = _bricks(structure, grid)
    centres = [(start + (size - 1) / 2) / n for start, size, n in zip(starts, sizes, grid, strict=True)]
    points = np.einsum("i,j,k->ijk", *sizes).reshape(-1)  # (M,)
    law = (
        _distribution(structure, np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 3))
        * points
    )
    chance = (1 - UNIFORM_SHARE) * law / law.sum() + UNIFORM_SHARE * points / total
    which, *inside = uniform(4 * count, *key).reshape(4, count)
    cumulative = np.cumsum(chance)
    brick = np.minimum(np.searchsorted(cumulative, which * cumulative[-1], side="right"), len(cumulative) - 1)
    at = np.unravel_index(brick, [len(start) for start in starts])
    place = [
        start[one] + np.minimum(np.floor(share * size[one]).astype(np.int64), size[one] - 1)
        for start, size, one, share in zip(starts, sizes, at, inside, strict=True)
    ]
    each = chance[brick] / cumulative[-1] / points[brick]
    return GridSelection(np.ravel_multi_index(place, grid).astype(np.int64), voxel / (count * each))


def select_grid(structure: Structure, grid: Grid, *, most: int) -> GridSelection:
    """Return all points, z fastest.

    A grid of more than `most` points is thinned along the vectors where it is finest.
    """
    fine = [float(np.linalg.norm(vector)) / n for vector, n in zip(structure.lattice, grid, strict=True)]
    stride = [1, 1, 1]
    while math.prod(-(-n // step) for n, step in zip(grid, stride, strict=True)) > most:
        axis = min(
            (axis for axis in range(3) if stride[axis] < grid[axis]),
            key=lambda axis: fine[axis] * stride[axis],
        )
        stride[axis] += 1
    indices = [np.arange(0, n, step) for n, step in zip(grid, stride, strict=True)]
    shares = []
    for own, n in zip(indices, grid, strict=True):
        # Distance to the next point; the last may be closer to the first point of the next cell.
        gap = np.diff(own, append=n)
        shares.append((gap + np.roll(gap, 1)) / 2)
    index = np.ravel_multi_index(np.meshgrid(*indices, indexing="ij"), grid).reshape(-1)
    weights = np.einsum("i,j,k->ijk", *shares).reshape(-1) * (structure.volume / math.prod(grid))
    return GridSelection(index.astype(np.int64), weights, (stride[0], stride[1], stride[2]))


def positions_of(index: np.ndarray, grid: Grid, lattice: np.ndarray) -> np.ndarray:
    """Return the Cartesian positions (P, 3) of grid points."""
    return (
        np.stack([at / n for at, n in zip(np.unravel_index(index, grid), grid, strict=True)], axis=1)
        @ lattice
    )


def _bricks(structure: Structure, grid: Grid) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the first point and the number of points of each brick, along each vector."""
    side = max(BRICK_A, (structure.volume / BRICKS) ** (1 / 3))
    starts, sizes = [], []
    for vector, n in zip(structure.lattice, grid, strict=True):
        across = min(n, max(1, round(side * n / float(np.linalg.norm(vector)))))
        starts.append(np.arange(0, n, across))
        sizes.append(np.minimum(across, n - starts[-1]))
    return starts, sizes


def _distribution(structure: Structure, centres: np.ndarray) -> np.ndarray:
    """Return the unnormalised distribution (M,) at fractional centres (M, 3).

    Uses the image of each atom that is nearest in fractional coordinates, which close to an atom is the
    nearest one.
    """
    values = np.zeros(len(centres))
    step = max(1, _BRICK_CHUNK // len(structure.species))
    for start in range(0, len(centres), step):
        apart = centres[start : start + step, None] - structure.positions
        distance = np.linalg.norm((apart - np.round(apart)) @ structure.lattice, axis=2)
        values[start : start + step] = np.exp(-RATE_PER_A * distance).sum(axis=1)
    return values
