"""Subsampling for evaluation: exact counts, determined by a seed, with the distribution of each rule."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.eval_subsampling import by_distance, one_per_cell, uniform
from pinchpoint.systems.cloud.data.rooms import make_room
from pinchpoint.systems.cloud.data.scene import Scene


def scene_of(xyz: np.ndarray) -> Scene:
    return Scene("s", xyz.astype(np.float32), np.zeros((len(xyz), 0), np.float32))


ROOM = make_room(seed=0, number=0, points=5_000).scene
RULES = [
    lambda scene, seed: uniform(scene, 0.1, seed=seed),
    lambda scene, seed: by_distance(scene, 0.1, seed=seed),
    lambda scene, seed: one_per_cell(scene, 0.3, seed=seed),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_determines_the_points_which_are_distinct_and_in_order(rule) -> None:
    first = rule(ROOM, 3)
    assert np.array_equal(first, rule(ROOM, 3)) and not np.array_equal(first, rule(ROOM, 4))
    assert (np.diff(first) > 0).all() and first[0] >= 0 and first[-1] < 5_000


@pytest.mark.parametrize("rule", [uniform, by_distance])
def test_counts_are_exact(rule) -> None:
    for fraction, count in ((1.0, 5_000), (0.5, 2_500), (0.25, 1_250), (0.1, 500), (0.05, 250), (1e-9, 1)):
        assert len(rule(ROOM, fraction, seed=0)) == count


def test_a_uniform_draw_selects_every_point_with_equal_probability() -> None:
    scene = scene_of(np.random.default_rng(0).random((20, 3)))
    hits = np.bincount(
        np.concatenate([uniform(scene, 0.25, seed=seed) for seed in range(4_000)]), minlength=20
    )
    assert (
        (hits - 1_000) ** 2 / 1_000
    ).sum() < 50.8  # chi-square of 19, p = 1e-4, though draws without replacement vary less


def test_one_point_per_cell_is_drawn_with_equal_probability() -> None:
    scene = scene_of(np.array([(0.1, 0, 0), (0.2, 0, 0), (0.9, 0, 0), (1.1, 0, 0), (-0.1, 0, 0)]))
    draws = np.stack([one_per_cell(scene, 1.0, seed=seed) for seed in range(3_000)])
    assert draws.shape == (3_000, 3) and (draws[:, 1:] == (3, 4)).all()
    hits = np.bincount(draws[:, 0], minlength=3)
    assert ((hits - 1_000) ** 2 / 1_000).sum() < 18.4  # chi-square of 2, p = 1e-4


def test_points_are_kept_in_proportion_to_their_weight() -> None:
    # One of two points is drawn. Their squared distances are 0 and 0.75, to which 0.25 is added, so the near
    # one is drawn four times as often.
    scene = scene_of(np.array([(0, 0, 0), (np.sqrt(0.75), 0, 0)]))
    near_draws = sum(by_distance(scene, 0.5, seed=seed, scanner=(0, 0, 0))[0] == 0 for seed in range(4_000))
    assert abs(near_draws - 3_200) < 4 * np.sqrt(4_000 * 0.8 * 0.2)


def test_by_default_the_far_side_of_a_room_loses_most_points() -> None:
    along = ROOM.xyz[:, 0] + ROOM.xyz[:, 1]
    far = along > np.median(along)
    assert far[by_distance(ROOM, 0.1, seed=0)].mean() < 0.35 < 0.45 < far[uniform(ROOM, 0.1, seed=0)].mean()


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_a_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    for rule in (uniform, by_distance):
        with pytest.raises(BadInput, match="The fraction"):
            rule(ROOM, fraction, seed=0)


def test_invalid_cells_seeds_and_scanners_are_rejected() -> None:
    for cell in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="The cell size"):
            one_per_cell(ROOM, cell, seed=0)
    with pytest.raises(BadInput, match="The seed -1 is negative"):
        uniform(ROOM, 0.5, seed=-1)
    with pytest.raises(BadInput, match="The scanner position"):
        by_distance(ROOM, 0.5, seed=0, scanner=(0.0, float("nan"), 0.0))
