"""Geometry of the cells of a user's grid: centres, measures, normals, boundaries and distances to them.

V points, C cells of the largest dimension of a grid, m corners of a cell. The measure of a cell is its
length, area or volume. Pure NumPy in double precision, without a library for meshes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pinchpoint.systems.operator.files.grid import Cells
from pinchpoint.systems.operator.model.surroundings import block_order

Array = np.ndarray[Any, Any]

# The faces of a cell with a volume, as numbers of its corners.
FACES: dict[int, list[list[int]]] = {
    4: [[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]],
    5: [[0, 3, 2, 1], [0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]],
    6: [[0, 1, 2], [3, 5, 4], [0, 3, 4, 1], [1, 4, 5, 2], [2, 5, 3, 0]],
    8: [[0, 3, 2, 1], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]],
}
_BLOCK = 64  # places whose neighbours are searched together
# By the corners of a segment or triangle: where a polynomial of third degree is evaluated to integrate it
# exactly, as shares of the corners, and with which weights.
_RULES: dict[int, tuple[str, list[list[float]], list[float]]] = {
    2: ("line", [[1, 0], [1 / 2, 1 / 2], [0, 1]], [1 / 6, 2 / 3, 1 / 6]),
    3: (
        "triangle",
        [
            *([1, 0, 0], [0, 1, 0], [0, 0, 1]),
            *([1 / 2, 1 / 2, 0], [0, 1 / 2, 1 / 2], [1 / 2, 0, 1 / 2]),
            [1 / 3, 1 / 3, 1 / 3],
        ],
        [1 / 20] * 3 + [2 / 15] * 3 + [9 / 20],
    ),
}
_DIGITS = 5  # of the moments of a wall
_ROUND = 10.0**-_DIGITS
_TOUCHES = 1e-6  # of the extent: a boundary this close to the box is an outer one


@dataclass(frozen=True)
class CellGeometry:
    """centres: (C, 3), measures: (C,), normals: (C, 3) of polygons and of lines in the plane; zero else."""

    centres: Array
    measures: Array
    normals: Array


def cell_geometry(points: Array, blocks: list[Cells]) -> CellGeometry:
    """The geometry of cells of one dimension, block after block. points: (V, 3)."""
    parts = [_block_geometry(points, block) for block in blocks]
    return CellGeometry(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _block_geometry(points: Array, block: Cells) -> tuple[Array, Array, Array]:
    corners = points[block.linear]  # (c, m, 3)
    middle = corners.mean(axis=1)
    if block.dimension == 0:
        return middle, np.ones(len(corners)), np.zeros_like(middle)
    if block.dimension == 1:
        along = corners[:, 1] - corners[:, 0]
        length = np.linalg.norm(along, axis=1)
        across = np.stack([along[:, 1], -along[:, 0], np.zeros(len(along))], axis=1)
        return middle, length, _unit(across)
    if block.dimension == 2:
        crosses, centres = _fan(corners, middle)
        whole = crosses.sum(axis=1)
        return _weighted(centres, np.linalg.norm(crosses, axis=2), middle), _norm(whole) / 2, _unit(whole)
    volumes: list[Array] = []
    centroids: list[Array] = []
    for face in FACES[corners.shape[1]]:
        sides = corners[:, face]
        crosses, centres = _fan(sides, sides.mean(axis=1))
        # Tetrahedra from the middle of the cell, which sees all its faces: their signs do not matter.
        height = sides.mean(axis=1) - middle
        volumes.append(np.abs(np.einsum("cki,ci->ck", crosses, height)) / 6)
        centroids.append(0.75 * centres + 0.25 * middle[:, None])
    volume = np.concatenate(volumes, axis=1)
    return (
        _weighted(np.concatenate(centroids, axis=1), volume, middle),
        volume.sum(axis=1),
        np.zeros_like(middle),
    )


def _fan(corners: Array, middle: Array) -> tuple[Array, Array]:
    """Triangles from a polygon's middle to its sides: twice their vector areas, and centroids, (c, m, 3)."""
    after = np.roll(corners, -1, axis=1)
    cross = np.cross(corners - middle[:, None], after - middle[:, None])
    return cross, (corners + after + middle[:, None]) / 3


