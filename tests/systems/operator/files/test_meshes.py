"""Users' meshes: every file type gives the same surface, and every kind of bad mesh is refused."""

from __future__ import annotations

import base64
import lzma
import sys
import zlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput, Missing  # noqa: E402
from pinchpoint.systems.operator.data.cars import car_mesh, draw_car  # noqa: E402
from pinchpoint.systems.operator.data.flow import onset  # noqa: E402
from pinchpoint.systems.operator.data.surface import Mesh, facets, volume  # noqa: E402
from pinchpoint.systems.operator.files.meshes import (  # noqa: E402
    Conditions,
    check_mesh,
    mesh_sample,
    outward,
    read_mesh,
    write_fields,
)

BOX = np.array([[x, y, z] for x in (0.0, 2.0) for y in (0.0, 1.0) for z in (0.5, 1.5)])
QUADS = np.array([[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]])
TRIANGLES = np.concatenate([QUADS[:, [0, 1, 2]], QUADS[:, [0, 2, 3]]])


def box(faces: Any = TRIANGLES, points: Any = BOX) -> Mesh:
    return Mesh(
        torch.tensor(points, dtype=torch.float64),
        torch.tensor(np.array(faces), dtype=torch.int64).reshape(-1, 3),
    )


def ascii_stl():
    text = "solid box\n"
    for face in TRIANGLES:
        rows = "".join("vertex {} {} {}\n".format(*BOX[i]) for i in face)
        text += f"facet normal 0 0 0\nouter loop\n{rows}endloop\nendfacet\n"
    return (text + "endsolid box\n").encode()


def binary_stl():
    rows = np.zeros(len(TRIANGLES), dtype=[("normal", "<f4", 3), ("corner", "<f4", (3, 3)), ("rest", "<u2")])
    rows["corner"] = BOX[TRIANGLES]
    return b"made by hand".ljust(80) + np.uint32(len(rows)).tobytes() + rows.tobytes()


def obj():
    text = "".join("v {} {} {}\n".format(*point) for point in BOX)
    return (text + "".join("f {} {} {} {}\n".format(*(quad + 1)) for quad in QUADS)).encode()


def ply():
    head = f"ply\nformat ascii 1.0\nelement vertex {len(BOX)}\n"
    head += "property float x\nproperty float y\nproperty float z\n"
    head += f"element face {len(TRIANGLES)}\nproperty list uchar int vertex_indices\nend_header\n"
    rows = ["{} {} {}".format(*point) for point in BOX] + ["3 {} {} {}".format(*face) for face in TRIANGLES]
    return (head + "\n".join(rows) + "\n").encode()


def vtp(form="ascii", *, compress="", order="<", header="u4", change=lambda text: text):
    """A box of quads as .vtp, in one of the encodings of VTK."""
    arrays = [
        ("Float32", BOX.astype("f4")),
        ("Int64", QUADS.astype("i8")),
        ("Int32", (4 * np.arange(1, 7)).astype("i4")),
    ]
    tail, parts = b"", []
    for kind, values in arrays:
        raw = values.astype(values.dtype.newbyteorder(order)).tobytes()
        pieces = [raw[at : at + 40] for at in range(0, len(raw), 40)]
        squeeze = lzma.compress if compress == "LZMA" else zlib.compress
        compressed_pieces = [squeeze(piece) for piece in pieces]
        if compress:
            head = np.array(
                [len(pieces), 40, len(raw) % 40, *map(len, compressed_pieces)], dtype=order + header
            ).tobytes()
            streams = [head, b"".join(compressed_pieces)]
        else:
            streams = [np.array([len(raw)], dtype=order + header).tobytes() + raw]
        encoding = b"".join(map(base64.b64encode, streams))
        if form == "ascii":
            numbers = " ".join(map(str, values.reshape(-1)))
            parts.append(f'<DataArray type="{kind}" Name="NAME" format="ascii">{numbers}</DataArray>')
        elif form == "binary":
            parts.append(
                f'<DataArray type="{kind}" Name="NAME" format="binary">\n  {encoding.decode()}\n</DataArray>'
            )
        else:
            parts.append(f'<DataArray type="{kind}" Name="NAME" format="appended" offset="{len(tail)}"/>')
            tail += b"".join(streams) if form == "raw" else encoding
    points, corners, ends = (
        part.replace("NAME", name)
        for part, name in zip(parts, ("Points", "connectivity", "offsets"), strict=True)
    )
    squeezer = f' compressor="vtk{compress}DataCompressor"' if compress else ""
    endian = {"<": "Little", ">": "Big"}[order]
    size = {"u4": "UInt32", "u8": "UInt64"}[header]
    text = (
        f'<?xml version="1.0"?><VTKFile type="PolyData" byte_order="{endian}Endian" header_type="{size}"'
        f"{squeezer}><PolyData>"
        f'<Piece NumberOfPoints="8" NumberOfPolys="6" NumberOfStrips="0"><Points>{points}</Points>'
        f"<Polys>{corners}{ends}</Polys></Piece></PolyData>"
    )
    encoding = "raw" if form == "raw" else "base64"
    end = b'<AppendedData encoding="%s">_%s</AppendedData>' % (encoding.encode(), tail) if tail else b""
    return change(text).encode() + end + b"</VTKFile>"


