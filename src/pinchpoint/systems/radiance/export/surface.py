"""Closed surfaces from values on a grid, by marching tetrahedra.

Every cube of the grid is divided into six tetrahedra, in the same way as its neighbours, so that a surface
has neither holes nor edges with more than two faces. Space outside the grid is empty, which closes surfaces
that reach its border. Letters: n grid points per side, V vertices, F faces.
"""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np

_AXES = np.eye(3, dtype=np.int64)
# Corners of the six tetrahedra: from (0, 0, 0) to (1, 1, 1) along the axes, in every order.
_TETRAHEDRA = np.array(
    [[[0, 0, 0], _AXES[a], _AXES[a] + _AXES[b], [1, 1, 1]] for a, b, _ in permutations(range(3))]
)
_CLOSEST = 0.01  # of an edge: closer vertices to a grid point would give triangles without area


class Mesh(NamedTuple):
    """Triangles, counter-clockwise seen from outside. vertices: (V, 3) float64; faces: (F, 3) int64."""

    vertices: np.ndarray
    faces: np.ndarray

    def corners(self) -> np.ndarray:
        """The corners of every triangle, (F, 3, 3)."""
        return self.vertices[self.faces]

    def area_vectors(self) -> np.ndarray:
        """Outward normals whose lengths are the areas of the faces, (F, 3)."""
        first, second, third = self.corners().swapaxes(0, 1)
        return 0.5 * np.cross(second - first, third - first)

    @property
    def area(self) -> float:
        return float(np.linalg.norm(self.area_vectors(), axis=1).sum())

    @property
    def volume(self) -> float:
        """The enclosed volume, if the mesh is closed."""
        return float((self.corners().mean(axis=1) * self.area_vectors()).sum() / 3)

    def normals(self) -> np.ndarray:
        """Unit normals of the vertices, averaged over their faces by area: (V, 3)."""
        total = np.zeros_like(self.vertices)
        for corner in range(3):
            np.add.at(total, self.faces[:, corner], self.area_vectors())
        return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-30)


def extract_surface(values: np.ndarray, level: float, *, spacing: float, origin: np.ndarray) -> Mesh:
    """The surface around the points of a grid with values above `level`.

    values: (n, n, n), indexed by x, y, z. origin: position of the first point, (3,). Positions are
    interpolated linearly along the edges of the tetrahedra.
    """
    padded = np.pad(values.astype(np.float64), 1, constant_values=level - 1)
    inside, points = padded > level, padded.size
    strides = np.array([padded.shape[1] * padded.shape[2], padded.shape[2], 1])
    tetrahedra = (_mixed_cubes(inside, strides)[:, None, None] + _TETRAHEDRA @ strides).reshape(-1, 4)
    flags = inside.ravel()[tetrahedra]
    counts = flags.sum(axis=1)
    tetrahedra = np.take_along_axis(tetrahedra, np.argsort(~flags, axis=1, kind="stable"), axis=1)
    edges = np.concatenate([_triangles(tetrahedra[counts == count], count) for count in (1, 2, 3)])
    edges = _face_outwards(edges, strides)
    keys, faces = np.unique(edges[..., 0] * points + edges[..., 1], return_inverse=True)
    one, other = np.divmod(keys, points)  # inside, outside
    of_one, of_other = padded.ravel()[one], padded.ravel()[other]
    share = np.clip((of_one - level) / (of_one - of_other), _CLOSEST, 1 - _CLOSEST)[:, None]
    places = (1 - share) * _places(one, strides) + share * _places(other, strides)
    return Mesh((places - 1) * spacing + origin, faces.reshape(-1, 3).astype(np.int64))


def fill_cavities(values: np.ndarray, level: float) -> np.ndarray:
    """The values, with those above `level` in every cavity that cannot be reached from the border.

    A generator learns what is seen: its objects are shells. values: (n, n, n).
    """
    empty = np.pad(values <= level, 1, constant_values=True)
    outside = np.zeros_like(empty)
    outside[0] = True
    before = -1
    while (count := int(outside.sum())) > before:  # a sweep passes straight corridors at once
        before = count
        for axis in range(3):
            for step in (1, -1):
                lines, free = np.moveaxis(outside, axis, 0)[::step], np.moveaxis(empty, axis, 0)[::step]
                for at in range(1, len(lines)):
                    lines[at] |= lines[at - 1] & free[at]
    inner = (slice(1, -1),) * 3
    hidden = empty[inner] & ~outside[inner]
    return np.where(hidden, np.maximum(values.max(initial=level), level + 1), values)


