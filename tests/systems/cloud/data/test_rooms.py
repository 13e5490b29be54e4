"""Rooms: decided by their seed, exact in number, as a scanner sees them, and not given away by colour or
height.
"""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.room_layout import CLASSES
from pinchpoint.systems.cloud.data.rooms import GAUSSIAN, make_room, pack, unpack

FURNITURE = [CLASSES.index(name) for name in ("table", "chair", "shelf", "lamp", "clutter")]


@pytest.fixture(scope="module")
def rooms():
    return [make_room(seed=3, number=number, points=6_000) for number in range(24)]


def miou(truth: np.ndarray, guess: np.ndarray) -> float:
    both = np.bincount(truth * 8 + guess, minlength=64).reshape(8, 8)
    hit = np.diag(both)
    return float((hit / np.maximum(both.sum(0) + both.sum(1) - hit, 1)).mean())


def test_a_room_has_exactly_the_points_asked_for() -> None:
    for points in (1_000, 20_001):
        assert make_room(seed=0, number=5, points=points).scene.points == points


def test_the_seed_and_number_decide_a_room_to_the_bit() -> None:
    first = pack(make_room(seed=1, number=2, points=2_000))
    assert first == pack(make_room(seed=1, number=2, points=2_000))
    assert first != pack(make_room(seed=1, number=3, points=2_000))
    assert first != pack(make_room(seed=2, number=2, points=2_000))


def test_more_points_show_the_same_room() -> None:
    few, many = (make_room(seed=1, number=9, points=points).scene for points in (2_000, 40_000))
    # Turned alike, too: the ceilings are equally high, and each sparse point has a dense one of its class
    # close by.
    square = (few.xyz**2).sum(1)[:, None] - 2 * few.xyz @ many.xyz.T + (many.xyz**2).sum(1)
    near = square.argmin(axis=1)
    far = np.linalg.norm(few.xyz - many.xyz[near], axis=1)
    assert np.median(far) < 0.05
    assert many.labels is not None and (many.labels[near] == few.labels).mean() > 0.95


def test_every_class_is_there_and_walls_lead(rooms) -> None:
    shares = np.bincount(np.concatenate([room.scene.labels for room in rooms]), minlength=8) / (24 * 6_000)
    assert shares.argmax() == CLASSES.index("wall") and shares.sum() == pytest.approx(1)
    assert shares[FURNITURE].sum() > 0.2 and shares.min() > 0.008
    assert sum((np.bincount(room.scene.labels, minlength=8)[FURNITURE] > 0).all() for room in rooms) >= 12


def test_points_thin_out_with_the_distance_to_the_scanner() -> None:
    ratios = []
    for number in range(8):
        room = make_room(seed=5, number=number, points=8_000)
        (scanner, *others) = room.scanners
        if others:
            continue
        floor = room.scene.xyz[room.scene.labels == 0]
        far = np.hypot(*(floor[:, :2] - scanner[:2]).T)
        near_count, far_count = (
            (far < 0.6).sum() / (math.pi * 0.36),
            ((far > 1.0) & (far < 1.2)).sum() / (math.pi * 0.44),
        )
        ratios.append(near_count / far_count)
    assert len(ratios) >= 2 and np.mean(ratios) > 1.5


def test_colour_and_height_together_do_not_tell_the_class(rooms) -> None:
    """A table of 9 colours^3 x 9 heights, learnt on 16 rooms, stays far from solving 8 others."""
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


def test_a_splat_of_each_point_lies_in_its_surface() -> None:
    scene = make_room(seed=0, number=1, points=4_000, gaussians=True).scene
    assert scene.names == ("red", "green", "blue", *GAUSSIAN)
    w, x, y, z = scene.features[:, -4:].T.astype(np.float64)
    assert np.allclose(w**2 + x**2 + y**2 + z**2, 1, atol=1e-6)
    normal_z = 1 - 2 * (x**2 + y**2)  # of the third column of the rotation
    level = scene.labels == 0
    assert (np.abs(normal_z[level]) > 0.999).all()
    wall = scene.labels == CLASSES.index("wall")
    assert (np.abs(normal_z[wall]) < 0.01).mean() > 0.95
    scales = scene.features[:, 4:7]
    assert (scales[:, 2] < scales[:, :2].min(axis=1)).all()
    assert scene.features[:, 3].min() >= 0 and scene.features[:, 3].max() <= 1


def test_a_room_of_200_000_points_takes_about_a_second() -> None:
    times = []
    for number in range(2):
        start = time.process_time()
        make_room(seed=0, number=number, points=200_000)
        times.append(time.process_time() - start)
    assert min(times) < 2  # 0.6 s on a quiet core


def test_a_packed_room_comes_back_and_a_changed_one_is_refused() -> None:
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
    with pytest.raises(BadInput) as refused:
        make_room(seed=0, number=0, points=points)
    assert "1,000 to 5,000,000" in refused.value.hint
