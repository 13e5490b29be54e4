"""`cloud sample`: exact counts per cell, points in order, and all properties kept for every file format."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the sampler needs torch")

from pinchpoint.core.errors import BadInput, DoesNotFit  # noqa: E402
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
        ("0:0.5", (0.0, 0.5)),
        (1, (1.0, 1.0)),
    ],
)
def test_valid_ratios_are_parsed(ratio, ends) -> None:
    assert parse_ratio(ratio) == ends


@pytest.mark.parametrize(
    "ratio",
    [
        "",
        "half",
        "0.7:0.3",
        "0.1:0.2:0.3",
        "-0.1",
        "1.5",
        "nan",
        "0.5:",
        2,
        -1.0,
        (0.9, 0.1),
        None,
        0,
        "0",
        "0:0",
    ],
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
        ({"ratio": 0.5, "one_per_cell": True}, "ratio 0.5 cannot be combined with one point per cell"),
        ({"budget": "1KiB"}, "which takes [0-9.]+ KiB, but the budget is 1.00 KiB"),
        ({"faces": "keep"}, "faces is 'keep'"),
    ],
)
def test_invalid_options_are_rejected_and_leave_no_file(
    file: Path, tmp_path: Path, options, message: str
) -> None:
    with pytest.raises((BadInput, DoesNotFit), match=message) as caught:
        sample_file(file, tmp_path / "out.ply", **{"cell": CELL, **options})
    assert caught.value.hint
    assert not (tmp_path / "out.ply").exists()


def test_outputs_that_cannot_be_written_are_refused_before_reading(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"never read")
    for name, message in (
        ("out.txt", "Cannot write points"),
        ("no/out.ply", "Cannot write"),
    ):
        with pytest.raises(BadInput, match=message):
            sample_file(file, tmp_path / name, ratio=0.5, cell=CELL)


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": "0.3:0.7"},
        {"one_per_cell": True},
        {"ratio": 0.4, "method": "nested"},
        {"ratio": 0.2, "method": "bernoulli"},
        {"one_per_cell": True, "cell": (0.3, 0.5, 0.1)},
    ],
)
def test_a_file_larger_than_the_budget_gives_the_same_points(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options
) -> None:
    monkeypatch.setattr("pinchpoint.systems.cloud.sample_file.FEWEST", 250)
    options = {"cell": CELL, "seed": 3, **options}
    whole = sample_file(file, tmp_path / "whole.ply", **options)
    parts = sample_file(file, tmp_path / "parts.ply", budget="128KiB", device="cuda", **options)
    assert (whole.passes, parts.passes) == (1, 2)
    assert parts.device == "cpu", "a file that is read in chunks is drawn on the CPU"
    assert (parts.kept, parts.cells) == (whole.kept, whole.cells)
    assert (tmp_path / "parts.ply").read_bytes() == (tmp_path / "whole.ply").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"room.ply", "whole.ply", "parts.ply"}


def test_text_and_laz_larger_than_the_budget_give_the_same_points(
    room: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinchpoint.systems.cloud.sample_file.FEWEST", 250)
    names = "".join(f"property float {axis}\n" for axis in "xyz")
    head = f"ply\nformat ascii 1.0\nelement vertex 3000\n{names}end_header\n"
    lines = "".join(f"{x:.4f} {y:.4f} {z:.4f}\n" for x, y, z in (room.xyz - 1).tolist())
    (tmp_path / "a.ply").write_text(head + lines, encoding="ascii")
    for path in (tmp_path / "a.ply", write_las_room(room, tmp_path / "a.laz")):
        whole, parts = (tmp_path / f"{name}{path.suffix}" for name in ("whole", "parts"))
        sample_file(path, whole, ratio=0.3, cell=CELL)
        record = sample_file(path, parts, ratio=0.3, cell=CELL, budget="256KiB")
        assert record.passes == 2
        if path.suffix == ".ply":
            assert parts.read_bytes() == whole.read_bytes()
        else:
            assert np.array_equal(las_points(parts), las_points(whole))
        assert read_scene(whole).points == record.kept


def test_the_budget_that_an_error_names_is_enough(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinchpoint.systems.cloud.sample_file.FEWEST", 250)
    with pytest.raises(DoesNotFit) as caught:
        sample_file(file, tmp_path / "out.ply", cell=CELL, budget="1KiB")
    need_bytes = caught.value.need_bytes
    assert need_bytes is not None
    assert sample_file(file, tmp_path / "out.ply", cell=CELL, budget=need_bytes).passes == 2
    with pytest.raises(DoesNotFit):
        sample_file(file, tmp_path / "out.ply", cell=CELL, budget=need_bytes - 1)


def test_arrays_are_sampled_in_one_piece_or_not_at_all(room: Scene, tmp_path: Path) -> None:
    source, out = tmp_path / "a.npz", tmp_path / "out.npz"
    np.savez(source, xyz=room.xyz)
    with pytest.raises(
        DoesNotFit, match=r"is sampled in one piece, which takes .* budget is 1\.00 KiB"
    ) as caught:
        sample_file(source, out, cell=CELL, budget="1KiB")
    assert "PLY or LAS" in caught.value.hint and not out.exists()
    assert sample_file(source, out, cell=CELL, budget=caught.value.need_bytes).kept > 0


def write_las_room(room: Scene, path: Path, **records: bytes) -> Path:
    """Write a survey with every kind of dimension; records: those of COPC, if it shall look like one."""
    laspy: Any = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")
    header = laspy.LasHeader(point_format=7, version="1.4")
    header.offsets, header.scales = np.array([4.5e5, 5.4e6, 0.0]), np.array([0.0005, 0.0005, 0.0005])
    header.add_extra_dim(laspy.ExtraBytesParams("deviation", "float32"))
    header.vlrs.append(laspy.vlrs.known.WktCoordinateSystemVlr('PROJCS["somewhere"]'))
    if records:
        header.vlrs.append(laspy.VLR("copc", 1, "", records["info"]))
        header.evlrs = laspy.vlrs.vlrlist.VLRList([laspy.VLR("copc", 1000, "", records["hierarchy"])])
    data, numbers = laspy.LasData(header), np.arange(room.points)
    data.x, data.y, data.z = (room.xyz.astype(np.float64) + header.offsets).T
    for place, name in enumerate(("red", "green", "blue")):
        data[name] = (numbers * (place + 3)) % 65_536
    data.intensity, data.gps_time = (numbers * 7) % 65_536, 1e9 + numbers / 3
    data.return_number, data.number_of_returns = 1 + numbers % 5, np.full(room.points, 5)
    data.point_source_id, data.user_data = 1_000 + numbers % 9, numbers % 256
    data.classification, data.scan_angle = numbers % 19, numbers % 5_000 - 2_500
    data.scanner_channel, data.withheld = numbers % 3, numbers % 2
    data.deviation = (numbers / 7).astype(np.float32)
    data.write(path)
    return path


def las_points(path: Path) -> np.ndarray:
    import laspy

    return laspy.read(path).points.array


def test_las_to_ply_and_back_keeps_every_value(room: Scene, tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")
    survey = write_las_room(room, tmp_path / "a.laz")
    record = sample_file(survey, tmp_path / "a.ply", ratio=1, cell=CELL)
    assert record.notes == (
        "a.ply does not keep the coordinate reference system of a.laz: its format cannot hold that.",
    )
    before, vertices = laspy.read(survey), read_ply(tmp_path / "a.ply").vertices
    assert all(np.array_equal(vertices[axis], before[axis]) for axis in "xyz")
    names = set(before.point_format.dimension_names) - {"X", "Y", "Z"}
    assert names == set(vertices.dtype.names or ()) - {"x", "y", "z"}
    assert all(np.array_equal(vertices[name], before[name]) for name in names)
    assert vertices.dtype["gps_time"] == "f8" and vertices.dtype["red"] == "u2"
    # The features of the converted file are those of the survey, and its own columns.
    scene = read_scene(tmp_path / "a.ply")
    assert scene.names == ("red", "green", "blue", "intensity", "deviation")
    assert np.array_equal(scene.features[:, :4], read_scene(survey).features)
    # The scale of the survey is in a comment, so that none has to be given.
    record = sample_file(tmp_path / "a.ply", tmp_path / "back.laz", ratio=1, cell=CELL)
    after = laspy.read(tmp_path / "back.laz")
    assert all(np.array_equal(after[name], before[name]) for name in names)
    assert np.abs(after.xyz - before.xyz).max() < 1e-9 and (after.header.scales == 0.0005).all()
    assert record.notes == ("back.laz has coordinates in steps of 0.0005.",)
    assert record.passes == 2, "the ranges of the columns are read before they are arranged"
    sample_file(survey, tmp_path / "a.npz", ratio=1, cell=CELL)
    with np.load(tmp_path / "a.npz") as arrays:
        assert np.array_equal(arrays["xyz"], before.xyz)
        assert all(np.array_equal(arrays[name], before[name]) for name in names)


def test_ply_to_las_needs_a_scale_and_notes_what_does_not_fit(tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")
    rng, count = np.random.default_rng(0), 50
    arrays = {
        "xyz": rng.uniform(-3, 3, (count, 3)),
        "rgb": rng.integers(0, 256, (count, 3)).astype(np.uint8),
        "intensity": rng.random(count),
        "label": np.arange(count) - 1,
        "normal": rng.random((count, 3)).astype(np.float32),
        "a_name_of_more_than_thirty_two_bytes": np.zeros(count),
        "box": np.eye(2),
    }
    write_npz(tmp_path / "a.npz", arrays)
    with pytest.raises(BadInput, match="needs a scale"):
        sample_file(tmp_path / "a.npz", tmp_path / "out.laz", ratio=1)
    with pytest.raises(BadInput, match="32 bits per coordinate"):
        sample_file(tmp_path / "a.npz", tmp_path / "out.laz", ratio=1, scale=1e-12)
    with pytest.raises(BadInput, match="scale -1 is not above 0"):
        sample_file(tmp_path / "a.npz", tmp_path / "out.laz", ratio=1, scale=-1)
    assert not (tmp_path / "out.laz").exists()
    record = sample_file(tmp_path / "a.npz", tmp_path / "out.laz", ratio=1, scale=0.01)
    out = laspy.read(tmp_path / "out.laz")
    assert np.abs(out.xyz - arrays["xyz"]).max() <= 0.005 + 1e-9
    assert np.array_equal(np.stack([out.red, out.green, out.blue], axis=1), 257 * arrays["rgb"].astype(int))
    assert np.array_equal(out["intensity_value"], arrays["intensity"])
    assert np.array_equal(out["label"], arrays["label"]) and np.array_equal(out["ny"], arrays["normal"][:, 1])
    notes = " ".join(record.notes)
    for text in ("the array box", "steps of 0.01", "intensity as intensity_value", "a_name_of_more"):
        assert text in notes, notes


def test_copc_is_thinned_and_written_as_plain_laz(room: Scene, tmp_path: Path) -> None:
    laspy = pytest.importorskip("laspy", reason="LAS needs laspy: the extra cloud")
    file = write_las_room(room, tmp_path / "a.copc.laz", info=bytes(160), hierarchy=bytes(32))
    with laspy.open(file) as reader:
        assert [type(record).__name__ for record in reader.header.evlrs] == ["CopcHierarchyVlr"]
    record = sample_file(file, tmp_path / "out.laz", ratio=0.5, cell=CELL)
    out = laspy.read(tmp_path / "out.laz")
    assert len(out.points) == record.kept and not record.notes
    assert not [one for one in (*out.header.vlrs, *(out.header.evlrs or ())) if one.user_id == "copc"]
    assert out.header.vlrs.get("WktCoordinateSystemVlr")
    kept = places(out.points.array, las_points(file))
    assert kept == sorted(set(kept))


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
