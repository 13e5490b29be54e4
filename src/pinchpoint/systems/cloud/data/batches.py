"""The scenes of each step: selection, crop and augmentation, all determined by (seed, step, rank).

Letters: N points of a scene, P points of a crop. Scenes are cached in memory up to a limit, and a thread
prepares the scenes of the next step while this one computes; neither changes what a step receives.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import GIB
from pinchpoint.systems.cloud.data.augmentation import augment
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.training.sample_order import at_turn

CACHE_BYTES = 8 * GIB  # upper limit of the cache of scenes


class Source(Protocol):
    """Scenes by name."""

    def scene(self, name: str) -> Scene: ...


class Supply:
    """Scenes of a source, cached while they fit into cache_bytes (default: a quarter of the free memory)."""

    def __init__(self, data: Source, *, cache_bytes: int | None = None) -> None:
        self.data = data
        self._cache: dict[str, Scene] = {}
        self._room = min(CACHE_BYTES, free_bytes() // 4) if cache_bytes is None else cache_bytes

    def scene(self, name: str) -> Scene:
        if name in self._cache:
            return self._cache[name]
        scene = self.data.scene(name)
        size = scene.memory_bytes
        if size <= self._room:
            self._room -= size
            self._cache[name] = scene
        return scene


def names_of_step(names: list[str], settings: Settings, *, step: int, rank: int) -> list[str]:
    """Return the names of the scenes of step 1, 2, ...

    The ranks share each epoch over the names, and every epoch has its own order.
    """
    first = ((step - 1) * settings.ranks + rank) * settings.scenes
    return [at_turn(names, seed=settings.seed, turn=turn) for turn in range(first, first + settings.scenes)]


def step_scenes(supply: Source, names: list[str], settings: Settings, *, step: int, rank: int) -> list[Scene]:
    """Return the scenes of a step as the network receives them, before views are drawn."""
    scenes = []
    for place, name in enumerate(names_of_step(names, settings, step=step, rank=rank)):
        rng = np.random.default_rng((settings.seed, step, rank, place))
        part = crop(supply.scene(name), settings.points, rng)
        scenes.append(augment(part, rng) if settings.augment else part)
    return scenes


def crop(scene: Scene, points: int, rng: np.random.Generator) -> Scene:
    """Return the `points` points nearest to a random point of the scene, or all points if there are fewer.

    The points keep their order.
    """
    # Always drawn, so that later random numbers do not depend on the size of the scene.
    centre = scene.xyz[rng.integers(scene.points)]
    if scene.points <= points:
        return scene
    return scene.take(nearest(scene.xyz, centre, points))


def nearest(xyz: np.ndarray, centre: np.ndarray, points: int) -> np.ndarray:
    """Return the increasing indices (P,) of the points of xyz (N, 3) nearest to the centre (3,).

    If distances are equal, the point with the lower index is chosen.
    """
    offsets = xyz - centre
    square = np.einsum("ij,ij->i", offsets, offsets)
    limit = np.partition(square, points - 1)[points - 1]
    inside = square < limit
    inside[np.flatnonzero(square == limit)[: points - int(inside.sum())]] = True
    return np.flatnonzero(inside)