def vtk(*, binary=False, version=3, line="POLYDATA", change=lambda data: data):
    """A box of quads as legacy .vtk, with a line and a field that are not part of the surface."""

    def array(values, kind):
        values = np.asarray(values).reshape(-1)
        return (
            values.astype(kind).tobytes() + b"\n" if binary else " ".join(map(str, values)).encode() + b"\n"
        )

    def cells(key, rows):
        if version < 5:
            numbers = np.concatenate([[len(row), *row] for row in rows])
            return f"{key} {len(rows)} {len(numbers)}\n".encode() + array(numbers, ">i4")
        ends = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        head = f"{key} {len(ends)} {ends[-1]}\nOFFSETS vtktypeint64\n".encode() + array(ends, ">i8")
        return head + b"CONNECTIVITY vtktypeint64\n" + array(np.concatenate(rows), ">i8")

    form = "BINARY" if binary else "ASCII"
    data = f"# vtk DataFile Version {version}.0\na box\n{form}\nDATASET {line}\n".encode()
    data += b"FIELD FieldData 1\nTimeValue 1 1 double\n" + array([0.5], ">f8")
    data += b"POINTS 8 float\n" + array(BOX, ">f4")
    data += b"METADATA\nINFORMATION 1\nNAME L2_NORM_RANGE LOCATION vtkDataArray\nDATA 2 0.5 2.6926\n\n"
    data += cells("LINES", [[0, 1], [1, 3, 2]]) + cells("POLYGONS", [*QUADS[:5], *TRIANGLES[[5, 11]]])
    return change(data + b"CELL_DATA 9\nSCALARS cp float\nLOOKUP_TABLE default\n" + array(np.zeros(9), ">f4"))


