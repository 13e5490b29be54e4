"""Points written in another format: every column arrives, and notes say what changed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.files import ply as ply_files
from pinchpoint.systems.cloud.files.columns import ColourRange, features_of
from pinchpoint.systems.cloud.files.npz import write_npz
from pinchpoint.systems.cloud.files.ply import read_ply
from pinchpoint.systems.cloud.files.ply_header import plain_header, read_header
from pinchpoint.systems.cloud.files.readers import Cloud, open_cloud
from pinchpoint.systems.cloud.files.writers import Target, open_writer

COUNT = 6
NUMBERS = np.arange(COUNT, dtype=np.uint8)
XYZ = np.random.default_rng(0).uniform(size=(COUNT, 3))
ASCII = (
    f"ply\nformat ascii 1.0\nelement vertex {COUNT}\n"
    "property float x\nproperty float y\nproperty float z\nend_header\n"
).encode()


def convert(
    path: Path, output: Path, added: Mapping[str, np.ndarray] | None = None, classes: tuple[str, ...] = ()
) -> str:
    """Write a copy of a file in one piece, and return the notes."""
    return copy_points(open_cloud(path), output, added or {}, classes)


def copy_points(
    cloud: Cloud, output: Path, added: Mapping[str, np.ndarray], classes: tuple[str, ...] = ()
) -> str:
    kinds = {name: values.dtype.str[1:] for name, values in added.items()}
    target = Target(output, cloud.points, kinds, classes, scale=0.001, others="keep")
    with open_writer(cloud, target) as writer:
        for rows in cloud.chunks(cloud.points):
            writer.write(rows, added)
    return " ".join(writer.notes)


def read_las(path: Path) -> Any:
    return pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud").read(path)


def test_two_columns_that_could_be_one_dimension_are_both_kept(tmp_path: Path) -> None:
    columns = {
        "label": NUMBERS + 10,
        "Classification": NUMBERS + 20,
        "classification": NUMBERS,
        "scan_angle_rank": NUMBERS.astype(np.int8),
        "scan_angle": 100 * NUMBERS.astype(np.int16),
        "Classification_value": NUMBERS + 30,
    }
    notes = convert(write_npz(tmp_path / "a.npz", {"xyz": XYZ, **columns}), tmp_path / "a.las")
    out = read_las(tmp_path / "a.las")
    for name in ("label", "classification", "scan_angle_rank", "scan_angle", "Classification_value"):
        assert np.array_equal(out[name], columns[name]), name
    assert np.array_equal(out["Classification_value_value"], NUMBERS + 20)
    assert "a.las has label as the extra dimension label: another column is classification." in notes
    assert (
        "extra dimension Classification_value_value" in notes and "extra dimension scan_angle_rank" in notes
    )


def test_a_dimension_of_another_type_is_replaced_with_a_note(tmp_path: Path) -> None:
    laspy: Any = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.add_extra_dims(
        [laspy.ExtraBytesParams("confidence", "uint8"), laspy.ExtraBytesParams("height", "f8")]
    )
    data = laspy.LasData(header)
    data.x, data.y, data.z = XYZ.T
    data.height, data.confidence = XYZ[:, 2], NUMBERS
    data.write(tmp_path / "a.las")
    added = {"label": NUMBERS.astype(np.int32) % 2, "confidence": np.linspace(0, 1, COUNT, dtype=np.float32)}
    notes = convert(tmp_path / "a.las", tmp_path / "out.las", added, ("floor", "wall"))
    out = read_las(tmp_path / "out.las")
    assert np.array_equal(out.confidence, added["confidence"]) and np.array_equal(out.height, XYZ[:, 2])
    assert np.array_equal(out.classification, added["label"])
    assert notes == "out.las has confidence as float32: it was uint8 before."
    assert not convert(tmp_path / "out.las", tmp_path / "two.las", added, ("floor", "wall"))


def test_one_nan_does_not_change_the_range_of_colours(tmp_path: Path) -> None:
    colours = np.full((COUNT, 3), 200.0)
    colours[0, 0] = np.nan
    red = ColourRange()
    red.add({"red": colours[:, 0], "green": np.zeros(COUNT)})
    assert red.top == 255
    notes = convert(write_npz(tmp_path / "a.npz", {"xyz": XYZ, "rgb": colours}), tmp_path / "a.las")
    out = read_las(tmp_path / "a.las")
    assert np.array_equal(out["red_value"], colours[:, 0], equal_nan=True) and (out.green == 200 * 257).all()
    assert "red as red_value" in notes


def test_integers_that_a_double_cannot_hold_are_noted_or_kept(tmp_path: Path) -> None:
    times, small = np.full(COUNT, 2**60 + 1), np.full(COUNT, -(2**53))
    write_npz(tmp_path / "a.npz", {"xyz": XYZ, "gps_time": times, "id": small})
    notes = convert(tmp_path / "a.npz", tmp_path / "a.ply")
    assert "gps_time rounded to doubles" in notes and " id " not in notes
    assert np.array_equal(read_ply(tmp_path / "a.ply").vertices["id"], small)
    assert "gps_time as gps_time_value" in convert(tmp_path / "a.npz", tmp_path / "a.las")
    assert np.array_equal(read_las(tmp_path / "a.las")["gps_time_value"], times)


def test_half_precision_becomes_single_precision(tmp_path: Path) -> None:
    heat = np.linspace(0, 1, COUNT, dtype=np.float16)
    write_npz(tmp_path / "a.npz", {"xyz": XYZ, "heat": heat})
    for name in ("a.las", "a.ply"):
        assert "heat" not in convert(tmp_path / "a.npz", tmp_path / name)
    assert np.array_equal(read_las(tmp_path / "a.las")["heat"], heat)
    assert np.array_equal(read_ply(tmp_path / "a.ply").vertices["heat"], heat)


def test_an_error_of_reading_names_the_input(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(b"".join((ASCII, b"1 2 3\n" * COUNT)))
    cloud = open_cloud(tmp_path / "a.ply")
    (tmp_path / "a.ply").unlink()
    with pytest.raises(BadInput, match=r"Cannot read .*a\.ply: No such file"):
        copy_points(cloud, tmp_path / "out.ply", {})
    assert not list(tmp_path.iterdir())


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ply_files, "_LONGEST_LINE", 80)
    (tmp_path / "a.ply").write_bytes(ASCII + b"1 2 3\n" * (COUNT - 1) + b"1 2 3".ljust(79) + b"\n")
    assert read_ply(tmp_path / "a.ply").vertices["z"].tolist() == [3.0] * COUNT
    (tmp_path / "a.ply").write_bytes(ASCII + b"1 2 3\n" * (COUNT - 1) + b"1 2 3".ljust(81))
    with pytest.raises(BadInput, match="has a line of more than"):
        read_ply(tmp_path / "a.ply")


def test_the_byte_order_does_not_change_the_scale_of_intensities() -> None:
    for order in "<>":
        features, names = features_of({"intensity": np.array([0, 65535], f"{order}u2")})
        assert names == ("intensity",) and features[:, 0].tolist() == [0, 1]


def test_names_of_classes_may_have_any_letters_and_replace_those_of_an_earlier_file(tmp_path: Path) -> None:
    dtype = np.dtype([("x", "<f4"), ("voilà", "<f4"), ("高度à", "<f4")])
    header = plain_header(dtype, 0).with_comments(["class 0 a\nb", "class 1 建筑", "class of 2020"])
    text = header.text()
    assert "comment class 0 a b\ncomment class 1 建筑\n".encode() in text
    again = read_header(io.BytesIO(text), "a.ply")
    assert again.text() == text and len(again.elements[0].dtype.names or ()) == 3
    assert "voilà" in (again.elements[0].dtype.names or ())
    write_npz(tmp_path / "a.npz", {"xyz": XYZ})
    labels = {"label": NUMBERS.astype(np.int32)}
    convert(tmp_path / "a.npz", tmp_path / "one.ply", labels, ("建筑", "road", "tree"))
    convert(tmp_path / "one.ply", tmp_path / "two.ply", labels, ("wall",))
    comments = [line for line in read_ply(tmp_path / "two.ply").header.lines if line.startswith("comment")]
    assert comments == ["comment class 0 wall"]
    assert "comment class of 2020" in again.without_classes().lines
