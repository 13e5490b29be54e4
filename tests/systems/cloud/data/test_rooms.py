"""Rooms: determined by their seed, with exact counts, scanner-like density, and classes that neither colour
nor height reveals.
"""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.room_layout import CLASSES
from pinchpoint.systems.cloud.data.rooms import GAUSSIAN, make_room, making_bytes, pack, unpack

FURNITURE = [CLASSES.index(name) for name in ("table", "chair", "shelf", "lamp", "clutter")]


@pytest.fixture(scope="module")
def rooms():
    return [make_room(seed=3, number=number, points=6_000) for number in range(24)]


def miou(truth: np.ndarray, guess: np.ndarray) -> float:
    counts = np.bincount(truth * 8 + guess, minlength=64).reshape(8, 8)
    correct = np.diag(counts)
    return float((correct / np.maximum(counts.sum(0) + counts.sum(1) - correct, 1)).mean())


def test_a_room_has_exactly_the_requested_number_of_points() -> None:
    for points in (1_000, 20_001):
        assert make_room(seed=0, number=5, points=points).scene.points == points


def test_seed_and_number_determine_a_room_bit_for_bit() -> None:
    first = pack(make_room(seed=1, number=2, points=2_000))
    assert first == pack(make_room(seed=1, number=2, points=2_000))
    assert first != pack(make_room(seed=1, number=3, points=2_000))
    assert first != pack(make_room(seed=2, number=2, points=2_000))


def test_more_points_show_the_same_room() -> None:
    sparse, dense = (make_room(seed=1, number=9, points=points).scene for points in (2_000, 40_000))
    # The rotation is the same too, so each point of the sparse cloud is close to a point of the dense cloud
    # that has the same class.
    square = (sparse.xyz**2).sum(1)[:, None] - 2 * sparse.xyz @ dense.xyz.T + (dense.xyz**2).sum(1)
    nearest = square.argmin(axis=1)
    distance = np.linalg.norm(sparse.xyz - dense.xyz[nearest], axis=1)
    assert np.median(distance) < 0.05
    assert dense.labels is not None and (dense.labels[nearest] == sparse.labels).mean() > 0.95


def test_every_class_occurs_and_wall_is_the_most_frequent(rooms) -> None:
    shares = np.bincount(np.concatenate([room.scene.labels for room in rooms]), minlength=8) / (24 * 6_000)
    assert shares.argmax() == CLASSES.index("wall") and shares.sum() == pytest.approx(1)
    assert shares[FURNITURE].sum() > 0.2 and shares.min() > 0.008
    assert sum((np.bincount(room.scene.labels, minlength=8)[FURNITURE] > 0).all() for room in rooms) >= 12


def test_density_falls_with_the_distance_to_the_scanner() -> None:
    ratios = []
    for number in range(8):
        room = make_room(seed=5, number=number, points=8_000)
        (scanner, *others) = room.scanners
        if others:
            continue
        floor = room.scene.xyz[room.scene.labels == 0]
        distance = np.hypot(*(floor[:, :2] - scanner[:2]).T)
        near_count, far_count = (
            (distance < 0.6).sum() / (math.pi * 0.36),
            ((distance > 1.0) & (distance < 1.2)).sum() / (math.pi * 0.44),
        )
        ratios.append(near_count / far_count)
    assert len(ratios) >= 2 and np.mean(ratios) > 1.5


def test_colour_and_height_together_do_not_determine_the_class(rooms) -> None:
    """A lookup table of 9^3 colours x 9 heights, learned from 16 rooms, fails on 8 others."""
    edges = np.linspace(0, 1, 10)[1:-1]

    def codes(room) -> np.ndarray:
        height = room.scene.xyz[:, 2:] - room.scene.xyz[:, 2].min()
        values = np.concatenate([room.scene.features[:, :3], height / 3], axis=1)
        return np.digitize(values, edges) @ np.array([729, 81, 9, 1])

    colour, truth = (
        np.concatenate(each) for each in zip(*((codes(r), r.scene.labels) for r in rooms[:16]), strict=True)
    )
    votes = np.zeros((9**4, 8))
    np.add.at(votes, (colour, truth), 1)
    test = [(codes(room), room.scene.labels) for room in rooms[16:]]
    truth = np.concatenate([labels for _, labels in test])
    assert miou(truth, np.concatenate([votes[code].argmax(axis=1) for code, _ in test])) < 0.45
    by_colour = votes.reshape(729, 9, 8).sum(axis=1)
    assert miou(truth, np.concatenate([by_colour[code // 9].argmax(axis=1) for code, _ in test])) < 0.2


def test_the_splat_of_each_point_lies_in_its_surface() -> None:
    scene = make_room(seed=0, number=1, points=4_000, gaussians=True).scene
    assert scene.names == ("red", "green", "blue", *GAUSSIAN)
    w, x, y, z = scene.features[:, -4:].T.astype(np.float64)
    assert np.allclose(w**2 + x**2 + y**2 + z**2, 1, atol=1e-6)
    normal_z = 1 - 2 * (x**2 + y**2)  # last entry of the third column of the rotation
    level = scene.labels == 0
    assert (np.abs(normal_z[level]) > 0.999).all()
    wall = scene.labels == CLASSES.index("wall")
    assert (np.abs(normal_z[wall]) < 0.01).mean() > 0.95
    scales = scene.features[:, 4:7]
    assert (scales[:, 2] < scales[:, :2].min(axis=1)).all()
    assert scene.features[:, 3].min() >= 0 and scene.features[:, 3].max() <= 1


def test_the_memory_for_a_room_grows_with_its_points_and_not_with_their_square() -> None:
    def peak_bytes(points: int) -> int:
        tracemalloc.start()
        try:
            make_room(seed=0, number=1, points=points)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak_bytes(2_000), peak_bytes(16_000)
    assert large < 9 * small  # 64 times, if every pair of points took part
    assert large < making_bytes(16_000) - making_bytes(0)


def test_a_packed_room_is_restored_and_a_modified_one_is_rejected() -> None:
    room = make_room(seed=0, number=4, points=1_500, gaussians=True)
    data = pack(room)
    back = unpack(data, where="here")
    assert back.origin == room.origin and back.scanners == room.scanners
    assert (back.scene.xyz == room.scene.xyz).all() and (back.scene.labels == room.scene.labels).all()
    changed = bytearray(data)
    changed[5_000] ^= 1
    for bad in (bytes(changed), data[:-100], b"", b"PK\x03\x04 no"):
        with pytest.raises(BadInput, match="here is not a room"):
            unpack(bad, where="here")


@pytest.mark.parametrize("points", [0, -5, 999, 10**9])
def test_a_room_of_too_few_or_too_many_points_is_refused(points: int) -> None:
    with pytest.raises(BadInput) as error:
        make_room(seed=0, number=0, points=points)
    assert "1,000 to 5,000,000" in error.value.hint