WRITTEN = {
    "ascii.stl": ascii_stl(),
    "binary.STL": binary_stl(),
    "a.obj": obj(),
    "a.ply": ply(),
    "a.vtp": vtp(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_file_type_gives_the_same_closed_box(tmp_path, name):
    if not name.endswith("vtp"):
        pytest.importorskip("meshio", reason="this kind of file needs meshio")
    (tmp_path / name).write_bytes(WRITTEN[name])
    mesh = check_mesh(read_mesh(tmp_path / name))
    assert len(mesh.vertices) == 8 and len(mesh.faces) == 12  # the 36 corners in an STL are 8 points
    assert volume(mesh) == pytest.approx(2.0)
    assert outward(mesh)[1] == 0


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("header", ["u4", "u8"])
@pytest.mark.parametrize("compress", ["", "ZLib", "LZMA"])
@pytest.mark.parametrize("form", ["binary", "raw", "base64"])
def test_a_vtp_is_read_in_every_encoding(tmp_path, form, compress, header, order):
    (tmp_path / "a.vtp").write_bytes(vtp(form, compress=compress, order=order, header=header))
    mesh = check_mesh(read_mesh(tmp_path / "a.vtp"))
    assert volume(mesh) == pytest.approx(2.0) and len(mesh.vertices) == 8


@pytest.mark.parametrize("version", [3, 5])
@pytest.mark.parametrize("binary", [False, True])
def test_a_legacy_vtk_with_polydata_is_read_without_a_library(tmp_path, monkeypatch, binary, version):
    monkeypatch.setitem(sys.modules, "meshio", None)
    (tmp_path / "a.vtk").write_bytes(vtk(binary=binary, version=version))
    mesh = check_mesh(read_mesh(tmp_path / "a.vtk"))
    assert volume(mesh) == pytest.approx(2.0) and len(mesh.vertices) == 8 and len(mesh.faces) == 12
    assert outward(mesh)[1] == 0


@pytest.mark.parametrize("suffix", [".vtp", ".vtu", ".vtk"])
def test_written_fields_are_read_back(tmp_path, suffix):
    mesh = car_mesh(draw_car(0, 0), 300)
    cp = torch.linspace(-1, 1, len(mesh.faces))
    if suffix != ".vtp":
        pytest.importorskip("meshio", reason="this kind of file needs meshio")
    file = write_fields(tmp_path / f"out{suffix}", mesh, {"cp": cp, "normal": facets(mesh).normals.numpy()})
    again = read_mesh(file)
    assert torch.allclose(facets(again).centroids, facets(mesh).centroids, atol=1e-12)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    if suffix != ".vtp":
        import meshio

        fields = meshio.read(file).cell_data
        assert np.array_equal(fields["cp"][0].reshape(-1), cp.numpy()) and fields["normal"][0].shape == (
            len(cp),
            3,
        )
    else:
        encoded_text = file.read_text().split('Name="cp"')[1].split(">", 1)[1].split("<")[0]
        assert np.array_equal(np.frombuffer(base64.b64decode(encoded_text)[8:], dtype="<f4"), cp.numpy())


def test_fields_of_the_wrong_length_and_unknown_file_types_are_refused(tmp_path):
    with pytest.raises(BadInput, match="cp has 3 values, but the mesh has 12 faces"):
        write_fields(tmp_path / "a.vtp", box(), {"cp": np.zeros(3)})
    with pytest.raises(BadInput, match=r"Fields cannot be written to 'a\.stl'"):
        write_fields(tmp_path / "a.stl", box(), {})
    with pytest.raises(BadInput, match="Cannot write"):
        write_fields(tmp_path / "no" / "a.vtp", box(), {})
    assert list(tmp_path.iterdir()) == []


def nan_points():
    return np.where(np.arange(8)[:, None] == 3, np.nan, BOX)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (box(points=np.zeros((0, 3)), faces=np.zeros((0, 3))), "no points"),
        (box(points=nan_points()), "1 of 8 points of the mesh are NaN"),
        (box(points=np.where(BOX > 1.6, np.inf, BOX)), "NaN or infinite"),
        (box(faces=np.zeros((0, 3))), "8 points, but no faces"),
        (box(faces=[[0, 1, 99]]), "vertices that do not exist"),
        (box(faces=[*TRIANGLES, [0, 0, 1]]), "1 of 13 faces are degenerate"),
        (
            box(points=np.concatenate([BOX, [[1, 0, 0.5]]]), faces=[*TRIANGLES, [0, 8, 4]]),
            "1 of 13 faces are degenerate",
        ),
        (box(faces=[*TRIANGLES, [0, 1, 7]]), "2 edges are non-manifold"),
        (box(faces=[*TRIANGLES, TRIANGLES[0]]), "3 edges are non-manifold"),
        (box(faces=TRIANGLES[1:]), "The surface is open: 3 edges"),
    ],
)
def test_a_bad_mesh_is_refused_with_its_count_and_a_hint(mesh, message):
    with pytest.raises(BadInput, match=message) as excinfo:
        check_mesh(mesh)
    assert excinfo.value.hint
    with pytest.raises(BadInput, match=message):
        mesh_sample(mesh, Conditions())


def test_a_nan_in_a_file_is_read_and_refused(tmp_path):
    pytest.importorskip("meshio", reason="this kind of file needs meshio")
    (tmp_path / "a.stl").write_bytes(ascii_stl().replace(b"vertex 0.0 0.0 0.5", b"vertex nan 0.0 0.5"))
    with pytest.raises(BadInput, match="NaN"):
        check_mesh(read_mesh(tmp_path / "a.stl"))


