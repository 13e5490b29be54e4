"""The scenes of a step: crops equal a sort of all distances, and every epoch visits each scene once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pinchpoint.systems.cloud.data import batches
from pinchpoint.systems.cloud.data.batches import Supply, crop, names_of_step, nearest, step_scenes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.settings import Settings

SETTINGS = Settings(scenes=2, points=50, seed=7)


class Cubes:
    """A source that counts how often each scene is read."""

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


def test_a_crop_contains_the_points_that_a_sort_by_distance_puts_first() -> None:
    rng = np.random.default_rng(0)
    xyz = rng.integers(0, 4, (300, 3)).astype(np.float32)  # many distances are equal; lower indices win
    centre = xyz[17]
    distance = ((xyz - centre) ** 2).sum(axis=1)
    for points in (1, 2, 40, 299, 300):
        expected = np.sort(np.lexsort((np.arange(300), distance))[:points])
        assert (nearest(xyz, centre, points) == expected).all()


def test_a_small_scene_is_not_cropped_and_a_crop_contains_its_centre() -> None:
    scene = Cubes().scene("3")
    assert crop(scene, 200, np.random.default_rng(0)) is scene
    part = crop(scene, 30, np.random.default_rng(5))
    centre = scene.xyz[np.random.default_rng(5).integers(200)]
    assert part.points == 30 and (part.xyz == centre).all(axis=1).any()
    assert part.labels is not None and len(part.labels) == 30


def test_every_epoch_uses_each_scene_once_over_all_ranks() -> None:
    names, settings = [str(number) for number in range(8)], replace(SETTINGS, ranks=2)
    names_by_step = [
        names_of_step(names, settings, step=step, rank=rank) for step in (1, 2, 3, 4) for rank in (0, 1)
    ]
    all_names = [name for step_names in names_by_step for name in step_names]
    assert Counter(all_names[:8]) == Counter(all_names[8:]) == Counter(names)
    assert all_names[:8] != all_names[8:], "each epoch has its own order"


def test_the_scenes_of_a_step_depend_only_on_settings_step_and_rank() -> None:
    names = [str(number) for number in range(5)]

    def xyz(settings: Settings = SETTINGS, step: int = 3, rank: int = 0) -> np.ndarray:
        return np.concatenate(
            [scene.xyz for scene in step_scenes(Cubes(), names, settings, step=step, rank=rank)]
        )

    assert (xyz() == xyz()).all()
    others = (xyz(replace(SETTINGS, seed=8)), xyz(step=4), xyz(rank=1), xyz(replace(SETTINGS, augment=False)))
    assert all(not np.array_equal(xyz(), other) for other in others)


def test_scenes_are_cached_only_if_they_fit_into_the_cache() -> None:
    for cache_bytes, reads in ((10**6, 1), (0, 3)):
        cubes = Cubes()
        supply = Supply(cubes, cache_bytes=cache_bytes)
        for _ in range(3):
            supply.scene("1")
        assert cubes.read["1"] == reads


def test_by_default_the_cache_takes_at_most_a_quarter_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cubes = Cubes()
    scene = cubes.scene("1")
    scene_bytes = (
        scene.xyz.nbytes + scene.features.nbytes + (0 if scene.labels is None else scene.labels.nbytes)
    )
    monkeypatch.setattr(batches, "free_bytes", lambda: 4 * (2 * scene_bytes))
    supply = Supply(cubes)
    for name in ("1", "2", "3", "3", "1"):
        supply.scene(name)
    assert (cubes.read["1"], cubes.read["2"], cubes.read["3"]) == (2, 1, 2), (
        "scene 1 was also read once above"
    )
