"""Orientation of the faces of a closed surface, so that all point outward.

Two neighbours agree if they run along their shared edge in opposite directions. In each connected part the
faces are flipped to agree with one of them, then all are flipped if the part's volume is negative. A part
inside another (a cavity) is treated as a separate body and points outward too. Pure NumPy.
"""

from __future__ import annotations

import numpy as np

from pinchpoint.core.errors import BadInput


def orient_outward(vertices: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, int]:
    """Faces (F, 3) of a closed manifold with vertices (V, 3), oriented outward, and the number of flips."""
    neighbour, disagree = _neighbours(faces)
    part = np.full(len(faces), -1)
    flip = np.zeros(len(faces), dtype=bool)
    parts = 0
    start = 0
    while start < len(faces):
        part[start] = parts
        front = np.array([start])
        while len(front):  # one ring of faces after another
            beside = neighbour[front]
            target = flip[front][:, None] ^ disagree[front]
            fresh = part[beside] < 0
            goal, value = beside[fresh], target[fresh]
            part[goal] = parts
            flip[goal] = value
            front = np.unique(goal)
        parts += 1
        rest = np.flatnonzero(part[start:] < 0)
        start = start + int(rest[0]) if len(rest) else len(faces)
    if np.any(flip[neighbour] ^ flip[:, None] ^ disagree):
        raise BadInput(
            "The surface has only one side, so its faces cannot all point outward.",
            hint="Cut it where it intersects itself.",
        )
    corner = vertices[faces]
    sixfold = np.einsum("fi,fi->f", corner[:, 0], np.cross(corner[:, 1], corner[:, 2]))
    signed_volume = np.where(flip, -sixfold, sixfold)
    inward = np.bincount(part, weights=signed_volume, minlength=parts) < 0
    flip ^= inward[part]
    return np.where(flip[:, None], faces[:, ::-1], faces), int(flip.sum())


def _neighbours(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(F, 3) the face beyond each edge, and whether the two disagree (run along it in the same direction)."""
    sides = np.stack([faces, np.roll(faces, -1, axis=1)], axis=2).reshape(-1, 2)
    ends = np.sort(sides, axis=1)
    order = np.lexsort((ends[:, 1], ends[:, 0]))  # the two uses of an edge become adjacent
    first, second = order[0::2], order[1::2]
    same = sides[first, 0] == sides[second, 0]
    beyond = np.empty(len(sides), dtype=np.int64)
    disagree = np.empty(len(sides), dtype=bool)
    beyond[first], beyond[second] = second // 3, first // 3
    disagree[first] = disagree[second] = same
    return beyond.reshape(-1, 3), disagree.reshape(-1, 3)


def closed_normals(
    points: np.ndarray, faces: np.ndarray, owners: np.ndarray, normals: np.ndarray
) -> np.ndarray:
    """Normals (C, 3) of polygons, turned outward if they form a closed surface; else as in the file.

    faces: (N, 3) the triangles of the polygons; owners: (N,) the polygon of each.
    """
    _, same = np.unique(points + 0.0, axis=0, return_inverse=True)  # an STL repeats its corners
    faces = same.reshape(-1)[faces]
    sides = np.sort(np.stack([faces, np.roll(faces, -1, axis=1)], axis=2).reshape(-1, 2), axis=1)
    if np.any(np.unique(sides, axis=0, return_counts=True)[1] != 2):
        return normals
    first = np.zeros((same.max() + 1, 3))
    first[same.reshape(-1)] = points
    try:
        turned, _ = orient_outward(first, faces)
    except BadInput:
        return normals
    corner = first[turned]
    areas = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    total = np.zeros_like(normals)
    np.add.at(total, owners, areas)
    return total / np.maximum(np.linalg.norm(total, axis=1), np.finfo(float).tiny)[:, None]
