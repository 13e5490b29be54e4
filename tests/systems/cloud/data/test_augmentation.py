"""Augmentation moves points together with normals and Gaussians, compared with their matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pinchpoint.systems.cloud.data.augmentation import JITTER_M, SCALES, Move, augment, draw_move
from pinchpoint.systems.cloud.data.scene import Scene

NAMES = ("red", "nx", "ny", "nz", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3")


def made(points: int = 40) -> Scene:
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(points, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    turns = rng.normal(size=(points, 4))
    turns /= np.linalg.norm(turns, axis=1, keepdims=True)
    columns = [rng.uniform(size=(points, 1)), normals, rng.uniform(-5, -3, (points, 3)), turns]
    features = np.concatenate(columns, axis=1).astype(np.float32)
    return Scene(
        "one", rng.uniform(-2, 3, (points, 3)).astype(np.float32), features, np.zeros(points, np.int16), NAMES
    )


def covariances(scene: Scene) -> np.ndarray:
    """(N, 3, 3) of the Gaussians: R S S R^T, R from the rotation written out."""
    w, x, y, z = (scene.features[:, NAMES.index(f"rot_{at}")].astype(float) for at in range(4))
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    turn = np.array(rows).transpose(2, 0, 1)
    sizes = np.exp(scene.features[:, 4:7].astype(float))
    half = turn * sizes[:, None, :]
    return half @ half.transpose(0, 2, 1)


@pytest.mark.parametrize("mirrored", [False, True])
def test_gaussians_and_normals_move_as_the_points_do(mirrored: bool) -> None:
    scene, move = made(), Move(0.7, mirrored, 1.07)
    moved = move.apply(scene)
    turn = np.array([(math.cos(0.7), -math.sin(0.7), 0), (math.sin(0.7), math.cos(0.7), 0), (0, 0, 1)])
    whole = turn @ np.diag((-1.0 if mirrored else 1.0, 1.0, 1.0))
    before, after = (s.xyz[:, None, :].astype(float) - s.xyz[None, :, :] for s in (scene, moved))
    assert after == pytest.approx(1.07 * np.einsum("ij,abj->abi", whole, before), abs=1e-5)
    assert moved.features[:, 1:4] == pytest.approx(scene.features[:, 1:4] @ whole.T, abs=1e-5)
    wanted = 1.07**2 * whole @ covariances(scene) @ whole.T
    assert covariances(moved) == pytest.approx(wanted, rel=1e-3, abs=1e-8)
    assert (moved.features[:, 0] == scene.features[:, 0]).all(), "a colour has no direction"


def test_a_room_stays_upright_in_its_place_and_nearly_as_large() -> None:
    scene = made(400)
    moves = [draw_move(np.random.default_rng(seed)) for seed in range(200)]
    assert {move.mirrored for move in moves} == {True, False}
    assert all(SCALES[0] <= move.scale <= SCALES[1] for move in moves)
    counts = np.histogram([move.angle for move in moves], 4, (0, 2 * math.pi))[0]
    assert counts.min() > 25, "all directions"
    flat = Move(1.0, True, 1.0).apply(scene)
    assert flat.xyz[:, 2] == pytest.approx(scene.xyz[:, 2], abs=1e-6)
    jittered = augment(scene, np.random.default_rng(3))
    plain = draw_move(np.random.default_rng(3)).apply(scene)
    apart = np.abs(jittered.xyz - plain.xyz)
    assert 0 < apart.max() <= 4 * JITTER_M + 1e-6 and apart.std() < JITTER_M


def test_the_same_generator_gives_the_same_scene() -> None:
    one, other = (augment(made(), np.random.default_rng((1, 2, 3))) for _ in range(2))
    assert (one.xyz == other.xyz).all() and (one.features == other.features).all()
    assert not (augment(made(), np.random.default_rng((1, 2, 4))).xyz == one.xyz).all()
