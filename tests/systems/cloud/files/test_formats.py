"""Formats are recognised by suffix, and files that cannot be read are rejected first."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.rooms import make_room
from pinchpoint.systems.cloud.files.formats import read_scene
from pinchpoint.systems.cloud.files.npz import scene_arrays, write_npz
from pinchpoint.systems.cloud.files.ply import write_ply


def test_a_room_reads_the_same_from_every_file_format(tmp_path: Path) -> None:
    room = make_room(seed=1, number=1, points=1_000, gaussians=True).scene
    write_ply(tmp_path / "a.ply", room)
    write_npz(tmp_path / "a.npz", scene_arrays(room))
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "coord.npy", room.xyz)
    np.save(tmp_path / "a" / "color.npy", room.features[:, :3])
    assert room.labels is not None
    np.save(tmp_path / "a" / "segment.npy", room.labels)
    for name in ("a.ply", "a.npz", "a"):
        scene = read_scene(tmp_path / name)
        assert scene.name == "a" and np.array_equal(scene.xyz, room.xyz)
        assert scene.labels is not None and np.array_equal(scene.labels, room.labels)
        assert np.array_equal(scene.features[:, :3], room.features[:, :3])
        assert name == "a" or (scene.names == room.names and np.array_equal(scene.features, room.features))


def test_the_case_of_a_suffix_does_not_matter(tmp_path: Path) -> None:
    room = make_room(seed=1, number=1, points=1_000).scene
    assert read_scene(write_ply(tmp_path / "A.PLY", room)).points == 1_000


def test_missing_files_and_unknown_formats_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_scene(tmp_path / "none.ply")
    (tmp_path / "cloud.xyz").write_text("1 2 3")
    with pytest.raises(BadInput) as error:
        read_scene(tmp_path / "cloud.xyz")
    assert ".ply, .npz, .las or .laz" in error.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_without_read_permission_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.ply").touch(mode=0)
    with pytest.raises(BadInput, match="is not readable"):
        read_scene(tmp_path / "a.ply")
