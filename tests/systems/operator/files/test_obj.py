"""Ordinary .obj files: only points and faces matter, whatever else a program writes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.surface import volume
from pinchpoint.systems.operator.files.meshes import check_mesh, outward, read_mesh
from pinchpoint.systems.operator.files.obj import read_obj

CUBE = "".join(f"v {x} {y} {z}\n" for x in (0, 1) for y in (0, 1) for z in (0, 1))
QUADS = ("1 2 4 3", "5 7 8 6", "1 5 6 2", "3 4 8 7", "1 3 7 5", "2 6 8 4")
FACES = "".join(f"f {quad}\n" for quad in QUADS)
FILES = {
    "plain": CUBE + FACES,
    "more texture coordinates than points": CUBE + "vt 0 0\n" * 20 + FACES,
    "fewer normals than points": CUBE
    + "vn 0 0 1\n"
    + "".join("f " + " ".join(f"{c}//1" for c in quad.split()) + "\n" for quad in QUADS),
    "texture coordinates of one and of three numbers": CUBE + "vt 0.5\nvt 0 0 0\n" + FACES,
    "continued lines": CUBE + FACES.replace("f 1 2 4 3", "f 1 2 \\\n 4 3"),
    "several parts": "mtllib a.mtl\no one\ng low\nusemtl red\ns 1\n" + CUBE + "g high\ns off\n" + FACES,
    "numbers that count backwards": CUBE
    + "".join("f " + " ".join(str(int(c) - 9) for c in quad.split()) + "\n" for quad in QUADS),
    "colours, weights and comments": CUBE.replace("\n", " 0.5 0.5 0.5 # red\n") + FACES,
    "Windows lines": (CUBE + FACES).replace("\n", "\r\n"),
    "triangles and quadrilaterals": CUBE + FACES.replace("f 1 2 4 3\n", "f 1 2 4\nf 1 4 3\n"),
    "lines, points and curves": CUBE + "l 1 2\np 3\nvp 0.1 0.2\ncstype bezier\n" + FACES,
}


@pytest.mark.parametrize("name", FILES)
def test_an_ordinary_file_is_the_cube_it_describes(tmp_path: Path, name: str) -> None:
    (tmp_path / "cube.obj").write_bytes(FILES[name].encode())
    mesh, _ = outward(check_mesh(read_mesh(tmp_path / "cube.obj")))
    assert len(mesh.vertices) == 8 and len(mesh.faces) == 12
    assert volume(mesh) == pytest.approx(1.0)


def test_a_polygon_stays_one_face(tmp_path: Path) -> None:
    (tmp_path / "a.obj").write_text("".join(f"v {k} {k * k} 0\n" for k in range(5)) + "f 1 2 3 4 5\n")
    (block,) = read_obj(tmp_path / "a.obj").cells
    assert block.kind == "polygon" and block.corners.tolist() == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("v 0 0\nf 1 1 1\n", "a point has 2 coordinates"),
        ("v 0 0 0\nf 1 1\n", "a face has 2 corners"),
        ("v 0 0 0\nf 0 1 1\n", "a corner 0"),
        ("v a b c\n", "line 1"),
        ("v 0 0 0\nf 1 2 3\n", "vertices that do not exist"),
        ("v 0 0 0\nf -1 -2 -3\n", "vertices that do not exist"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "a.obj").write_text(text)
    with pytest.raises(BadInput, match=match):
        read_mesh(tmp_path / "a.obj")
