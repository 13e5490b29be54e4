"""LAS and LAZ files: reading, thinning with all dimensions, and errors for damaged files."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

laspy = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.systems.cloud.files.formats import read_scene  # noqa: E402
from pinchpoint.systems.cloud.files.las import read_las, write_las  # noqa: E402

COUNT = 200


@pytest.fixture(params=[".las", ".laz"])
def file(request, tmp_path: Path) -> Path:
    return write_survey(tmp_path / f"survey{request.param}")


def write_survey(path: Path) -> Path:
    header = laspy.LasHeader(point_format=7, version="1.4")
    header.offsets, header.scales = (450_000.0, 5_400_000.0, 0.0), (0.001, 0.001, 0.001)
    header.add_extra_dim(laspy.ExtraBytesParams("deviation", "float32"))
    data = laspy.LasData(header)
    rng = np.random.default_rng(0)
    data.x, data.y, data.z = (
        450_000 + 50 * rng.random(COUNT),
        5_400_000 + 50 * rng.random(COUNT),
        10 * rng.random(COUNT),
    )
    for name in ("red", "green", "blue", "intensity"):
        data[name] = rng.integers(0, 65_536, COUNT).astype(np.uint16)
    data.classification = rng.integers(0, 7, COUNT).astype(np.uint8)
    data.gps_time = np.arange(COUNT) * 0.25
    data.deviation = rng.random(COUNT).astype(np.float32)
    data.write(path)
    return path


def test_a_survey_is_read_with_full_precision_colours_and_classes(file: Path) -> None:
    scene, data = read_scene(file), laspy.read(file)
    assert np.abs(scene.xyz + np.array(scene.origin) - data.xyz).max() < 1e-5
    assert scene.names == ("red", "green", "blue", "intensity")
    assert np.allclose(scene.features[:, 1] * 65535, data.green) and np.allclose(
        scene.features[:, 3] * 65535, data.intensity
    )
    assert scene.labels is not None and np.array_equal(scene.labels, data.classification)


def test_eight_bit_colours_in_sixteen_bit_fields_are_scaled_to_0_to_1(tmp_path: Path) -> None:
    data = laspy.read(write_survey(tmp_path / "a.las"))
    data.red, data.green, data.blue = (np.arange(COUNT, dtype=np.uint16) for _ in range(3))
    data.classification[:] = 0
    data.write(tmp_path / "b.las")
    scene = read_scene(tmp_path / "b.las")
    assert np.allclose(scene.features[:, 0], np.arange(COUNT) / 255)
    assert scene.labels is None  # no point has a classification


def test_a_thinned_survey_keeps_every_dimension_bit_for_bit(file: Path, tmp_path: Path) -> None:
    keep = np.array([3, 50, 51, 199])
    for kind in (".las", ".laz"):
        out = write_las(tmp_path / f"out{kind}", read_las(file), keep=keep)
        before, after = laspy.read(file), laspy.read(out)
        assert after.header.point_count == 4 and after.header.are_points_compressed == (kind == ".laz")
        assert np.array_equal(after.points.array, before.points.array[keep])
        assert (after.header.offsets == before.header.offsets).all() and (
            after.header.scales == before.header.scales
        ).all()
        assert np.array_equal(after.deviation, before.deviation[keep])
        assert after.header.x_max == after.x.max()


def test_truncated_or_invalid_survey_files_are_rejected(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    bad = tmp_path / f"bad{file.suffix}"
    for cut in (0, 3, 50, 226, 380, len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:cut])
        with pytest.raises(BadInput) as error:
            read_scene(bad)
        assert str(bad) in error.value.what and error.value.hint
    bad.write_bytes(b"ply\n" + data[4:])
    with pytest.raises(BadInput, match="does not start with LASF"):
        read_scene(bad)


def test_a_huge_count_is_rejected_before_memory_is_allocated(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[247:255] = struct.pack("<Q", 10**13)  # number of points of a 1.4 header
    file.write_bytes(data)
    with pytest.raises(BadInput, match="10,000,000,000,000 points"):
        read_scene(file)


def test_without_laspy_the_error_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "laspy", None)
    with pytest.raises(Missing) as error:
        read_scene(file)
    assert "pinchpoint[cloud]" in error.value.hint


@pytest.mark.parametrize("at", [100, 243])
def test_a_huge_count_of_records_is_rejected_at_once(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at : at + 4] = b"\xff" * 4  # number of variable length records, and of extended ones
    file.write_bytes(data)
    with pytest.raises(BadInput, match="claims 4,294,967,295 records"):
        read_scene(file)


def test_a_file_of_empty_records_is_not_searched_for_hours(tmp_path: Path) -> None:
    path = write_survey(tmp_path / "a.las")
    data = bytearray(path.read_bytes())
    start = int.from_bytes(data[94:96], "little")
    data[100:104] = struct.pack("<I", 50_000_000)
    data[96:100] = struct.pack("<I", start + 54 * 50_000_000)
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(start + 54 * 50_000_000 + 10_000)  # a hole, which takes no space on the disk
    with pytest.raises(BadInput, match="50,000,000 records"):
        read_scene(path)
