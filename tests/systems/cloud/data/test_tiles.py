"""Tiles: clouds of any shape are divided, and a part is read at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.systems.cloud.data.tiles import Tiles
from pinchpoint.systems.cloud.files.scratch import Scratch


def test_a_point_far_from_a_dense_cluster_is_a_tile_of_its_own() -> None:
    rng = np.random.default_rng(0)
    xyz = np.concatenate([np.zeros((1, 3)), 1_000 + rng.uniform(size=(300, 3))])
    assert Tiles(xyz, cell=1.0, margin=1, most=100).count == 2


class _Counting(np.ndarray):
    """Coordinates that remember how many rows were read at a time."""

    rows: list[int]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple) and isinstance(key[0], np.ndarray):
            self.rows.append(len(key[0]))
        return np.asarray(self)[key]


def test_a_tile_with_too_many_points_is_read_in_parts(tmp_path: Path) -> None:
    xyz = np.random.default_rng(0).uniform(size=(1_000, 3)).view(_Counting)
    xyz.rows = []
    tiles = Tiles(xyz, cell=1.0, margin=1, most=300)
    with Scratch(tmp_path / "out") as scratch:
        tiles.route(scratch)
        parts = list(tiles.parts(scratch, 0))
    assert tiles.count == 1 and xyz.rows == [250] * 4
    assert sorted(np.concatenate([index for index, _ in parts]).tolist()) == list(range(1_000))
    assert all(inside.all() for _, inside in parts)
