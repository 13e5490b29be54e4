"""Users' surface meshes: reading, checking, orienting, conversion to a Sample, and writing with fields.

Letters: V vertices, F faces. stl, obj, ply, vtk and vtu are read by meshio, which is imported only then;
PolyData (vtp, and vtk files that contain it) needs no library. A mesh must be a closed surface in metres with
z up; errors give the number of faults and say how to fix them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import check_output
from pinchpoint.core.units import show_choices
from pinchpoint.systems.operator.data.body import flow_features
from pinchpoint.systems.operator.data.sample import Sample, check_sample
from pinchpoint.systems.operator.data.surface import Mesh, facets, smooth_normals
from pinchpoint.systems.operator.files.orientation import orient_outward
from pinchpoint.systems.operator.files.vtk_legacy import is_polydata, read_polydata
from pinchpoint.systems.operator.files.vtp import read_vtp, write_vtp

READS = (".stl", ".obj", ".ply", ".vtp", ".vtk", ".vtu")
WRITES = (".vtp", ".vtu", ".vtk")
# Relative to the square of the mesh's diagonal: a smaller face has no meaningful normal in float32.
_SMALLEST_AREA = 1e-12

_PLY_TYPES = frozenset(
    b"char uchar short ushort int uint float double "
    b"int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 float64".split()
)


@dataclass(frozen=True)
class Conditions:
    """The position of a mesh in the flow. Without a clearance, it keeps its height over the ground z = 0."""

    yaw_deg: float = 0.0
    clearance: float | None = None  # metres from the ground to the lowest point


def read_mesh(path: str | Path) -> Mesh:
    """The triangles of a file, unchecked: equal vertices are merged, unused ones dropped, polygons split."""
    path = Path(path)
    if path.suffix.lower() not in READS:
        raise BadInput(
            f"A mesh cannot be read from {path.name!r}: its file type is not supported.",
            hint=f"Give a file that ends in {show_choices(READS)}.",
        )
    if not path.is_file():
        raise BadInput(f"The file {path} does not exist.", hint="Name a mesh that exists.")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} is not readable.", hint="Change its permissions, or copy it.")
    if path.suffix.lower() == ".vtp":
        points, polygons = read_vtp(path)
    elif path.suffix.lower() == ".vtk" and is_polydata(path):
        points, polygons = read_polydata(path)
    else:
        if path.suffix.lower() == ".ply":
            _check_ply(path)
        points, polygons = _read_with_meshio(path)
    faces = [
        np.stack([part[:, 0], part[:, k], part[:, k + 1]], axis=1)
        for part in polygons
        for k in range(1, part.shape[1] - 1)
    ]
    face = np.concatenate(faces) if faces else np.zeros((0, 3), dtype=np.int64)
    if len(face) and (face.min() < 0 or face.max() >= len(points)):
        raise BadInput(f"{path} has faces with vertices that do not exist.", hint="Export the mesh again.")
    return _merge_points(np.asarray(points, dtype=np.float64), face.astype(np.int64))


def check_mesh(mesh: Mesh) -> Mesh:
    """The mesh itself.

    Raises `BadInput` with the number of faults unless it is a closed surface of proper triangles.
    """
    if len(mesh.vertices) == 0:
        raise BadInput("The mesh has no points.", hint="Give a mesh with a surface.")
    bad = int((~torch.isfinite(mesh.vertices)).any(dim=1).sum())
    if bad:
        raise BadInput(
            f"{bad:,} of {len(mesh.vertices):,} points of the mesh are NaN or infinite.",
            hint="Export it again without them.",
        )
    if len(mesh.faces) == 0:
        raise BadInput(
            f"The mesh has {len(mesh.vertices):,} points, but no faces.",
            hint="Give a surface of triangles, not a point cloud.",
        )
    if int(mesh.faces.min()) < 0 or int(mesh.faces.max()) >= len(mesh.vertices):
        raise BadInput("The mesh has faces with vertices that do not exist.", hint="Export it again.")
    diagonal = (mesh.vertices.amax(dim=0) - mesh.vertices.amin(dim=0)).square().sum()
    flat = int((facets(mesh).areas <= _SMALLEST_AREA * diagonal).sum())
    if flat:
        raise BadInput(
            f"{flat:,} of {len(mesh.faces):,} faces are degenerate (they have no area).",
            hint="Remove them, for example in MeshLab with Remove Zero Area Faces.",
        )
    sides = (
        torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]]).sort(dim=1).values
    )
    _, face_counts = torch.unique(sides, dim=0, return_counts=True)
    many, single = int((face_counts > 2).sum()), int((face_counts == 1).sum())
    if many:
        raise BadInput(
            f"{many:,} edges are non-manifold (shared by more than two faces).",
            hint="Remove duplicate or inner faces, for example in MeshLab with Repair Non Manifold Edges.",
        )
    if single:
        raise BadInput(
            f"The surface is open: {single:,} edges belong to only one face.",
            hint="Merge vertices and close the holes, for example in MeshLab "
            "with Merge Close Vertices and Close Holes.",
        )
    return mesh


def outward(mesh: Mesh) -> tuple[Mesh, int]:
    """A checked mesh with all faces pointing outward, and the number of faces that were flipped."""
    faces, flips = orient_outward(mesh.vertices.cpu().numpy(), mesh.faces.cpu().numpy())
    return Mesh(mesh.vertices, torch.from_numpy(faces).to(mesh.faces.device)), flips


def mesh_sample(mesh: Mesh, conditions: Conditions, *, name: str = "mesh") -> Sample:
    """A mesh as an input of a flow model, one point per face; the target is empty, since it is unknown.

    The mesh is checked, oriented outward, and moved so that its box is centred over the ground, as in the
    datasets.
    """
    whole, _ = outward(check_mesh(mesh))
    low, high = whole.vertices.amin(dim=0), whole.vertices.amax(dim=0)
    clearance = float(low[2]) if conditions.clearance is None else conditions.clearance
    if not clearance > 0:
        raise BadInput(
            f"The clearance over the ground is {clearance:g} m; it must be above 0.",
            hint="Give a --clearance above 0, or raise the mesh over z = 0 (z is up).",
        )
    move = -(low + high) / 2
    move[2] = clearance - low[2]
    shape = facets(Mesh(whole.vertices + move, whole.faces))
    features = flow_features(
        smooth_normals(whole, shape.normals), yaw_deg=conditions.yaw_deg, clearance=clearance
    )
    sample = Sample(
        name, shape.centroids.float(), features, features.new_zeros(len(features), 0), shape.areas.float()
    )
    return check_sample(sample)


def write_fields(path: str | Path, mesh: Mesh, cell_data: Mapping[str, Tensor | np.ndarray]) -> Path:
    """Write the mesh with values on its faces, (F,) or (F, n) each, as .vtp, .vtu or .vtk for ParaView."""
    path = Path(path)
    if path.suffix.lower() not in WRITES:
        raise BadInput(
            f"Fields cannot be written to {path.name!r}.",
            hint=f"Name a file that ends in {show_choices(WRITES)}.",
        )
    check_output(path)
    points, faces = mesh.vertices.cpu().numpy(), mesh.faces.cpu().numpy()
    values = {
        name: part.detach().cpu().numpy() if isinstance(part, Tensor) else np.asarray(part)
        for name, part in cell_data.items()
    }
    for name, part in values.items():
        if len(part) != len(faces):
            raise BadInput(
                f"{name} has {len(part):,} values, but the mesh has {len(faces):,} faces.",
                hint="Give one value for each face.",
            )
    if path.suffix.lower() == ".vtp":
        return write_vtp(path, points, faces, values)
    meshio = _import_meshio(path)
    mesh_with_fields = meshio.Mesh(
        points, [("triangle", faces)], cell_data={name: [part] for name, part in values.items()}
    )
    beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        meshio.write(beside, mesh_with_fields)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _import_meshio(path: Path) -> ModuleType:
    try:
        import meshio
    except ModuleNotFoundError as error:
        raise Missing(
            f"{path.suffix} files need meshio, which is not installed.",
            hint='Run pip install "pinchpoint[operator]", or use .vtp.',
        ) from error
    return meshio


def _check_ply(path: Path) -> None:
    """Raise BadInput if the header claims more elements than the file has bytes; meshio would search."""
    data = path.read_bytes()
    header = data.partition(b"end_header")[0]
    counts = [int(digits[:20]) for digits in re.findall(rb"^element +\w+ +(\d+)", header, re.MULTILINE)]
    kinds = re.findall(rb"^property +list +(\S+) +(\S+)", header, re.MULTILINE)
    if max(counts, default=0) > len(data) or not _PLY_TYPES.issuperset(
        kind for pair in kinds for kind in pair
    ):
        raise BadInput(
            f"{path} cannot be read: its header claims more than the file holds, or has unknown types.",
            hint="Export it again as .vtp or .stl.",
        )


def _read_with_meshio(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    meshio = _import_meshio(path)
    reader = getattr(meshio, path.suffix.lower()[1:]).read
    try:
        # An ASCII .stl is first tried as binary, where its text looks like a huge count.
        with np.errstate(over="ignore"):
            mesh = reader(str(path))
        kinds = {"triangle", "quad", "polygon"}
        cells = [np.asarray(block.data, dtype=np.int64) for block in mesh.cells if block.type in kinds]
    except (Exception, SystemExit) as error:  # a parser can fail in any way on arbitrary bytes
        # meshio's own errors say what is wrong with the file; any other is about its code.
        why = str(error) if isinstance(error, meshio.ReadError) else ""
        why = why.rstrip(".") or f"it is not a valid {path.suffix.lower()} file"
        raise BadInput(f"{path} cannot be read: {why}.", hint="Export it again as .vtp or .stl.") from error
    return mesh.points, cells


def _merge_points(points: np.ndarray, faces: np.ndarray) -> Mesh:
    """A mesh with equal points merged: an STL repeats corners for every triangle, which hides neighbours."""
    used_points = np.unique(faces)
    if len(used_points) == 0:
        return Mesh(torch.from_numpy(points), torch.from_numpy(faces))
    vertices, back = np.unique(
        points[used_points] + 0.0, axis=0, return_inverse=True
    )  # + 0.0 makes -0.0 equal 0.0
    new = np.zeros(len(points), dtype=np.int64)
    new[used_points] = back.reshape(-1)
    return Mesh(torch.from_numpy(vertices), torch.from_numpy(new[faces]))
