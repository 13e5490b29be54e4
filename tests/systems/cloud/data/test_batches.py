"""The scenes of a step: crops against a sort of all distances, turns against the passes they make."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pinchpoint.systems.cloud.data import batches
from pinchpoint.systems.cloud.data.batches import Supply, crop, names_of_step, nearest, step_scenes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.settings import Settings

TOLD = Settings(scenes=2, points=50, seed=7)


class Cubes:
    """Scenes that count how often they are read."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()

    def scene(self, name: str) -> Scene:
        self.read[name] += 1
        rng = np.random.default_rng(int(name))
        return Scene(
            name,
            rng.uniform(size=(200, 3)).astype(np.float32),
            np.zeros((200, 0), np.float32),
            np.full(200, int(name)),
        )


def test_a_crop_is_the_points_a_sort_by_distance_puts_first() -> None:
    rng = np.random.default_rng(0)
    xyz = rng.integers(0, 4, (300, 3)).astype(np.float32)  # many are equally far: the first of them are taken
    centre = xyz[17]
    distance = ((xyz - centre) ** 2).sum(axis=1)
    for points in (1, 2, 40, 299, 300):
        wanted = np.sort(np.lexsort((np.arange(300), distance))[:points])
        assert (nearest(xyz, centre, points) == wanted).all()


def test_a_small_scene_is_left_whole_and_a_crop_holds_its_centre() -> None:
    scene = Cubes().scene("3")
    assert crop(scene, 200, np.random.default_rng(0)) is scene
    part = crop(scene, 30, np.random.default_rng(5))
    centre = scene.xyz[np.random.default_rng(5).integers(200)]
    assert part.points == 30 and (part.xyz == centre).all(axis=1).any()
    assert part.labels is not None and len(part.labels) == 30


def test_every_pass_takes_each_scene_once_over_all_ranks() -> None:
    names, told = [str(number) for number in range(8)], replace(TOLD, ranks=2)
    taken = [names_of_step(names, told, step=step, rank=rank) for step in (1, 2, 3, 4) for rank in (0, 1)]
    flat = [name for some in taken for name in some]
    assert Counter(flat[:8]) == Counter(flat[8:]) == Counter(names)
    assert flat[:8] != flat[8:], "each pass in an order of its own"


def test_a_step_follows_from_seed_step_and_rank_and_from_nothing_else() -> None:
    names = [str(number) for number in range(5)]

    def xyz(told: Settings = TOLD, step: int = 3, rank: int = 0) -> np.ndarray:
        return np.concatenate(
            [scene.xyz for scene in step_scenes(Cubes(), names, told, step=step, rank=rank)]
        )

    assert (xyz() == xyz()).all()
    others = (xyz(replace(TOLD, seed=8)), xyz(step=4), xyz(rank=1), xyz(replace(TOLD, augment=False)))
    assert all(not np.array_equal(xyz(), other) for other in others)


def test_scenes_are_read_once_where_there_is_room_and_each_time_where_there_is_none() -> None:
    for room, reads in ((10**6, 1), (0, 3)):
        cubes = Cubes()
        supply = Supply(cubes, cache_bytes=room)
        for _ in range(3):
            supply.scene("1")
        assert cubes.read["1"] == reads


def test_no_more_scenes_are_kept_than_a_quarter_of_the_free_memory_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cubes = Cubes()
    scene = cubes.scene("1")
    one = scene.xyz.nbytes + scene.features.nbytes + (0 if scene.labels is None else scene.labels.nbytes)
    monkeypatch.setattr(batches, "free_bytes", lambda: 4 * (2 * one))
    supply = Supply(cubes)
    for name in ("1", "2", "3", "3", "1"):
        supply.scene(name)
    assert (cubes.read["1"], cubes.read["2"], cubes.read["3"]) == (2, 1, 2), "1 was read here once before"
