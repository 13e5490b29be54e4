"""Random rotation, mirroring, scaling and jitter of scenes, including features with a direction or a length.

Letters: N points. A scene is rotated about z, so floors stay below; normals (`nx`, `ny`, `nz`) and the
rotations of Gaussian splats (`rot_0..3`, w first) rotate with it, and the logarithms of their axes
(`scale_0..2`) scale with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pinchpoint.systems.cloud.data.scene import Scene

SCALES = 0.9, 1.1
JITTER_M = 0.005  # standard deviation of the jitter, which is clipped at four times this
_NORMAL = ("nx", "ny", "nz")
_ROTATION = ("rot_0", "rot_1", "rot_2", "rot_3")
_AXES = ("scale_0", "scale_1", "scale_2")


@dataclass(frozen=True)
class Move:
    """An optional mirror (x -> -x), then a rotation by `angle` about z, then a scaling."""

    angle: float
    mirrored: bool
    scale: float

    @property
    def matrix(self) -> np.ndarray:
        """(3, 3) matrix of mirror and rotation; its columns are the images of x, y and z."""
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        turn = np.array([(cos, -sin, 0.0), (sin, cos, 0.0), (0.0, 0.0, 1.0)])
        return turn @ np.diag((-1.0 if self.mirrored else 1.0, 1.0, 1.0))

    def apply(self, scene: Scene) -> Scene:
        """Apply the move about the centre of the scene's box in x and y; heights are scaled from zero."""
        low, high = scene.xyz.min(axis=0), scene.xyz.max(axis=0)
        middle = np.array(((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, 0.0), dtype=np.float64)
        matrix = self.matrix
        xyz = (scene.xyz - middle) @ (self.scale * matrix.T) + middle
        return replace(scene, xyz=xyz.astype(np.float32), features=self._features(scene, matrix))

    def _features(self, scene: Scene, matrix: np.ndarray) -> np.ndarray:
        features = scene.features.copy()
        where = {name: column for column, name in enumerate(scene.names)}
        if all(name in where for name in _NORMAL):
            columns = [where[name] for name in _NORMAL]
            features[:, columns] = scene.features[:, columns] @ matrix.T
        if all(name in where for name in _ROTATION):
            columns = [where[name] for name in _ROTATION]
            features[:, columns] = self._rotate(scene.features[:, columns])
        for name in _AXES:
            if name in where:
                features[:, where[name]] += math.log(self.scale)
        return features

    def _rotate(self, rotations: np.ndarray) -> np.ndarray:
        """Rotate quaternions (N, 4), w first.

        The mirror acts on both sides of a rotation, so y and z change sign.
        """
        w, x, y, z = rotations.T
        if self.mirrored:
            y, z = -y, -z
        cos, sin = math.cos(self.angle / 2), math.sin(self.angle / 2)
        return np.stack([cos * w - sin * z, cos * x - sin * y, cos * y + sin * x, cos * z + sin * w], axis=1)


def draw_move(rng: np.random.Generator) -> Move:
    """Draw a random move.

    A mirror and a rotation give every flip: y -> -y is the mirror followed by half a turn.
    """
    return Move(rng.uniform(0, 2 * math.pi), bool(rng.random() < 0.5), rng.uniform(*SCALES))


def augment(scene: Scene, rng: np.random.Generator) -> Scene:
    """Return the scene after a random move, with jitter on every coordinate."""
    result = draw_move(rng).apply(scene)
    noise = rng.standard_normal(result.xyz.shape, dtype=np.float32) * np.float32(JITTER_M)
    return replace(result, xyz=result.xyz + np.clip(noise, -4 * JITTER_M, 4 * JITTER_M))
