"""Augmentation moves points together with normals and Gaussians, compared with their matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pinchpoint.systems.cloud.data.augmentation import JITTER_M, SCALES, Move, augment, draw_move
from pinchpoint.systems.cloud.data.scene import Scene

NAMES = ("red", "nx", "ny", "nz", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3")


def random_scene(points: int = 40) -> Scene:
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(points, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    quaternions = rng.normal(size=(points, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    columns = [rng.uniform(size=(points, 1)), normals, rng.uniform(-5, -3, (points, 3)), quaternions]
    features = np.concatenate(columns, axis=1).astype(np.float32)
    return Scene(
        "one", rng.uniform(-2, 3, (points, 3)).astype(np.float32), features, np.zeros(points, np.int16), NAMES
    )


def covariances(scene: Scene) -> np.ndarray:
    """Return the covariances (N, 3, 3) of the Gaussians, R S S R^T with the rotation R written out."""
    w, x, y, z = (scene.features[:, NAMES.index(f"rot_{at}")].astype(float) for at in range(4))
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    rotation = np.array(rows).transpose(2, 0, 1)
    sizes = np.exp(scene.features[:, 4:7].astype(float))
    half = rotation * sizes[:, None, :]
    return half @ half.transpose(0, 2, 1)


@pytest.mark.parametrize("mirrored", [False, True])
def test_gaussians_and_normals_move_with_the_points(mirrored: bool) -> None:
    scene, move = random_scene(), Move(0.7, mirrored, 1.07)
    result = move.apply(scene)
    rotation = np.array([(math.cos(0.7), -math.sin(0.7), 0), (math.sin(0.7), math.cos(0.7), 0), (0, 0, 1)])
    matrix = rotation @ np.diag((-1.0 if mirrored else 1.0, 1.0, 1.0))
    before, after = (s.xyz[:, None, :].astype(float) - s.xyz[None, :, :] for s in (scene, result))
    assert after == pytest.approx(1.07 * np.einsum("ij,abj->abi", matrix, before), abs=1e-5)
    assert result.features[:, 1:4] == pytest.approx(scene.features[:, 1:4] @ matrix.T, abs=1e-5)
    expected = 1.07**2 * matrix @ covariances(scene) @ matrix.T
    assert covariances(result) == pytest.approx(expected, rel=1e-3, abs=1e-8)
    assert (result.features[:, 0] == scene.features[:, 0]).all(), "a colour has no direction"


def test_augmentation_keeps_a_room_upright_in_place_and_nearly_as_large() -> None:
    scene = random_scene(400)
    moves = [draw_move(np.random.default_rng(seed)) for seed in range(200)]
    assert {move.mirrored for move in moves} == {True, False}
    assert all(SCALES[0] <= move.scale <= SCALES[1] for move in moves)
    counts = np.histogram([move.angle for move in moves], 4, (0, 2 * math.pi))[0]
    assert counts.min() > 25, "angles cover all directions"
    upright = Move(1.0, True, 1.0).apply(scene)
    assert upright.xyz[:, 2] == pytest.approx(scene.xyz[:, 2], abs=1e-6)
    jittered = augment(scene, np.random.default_rng(3))
    unjittered = draw_move(np.random.default_rng(3)).apply(scene)
    jitter = np.abs(jittered.xyz - unjittered.xyz)
    assert 0 < jitter.max() <= 4 * JITTER_M + 1e-6 and jitter.std() < JITTER_M


def test_the_same_generator_gives_the_same_scene() -> None:
    one, other = (augment(random_scene(), np.random.default_rng((1, 2, 3))) for _ in range(2))
    assert (one.xyz == other.xyz).all() and (one.features == other.features).all()
    assert not (augment(random_scene(), np.random.default_rng((1, 2, 4))).xyz == one.xyz).all()
