"""Folders of .npy files: read as one scene, written completely, and rejected if files are missing or differ
in length.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.files.formats import read_scene
from pinchpoint.systems.cloud.files.pointcept import read_folder, write_folder

COORD = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_arrays(folder: Path, **arrays: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def test_a_folder_is_read_as_one_scene(tmp_path: Path) -> None:
    segment = np.array([[3], [-1], [0], [1]], dtype=np.int16)
    scene = read_scene(
        write_arrays(
            tmp_path / "scene0000_00",
            coord=COORD,
            color=np.full((4, 3), 51, np.uint8),
            segment200=np.arange(4),
            segment20=segment,
            instance=np.arange(4),
            normal=COORD / 9,
            opacity=np.ones((4, 1)),
            quat=np.ones((4, 4)),
        )
    )
    assert scene.name == "scene0000_00" and np.array_equal(scene.xyz, COORD)
    assert scene.names == (
        "red",
        "green",
        "blue",
        "opacity",
        "rot_0",
        "rot_1",
        "rot_2",
        "rot_3",
        "nx",
        "ny",
        "nz",
    )
    assert np.allclose(scene.features[:, 0], 0.2)
    assert scene.labels is not None and scene.labels.tolist() == [3, -1, 0, 1]


def test_coordinates_alone_are_a_scene(tmp_path: Path) -> None:
    scene = read_scene(write_arrays(tmp_path, coord=COORD))
    assert scene.features.shape == (4, 0) and scene.labels is None


def test_a_folder_is_written_completely_and_never_overwrites_another(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "out", {"coord": COORD, "instance": np.arange(4)})
    assert np.array_equal(read_folder(out)["instance"], np.arange(4))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(BadInput, match="already exists"):
        write_folder(out, {"coord": COORD})


def test_a_folder_that_is_not_a_scene_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no coord\.npy"):
        read_scene(write_arrays(tmp_path / "a", color=COORD))
    with pytest.raises(BadInput, match=r"color\.npy has shape \(3, 3\), but there are 4 points"):
        read_scene(write_arrays(tmp_path / "b", coord=COORD, color=COORD[:3]))
    with pytest.raises(BadInput, match=r"segment\.npy has shape \(5,\)"):
        read_scene(write_arrays(tmp_path / "c", coord=COORD, segment=np.arange(5)))
    folder = write_arrays(tmp_path / "d", coord=COORD)
    (folder / "color.npy").write_bytes(b"\x93NUMPY cut")
    with pytest.raises(BadInput, match=r"Cannot read .*color\.npy"):
        read_scene(folder)
    header = (folder / "coord.npy").read_bytes().replace(b"), }", b"(((((")
    (folder / "color.npy").write_bytes(header)  # numpy's parser fails in its own way
    with pytest.raises(BadInput, match="Cannot read"):
        read_scene(folder)
    np.save(folder / "color.npy", np.array([{}] * 4, dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="Cannot read"):
        read_scene(folder)
