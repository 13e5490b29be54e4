"""NPZ files: arrays under common names, room files, and files that are rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.rooms import make_room, pack
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.formats import read_scene
from pinchpoint.systems.cloud.files.npz import read_arrays, scene_arrays, take_arrays, write_npz

XYZ = np.arange(15, dtype=np.float32).reshape(5, 3)


def write_arrays(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "cloud.npz", **arrays)  # pyright: ignore[reportArgumentType]
    return folder / "cloud.npz"


@pytest.mark.parametrize("name", ["xyz", "coord", "coords", "points", "pos", "means"])
def test_coordinates_are_found_under_common_names(tmp_path: Path, name: str) -> None:
    scene = read_scene(write_arrays(tmp_path, **{name: XYZ}))
    assert np.array_equal(scene.xyz, XYZ) and scene.features.shape == (5, 0) and scene.labels is None


def test_colours_normals_labels_and_other_columns_are_named(tmp_path: Path) -> None:
    colour, normal = np.arange(15, dtype=np.uint8).reshape(5, 3) * 17, XYZ / 10
    scene = read_scene(
        write_arrays(
            tmp_path,
            coord=XYZ,
            color=colour,
            normal=normal,
            segment=np.arange(5)[:, None],
            curvature=XYZ[:, 0],
        )
    )
    assert scene.names == ("red", "green", "blue", "nx", "ny", "nz", "curvature")
    assert np.allclose(scene.features[:, :3], colour / 255) and np.allclose(scene.features[:, 3:6], normal)
    assert scene.labels is not None and scene.labels.tolist() == [0, 1, 2, 3, 4]


def test_a_rotation_that_is_no_number_is_refused_and_an_integer_opacity_stays(tmp_path: Path) -> None:
    quats = np.zeros((5, 4))
    scene = read_scene(write_arrays(tmp_path, xyz=XYZ, quats=quats, opacity=np.full(5, 200, np.uint8)))
    assert scene.features[0].tolist() == [200, 1, 0, 0, 0]
    quats[2, 1] = np.nan
    with pytest.raises(BadInput, match="NaN or infinite"):
        read_scene(write_arrays(tmp_path, xyz=XYZ, quats=quats))


def test_float_colours_up_to_255_are_scaled_to_0_to_1(tmp_path: Path) -> None:
    scene = read_scene(write_arrays(tmp_path, xyz=XYZ, rgb=np.full((5, 3), 51.0)))
    assert np.allclose(scene.features, 0.2)


def test_a_scene_survives_writing_and_reading(tmp_path: Path) -> None:
    scene = Scene(
        "s",
        XYZ,
        XYZ[:, :2] / 20,
        np.array([0, 1, -1, 0, 1]),
        ("heat", "age"),
        ("cat", "dog"),
        (7000.0, 0.0, 1.0),
    )
    write_npz(tmp_path / "s.npz", scene_arrays(scene))
    result = read_scene(tmp_path / "s.npz")
    for key in ("name", "names", "classes", "origin"):
        assert getattr(result, key) == getattr(scene, key)
    for key in ("xyz", "features", "labels"):
        assert np.array_equal(getattr(result, key), getattr(scene, key))


def test_a_subset_of_a_room_file_keeps_names_and_classes(tmp_path: Path) -> None:
    room = make_room(seed=0, number=0, points=1_000).scene
    (tmp_path / "room.npz").write_bytes(pack(make_room(seed=0, number=0, points=1_000)))
    keep = np.array([1, 500, 999])
    write_npz(tmp_path / "part.npz", take_arrays(read_arrays(tmp_path / "room.npz"), keep, "room"))
    part = read_scene(tmp_path / "part.npz")
    assert part.names == room.names and part.classes == room.classes
    assert np.array_equal(part.xyz, room.xyz[keep]) and np.array_equal(part.features, room.features[keep])


def test_labels_of_another_length_are_rejected_in_a_subset() -> None:
    with pytest.raises(BadInput, match="has 5 points but 3 labels"):
        take_arrays({"xyz": XYZ[:5], "label": np.zeros(3, int)}, np.array([0]), "here")


def test_arrays_of_another_length_are_unchanged_in_a_subset() -> None:
    part = take_arrays({"xyz": XYZ, "heat": XYZ[:, 0], "box": np.eye(4)}, np.array([0, 4]), "here")
    assert part["heat"].tolist() == [0, 12] and np.array_equal(part["box"], np.eye(4))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"thing": XYZ}, "has no coordinates: it contains thing"),
        ({"xyz": XYZ[:, :2]}, r"has no coordinates: it contains xyz \(5, 2\)"),
        ({"xyz": XYZ[:0]}, "has no points"),
        ({"xyz": XYZ * np.nan}, "5 of 5 points"),
        ({"xyz": XYZ, "heat": XYZ[:4, 0]}, r"heat of .* has shape \(4,\), but there are 5 points"),
        ({"xyz": XYZ, "label": np.zeros(4, int)}, "5 points but 4 labels"),
        ({"xyz": XYZ, "label": np.full(5, 2**40)}, "do not fit into 32-bit integers"),
    ],
)
def test_arrays_that_are_not_a_point_cloud_are_rejected(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        read_scene(write_arrays(tmp_path, **arrays))


def test_damaged_files_and_object_arrays_are_rejected(tmp_path: Path) -> None:
    file = write_arrays(tmp_path, xyz=XYZ)
    data = file.read_bytes()
    for bad in (b"", data[:100], data[:-10], b"\x93NUMPY"):
        file.write_bytes(bad)
        with pytest.raises(BadInput, match="Cannot read"):
            read_scene(file)
    with pytest.raises(BadInput, match="Cannot read"):
        read_scene(write_arrays(tmp_path, xyz=np.array([{"a": 1}], dtype=object)))
