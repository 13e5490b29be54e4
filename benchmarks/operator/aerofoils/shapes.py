"""Bodies and meshes by a conformal map: cylinders, ellipses and Joukowski aerofoils.

A circle of radius R around `centre` is mapped by z = w + pole^2 / w; the trailing edge of an aerofoil is
round. Circles around the same centre and rays from it become an O-mesh that is orthogonal everywhere, so
that every shape gets a mesh without a mesher. Lengths are in chords: the body is between x = 0 and x = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Complex = NDArray[np.complexfloating[Any, Any]]


@dataclass(frozen=True)
class Shape:
    """A body.

    `pole` 0 gives a cylinder and 1 an aerofoil; `offset` moves the circle forward and makes the nose thick,
    `rise` moves it up and makes camber, `rounding` is its distance from the pole in radii.
    """

    pole: float = 1.0
    offset: float = 0.1
    rise: float = 0.05
    rounding: float = 0.03

    def points(self, radius: Array, angle: Array) -> Complex:
        """Return the images of points with polar coordinates; `radius` 1 is the body."""
        centre = complex(-self.offset, self.rise)
        circle = abs(self.pole - centre) * (1 + self.rounding) if self.pole else 1.0
        low, high = self._extent(centre, circle)
        return (self._image(centre + circle * radius * np.exp(1j * angle)) - low) / (high - low)

    def _image(self, w: Complex) -> Complex:
        return w + self.pole**2 / w

    def _extent(self, centre: complex, circle: float) -> tuple[float, float]:
        x = self._image(centre + circle * np.exp(1j * np.linspace(0, 2 * np.pi, 20_001))).real
        return float(x.min()), float(x.max())


@dataclass(frozen=True)
class Mesh:
    """An O-mesh: `corners` (layers + 1, around, 2) in chords; cell (j, i) is between rings j and j + 1."""

    corners: Array

    @property
    def layers(self) -> int:
        return len(self.corners) - 1

    @property
    def around(self) -> int:
        return self.corners.shape[1]

    def quads(self) -> Array:
        """The corners (layers, around, 4, 2) of every cell, anticlockwise."""
        here, there = self.corners, np.roll(self.corners, -1, axis=1)
        return np.stack([here[:-1], here[1:], there[1:], there[:-1]], axis=2)

    def centres(self) -> tuple[Array, Array]:
        """Return the centres (cells, 2) and areas (cells,) of the cells, ring after ring."""
        quads = self.quads().reshape(-1, 4, 2)
        x, y = quads[..., 0], quads[..., 1]
        cross = x * np.roll(y, -1, 1) - np.roll(x, -1, 1) * y
        area = cross.sum(1) / 2
        centre = ((quads + np.roll(quads, -1, 1)) * cross[..., None]).sum(1) / (6 * area[:, None])
        return centre, area


def mesh_of(shape: Shape, *, around: int, layers: int, far: float) -> Mesh:
    """Return the mesh from the body to about `far` chords; its layers grow outwards."""
    angle = 2 * np.pi * np.arange(around) / around
    radius_per_chord = 4.0 if shape.pole else 2.0
    growth = np.linspace(0, 1, layers + 1)
    # Layers at the wall are 0.6 times as thick as square ones; the quadratic term spreads the rest.
    length = np.log(far * radius_per_chord)
    first = 0.6 * 2 * np.pi / around * layers / length
    logs = length * (first * growth + (1 - first) * growth**2) if first < 1 else length * growth
    z = shape.points(np.exp(logs)[:, None], angle[None, :])
    return Mesh(np.stack([z.real, z.imag], axis=-1).astype(np.float64))
