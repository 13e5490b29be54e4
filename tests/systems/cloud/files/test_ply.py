"""PLY files: all encodings read alike, are written unchanged, and are rejected if damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.scene import Scene, check_scene
from pinchpoint.systems.cloud.files.formats import read_scene
from pinchpoint.systems.cloud.files.ply import ply_scene, read_ply, take_vertices, write_ply

ROWS = [(0.5, -1.25, 3.0, 255, 0, 51, 2), (1e-3, 2.5, -7.0, 0, 255, 102, 0), (4.0, 5.0, 6.0, 10, 20, 30, 1)]
PROPERTIES = """property float x
property float y
property double z
property uchar red
property uchar green
property uchar blue
property short label
"""
FACES = "element face 2\nproperty list uchar int vertex_indices\n"


def head(form: str, *, count: int = 3, before: str = "", after: str = "") -> bytes:
    return (
        f"ply\nformat {form} 1.0\ncomment made by hand  with two spaces\n{before}"
        f"element vertex {count}\n{PROPERTIES}{after}"
        "obj_info kept\nend_header\n"
    ).encode()


def body(form: str) -> bytes:
    if form == "ascii":
        return b"".join(b" ".join(str(value).encode() for value in row) + b"\n" for row in ROWS)
    order = "<" if "little" in form else ">"
    return b"".join(struct.pack(f"{order}ffdBBBh", *row) for row in ROWS)


def write_file(folder: Path, data: bytes) -> Path:
    file = folder / "cloud.ply"
    file.write_bytes(data)
    return file


FORMS = ("ascii", "binary_little_endian", "binary_big_endian")


@pytest.mark.parametrize("form", FORMS)
def test_the_three_encodings_give_the_same_scene(tmp_path: Path, form: str) -> None:
    scene = read_scene(write_file(tmp_path, head(form) + body(form)))
    assert scene.xyz.tolist() == np.array([row[:3] for row in ROWS], np.float32).tolist()
    assert scene.names == ("red", "green", "blue") and np.allclose(
        scene.features * 255, [row[3:6] for row in ROWS]
    )
    assert scene.labels is not None and scene.labels.tolist() == [2, 0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_an_unchanged_file_is_written_byte_for_byte(tmp_path: Path, form: str) -> None:
    data = head(form) + body(form)
    write_ply(tmp_path / "out.ply", read_ply(write_file(tmp_path, data)))
    assert (tmp_path / "out.ply").read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cloud.ply", "out.ply"]


@pytest.mark.parametrize("form", FORMS)
def test_kept_vertices_are_written_unchanged(tmp_path: Path, form: str) -> None:
    ply = read_ply(write_file(tmp_path, head(form) + body(form)))
    write_ply(tmp_path / "out.ply", ply, keep=np.array([0, 2]))
    size = len(body(form)) // 3
    rows = (
        body(form).splitlines(keepends=True)
        if form == "ascii"
        else [body(form)[k * size : (k + 1) * size] for k in range(3)]
    )
    assert (tmp_path / "out.ply").read_bytes() == head(form, count=2) + rows[0] + rows[2]


def test_windows_line_endings_are_supported(tmp_path: Path) -> None:
    for form in ("ascii", "binary_little_endian"):
        data = body(form).replace(b"\n", b"\r\n") if form == "ascii" else body(form)
        scene = read_scene(write_file(tmp_path, head(form).replace(b"\n", b"\r\n") + data))
        assert scene.points == 3 and scene.xyz[2].tolist() == [4, 5, 6]


@pytest.mark.parametrize("form", FORMS)
def test_a_camera_before_or_after_the_vertices_is_kept(tmp_path: Path, form: str) -> None:
    camera = "element camera 1\nproperty float focus\nproperty int frame\n"
    order = ">" if "big" in form else "<"
    eye = b"35.5 7\n" if form == "ascii" else struct.pack(f"{order}fi", 35.5, 7)
    for data in (
        head(form, before=camera) + eye + body(form),
        head(form, after=camera) + body(form) + eye,
    ):
        ply = read_ply(write_file(tmp_path, data))
        assert ply_scene(ply).xyz[0].tolist() == [0.5, -1.25, 3.0]
        write_ply(tmp_path / "out.ply", ply, keep=np.array([1]))
        out = (tmp_path / "out.ply").read_bytes()
        assert eye in out and read_ply(tmp_path / "out.ply").vertices["z"].tolist() == [-7.0]


@pytest.mark.parametrize("form", FORMS)
def test_faces_are_kept_with_all_vertices_and_refused_or_dropped_otherwise(tmp_path: Path, form: str) -> None:
    order = ">" if "big" in form else "<"
    faces = (
        b"3 0 1 2\n3 2 1 0\n" if form == "ascii" else struct.pack(f"{order}BiiiBiii", 3, 0, 1, 2, 3, 2, 1, 0)
    )
    data = head(form, after=FACES) + body(form) + faces
    ply = read_ply(write_file(tmp_path, data))
    write_ply(tmp_path / "out.ply", ply)
    assert (tmp_path / "out.ply").read_bytes() == data
    with pytest.raises(BadInput) as error:
        take_vertices(ply, np.array([0]))
    assert "2 x face" in error.value.what and "drop" in error.value.hint
    write_ply(tmp_path / "out.ply", take_vertices(ply, np.array([0, 1, 2]), faces="drop"))
    assert (tmp_path / "out.ply").read_bytes() == head(form) + body(form)


def test_an_empty_face_element_does_not_prevent_a_subset(tmp_path: Path) -> None:
    after = FACES.replace("face 2", "face 0")
    ply = read_ply(
        write_file(tmp_path, head("binary_little_endian", after=after) + body("binary_little_endian"))
    )
    assert len(take_vertices(ply, np.array([0, 2])).vertices) == 2


def test_faces_before_the_vertices_are_read_in_text_and_refused_in_binary(tmp_path: Path) -> None:
    text = head("ascii", before=FACES) + b"3 0 1 2\n3 2 1 0\n" + body("ascii")
    assert read_scene(write_file(tmp_path, text)).points == 3
    data = head("binary_little_endian", before=FACES) + struct.pack("<BiiiBiii", 3, 0, 1, 2, 3, 2, 1, 0)
    with pytest.raises(BadInput, match="precedes the vertices"):
        read_ply(write_file(tmp_path, data + body("binary_little_endian")))


def test_a_splat_provides_colour_and_opacity_and_keeps_all_its_properties(tmp_path: Path) -> None:
    names = [
        "x",
        "y",
        "z",
        "nx",
        "f_dc_0",
        "f_dc_1",
        "f_dc_2",
        "f_rest_0",
        "opacity",
        "scale_0",
        "scale_1",
        "scale_2",
    ]
    names += ["rot_0", "rot_1", "rot_2", "rot_3"]
    rng = np.random.default_rng(0)
    table = rng.standard_normal((50, len(names))).astype("<f4")
    lines = "".join(f"property float {name}\n" for name in names)
    text = f"ply\nformat binary_little_endian 1.0\nelement vertex 50\n{lines}end_header\n".encode()
    file = write_file(tmp_path, text + table.tobytes())
    scene = read_scene(file)
    assert scene.names == ("red", "green", "blue", "opacity", *names[9:], "nx")
    # The colour is grey plus 1 / (2 sqrt(pi)) times the constant term; the opacity is stored before its
    # sigmoid.
    assert np.allclose(
        scene.features[:, 0], np.clip(0.5 + table[:, 4] / (2 * np.sqrt(np.pi)), 0, 1), atol=1e-6
    )
    assert np.allclose(scene.features[:, 3], 1 / (1 + np.exp(-table[:, 8])), atol=1e-6)
    write_ply(tmp_path / "out.ply", read_ply(file), keep=np.array([7, 9]))
    assert (tmp_path / "out.ply").read_bytes() == text.replace(b"vertex 50", b"vertex 2") + table[
        [7, 9]
    ].tobytes()


def test_a_scene_is_written_and_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    scene = Scene(
        "out",
        rng.random((20, 3), np.float32),
        rng.random((20, 4), np.float32),
        np.arange(20) - 1,
        ("red", "green", "blue", "intensity"),
        (),
        (500_000.0, 4_000_000.0, 0.0),
    )
    result = read_scene(write_ply(tmp_path / "out.ply", scene))
    assert np.array_equal(result.features, scene.features) and result.names == scene.names
    assert result.labels is not None and np.array_equal(result.labels, np.arange(20) - 1)
    assert np.allclose(
        result.xyz + np.array(result.origin), scene.xyz + np.array(scene.origin), atol=1e-7, rtol=0
    )


def test_doubles_far_from_zero_keep_their_precision(tmp_path: Path) -> None:
    text = (
        b"ply\nformat ascii 1.0\nelement vertex 2\n"
        b"property double x\nproperty double y\nproperty double z\nend_header\n"
    )
    scene = read_scene(write_file(tmp_path, text + b"500000.001 4000000.001 1\n500000.003 4000000.001 1\n"))
    assert scene.xyz[1, 0] - scene.xyz[0, 0] == pytest.approx(0.002, abs=1e-6)
    assert scene.origin[:2] == (500_000, 4_000_000)


BINARY = head("binary_little_endian") + body("binary_little_endian")
TEXT = head("ascii") + body("ascii")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not start with 'ply'"),
        (b"solid thing", "does not start with 'ply'"),
        (BINARY[:40], "header of .* is truncated"),
        (b"ply\n" + b"comment x\n" * 200_000, "header of .* is truncated"),
        (BINARY.replace(b"format binary_little_endian 1.0\n", b""), "does not name its format"),
        (BINARY.replace(b"binary_little", b"binary_middle"), "Line 2 of the header .* not valid"),
        (
            BINARY.replace(b"property short label", b"property short red"),
            "not valid: 'property short red'",
        ),
        (BINARY.replace(b"property short label", b"property quad label"), "not valid"),
        (
            BINARY.replace(b"property short label", b"property list uchar int label"),
            r"vertices of .* contain lists \(label\)",
        ),
        (BINARY.replace(b"element vertex 3", b"element vertex -3"), "not valid"),
        (BINARY.replace(b"element vertex", b"element point"), "has no vertices"),
        (BINARY.replace(b"float y", b"float why"), "have no y"),
        (BINARY[:-1], "truncated: 3 vertices need 63 B, but it contains 62 B"),
        (BINARY + b"more", "has 4 B after"),
        (BINARY.replace(b"vertex 3", b"vertex 2"), "has 21 B after"),
        (BINARY.replace(b"vertex 3", b"vertex 900000000000"), "truncated: 900,000,000,000 vertices"),
        (BINARY.replace(b"vertex 3", b"vertex " + b"9" * 30), "not valid"),
        (BINARY.replace(b"vertex 3", b"vertex 0")[:-63], "has no points"),
        (
            BINARY.replace(b"obj_info", b"element face 2\nproperty list uchar int i\nobj_info"),
            "truncated after its vertices",
        ),
        (TEXT.replace(b"vertex 3", b"vertex 4"), "has 3 lines of data, but its header says 4"),
        (TEXT.replace(b"vertex 3", b"vertex 2"), "has 3 lines of data, but its header says 2"),
        (TEXT.replace(b"vertex 3", b"vertex 900000000000"), "do not fit into"),
        (TEXT.replace(b" 255 0 51", b" 256 0 51"), "red of .* has values that are not valid uint8"),
        (TEXT.replace(b" 255 0 51", b" 2.5 0 51"), "red of .* not valid uint8"),
        (TEXT.replace(b" 255 0 51", b" two 0 51"), "are not numbers"),
        (TEXT.replace(b" 255 0 51", b" 255 51"), "are not numbers"),
        (TEXT.replace(b"property short label\n", b""), "have 7 numbers per line, but its header says 6"),
        (TEXT.replace(b"0.5 -1.25", b"nan -1.25"), "1 of 3 points of .* have coordinates that are NaN"),
        (TEXT.replace(b"0.5 -1.25", b"1e60 -1.25"), "coordinates that are NaN or infinite"),
        (TEXT.replace(b"51 2\n", b"51 -2\n"), "has the label -2"),
    ],
)
def test_a_damaged_file_is_rejected_with_the_reason(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        read_scene(write_file(tmp_path, data))
    assert error.value.hint


def test_labels_stored_as_floats_must_be_integers(tmp_path: Path) -> None:
    text = TEXT.replace(b"short label", b"float scalar_Label")
    labels = read_scene(write_file(tmp_path, text)).labels
    assert labels is not None and labels.tolist() == [2, 0, 1]
    with pytest.raises(BadInput, match="not integers"):
        read_scene(write_file(tmp_path, text.replace(b"51 2\n", b"51 2.5\n")))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_file(tmp_path, BINARY)
    ply = read_ply(file)
    monkeypatch.setattr(
        "os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(BadInput, match="No space"):
        write_ply(file, ply, keep=np.array([0]))
    assert file.read_bytes() == BINARY and [path.name for path in tmp_path.iterdir()] == ["cloud.ply"]


def test_every_truncation_of_a_file_is_rejected(tmp_path: Path) -> None:
    for end in range(len(BINARY)):
        with pytest.raises(BadInput):
            check_scene(ply_scene(read_ply(write_file(tmp_path, BINARY[:end]))))


def test_a_count_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(head("ascii").replace(b"vertex 3", b"vertex " + b"9" * 5_000))
    with pytest.raises(BadInput, match="Line 4 of the header"):
        read_ply(tmp_path / "a.ply")
