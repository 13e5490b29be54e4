"""`cloud sample`: exact counts per cell, points in order, and all properties kept for every file format."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the sampler needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.cloud.data.rooms import make_room  # noqa: E402
from pinchpoint.systems.cloud.data.scene import Scene  # noqa: E402
from pinchpoint.systems.cloud.files.formats import read_scene  # noqa: E402
from pinchpoint.systems.cloud.files.npz import scene_arrays, write_npz  # noqa: E402
from pinchpoint.systems.cloud.files.ply import read_ply, write_ply  # noqa: E402
from pinchpoint.systems.cloud.sample_file import SampleRecord, parse_ratio, sample_file  # noqa: E402

CELL = 0.3


@pytest.fixture(scope="module")
def room() -> Scene:
    return make_room(seed=0, number=3, points=3_000).scene


@pytest.fixture
def file(room: Scene, tmp_path: Path) -> Path:
    return write_ply(tmp_path / "room.ply", room)


def cells_of(xyz: np.ndarray) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for row in np.floor(xyz.astype(np.float64) / CELL).astype(int).tolist())


def places(part: np.ndarray, whole: np.ndarray) -> list[int]:
    """Return the index in `whole` of each vertex of `part`, found by its bytes."""
    at = {row.tobytes(): place for place, row in enumerate(whole)}
    return [at[row.tobytes()] for row in part]


def test_every_cell_keeps_its_share_and_points_keep_their_order(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ply"
    record = sample_file(file, out, ratio="0.5", cell=CELL, seed=7)
    whole, part = read_ply(file), read_ply(out)
    order = places(part.vertices, whole.vertices)
    assert order == sorted(set(order)) and len(order) == record.kept < record.points == 3_000
    assert part.vertices.dtype == whole.vertices.dtype
    before, after = cells_of(whole.xyz()), cells_of(part.xyz())
    assert set(after) == set(before) and record.cells == len(before)
    for cell, count in before.items():
        assert after[cell] in {max(1, count // 2), max(1, (count + 1) // 2)}
    assert record.ratio == record.kept / 3_000


def test_a_range_draws_a_share_for_every_cell(file: Path, tmp_path: Path) -> None:
    sample_file(file, tmp_path / "out.ply", ratio="0.3:0.7", cell=CELL, seed=0)
    before, after = cells_of(read_ply(file).xyz()), cells_of(read_ply(tmp_path / "out.ply").xyz())
    shares = np.array([after[cell] / count for cell, count in before.items() if count >= 8])
    assert len(shares) > 40 and shares.min() >= 0.3 - 1 / 8 and shares.max() <= 0.7 + 1 / 8
    # The standard deviation of the uniform distribution on 0.3..0.7 is 0.115.
    assert abs(shares.mean() - 0.5) < 0.06 and shares.std() > 0.07


def test_one_per_cell_keeps_one_point_per_cell(file: Path, tmp_path: Path) -> None:
    record = sample_file(file, tmp_path / "out.ply", one_per_cell=True, cell=CELL)
    assert set(cells_of(read_ply(tmp_path / "out.ply").xyz()).values()) == {1}
    assert record.kept == record.cells and record.asked is None


def test_a_single_file_is_thinned_without_loading_a_compiler(tmp_path: Path) -> None:
    file, xyz = tmp_path / "many.npz", np.random.default_rng(0).random((200_000, 3), dtype=np.float32)
    np.savez(file, xyz=xyz)
    code = (
        "import sys; from pinchpoint.systems.cloud.sample_file import sample_file\n"
        f"for one in (False, True):\n"
        f"    sample_file({str(file)!r}, {str(tmp_path / 'out.npz')!r}, one_per_cell=one)\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_seed_determines_the_sample_and_methods_agree(file: Path, tmp_path: Path) -> None:
    def sample_bytes(**options) -> bytes:
        sample_file(file, tmp_path / "out.ply", ratio=0.4, cell=CELL, **options)
        return (tmp_path / "out.ply").read_bytes()

    assert (
        sample_bytes(seed=1)
        == sample_bytes(seed=1)
        == sample_bytes(seed=1, method="sort")
        != sample_bytes(seed=2)
    )
    assert len(sample_bytes(seed=1, method="bernoulli")) != 0


def test_a_ratio_of_1_keeps_the_file_byte_for_byte(file: Path, tmp_path: Path) -> None:
    assert sample_file(file, tmp_path / "out.ply", ratio=1, cell=CELL).ratio == 1
    assert (tmp_path / "out.ply").read_bytes() == file.read_bytes()


def test_a_file_is_never_overwritten_by_its_thinned_copy(file: Path, tmp_path: Path) -> None:
    before, link = file.read_bytes(), tmp_path / "link.ply"
    link.symlink_to(file)
    for output in (file, link):
        with pytest.raises(BadInput, match="is the input file"):
            sample_file(file, output, ratio=0.5, cell=CELL)
    assert file.read_bytes() == before and link.is_symlink()


def test_npz_thins_all_arrays_of_points_and_keeps_the_others(room: Scene, tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", scene_arrays(room) | {"box": np.eye(3)})
    sample_file(tmp_path / "a.npz", tmp_path / "out.npz", ratio=0.5, cell=CELL, seed=7)
    part = read_scene(tmp_path / "out.npz")
    write_ply(tmp_path / "a.ply", room)
    sample_file(tmp_path / "a.ply", tmp_path / "out.ply", ratio=0.5, cell=CELL, seed=7)
    expected = read_scene(tmp_path / "out.ply")  # equal coordinates give equal draws
    assert np.array_equal(part.xyz, expected.xyz) and np.array_equal(part.features, expected.features)
    assert part.classes == room.classes
    with np.load(tmp_path / "out.npz") as archive:
        assert np.array_equal(archive["box"], np.eye(3))


def test_a_folder_keeps_every_file(room: Scene, tmp_path: Path) -> None:
    (tmp_path / "scene").mkdir()
    np.save(tmp_path / "scene" / "coord.npy", room.xyz)
    np.save(tmp_path / "scene" / "instance.npy", np.arange(3_000))
    record = sample_file(tmp_path / "scene", tmp_path / "out", ratio=0.5, cell=CELL)
    rows = np.load(tmp_path / "out" / "instance.npy")
    assert len(rows) == record.kept and np.array_equal(
        np.load(tmp_path / "out" / "coord.npy"), room.xyz[rows]
    )
    with pytest.raises(BadInput, match="already exists"):
        sample_file(tmp_path / "scene", tmp_path / "out", ratio=0.5, cell=CELL)


def test_las_is_thinned_in_the_coordinates_of_the_file(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")
    header = laspy.LasHeader(point_format=2, version="1.2")
    header.offsets, header.scales = (5e5, 5e6, 0.0), (0.001,) * 3
    data = laspy.LasData(header)
    rng = np.random.default_rng(0)
    data.x, data.y, data.z = (
        5e5 + 0.999 * rng.random(2_000),
        5e6 + 0.999 * rng.random(2_000),
        0.999 * rng.random(2_000),
    )
    data.intensity = np.arange(2_000, dtype=np.uint16)
    data.write(tmp_path / "a.las")
    record = sample_file(tmp_path / "a.las", tmp_path / "out.laz", ratio=0.25, cell=0.25)
    out = laspy.read(tmp_path / "out.laz")
    assert record.cells == 64 and abs(record.kept - 500) < 64 and len(out.points) == record.kept
    assert np.array_equal(
        out.points.array, laspy.read(tmp_path / "a.las").points.array[np.asarray(out.intensity)]
    )
    sample_file(tmp_path / "a.las", tmp_path / "out.ply", ratio=0.25, cell=0.25)
    assert np.allclose(read_ply(tmp_path / "out.ply").xyz(), out.xyz, atol=1e-6, rtol=0)


def test_the_record_survives_json_and_its_summary_states_the_ratio(file: Path, tmp_path: Path) -> None:
    record = sample_file(file, tmp_path / "out.ply", ratio=(0.3, 0.7), cell=CELL)
    assert SampleRecord.from_json(record.to_json()) == record
    summary = dict(record.summary())
    assert f"{record.kept:,} of 3,000" in summary["points"] and "0.3:0.7" in summary["points"]
    assert min(record.read_s, record.sample_s, record.write_s) > 0


@pytest.mark.parametrize(
    ("ratio", "ends"),
    [
        ("0.5", (0.5, 0.5)),
        ("0.3:0.7", (0.3, 0.7)),
        (0.25, (0.25, 0.25)),
        ((0.1, 1), (0.1, 1.0)),
        ("0", (0.0, 0.0)),
        (1, (1.0, 1.0)),
    ],
)
def test_valid_ratios_are_parsed(ratio, ends) -> None:
    assert parse_ratio(ratio) == ends


@pytest.mark.parametrize(
    "ratio", ["", "half", "0.7:0.3", "0.1:0.2:0.3", "-0.1", "1.5", "nan", "0.5:", 2, -1.0, (0.9, 0.1), None]
)
def test_ratios_outside_0_to_1_are_refused(ratio) -> None:
    with pytest.raises(BadInput, match="The ratio"):
        parse_ratio(ratio)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": 0}, "cell size is 0"),
        ({"cell": -1.0}, "cell size is -1"),
        ({"cell": 1e-300}, "Cells of size 1e-300"),
        ({"method": "magic"}, "magic"),
        ({"ratio": "0.2:0.4", "method": "bernoulli"}, "bernoulli does not support a range"),
        ({"seed": -1}, "seed"),
        ({"faces": "keep"}, "faces is 'keep'"),
    ],
)
def test_invalid_options_are_rejected_and_leave_no_file(
    file: Path, tmp_path: Path, options, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        sample_file(file, tmp_path / "out.ply", **{"cell": CELL, **options})
    assert not (tmp_path / "out.ply").exists()


def test_outputs_that_cannot_be_written_are_refused_before_reading(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"never read")
    for name, message in (
        ("out.txt", "Cannot write points"),
        ("out.las", "cannot be written as .las"),
        ("no/out.ply", "Cannot write"),
    ):
        with pytest.raises(BadInput, match=message):
            sample_file(file, tmp_path / name, ratio=0.5, cell=CELL)


def test_a_single_point_and_a_single_cell_are_valid_but_an_empty_cloud_is_not(tmp_path: Path) -> None:
    def cloud(xyz: np.ndarray) -> Path:
        return write_npz(tmp_path / "a.npz", {"xyz": xyz})

    out = tmp_path / "out.npz"
    assert sample_file(cloud(np.zeros((1, 3))), out, ratio=0.5).kept == 1
    assert sample_file(cloud(np.full((1_000, 3), 0.01)), out, ratio=0.5).kept == 500
    with pytest.raises(BadInput, match="has no points"):
        sample_file(cloud(np.zeros((0, 3))), out)
    with pytest.raises(BadInput, match="NaN"):
        sample_file(cloud(np.full((3, 3), np.nan)), out)


def test_nan_is_allowed_outside_the_coordinates(tmp_path: Path) -> None:
    write_npz(
        tmp_path / "a.npz", {"xyz": np.random.default_rng(0).random((100, 3)), "heat": np.full(100, np.nan)}
    )
    sample_file(tmp_path / "a.npz", tmp_path / "out.npz", ratio=0.5, cell=0.5)
    with np.load(tmp_path / "out.npz") as archive:
        assert np.isnan(archive["heat"]).all() and len(archive["heat"]) == len(archive["xyz"])


def test_faces_are_refused_or_dropped(tmp_path: Path) -> None:
    lines = "element vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
    text = f"ply\nformat binary_little_endian 1.0\n{lines}element face 1\n"
    text += "property list uchar int vertex_indices\nend_header\n"
    vertices = struct.pack("<9f", *range(9))
    (tmp_path / "a.ply").write_bytes(text.encode() + vertices + struct.pack("<Biii", 3, 0, 1, 2))
    with pytest.raises(BadInput, match="1 x face") as error:
        sample_file(tmp_path / "a.ply", tmp_path / "out.ply", ratio=1)
    assert "--faces drop" in error.value.hint
    sample_file(tmp_path / "a.ply", tmp_path / "out.ply", ratio=1, faces="drop")
    bare = f"ply\nformat binary_little_endian 1.0\n{lines}end_header\n"
    assert (tmp_path / "out.ply").read_bytes() == bare.encode() + vertices
