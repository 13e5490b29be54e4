"""Scenes of one's own files, in two folders: read alike, and refused where they do not fit each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.workloads.cloud.sources import Own, fingerprint, open_source


def write(folder: Path, name: str, points: int, *, most: int = 2, colour: bool = True, labels: bool = True) -> None:
    """A folder of .npy as Pointcept lays them out."""
    rng = np.random.default_rng(points)
    place = folder / name
    place.mkdir(parents=True)
    np.save(place / "coord.npy", rng.uniform(size=(points, 3)).astype(np.float32))
    if colour:
        np.save(place / "color.npy", rng.integers(0, 255, (points, 3)).astype(np.uint8))
    if labels:
        np.save(place / "segment.npy", np.arange(points) % (most + 1))


def test_files_of_ones_own_are_a_source_of_both_splits(tmp_path: Path) -> None:
    for name, points in (("a", 30), ("b", 40)):
        write(tmp_path / "train", name, points)
    write(tmp_path / "test", "c", 20, most=4)
    found = open_source(tmp_path)
    assert isinstance(found, Own)
    assert (found.names("train"), found.names("test")) == (["train/a", "train/b"], ["test/c"])
    assert found.features == ("red", "green", "blue") and found.classes == ("0", "1", "2", "3", "4")
    assert found.scene("train/b").points == 40
    before = fingerprint(found)
    np.save(tmp_path / "test" / "c" / "coord.npy", np.zeros((20, 3), np.float32))
    assert fingerprint(open_source(tmp_path)) == before, "of the training scenes alone"
    np.save(tmp_path / "train" / "a" / "segment.npy", np.ones(30, int))
    assert fingerprint(open_source(tmp_path)) != before


def test_a_data_set_that_was_made_is_known_by_its_training_rooms(tiny_rooms: Path) -> None:
    found = open_source(tiny_rooms)
    assert len(found.names("train")) == 5 and len(fingerprint(found)) == 64


def test_scenes_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no data set"):
        open_source(tmp_path)
    (tmp_path / "none" / "train").mkdir(parents=True)
    with pytest.raises(BadInput, match="no scenes in"):
        open_source(tmp_path / "none")
    write(tmp_path / "bare" / "train", "a", 9, labels=False)
    with pytest.raises(BadInput, match="has no labels"):
        open_source(tmp_path / "bare")
    write(tmp_path / "two" / "train", "a", 9)
    write(tmp_path / "two" / "train", "b", 9, colour=False)
    with pytest.raises(BadInput, match="has the features none; others have red, green, blue"):
        open_source(tmp_path / "two")
