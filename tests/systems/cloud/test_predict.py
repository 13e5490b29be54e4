"""`cloud predict`: the labels of the network, other columns unchanged, and tiles that cover all points."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.cloud import predict as predict_module  # noqa: E402
from pinchpoint.systems.cloud.data.rooms import make_room  # noqa: E402
from pinchpoint.systems.cloud.data.scene import Scene  # noqa: E402
from pinchpoint.systems.cloud.data.tiles import Tiles  # noqa: E402
from pinchpoint.systems.cloud.files.formats import read_scene  # noqa: E402
from pinchpoint.systems.cloud.files.npz import scene_arrays, write_npz  # noqa: E402
from pinchpoint.systems.cloud.files.ply import read_ply, write_ply  # noqa: E402
from pinchpoint.systems.cloud.files.ply_header import plain_header  # noqa: E402
from pinchpoint.systems.cloud.files.scratch import Scratch  # noqa: E402
from pinchpoint.systems.cloud.model.model import predict_classes  # noqa: E402
from pinchpoint.systems.cloud.predict import Prediction, predict  # noqa: E402
from pinchpoint.systems.cloud.training.runs import TrainedRun  # noqa: E402
from pinchpoint.systems.cloud.training.weights import load_weights  # noqa: E402

COUNT = 3_000


@pytest.fixture(scope="module")
def room() -> Scene:
    return make_room(seed=0, number=900_003, points=COUNT).scene


@pytest.fixture(scope="module")
def expected(room: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes of the room and their probabilities, by the packaged network."""
    return predict_classes(load_weights().model, room)


