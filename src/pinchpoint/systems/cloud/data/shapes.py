"""Surfaces that make up furniture, and points sampled uniformly over them.

Letters: S surfaces, P points. Each surface is a parallelogram, a frustum (cylinder, cone, disc) or a ball; a
list of them becomes one table, so that all points are drawn by a few array operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Vector = tuple[float, float, float]
_FLAT, _ROUND, _BALL = 0, 1, 2


@dataclass(frozen=True)
class Surface:
    """One surface, whose kind is flat, round, or ball.

    flat: at + a u + b v. round: at + b w + r(b) (cos a u + sin a v), where r goes from r0 to r1. ball: the
    sphere of radius r0 about `at`.
    """

    kind: int
    at: Vector
    u: Vector
    v: Vector
    w: Vector = (0.0, 0.0, 0.0)
    r0: float = 0.0
    r1: float = 0.0

    @property
    def area(self) -> float:
        if self.kind == _FLAT:
            return float(np.linalg.norm(np.cross(self.u, self.v)))
        if self.kind == _BALL:
            return 4 * math.pi * self.r0**2
        return math.pi * (self.r0 + self.r1) * math.hypot(self.r1 - self.r0, math.dist(self.w, (0, 0, 0)))


def flat(at: Vector, u: Vector, v: Vector) -> Surface:
    return Surface(_FLAT, at, u, v)


def ball(at: Vector, radius: float) -> Surface:
    return Surface(_BALL, at, (1, 0, 0), (0, 1, 0), (0, 0, 0), radius, radius)


def disc(at: Vector, radius: float) -> Surface:
    """Return a horizontal disc."""
    return Surface(_ROUND, at, (1, 0, 0), (0, 1, 0), (0, 0, 0), 0.0, radius)


def pipe(low: Vector, high: Vector, r0: float, r1: float | None = None) -> Surface:
    """Return the side of a cylinder or cone between two points, in any direction."""
    axis = np.subtract(high, low)
    unit = axis / np.linalg.norm(axis)
    aside = np.cross(unit, (1, 0, 0) if abs(unit[0]) < 0.9 else (0, 1, 0))
    u = aside / np.linalg.norm(aside)
    v = np.cross(unit, u)
    return Surface(_ROUND, low, _vector(u), _vector(v), _vector(axis), r0, r0 if r1 is None else r1)


def box(low: Vector, size: Vector) -> list[Surface]:
    """Return the six sides of a box."""
    (x, y, z), (a, b, c) = low, size
    return [
        flat((x, y, z), (a, 0, 0), (0, b, 0)),
        flat((x, y, z + c), (a, 0, 0), (0, b, 0)),
        flat((x, y, z), (a, 0, 0), (0, 0, c)),
        flat((x, y + b, z), (a, 0, 0), (0, 0, c)),
        flat((x, y, z), (0, b, 0), (0, 0, c)),
        flat((x + a, y, z), (0, b, 0), (0, 0, c)),
    ]


def drum(at: Vector, radius: float, height: float) -> list[Surface]:
    """Return an upright cylinder with both ends. at: the centre of its lower end."""
    x, y, z = at
    return [pipe(at, (x, y, z + height), radius), disc(at, radius), disc((x, y, z + height), radius)]


def move_surfaces(parts: Sequence[Surface], to: Vector, turn: float = 0.0) -> list[Surface]:
    """Rotate surfaces about the z axis by `turn` radians, then shift them."""
    cos, sin = math.cos(turn), math.sin(turn)

    def rotate(p: Vector) -> Vector:
        return (cos * p[0] - sin * p[1], sin * p[0] + cos * p[1], p[2])

    def move(p: Vector) -> Vector:
        x, y, z = rotate(p)
        return (x + to[0], y + to[1], z + to[2])

    return [
        Surface(part.kind, move(part.at), rotate(part.u), rotate(part.v), rotate(part.w), part.r0, part.r1)
        for part in parts
    ]


def sample_surfaces(
    parts: Sequence[Surface], count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sample `count` points uniformly by area.

    Returns the points (P, 3), their unit normals (P, 3), and the index of the surface of each (P,).
    """
    areas = np.array([part.area for part in parts])
    surface_index = np.sort(rng.choice(len(parts), count, p=areas / areas.sum()))
    at, u, v, w = (
        np.array([getattr(part, name) for part in parts], dtype=np.float64)[surface_index]
        for name in ("at", "u", "v", "w")
    )
    r0, r1 = (np.array([getattr(part, name) for part in parts])[surface_index, None] for name in ("r0", "r1"))
    kind = np.array([part.kind for part in parts])[surface_index]
    a, b = rng.random((2, count, 1))
    flats, balls = kind == _FLAT, kind == _BALL
    points, normals = at + a * u + b * v, np.cross(u, v)
    rounds = ~flats
    if rounds.any():
        angle = 2 * math.pi * a[rounds]
        ring = np.cos(angle) * u[rounds] + np.sin(angle) * v[rounds]
        first, last, rise, share = r0[rounds], r1[rounds], w[rounds], b[rounds]
        # Uniform by area: a ring weighs as much as its radius, so the height is the inverse of the integrated
        # radius.
        root = np.sqrt(first**2 + share * (last**2 - first**2))
        change = last - first
        up = np.where(
            np.abs(change) > 1e-9, (root - first) / np.where(np.abs(change) > 1e-9, change, 1.0), share
        )
        points[rounds] = at[rounds] + up * rise + (first + change * up) * ring
        length = np.linalg.norm(rise, axis=1, keepdims=True)
        axis = np.where(length > 0, rise / np.where(length > 0, length, 1.0), (0.0, 0.0, 1.0))
        normals[rounds] = np.where(length > 0, length * ring - change * axis, axis)
    if balls.any():
        height = 2 * b[balls] - 1
        angle = 2 * math.pi * a[balls]
        out = np.concatenate([np.cos(angle), np.sin(angle), height], axis=1)
        out[:, :2] *= np.sqrt(1 - height**2)
        points[balls], normals[balls] = at[balls] + r0[balls] * out, out
    return points, normals / np.linalg.norm(normals, axis=1, keepdims=True), surface_index


def _vector(values: np.ndarray) -> Vector:
    return (float(values[0]), float(values[1]), float(values[2]))