def _weighted(centres: Array, weights: Array, otherwise: Array) -> Array:
    """(c, 3): the mean of centres (c, k, 3); where all weights (c, k) are zero, `otherwise`."""
    total = weights.sum(axis=1)
    mean = (centres * weights[..., None]).sum(axis=1) / np.maximum(total, np.finfo(float).tiny)[:, None]
    return np.where(total[:, None] > 0, mean, otherwise)


def _norm(vectors: Array) -> Array:
    return np.linalg.norm(vectors, axis=-1)


def _unit(vectors: Array) -> Array:
    return vectors / np.maximum(_norm(vectors), np.finfo(float).tiny)[:, None]


def at_points(count: int, blocks: list[Cells], values: Array) -> Array:
    """(V,) or (V, n): the cells' values (C,) or (C, n), distributed evenly over their corners."""
    total = np.zeros((count, *values.shape[1:]))
    first = 0
    for block in blocks:
        corners = block.linear
        part = values[first : first + len(corners)] / corners.shape[1]
        for column in corners.T:
            np.add.at(total, column, part)
        first += len(corners)
    return total


def cell_means(blocks: list[Cells], values: Array) -> Array:
    """(C,) or (C, n): means over the corners of cells of values (V,) or (V, n) at the points."""
    return np.concatenate([values[block.linear].mean(axis=1) for block in blocks])


def boundary_of(blocks: list[Cells]) -> list[Array]:
    """The faces that belong to one cell only, as (faces, corners) by the number of corners: 2, 3 or 4."""
    sides: dict[int, list[Array]] = {}
    for block in blocks:
        corners = block.linear
        count = corners.shape[1]
        faces = [[k, (k + 1) % count] for k in range(count)] if block.dimension == 2 else FACES[count]
        for face in faces:
            sides.setdefault(len(face), []).append(corners[:, face])
    boundary = []
    for parts in sides.values():
        faces = np.concatenate(parts)
        _, where, counts = np.unique(np.sort(faces, axis=1), axis=0, return_index=True, return_counts=True)
        if len(once := faces[np.sort(where[counts == 1])]):
            boundary.append(once)
    return boundary


def inner_boundary(points: Array, boundary: list[Array]) -> list[Array]:
    """The connected parts of a boundary that do not touch the box around it: bodies in a flow."""
    label = np.arange(len(points))
    while True:
        before = label.copy()
        for faces in boundary:
            least = label[faces].min(axis=1)
            for column in faces.T:
                np.minimum.at(label, column, least)
        label = label[label]
        if np.array_equal(label, before):
            break
    used = np.unique(np.concatenate([faces.reshape(-1) for faces in boundary]))
    low, high = points[used].min(axis=0), points[used].max(axis=0)
    extent = high - low
    room = _TOUCHES * extent.max()
    touches = ((points[used] - low <= room) | (high - points[used] <= room)) & (extent > room)
    outer = np.unique(label[used[touches.any(axis=1)]])
    parts = [faces[~np.isin(label[faces[:, 0]], outer)] for faces in boundary]
    return [part for part in parts if len(part)]


