"""Scenes turned, mirrored, scaled and jittered at random, with the features that have a direction or a length.

Letters: N points. A scene is turned about z, for floors stay below; normals (`nx`, `ny`, `nz`) and the rotations of Gaussian
splats (`rot_0..3`, w first) turn with it, and the logarithms of their axes (`scale_0..2`) grow with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pinchpoint.systems.cloud.data.scene import Scene

SCALES = 0.9, 1.1
JITTER_M = 0.005  # spread of what is added to a coordinate, and four times that the most
_NORMAL = ("nx", "ny", "nz")
_ROTATION = ("rot_0", "rot_1", "rot_2", "rot_3")
_AXES = ("scale_0", "scale_1", "scale_2")


@dataclass(frozen=True)
class Move:
    """Mirrored (x -> -x) where asked, then turned by `angle` about z, then scaled."""

    angle: float
    mirrored: bool
    scale: float

    @property
    def matrix(self) -> np.ndarray:
        """(3, 3) of the mirror and the turn: columns are what becomes of x, y and z."""
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        turn = np.array([(cos, -sin, 0.0), (sin, cos, 0.0), (0.0, 0.0, 1.0)])
        return turn @ np.diag((-1.0 if self.mirrored else 1.0, 1.0, 1.0))

    def applied(self, scene: Scene) -> Scene:
        """About the middle of the scene's box in x and y; heights are scaled from zero."""
        low, high = scene.xyz.min(axis=0), scene.xyz.max(axis=0)
        middle = np.array(((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, 0.0), dtype=np.float64)
        matrix = self.matrix
        xyz = (scene.xyz - middle) @ (self.scale * matrix.T) + middle
        return replace(scene, xyz=xyz.astype(np.float32), features=self._features(scene, matrix))

    def _features(self, scene: Scene, matrix: np.ndarray) -> np.ndarray:
        made = scene.features.copy()
        where = {name: column for column, name in enumerate(scene.names)}
        if all(name in where for name in _NORMAL):
            columns = [where[name] for name in _NORMAL]
            made[:, columns] = scene.features[:, columns] @ matrix.T
        if all(name in where for name in _ROTATION):
            columns = [where[name] for name in _ROTATION]
            made[:, columns] = self._turned(scene.features[:, columns])
        for name in _AXES:
            if name in where:
                made[:, where[name]] += math.log(self.scale)
        return made

    def _turned(self, rotations: np.ndarray) -> np.ndarray:
        """(N, 4), w first. The mirror image of a Gaussian has its rotation mirrored from both sides: y and z change sign."""
        w, x, y, z = rotations.T
        if self.mirrored:
            y, z = -y, -z
        cos, sin = math.cos(self.angle / 2), math.sin(self.angle / 2)
        return np.stack([cos * w - sin * z, cos * x - sin * y, cos * y + sin * x, cos * z + sin * w], axis=1)


def drawn_move(rng: np.random.Generator) -> Move:
    """A turn and a mirror reach every flip: the other axis is the same mirror, turned by half."""
    return Move(rng.uniform(0, 2 * math.pi), bool(rng.random() < 0.5), rng.uniform(*SCALES))


def augmented(scene: Scene, rng: np.random.Generator) -> Scene:
    """The scene moved at random, and each of its coordinates a little."""
    moved = drawn_move(rng).applied(scene)
    noise = rng.standard_normal(moved.xyz.shape, dtype=np.float32) * np.float32(JITTER_M)
    return replace(moved, xyz=moved.xyz + np.clip(noise, -4 * JITTER_M, 4 * JITTER_M))