def test_every_format_gets_the_labels_of_the_network_and_keeps_its_columns(
    room: Scene, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    labels, confidence = expected
    ply, npz = write_ply(tmp_path / "a.ply", room), tmp_path / "a.npz"
    write_npz(npz, scene_arrays(replace(room, labels=None)) | {"heat": np.arange(COUNT)})
    record = predict("packaged", ply, tmp_path / "out.ply", device="cpu")
    out, whole = read_ply(tmp_path / "out.ply"), read_ply(ply)
    assert np.array_equal(out.vertices["label"], labels)
    assert np.array_equal(out.vertices["confidence"], confidence)
    assert all(np.array_equal(out.vertices[name], whole.vertices[name]) for name in ("x", "y", "z", "red"))
    assert f"comment class 2 {room.classes[2]}" in out.header.lines
    predict("packaged", npz, tmp_path / "out.npz", device="cpu")
    with np.load(tmp_path / "out.npz") as arrays:
        assert np.array_equal(arrays["label"], labels) and np.array_equal(arrays["heat"], np.arange(COUNT))
        assert np.array_equal(arrays["confidence"], confidence) and tuple(arrays["classes"]) == room.classes
    assert record.points == COUNT and record.tiles == 1 and not record.notes
    assert [row["points"] for row in record.rows] == np.bincount(labels, minlength=8).tolist()
    assert record.confidence == pytest.approx(confidence.mean(), abs=1e-5)
    assert record.low_confidence == pytest.approx((confidence < 0.5).mean())
    assert Prediction.from_json(record.to_json()) == record


def test_a_survey_read_in_chunks_is_labelled_as_in_one_piece(
    room: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laspy = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.offsets, header.scales = (5e5, 5e6, 0.0), (0.001,) * 3
    data = laspy.LasData(header)
    data.x, data.y, data.z = (room.xyz.astype(np.float64) + np.array([5e5, 5e6, 0.0])).T
    # 8-bit colours in 16-bit fields: how bright they are is known only when all chunks are read.
    order = np.argsort(room.features.max(axis=1))
    data.points = data.points[order]
    for column, name in enumerate(("red", "green", "blue")):
        data[name] = np.round(255 * room.features[order, column].clip(0, 1)).astype(np.uint16)
    data.gps_time = np.arange(COUNT) * 0.25
    data.classification[:] = 9
    data.write(tmp_path / "a.laz")
    scene = read_scene(tmp_path / "a.laz")
    scene = replace(scene, features=scene.features[:, :3].copy(), names=scene.names[:3])
    labels, confidence = predict_classes(load_weights().model, scene)
    monkeypatch.setattr(predict_module, "READ", 700)
    record = predict("packaged", tmp_path / "a.laz", tmp_path / "out.laz", device="cpu")
    out = laspy.read(tmp_path / "out.laz")
    assert np.array_equal(out.classification, labels) and np.array_equal(out.confidence, confidence)
    before = laspy.read(tmp_path / "a.laz")
    assert np.array_equal(out.gps_time, before.gps_time) and np.array_equal(out.X, before.X)
    assert out.header.vlrs.get("ClassificationLookupVlr")[0][7] == "clutter"
    thin = predict("packaged", tmp_path / "a.laz", tmp_path / "thin.laz", chunk=COUNT // 2, device="cpu")
    assert (thin.tiles, thin.parts) == (1, 2) and "in 2 parts of at most 1,500" in thin.summary()[0][1]
    assert (laspy.read(tmp_path / "thin.laz").classification == labels).mean() > 0.85
    assert record.points == COUNT
    predict("packaged", tmp_path / "a.laz", tmp_path / "out.ply", device="cpu")
    vertices = read_ply(tmp_path / "out.ply").vertices
    assert np.array_equal(vertices["label"], labels) and (vertices["classification"] == 9).all()
    assert np.array_equal(vertices["gps_time"], before.gps_time) and np.array_equal(vertices["x"], before.x)


def test_a_text_mesh_keeps_its_lines_and_faces(tmp_path: Path) -> None:
    lines = [f"{x} {x % 3} 0.50 {x} 0 7 3" for x in range(9)]
    names = "".join(f"property float {axis}\n" for axis in "xyz")
    names += "".join(f"property uchar {colour}\n" for colour in ("red", "green", "blue"))
    head = f"ply\nformat ascii 1.0\ncomment mine\nelement vertex 9\n{names}property int label\n"
    head += "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    (tmp_path / "a.ply").write_text(head + "\n".join([*lines, "3 0 1 2"]) + "\n", encoding="ascii")
    predict("packaged", tmp_path / "a.ply", tmp_path / "out.ply", device="cpu")
    text = (tmp_path / "out.ply").read_text(encoding="ascii")
    body = text.partition("end_header\n")[2].splitlines()
    assert [line.rsplit(" ", 2)[0] for line in body[:9]] == [line.rsplit(" ", 1)[0] for line in lines]
    assert body[9:] == ["3 0 1 2"] and "comment mine" in text and text.count("property int label") == 1
    assert read_ply(tmp_path / "out.ply").vertices["label"].max() < 8


def test_tiles_cover_every_point_once_with_its_surroundings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    xyz = np.concatenate([rng.uniform(0, 40, (4_000, 3)), rng.normal(7, 0.2, (3_000, 3))])
    tiles = Tiles(xyz, cell=0.5, margin=2, most=1_000)
    assert tiles.count > 4
    visits = np.zeros(len(xyz), int)
    with Scratch(tmp_path / "out") as scratch:
        tiles.route(scratch)
        for number in range(tiles.count):
            parts = list(tiles.parts(scratch, number))
            assert max(len(index) for index, _ in parts) <= 1_000
            index = np.concatenate([part for part, _ in parts])
            inner = np.concatenate([part[inside] for part, inside in parts])
            visits[inner] += 1
            low, high = xyz[inner, :2].min(axis=0), xyz[inner, :2].max(axis=0)
            # All points within 0.5 of those inside are in the tile or its margin of 1.
            near = ((xyz[:, :2] >= low - 0.5) & (xyz[:, :2] <= high + 0.5)).all(axis=1)
            assert set(np.flatnonzero(near)) <= set(index.tolist())
    assert (visits == 1).all()
    assert not list(tmp_path.iterdir()), "temporary files are removed"


def test_tiles_change_few_labels(
    room: Scene, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    # Four copies of a room side by side: each tile must find what one room alone gives.
    shift = np.array([0.6 * 24, 0, 0], np.float32)
    rooms = [replace(room, xyz=room.xyz + number * shift) for number in range(4)]
    four = Scene("rooms", np.concatenate([one.xyz for one in rooms]), np.tile(room.features, (4, 1)))
    four = replace(four, names=room.names)
    write_ply(tmp_path / "four.ply", four)
    record = predict("packaged", tmp_path / "four.ply", tmp_path / "out.ply", chunk=COUNT, device="cpu")
    labels = read_ply(tmp_path / "out.ply").vertices["label"]
    assert (record.tiles, record.parts) == (4, 4)
    assert (labels == np.tile(expected[0], 4)).mean() > 0.97


def test_missing_columns_and_bad_points_are_refused_and_nothing_is_left(room: Scene, tmp_path: Path) -> None:
    for arrays, message in (
        ({"xyz": room.xyz}, "no red, green, blue, which the run was trained with; it has coordinates only"),
        ({"xyz": room.xyz * np.nan, "rgb": np.zeros((COUNT, 3), np.uint8)}, "NaN or infinite"),
        ({"xyz": room.xyz[:0], "rgb": np.zeros((0, 3), np.uint8)}, "has no points"),
    ):
        write_npz(tmp_path / "a.npz", arrays)
        with pytest.raises(BadInput, match=message):
            predict("packaged", tmp_path / "a.npz", tmp_path / "out.npz", device="cpu")
        assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def run_with(trained: TrainedRun, features: tuple[str, ...]) -> TrainedRun:
    """Return a run of the packaged network, whose three features have other names."""
    return replace(trained, settings=replace(trained.settings, features=list(features)))


def test_named_features_of_an_npz_are_read_as_in_training(
    room: Scene,
    expected: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("r", "g", "b")
    write_npz(tmp_path / "a.npz", scene_arrays(replace(room, names=names, labels=None)))
    assert read_scene(tmp_path / "a.npz").names == names
    trained = run_with(load_weights(), names)
    monkeypatch.setattr(predict_module, "load_weights", lambda *_, **__: trained)
    predict("packaged", tmp_path / "a.npz", tmp_path / "out.npz", device="cpu")
    with np.load(tmp_path / "out.npz") as arrays:
        assert np.array_equal(arrays["label"], expected[0])


def test_normals_that_are_zero_in_one_chunk_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    vertices = np.zeros(20, [(name, "<f4") for name in names])
    vertices["x"], vertices["nz"][10:] = np.arange(20), 1
    head = plain_header(vertices.dtype, 20).text()
    (tmp_path / "a.ply").write_bytes(head + vertices.tobytes())
    assert read_scene(tmp_path / "a.ply").names[3:] == ("nz",)
    trained = run_with(load_weights(), ("red", "green", "nz"))
    monkeypatch.setattr(predict_module, "load_weights", lambda *_, **__: trained)
    monkeypatch.setattr(predict_module, "READ", 10)
    assert predict("packaged", tmp_path / "a.ply", tmp_path / "out.ply", device="cpu").points == 20


def test_a_run_without_classes_is_refused_before_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = load_weights()
    trained = replace(trained, settings=replace(trained.settings, classes=[], target="lang_feat"))
    monkeypatch.setattr(predict_module, "load_weights", lambda *_, **__: trained)
    with pytest.raises(BadInput, match="trained for the target lang_feat alone"):
        predict("packaged", tmp_path / "none.ply", tmp_path / "out.ply", device="cpu")