def nearest(places: Array, sources: Array, count: int) -> tuple[Array, Array]:
    """Distances (Q, count) and numbers (Q, count) of the nearest sources (S, 3) to places (Q, 3), sorted.

    Sources are in boxes of a few dozen; only boxes that can hold a nearer source are compared.
    """
    count = min(count, len(sources))
    order = block_order(torch.from_numpy(sources), _BLOCK).numpy()
    boxes = [order[at : at + _BLOCK] for at in range(0, len(order), _BLOCK)]
    lows = np.stack([sources[box].min(axis=0) for box in boxes])
    highs = np.stack([sources[box].max(axis=0) for box in boxes])
    distances = np.empty((len(places), count))
    numbers = np.empty((len(places), count), dtype=np.int64)
    queries = block_order(torch.from_numpy(places), _BLOCK).numpy()
    for at in range(0, len(queries), _BLOCK):
        part = queries[at : at + _BLOCK]
        x = places[part]
        low, high = x.min(axis=0), x.max(axis=0)
        gaps = _norm(np.maximum(lows - high, 0) + np.maximum(low - highs, 0))
        spans = _norm(np.maximum(np.abs(highs - low), np.abs(high - lows)))
        # The nearest boxes that hold `count` sources bound the distance that has to be searched.
        near = np.argsort(spans, kind="stable")
        enough = np.searchsorted(np.cumsum([len(boxes[box]) for box in near]), count)
        candidates = np.concatenate([boxes[box] for box in np.flatnonzero(gaps <= spans[near[enough]])])
        y = sources[candidates]
        squares = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T
        some = torch.from_numpy(squares).topk(count, dim=1, largest=False, sorted=False).indices.numpy()
        # Again without the cancellation of the squares.
        exact = _norm(x[:, None] - y[some])
        ranks = np.argsort(exact, axis=1, kind="stable")
        distances[part] = np.take_along_axis(exact, ranks, axis=1)
        numbers[part] = candidates[np.take_along_axis(some, ranks, axis=1)]
    return distances, numbers


def moment_names(axes: str) -> list[str]:
    """The names of the numbers of `wall_moments`, for axes such as "xy"."""
    places = range(len(axes))
    pairs = itertools.combinations(places, 2)
    triples = itertools.combinations_with_replacement(places, 3)
    return [
        *(f"body_{axis}" for axis in axes),
        *(f"body_size_{axis}" for axis in axes),
        *(f"body_tilt_{axes[i]}{axes[j]}" for i, j in pairs),
        *(f"body_skew_{axes[i]}{axes[j]}{axes[k]}" for i, j, k in triples),
    ]


def wall_moments(points: Array, wall: list[Array], *, dimension: int) -> Array:
    """Where a wall lies, its size, and its shape in a few numbers, in the order of `moment_names`.

    Middle and deviation of its length or area, the correlation of each pair of axes, and the third moments in
    units of the deviations. They are integrals over the faces, exact for flat ones, so that a mesh with
    smaller faces on the same surface has the same numbers. points: (V, 3); wall: faces with 2, 3 or 4
    corners.
    """
    nodes, shares = _wall_nodes(points, wall)
    nodes = nodes[:, :dimension]
    middle = shares @ nodes
    deviation = np.sqrt(shares @ (nodes - middle) ** 2)
    # Rounding is not a shape: numbers that are equal in exact arithmetic must not differ between cases.
    unit = np.ptp(nodes, axis=0).max()
    far = deviation > _ROUND * unit
    scaled = (nodes - middle) / np.where(far, deviation, np.inf)
    axes = range(dimension)
    tilts = [shares @ (scaled[:, i] * scaled[:, j]) for i, j in itertools.combinations(axes, 2)]
    skews = [
        shares @ (scaled[:, i] * scaled[:, j] * scaled[:, k])
        for i, j, k in itertools.combinations_with_replacement(axes, 3)
    ]
    lengths = np.round(np.concatenate([middle, deviation]) / unit, _DIGITS) * unit
    return np.concatenate([lengths, np.round([*tilts, *skews], _DIGITS)])


def _wall_nodes(points: Array, wall: list[Array]) -> tuple[Array, Array]:
    """Places (N, 3) and weights (N,) with sum 1 that integrate polynomials of third degree over a wall."""
    nodes, weights = [], []
    for faces in _simplices(wall):
        kind, shares, parts = _RULES[faces.shape[1]]
        _, measures, _ = _block_geometry(points, Cells(kind, faces))
        nodes.append(np.einsum("nk,ski->sni", np.array(shares), points[faces]).reshape(-1, 3))
        weights.append((measures[:, None] * np.array(parts)).reshape(-1))
    whole = np.concatenate(weights)
    return np.concatenate(nodes), whole / whole.sum()