def split_parts(mesh: Mesh) -> np.ndarray:
    """The part each face belongs to, (F,) from 0: parts share no vertex, and the largest by area is 0."""
    labels = np.arange(len(mesh.vertices))
    while True:
        lowest = labels[mesh.faces].min(axis=1)
        new = labels.copy()
        for corner in range(3):
            np.minimum.at(new, mesh.faces[:, corner], lowest)
        new = new[new]  # jump to the label of the label, so that long parts need few rounds
        if np.array_equal(new, labels):
            break
        labels = new
    _, parts = np.unique(labels[mesh.faces[:, 0]], return_inverse=True)
    areas = np.bincount(parts, weights=np.linalg.norm(mesh.area_vectors(), axis=1))
    ranks = np.empty(len(areas), dtype=np.int64)
    ranks[np.argsort(-areas, kind="stable")] = np.arange(len(areas))
    return ranks[parts]


def keep_faces(mesh: Mesh, mask: np.ndarray) -> Mesh:
    """The mesh with some of its faces, and the vertices that they use. mask: (F,)."""
    vertices, faces = np.unique(mesh.faces[mask], return_inverse=True)
    return Mesh(mesh.vertices[vertices], faces.reshape(-1, 3))


def is_watertight(mesh: Mesh) -> bool:
    """Whether every edge belongs to exactly two faces, which pass it in opposite directions."""
    edges = np.concatenate([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]])
    keys, back = (edges[:, one] * len(mesh.vertices) + edges[:, 1 - one] for one in (0, 1))
    every = np.unique(keys)
    return len(keys) > 0 and len(every) == len(keys) and np.array_equal(every, np.unique(back))


def _mixed_cubes(inside: np.ndarray, strides: np.ndarray) -> np.ndarray:
    """First corners of the cubes that the surface passes through, as indices of the flat grid."""
    corners = [
        inside[tuple(slice(at, size - 1 + at) for at, size in zip(corner, inside.shape, strict=True))]
        for corner in np.ndindex(2, 2, 2)
    ]
    some, every = np.logical_or.reduce(corners), np.logical_and.reduce(corners)
    return np.argwhere(some & ~every) @ strides


def _triangles(tetrahedra: np.ndarray, count: int) -> np.ndarray:
    """Triangles of tetrahedra with `count` corners inside, which come first: (F, 3, 2).

    A vertex lies on an edge of a tetrahedron and is given by its corner inside and its corner outside.
    """
    a, b, c, d = tetrahedra.T
    triangles = {
        1: [((a, b), (a, c), (a, d))],
        2: [((a, c), (a, d), (b, d)), ((a, c), (b, d), (b, c))],
        3: [((a, d), (b, d), (c, d))],
    }[count]
    return np.concatenate([np.stack([np.stack(pair, axis=1) for pair in one], axis=1) for one in triangles])


def _face_outwards(edges: np.ndarray, strides: np.ndarray) -> np.ndarray:
    """The triangles with their vertices counter-clockwise, seen from outside. edges: (F, 3, 2)."""
    inner, outer = _places(edges[..., 0], strides), _places(edges[..., 1], strides)
    # With vertices in the middle of their edges, everything is a whole number, so that signs are exact.
    first, second, third = (inner + outer).swapaxes(0, 1)
    outwards = (outer - inner).sum(axis=1)
    wrong = (np.cross(second - first, third - first) * outwards).sum(axis=1) < 0
    return np.where(wrong[:, None, None], edges[:, ::-1], edges)


def _places(index: np.ndarray, strides: np.ndarray) -> np.ndarray:
    """Coordinates of points of the flat grid: (...,) -> (..., 3)."""
    return np.stack([index // strides[0], index % strides[0] // strides[1], index % strides[1]], axis=-1)
