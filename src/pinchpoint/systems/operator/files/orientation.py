"""Faces turned so that all of a closed surface look outward.

Two neighbours agree when they run along their shared edge in opposite directions. Within each connected part the faces
are made to agree with one of them, then all are turned when the part's volume comes out negative. A part inside another
(a cavity) is taken for a body of its own and looks outward too. Pure NumPy.
"""

from __future__ import annotations

import numpy as np

from pinchpoint.core.errors import BadInput


def turned_outward(vertices: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, int]:
    """Faces (F, 3) of a closed manifold with vertices (V, 3), turned where needed, and how many were turned."""
    neighbour, disagree = _neighbours(faces)
    part = np.full(len(faces), -1)
    turn = np.zeros(len(faces), dtype=bool)
    parts = 0
    start = 0
    while start < len(faces):
        part[start] = parts
        front = np.array([start])
        while len(front):  # one ring of faces after another
            beside = neighbour[front]
            wanted = turn[front][:, None] ^ disagree[front]
            fresh = part[beside] < 0
            goal, value = beside[fresh], wanted[fresh]
            part[goal] = parts
            turn[goal] = value
            front = np.unique(goal)
        parts += 1
        rest = np.flatnonzero(part[start:] < 0)
        start = start + int(rest[0]) if len(rest) else len(faces)
    if np.any(turn[neighbour] ^ turn[:, None] ^ disagree):
        raise BadInput(
            "the surface has one side only: its faces cannot all look outward",
            hint="cut it where it crosses itself",
        )
    corner = vertices[faces]
    sixfold = np.einsum("fi,fi->f", corner[:, 0], np.cross(corner[:, 1], corner[:, 2]))
    signed = np.where(turn, -sixfold, sixfold)
    inward = np.bincount(part, weights=signed, minlength=parts) < 0
    turn ^= inward[part]
    return np.where(turn[:, None], faces[:, ::-1], faces), int(turn.sum())


def _neighbours(faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(F, 3) the face beyond each edge, and whether the two run along it the same way (they disagree)."""
    sides = np.stack([faces, np.roll(faces, -1, axis=1)], axis=2).reshape(-1, 2)
    ends = np.sort(sides, axis=1)
    order = np.lexsort((ends[:, 1], ends[:, 0]))  # the two uses of an edge come together
    first, second = order[0::2], order[1::2]
    same = sides[first, 0] == sides[second, 0]
    beyond = np.empty(len(sides), dtype=np.int64)
    disagree = np.empty(len(sides), dtype=bool)
    beyond[first], beyond[second] = second // 3, first // 3
    disagree[first] = disagree[second] = same
    return beyond.reshape(-1, 3), disagree.reshape(-1, 3)