def test_inward_and_inconsistent_faces_are_flipped():
    mesh = car_mesh(draw_car(0, 1), 400)
    inside_out = Mesh(mesh.vertices, mesh.faces.flip(1))
    assert outward(inside_out)[1] == len(mesh.faces)
    some = torch.arange(len(mesh.faces)) % 3 == 0
    inconsistent = Mesh(mesh.vertices, torch.where(some[:, None], mesh.faces.flip(1), mesh.faces))
    oriented, flips = outward(inconsistent)
    assert flips == int(some.sum())
    assert torch.allclose(facets(oriented).normals, facets(mesh).normals)


def test_each_part_of_a_mesh_is_oriented_separately():
    both = box(
        points=np.concatenate([BOX, BOX + 10]), faces=np.concatenate([TRIANGLES, TRIANGLES[:, ::-1] + 8])
    )
    oriented, flips = outward(check_mesh(both))
    assert flips == 12 and volume(oriented) == pytest.approx(4.0)


def test_a_one_sided_surface_is_refused():
    # A Klein bottle: a 6 x 6 torus grid whose last row is glued on the other way round.
    def at(i, j):
        return (i % 6) * 6 + ((-j if (i // 6) % 2 else j) % 6)

    quads = [(at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)) for i in range(6) for j in range(6)]
    faces = [face for a, b, c, d in quads for face in ((a, b, c), (a, c, d))]
    points = np.random.default_rng(0).standard_normal((36, 3))
    with pytest.raises(BadInput, match="only one side"):
        outward(check_mesh(box(points=points, faces=faces)))


def test_the_sample_of_a_mesh_has_the_position_of_its_conditions():
    sample = mesh_sample(box(), Conditions(yaw_deg=5.0, clearance=0.25), name="box")
    shape = facets(box())
    assert torch.allclose(sample.points.double(), shape.centroids - torch.tensor([1.0, 0.5, 0.25]), atol=1e-6)
    assert torch.allclose(sample.features[:, :3].double(), shape.normals)
    assert sample.features[4, 3:].tolist() == pytest.approx([*onset(5.0).tolist(), 0.25])
    assert sample.areas.sum() == pytest.approx(10.0) and sample.target.shape == (12, 0)
    assert mesh_sample(box(), Conditions()).features[0, 6] == pytest.approx(0.5)  # its own height


def test_a_mesh_that_reaches_into_the_ground_is_refused():
    with pytest.raises(BadInput, match=r"clearance over the ground is -0\.5 m"):
        mesh_sample(box(points=BOX - [0, 0, 1]), Conditions())


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.step", b"", r"mesh cannot be read from 'a\.step'"),
        ("a.stl", None, "does not exist"),
        ("a.vtp", b"<VTKFile", "as VTK PolyData"),
        ("a.vtp", b"\x00\xff", "as VTK PolyData"),
        (
            "a.vtp",
            vtp(change=lambda text: text.replace('"PolyData"', '"ImageData"')),
            "it contains ImageData",
        ),
        ("a.vtp", vtp(change=lambda text: text.replace('Strips="0"', 'Strips="3"')), "triangle strips"),
        ("a.vtp", vtp("base64").replace(b"</AppendedData>", b"")[:700], "as VTK PolyData"),
        (
            "a.vtp",
            vtp("binary", compress="ZLib", change=lambda text: text.replace("vtkZLib", "vtkZstd")),
            "compressed by vtkZstd",
        ),
        ("a.vtp", vtp(change=lambda text: text.replace("20 24", "20 23")), "polygon counts are inconsistent"),
        ("a.vtk", vtk(change=lambda data: data[: data.index(b"POLYGONS") + 30]), "ends within an array"),
        (
            "a.vtk",
            vtk(binary=True, change=lambda data: data[: data.index(b"POLYGONS") + 30]),
            "ends within an array",
        ),
        ("a.vtk", vtk(change=lambda data: data.replace(b"POLYGONS", b"TRIANGLE_STRIPS")), "triangle strips"),
        (
            "a.vtk",
            vtk(change=lambda data: data.replace(b"4 0 1 3 2", b"5 0 1 3 2")),
            "cell counts are inconsistent",
        ),
        (
            "a.vtk",
            vtk(change=lambda data: data.replace(b"POINTS 8 float", b"POINTS x float")),
            "as legacy VTK",
        ),
        ("a.vtk", vtk(change=lambda data: data.replace(b"8 float", b"8 real")), "as legacy VTK"),
        ("a.vtk", vtk(change=lambda data: data.replace(b"LINES", b"BLOBS")), "an unknown section 'BLOBS'"),
        (
            "a.vtp",
            vtp(change=lambda text: text.replace(">0 1 3 2", ">0 1 3 77")),
            "vertices that do not exist",
        ),
        (
            "a.vtp",
            vtp(change=lambda text: text.replace(">0 1 3 2", ">0 1 3 1" + "0" * 400)),
            "as VTK PolyData",
        ),
        ("a.vtk", vtk(change=lambda data: data.replace(b"POINTS 8", b"POINTS 1" + b"0" * 400)), "legacy VTK"),
        (
            "a.vtk",
            vtk(change=lambda data: data.replace(b"POLYGONS 7", b"POLYGONS 1000000000000000")),
            "claims 1,000,000,000,000,000 cells",
        ),
        ("a.vtk", vtk(change=lambda data: data.replace(b"POLYGONS 7", b"POLYGONS -1")), "claims -1 cells"),
        (
            "a.vtk",
            vtk(change=lambda data: data.replace(b"4 0 1 3 2", b"4 0 1 3 1000000000000000")),
            "as legacy VTK",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput, match=message) as excinfo:
        read_mesh(tmp_path / name)
    assert excinfo.value.hint


@pytest.mark.parametrize("name", ["a.stl", "a.obj", "a.ply", "a.vtk", "a.vtu"])
@pytest.mark.parametrize("data", [b"", b"nonsense\n1 2 x\nf a b\n", b"\x00\xff\xfe" * 40])
def test_random_bytes_for_meshio_are_refused_or_have_no_faces(tmp_path, name, data):
    pytest.importorskip("meshio", reason="this kind of file needs meshio")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput):
        check_mesh(read_mesh(tmp_path / name))


def test_a_file_that_confuses_meshio_is_refused_in_plain_words(tmp_path):
    pytest.importorskip("meshio", reason="this kind of file needs meshio")
    (tmp_path / "a.stl").write_text("solid a\nfacet normal 0 0 1\nouter loop\nvertex hello 0 0\n")
    with pytest.raises(BadInput, match=r"a\.stl cannot be read: it is not a valid \.stl file\."):
        read_mesh(tmp_path / "a.stl")


def test_meshio_is_required_only_for_its_own_file_types(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "meshio", None)
    (tmp_path / "a.stl").write_bytes(ascii_stl())
    with pytest.raises(Missing, match=r"\.stl files need meshio") as excinfo:
        read_mesh(tmp_path / "a.stl")
    assert "pinchpoint[operator]" in excinfo.value.hint
    with pytest.raises(Missing):
        write_fields(tmp_path / "a.vtu", box(), {})
    assert len(read_mesh(write_fields(tmp_path / "a.vtp", box(), {})).faces) == 12


def test_a_vertex_number_beyond_64_bits_is_refused(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 1" + "0" * 400 + "\n")
    with pytest.raises(BadInput, match="a face has a corner 1000"):
        read_mesh(tmp_path / "a.obj")


@pytest.mark.parametrize(
    ("old", "new"),
    [("face 1", "face 999999999999999999"), ("vertex 3", "vertex 4294967295"), ("list uchar", "list uint-9")],
)
def test_a_ply_that_claims_more_than_it_holds_is_refused_at_once(tmp_path, old, new):
    text = (
        "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
        "element face 1\nproperty list uchar int vertex_indices\nend_header\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"
    )
    (tmp_path / "a.ply").write_text(text.replace(old, new))
    with pytest.raises(BadInput, match="claims more than the file holds, or has unknown types"):
        read_mesh(tmp_path / "a.ply")
