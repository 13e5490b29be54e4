"""Datasets of rooms: same bytes for any number of jobs, completed, checked, and rejected if damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.dataset import make_dataset, open_dataset
from pinchpoint.systems.cloud.data.rooms import make_room
from pinchpoint.systems.cloud.data.workers import make
from pinchpoint.systems.cloud.files.formats import read_scene
from pinchpoint.systems.common.data import dataset_folder as folder_module

SETTINGS: dict[str, Any] = {"train": 3, "test": 2, "points": 1_200, "seed": 4}


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "new" / "rooms"
    calls: list[tuple[int, int]] = []
    make_dataset(folder, **SETTINGS, jobs=1, progress=lambda done, total: calls.append((done, total)))
    return folder, calls


@pytest.fixture
def copy(dataset_folder, tmp_path):
    return Path(shutil.copytree(dataset_folder[0], tmp_path / "copy"))


@pytest.fixture
def names_made(monkeypatch):
    """Make rooms in this process, and return the list of their names."""
    names: list[str] = []

    def make_in_process(program, orders, *, jobs):
        for order in orders:
            names.append(order.name)
            yield (
                order,
                make({key: getattr(order, key) for key in ("name", "seed", "number", "points", "gaussians")}),
            )

    monkeypatch.setattr(folder_module, "run_workers", make_in_process)
    return names


def bytes_of(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_the_bytes_do_not_depend_on_the_number_of_jobs(dataset_folder, tmp_path) -> None:
    make_dataset(tmp_path, **SETTINGS, jobs=2)
    assert bytes_of(tmp_path) == bytes_of(dataset_folder[0])
    assert sorted(bytes_of(tmp_path)) == [
        "index.json",
        *(f"room-{n:06d}.npz" for n in (0, 1, 2, 900_000, 900_001)),
    ]


def test_progress_counts_every_room(dataset_folder) -> None:
    assert dataset_folder[1] == [(n, 5) for n in range(6)]


def test_a_scene_of_the_dataset_is_the_room_with_its_number(dataset_folder) -> None:
    data = open_dataset(dataset_folder[0])
    assert data.names("train") == ["room-000000", "room-000001", "room-000002"]
    scene, room = data.scene("room-900001"), make_room(seed=4, number=900_001, points=1_200)
    assert (scene.xyz == room.scene.xyz).all() and (scene.labels == room.scene.labels).all()
    assert data.features == scene.names and data.classes == scene.classes and len(data.classes) == 8


def test_a_room_file_can_be_read_like_any_point_cloud(dataset_folder) -> None:
    scene = read_scene(dataset_folder[0] / "room-000001.npz")
    room = open_dataset(dataset_folder[0]).scene("room-000001")
    assert (
        (scene.xyz == room.xyz).all()
        and (scene.features == room.features).all()
        and (scene.labels == room.labels).all()
    )
    assert scene.names == room.names and scene.classes == room.classes


def test_only_missing_or_damaged_rooms_are_made_again(dataset_folder, copy, names_made) -> None:
    (copy / "room-000001.npz").unlink()
    (copy / "room-900000.npz").write_bytes(b"damaged")
    (copy / "index.json").write_text("{")
    make_dataset(copy, **SETTINGS)
    assert names_made == ["room-000001", "room-900000"]
    assert bytes_of(copy) == bytes_of(dataset_folder[0])


def test_a_larger_dataset_keeps_the_rooms_of_the_smaller_one(copy, names_made) -> None:
    data = make_dataset(copy, **{**SETTINGS, "train": 4})
    assert names_made == ["room-000003"] and len(data.names("train")) == 4


def test_a_damaged_room_is_refused_when_it_is_read(copy) -> None:
    file = copy / "room-000000.npz"
    data = bytearray(file.read_bytes())
    data[3_000] ^= 1
    file.write_bytes(data)
    with pytest.raises(BadInput, match="damaged"):
        open_dataset(copy).scene("room-000000")
    with pytest.raises(BadInput, match="not a room"):
        open_dataset(copy, check=False).scene("room-000000")


@pytest.mark.parametrize("change", [{"seed": 5}, {"points": 1_300}, {"gaussians": True}])
def test_a_folder_with_a_different_dataset_is_not_overwritten(copy, change) -> None:
    with pytest.raises(BadInput, match="holds a dataset made with"):
        make_dataset(copy, **SETTINGS | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": 0, "test": 0}, "cannot have 0 rooms for training"),
        ({"train": -1}, "-1 rooms"),
        ({"seed": -1}, "The seed -1 is negative"),
        ({"points": 10}, "A room cannot have 10 points"),
        ({"jobs": 0}, "--jobs 0 is out of range"),
    ],
)
def test_invalid_settings_are_rejected_before_a_folder_is_created(tmp_path, change, message) -> None:
    with pytest.raises(BadInput, match=message):
        make_dataset(tmp_path / "new", **SETTINGS | change)
    assert not (tmp_path / "new").exists()


def test_a_room_that_does_not_fit_into_memory_is_rejected(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(folder_module, "free_bytes", lambda: 2**20)
    with pytest.raises(BadInput, match=r"takes .* to make"):
        make_dataset(tmp_path, **SETTINGS)


def test_a_folder_without_a_finished_dataset_is_rejected(copy, tmp_path) -> None:
    with pytest.raises(BadInput, match=r"no index\.json"):
        open_dataset(tmp_path / "nothing")
    with pytest.raises(BadInput, match="has no room 'room-1'"):
        open_dataset(copy).scene("room-1")
    with pytest.raises(BadInput, match="no split 'val'"):
        open_dataset(copy).names("val")  # pyright: ignore[reportArgumentType]
    index = json.loads((copy / "index.json").read_text())
    (copy / "index.json").write_text(json.dumps(index | {"missing": 2}))
    with pytest.raises(BadInput, match="not finished: 2 of 5 rooms"):
        open_dataset(copy)
    del index["classes"]
    (copy / "index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match="lacks 'classes'"):
        open_dataset(copy)


def test_a_dataset_with_gaussians_names_their_features(tmp_path, names_made) -> None:
    data = make_dataset(tmp_path, train=1, test=0, points=1_000, gaussians=True)
    assert np.isfinite(data.scene("room-000000").features).all()
    assert data.features[3] == "opacity" and data.scene("room-000000").names == data.features


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("classes", [1, 2]),
        ("classes", 3),
        ("features", [None]),
        ("points", "many"),
        ("splits", {"train": [5]}),
        ("rooms", []),
        ("missing", "x"),
        ("seed", 10**400),
    ],
)
def test_a_value_of_the_wrong_kind_in_the_index_is_refused(copy, key, value) -> None:
    index = json.loads((copy / "index.json").read_text())
    (copy / "index.json").write_text(json.dumps(index | {key: value}))
    with pytest.raises(BadInput):
        open_dataset(copy)
