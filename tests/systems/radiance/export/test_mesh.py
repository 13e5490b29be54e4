"""Meshes of fields whose shape is known, their colours and files, and mistakes that are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from tests.systems.radiance.export.known_fields import CODE, RADIUS, Nothing, make_ball  # noqa: E402

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.export.mesh import layer_of, object_mesh  # noqa: E402
from pinchpoint.systems.radiance.export.mesh_files import write_mesh  # noqa: E402
from pinchpoint.systems.radiance.export.surface import Mesh, is_watertight  # noqa: E402
from pinchpoint.systems.radiance.metrics.chamfer import chamfer, sample_surface  # noqa: E402
from pinchpoint.systems.radiance.model.objective import Generator  # noqa: E402


@pytest.fixture(scope="module")
def ball() -> Generator:
    return make_ball()


@pytest.fixture(scope="module")
def meshed(ball: Generator) -> tuple[Mesh, np.ndarray, int]:
    return object_mesh(ball, CODE, resolution=32)


def test_a_hollow_ball_becomes_one_closed_ball_without_its_speck(
    ball: Generator, meshed: tuple[Mesh, np.ndarray, int]
) -> None:
    mesh, _, specks = meshed
    assert is_watertight(mesh) and specks == 1
    depth = np.log(2) / layer_of(ball) / 400  # where a layer is half opaque
    assert np.allclose(np.linalg.norm(mesh.vertices, axis=1), RADIUS - depth, atol=0.03)
    assert mesh.volume == pytest.approx(4 / 3 * np.pi * (RADIUS - depth) ** 3, rel=0.06), "it is filled"


def test_colours_are_those_of_the_field_at_the_surface(meshed: tuple[Mesh, np.ndarray, int]) -> None:
    mesh, colours, _ = meshed
    above, below = mesh.vertices[:, 2] > 0.2, mesh.vertices[:, 2] < -0.2
    assert (colours[above] == [255, 0, 0]).all() and (colours[below] == [0, 0, 255]).all()


def test_an_empty_field_has_no_surface_and_bad_grids_are_refused(ball: Generator, tmp_path: Path) -> None:
    from pinchpoint.systems.radiance.export.mesh import export_mesh

    field = ball.field
    ball.field = Nothing()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with pytest.raises(BadInput, match="has no surface"):
            object_mesh(ball, CODE, resolution=16)
    finally:
        ball.field = field
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"resolution": 4}, "--resolution is 4"),
        ({"level": 1.5}, "--level is 1.5"),
        ({"thing": -1}, "--object is -1"),
    ]
    for options, what in mistakes:
        with pytest.raises(BadInput, match=what):
            export_mesh(tmp_path, tmp_path / "car.glb", **options)
    with pytest.raises(BadInput, match=r"cannot be written to .*car\.stl"):
        export_mesh(tmp_path, tmp_path / "car.stl")


def test_ply_and_obj_files_hold_the_mesh_and_its_colours(
    meshed: tuple[Mesh, np.ndarray, int], tmp_path: Path
) -> None:
    mesh, colours, _ = meshed
    head, data = write_mesh(tmp_path / "ball.ply", mesh, colours).read_bytes().split(b"end_header\n", 1)
    properties = [line.split()[1:] for line in head.decode().splitlines() if line.startswith("property")]
    kinds = {"float": "<f4", "uchar": "u1"}
    rows = np.frombuffer(
        data, [(name, kinds[kind]) for kind, name in properties[:-1]], count=len(mesh.vertices)
    )
    assert np.allclose(np.stack([rows[name] for name in "xyz"], axis=1), mesh.vertices, atol=1e-5)
    assert np.array_equal(np.stack([rows[name] for name in ("red", "green", "blue")], axis=1), colours)
    faces = np.frombuffer(data[rows.nbytes :], [("count", "u1"), ("corners", "<i4", 3)])
    assert (faces["count"] == 3).all() and np.array_equal(faces["corners"], mesh.faces)
    lines = write_mesh(tmp_path / "ball.obj", mesh, colours).read_text(encoding="utf-8").splitlines()
    vertices = np.array([line.split()[1:] for line in lines if line.startswith("v ")], dtype=float)
    assert np.allclose(vertices[:, :3], mesh.vertices, atol=1e-5)
    assert np.allclose(vertices[:, 3:], colours / 255, atol=1e-4)
    corners = np.array([line.split()[1:] for line in lines if line.startswith("f ")], dtype=int)
    assert np.array_equal(corners - 1, mesh.faces)


def test_a_glb_holds_the_mesh_with_y_up_and_linear_colours(
    meshed: tuple[Mesh, np.ndarray, int], tmp_path: Path
) -> None:
    mesh, colours, _ = meshed
    grey = np.where(np.arange(len(colours))[:, None] == 0, 188, colours).astype(np.uint8)
    data = write_mesh(tmp_path / "ball.glb", mesh, grey).read_bytes()
    magic, version, length = struct.unpack_from("<4sII", data)
    assert (magic, version, length) == (b"glTF", 2, len(data))
    size, kind = struct.unpack_from("<I4s", data, 12)
    scene, binary = json.loads(data[20 : 20 + size]), data[28 + size :]
    assert kind == b"JSON" and size % 4 == 0 and len(binary) == scene["buffers"][0]["byteLength"]
    parts = [
        binary[view["byteOffset"] : view["byteOffset"] + view["byteLength"]] for view in scene["bufferViews"]
    ]
    positions = np.frombuffer(parts[0], "<f4").reshape(-1, 3)
    assert np.allclose(positions[:, 1], mesh.vertices[:, 2], atol=1e-6), "y is up"
    faces = np.frombuffer(parts[2], "<u4").reshape(-1, 3)
    assert Mesh(positions.astype(float), faces.astype(np.int64)).volume == pytest.approx(
        mesh.volume, rel=1e-4
    )
    linear = np.frombuffer(parts[1], "<u2").reshape(-1, 4)
    assert linear[0] == pytest.approx([0.5029 * 65535] * 3 + [65535], rel=1e-3), (
        "188 of 255 is half as bright"
    )


def test_chamfer_distances_of_points_and_spheres() -> None:
    one, two = np.zeros((1, 3)), np.array([[3.0, 4.0, 0.0], [0.0, 1.0, 0.0]])
    assert chamfer(one, two) == pytest.approx((1 + (5 + 1) / 2) / 2)
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    points, normals = sample_surface(Mesh(corners, faces), 4000, seed=0)
    flat = normals[:, 0] > 0
    assert np.isclose(points[flat].sum(axis=1), 1).all()
    assert flat.mean() == pytest.approx(3**0.5 / (3 + 3**0.5), abs=0.03), "by area"
    assert np.allclose(normals[flat], 3**-0.5)
    assert points[flat].mean(axis=0) == pytest.approx([1 / 3] * 3, abs=0.02)
