"""The scenes of each step: which, what part of each, and how it is turned. All follow from (seed, step, rank).

Letters: N points of a scene, P points of a crop. Scenes are kept in memory up to a limit, and the next step's are made ready
by a thread while this one computes; neither changes what a step gets.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import GIB
from pinchpoint.systems.cloud.data.augmentation import augmented
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.seeding import at_turn

HELD_BYTES = 8 * GIB  # at most


class Source(Protocol):
    """Scenes by name."""

    def scene(self, name: str) -> Scene: ...


class Supply:
    """Scenes of a source, each read once where there is room: without held_bytes a quarter of the memory that is free."""

    def __init__(self, data: Source, *, held_bytes: int | None = None) -> None:
        self.data = data
        self._held: dict[str, Scene] = {}
        self._room = min(HELD_BYTES, free_bytes() // 4) if held_bytes is None else held_bytes

    def scene(self, name: str) -> Scene:
        if name in self._held:
            return self._held[name]
        scene = self.data.scene(name)
        size = scene.xyz.nbytes + scene.features.nbytes + (0 if scene.labels is None else scene.labels.nbytes)
        if size <= self._room:
            self._room -= size
            self._held[name] = scene
        return scene


def names_of_step(names: list[str], told: Settings, *, step: int, rank: int) -> list[str]:
    """The scenes of step 1, 2, ...: ranks share each pass over the names, which has an order of its own."""
    first = ((step - 1) * told.ranks + rank) * told.scenes
    return [at_turn(names, seed=told.seed, turn=turn) for turn in range(first, first + told.scenes)]


def step_scenes(supply: Source, names: list[str], told: Settings, *, step: int, rank: int) -> list[Scene]:
    """The scenes of a step as the network gets them, before views are drawn."""
    made = []
    for place, name in enumerate(names_of_step(names, told, step=step, rank=rank)):
        rng = np.random.default_rng((told.seed, step, rank, place))
        part = cropped(supply.scene(name), told.points, rng)
        made.append(augmented(part, rng) if told.augment else part)
    return made


def cropped(scene: Scene, points: int, rng: np.random.Generator) -> Scene:
    """The `points` points nearest to a random one of the scene, in their order; all where there are no more."""
    centre = scene.xyz[
        rng.integers(scene.points)
    ]  # drawn either way, so that what follows does not depend on the size
    if scene.points <= points:
        return scene
    return scene.take(nearest(scene.xyz, centre, points))


def nearest(xyz: np.ndarray, centre: np.ndarray, points: int) -> np.ndarray:
    """xyz: (N, 3) -> (P,) the places of the nearest, rising; of those equally far the first."""
    apart = xyz - centre
    square = np.einsum("ij,ij->i", apart, apart)
    limit = np.partition(square, points - 1)[points - 1]
    chosen = square < limit
    chosen[np.flatnonzero(square == limit)[: points - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)
