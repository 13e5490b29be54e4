"""Seeded subsampling of scenes for evaluation.

Letters: N points, M points that are kept. This module is independent of the training sampler and uses plain
NumPy, so a fault of that sampler cannot hide in its own test. Each function returns increasing indices (M,)
int64 for `Scene.take`.
"""

from __future__ import annotations

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.cell_size import CellSize, cell_edges
from pinchpoint.systems.cloud.data.scene import Scene

Place = tuple[float, float, float]
_SOFT = 0.25  # square metres added to the squared distance, so that the density at the scanner stays finite


def uniform(scene: Scene, fraction: float, *, seed: int) -> np.ndarray:
    """Return round(N * fraction) points, at least one; all subsets are equally likely."""
    count = _count(scene.points, fraction)
    return np.sort(_generator(seed).permutation(scene.points)[:count])


def one_per_cell(scene: Scene, cell: CellSize, *, seed: int) -> np.ndarray:
    """Return one random point of every occupied cell of a grid. cell: one edge, or one each for x, y, z."""
    corner = np.floor(scene.xyz.astype(np.float64) / cell_edges(cell))
    order = _generator(seed).permutation(scene.points)
    # Take the first point of each cell in a random order of all points.
    _, first = np.unique(corner[order], axis=0, return_index=True)
    return np.sort(order[first])


def by_distance(scene: Scene, fraction: float, *, seed: int, scanner: Place | None = None) -> np.ndarray:
    """Return round(N * fraction) points, at least one, with density falling with the squared distance to a
    scanner.

    scanner: its position in the coordinates of the scene. By default the scanner is at the point with the
    smallest x + y, half way up the scene, so that few points remain on the far side.
    """
    count = _count(scene.points, fraction)
    place = np.array(_side(scene.xyz) if scanner is None else scanner, dtype=np.float64)
    if place.shape != (3,) or not np.isfinite(place).all():
        raise BadInput(f"The scanner position {scanner} is not a point.", hint="Give x, y and z.")
    square = ((scene.xyz - place) ** 2).sum(axis=1)
    # Divide exponential random numbers by the weights: the smallest results are a weighted draw without
    # replacement, of an exact number of points.
    waits = _generator(seed).exponential(size=scene.points) * (square + _SOFT)
    return np.sort(np.argpartition(waits, count - 1)[:count])


def _side(xyz: np.ndarray) -> Place:
    x, y, _ = xyz[(xyz[:, 0] + xyz[:, 1]).argmin()].tolist()
    return x, y, (float(xyz[:, 2].min()) + float(xyz[:, 2].max())) / 2


def _count(points: int, fraction: float) -> int:
    if not 0 < fraction <= 1:
        raise BadInput(
            f"The fraction {fraction:g} is not above 0 and at most 1.", hint="Give a fraction such as 0.1."
        )
    return max(1, round(points * fraction))


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise BadInput(f"The seed {seed} is negative.", hint="Give a seed of 0 or more.")
    return np.random.default_rng(seed)