def _simplices(wall: list[Array]) -> list[Array]:
    """The segments of a wall in a plane, or the triangles of one in space; a quadrilateral has two."""
    return [
        part
        for faces in wall
        for part in ([faces] if faces.shape[1] < 4 else [faces[:, [0, 1, 2]], faces[:, [0, 2, 3]]])
    ]


def to_wall(places: Array, points: Array, wall: list[Array]) -> tuple[Array, Array]:
    """Distance (Q,) and unit direction (Q, 3) from the nearest place on a wall to each place.

    wall: faces with 2, 3 or 4 corners; the nearest is searched among the faces with the nearest middles.
    """
    simplices = _simplices(wall)
    if simplices[0].shape[1] == 2:
        ends = points[np.concatenate(simplices)]  # (S, 2, 3)
        _, near = nearest(places, ends.mean(axis=1), 6)
        offsets = _to_segments(places, ends[near])
    else:
        corners = points[np.concatenate([part for part in simplices if part.shape[1] == 3])]
        _, near = nearest(places, corners.mean(axis=1), 12)
        offsets = _to_triangles(places, corners[near])
    distances = _norm(offsets)
    best = distances.argmin(axis=1)
    rows = np.arange(len(places))
    return distances[rows, best], _unit(offsets[rows, best])


def _to_segments(places: Array, ends: Array) -> Array:
    """Offsets (Q, k, 3) from the nearest place on segments (Q, k, 2, 3) to places (Q, 3)."""
    start, along = ends[..., 0, :], ends[..., 1, :] - ends[..., 0, :]
    square = np.maximum((along * along).sum(-1), np.finfo(float).tiny)
    share = np.clip(((places[:, None] - start) * along).sum(-1) / square, 0, 1)
    return places[:, None] - start - share[..., None] * along


def _to_triangles(places: Array, corners: Array) -> Array:
    """Offsets (Q, k, 3) from the nearest place on triangles (Q, k, 3, 3) to places (Q, 3)."""
    a, b, c = corners[..., 0, :], corners[..., 1, :], corners[..., 2, :]
    sides = np.stack([_to_segments(places, np.stack(pair, axis=-2)) for pair in ((a, b), (b, c), (c, a))])
    best = _norm(sides).argmin(axis=0)
    offset = np.take_along_axis(sides, best[None, ..., None], axis=0)[0]
    normal = np.cross(b - a, c - a)
    square = np.maximum((normal * normal).sum(-1), np.finfo(float).tiny)
    above = ((places[:, None] - a) * normal).sum(-1) / square
    foot = places[:, None] - above[..., None] * normal
    inside = np.ones(foot.shape[:-1], dtype=bool)
    for start, end in ((a, b), (b, c), (c, a)):
        inside &= (np.cross(end - start, foot - start) * normal).sum(-1) >= 0
    return np.where(inside[..., None], above[..., None] * normal, offset)


def cloud_measures(points: Array, *, neighbours: int = 8) -> tuple[Array, int]:
    """Shares (P,) of points without cells in what they sample, and its dimension: 1, 2 or 3.

    The dimension follows from how the distance to a neighbour grows with the neighbour's number, and the
    shares from the distances themselves.
    """
    distances, _ = nearest(points, points, 4 * neighbours + 1)
    near, far = distances[:, min(neighbours, distances.shape[1] - 1)], distances[:, -1]
    ratio = (distances.shape[1] - 1) / min(neighbours, distances.shape[1] - 1)
    growth = np.median(far / np.maximum(near, np.finfo(float).tiny))
    dimension = (
        int(np.clip(np.rint(np.log(ratio) / np.log(max(growth, 1.0 + 1e-9))), 1, 3)) if ratio > 1 else 2
    )
    within = {1: 2.0, 2: np.pi, 3: 4 / 3 * np.pi}[dimension]
    return within * near**dimension / neighbours, dimension
