"""Surface meshes of users: read, checked, turned outward, made into a Sample, and written with their fields.

Letters: V vertices, F faces. stl, obj, ply, vtk and vtu are read by meshio, which is imported only then; PolyData (vtp,
and vtk that holds it) needs nothing.
A mesh must be a closed surface in metres, z up; the checks count what is wrong and say how to fix it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import check_output
from pinchpoint.systems.operator.data.body import flow_features
from pinchpoint.systems.operator.data.sample import Sample, check_sample
from pinchpoint.systems.operator.data.surface import Mesh, facets, smooth_normals
from pinchpoint.systems.operator.files.orientation import turned_outward
from pinchpoint.systems.operator.files.vtk_legacy import is_polydata, read_polydata
from pinchpoint.systems.operator.files.vtp import read_vtp, write_vtp

READS = (".stl", ".obj", ".ply", ".vtp", ".vtk", ".vtu")
WRITES = (".vtp", ".vtu", ".vtk")
# Of the square of the mesh's diagonal: below it a face has no normal to speak of in float32.
_SMALLEST_AREA = 1e-12


@dataclass(frozen=True)
class Conditions:
    """How a mesh stands in the flow. Without a clearance it stands over the ground z = 0 as it is."""

    yaw_deg: float = 0.0
    clearance: float | None = None  # metres from the ground to its lowest point


def read_mesh(path: str | Path) -> Mesh:
    """The triangles of a file, as they are: equal vertices merged, unused ones dropped, polygons cut into triangles."""
    path = Path(path)
    if path.suffix.lower() not in READS:
        raise BadInput(
            f"cannot read a mesh from {path.name!r}: its kind is not known",
            hint=f"give one of {' '.join(READS)}",
        )
    if not path.is_file():
        raise BadInput(f"there is no file {path}", hint="name a mesh that exists")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} may not be read", hint="change its permissions, or copy it")
    if path.suffix.lower() == ".vtp":
        points, polygons = read_vtp(path)
    elif path.suffix.lower() == ".vtk" and is_polydata(path):
        points, polygons = read_polydata(path)
    else:
        points, polygons = _by_meshio(path)
    faces = [
        np.stack([part[:, 0], part[:, k], part[:, k + 1]], axis=1)
        for part in polygons
        for k in range(1, part.shape[1] - 1)
    ]
    face = np.concatenate(faces) if faces else np.zeros((0, 3), dtype=np.int64)
    if len(face) and (face.min() < 0 or face.max() >= len(points)):
        raise BadInput(f"{path} has faces with vertices that do not exist", hint="write the mesh again")
    return _merged(np.asarray(points, dtype=np.float64), face.astype(np.int64))


def check_mesh(mesh: Mesh) -> Mesh:
    """The mesh itself where it is a closed surface of sound triangles; else BadInput with the number of faults."""
    if len(mesh.vertices) == 0:
        raise BadInput("the mesh has zero points", hint="give a mesh with a surface")
    bad = int((~torch.isfinite(mesh.vertices)).any(dim=1).sum())
    if bad:
        raise BadInput(
            f"{bad:,} of {len(mesh.vertices):,} points of the mesh are NaN or infinite",
            hint="write it again without them",
        )
    if len(mesh.faces) == 0:
        raise BadInput(
            f"the mesh has {len(mesh.vertices):,} points and zero faces",
            hint="give a surface of triangles, not a point cloud",
        )
    if int(mesh.faces.min()) < 0 or int(mesh.faces.max()) >= len(mesh.vertices):
        raise BadInput("the mesh has faces with vertices that do not exist", hint="write it again")
    diagonal = (mesh.vertices.amax(dim=0) - mesh.vertices.amin(dim=0)).square().sum()
    flat = int((facets(mesh).areas <= _SMALLEST_AREA * diagonal).sum())
    if flat:
        raise BadInput(
            f"{flat:,} of {len(mesh.faces):,} faces are degenerate (no area)",
            hint="remove them, in MeshLab: Remove Zero Area Faces",
        )
    sides = (
        torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]]).sort(dim=1).values
    )
    _, shared = torch.unique(sides, dim=0, return_counts=True)
    many, single = int((shared > 2).sum()), int((shared == 1).sum())
    if many:
        raise BadInput(
            f"{many:,} edges are non-manifold (more than two faces meet)",
            hint="remove doubled or inner faces, in MeshLab: Repair Non Manifold Edges",
        )
    if single:
        raise BadInput(
            f"the surface is open: {single:,} edges belong to one face only",
            hint="merge close vertices and close the holes, in MeshLab: Merge Close Vertices, Close Holes",
        )
    return mesh


def outward(mesh: Mesh) -> tuple[Mesh, int]:
    """A checked mesh with every face looking outward, and how many faces had to be turned for it."""
    faces, turned = turned_outward(mesh.vertices.cpu().numpy(), mesh.faces.cpu().numpy())
    return Mesh(mesh.vertices, torch.from_numpy(faces).to(mesh.faces.device)), turned


def mesh_sample(mesh: Mesh, conditions: Conditions, *, name: str = "mesh") -> Sample:
    """A mesh as a model of flow sees it, face for face; the target is empty, for nobody knows it.

    Checked and turned outward; moved so that its box is centred over the ground, as the bodies of the data sets are.
    """
    whole, _ = outward(check_mesh(mesh))
    low, high = whole.vertices.amin(dim=0), whole.vertices.amax(dim=0)
    clearance = float(low[2]) if conditions.clearance is None else conditions.clearance
    if not clearance > 0:
        raise BadInput(
            f"the clearance over the ground is {clearance:g} m",
            hint="z is up: give a --clearance above 0, or raise the mesh over z = 0",
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
    """Write the mesh with values on its faces, (F,) or (F, n) each, as .vtp, .vtu or .vtk; ParaView opens it."""
    path = Path(path)
    if path.suffix.lower() not in WRITES:
        raise BadInput(
            f"cannot write fields to {path.name!r}", hint=f"name a file that ends in {', '.join(WRITES)}"
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
                f"{name} has {len(part):,} values for {len(faces):,} faces",
                hint="give one value for each face",
            )
    if path.suffix.lower() == ".vtp":
        return write_vtp(path, points, faces, values)
    meshio = _meshio(path)
    built = meshio.Mesh(
        points, [("triangle", faces)], cell_data={name: [part] for name, part in values.items()}
    )
    beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        meshio.write(beside, built)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _meshio(path: Path) -> ModuleType:
    try:
        import meshio
    except ModuleNotFoundError as error:
        raise Missing(
            f"{path.suffix} files need meshio, which is not installed",
            hint='pip install "pinchpoint[operator]", or use .vtp',
        ) from error
    return meshio


def _by_meshio(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    meshio = _meshio(path)
    reader = getattr(meshio, path.suffix.lower()[1:]).read
    try:
        with np.errstate(
            over="ignore"
        ):  # an ASCII .stl is first tried as binary, where its text is a huge count
            found = reader(str(path))
    except (Exception, SystemExit) as error:  # a parser meets bytes of any kind, and fails in any way
        why = str(error) or type(error).__name__
        raise BadInput(f"cannot read {path}: {why}", hint="write it again, as .vtp or .stl") from error
    kinds = {"triangle", "quad", "polygon"}
    return found.points, [
        np.asarray(block.data, dtype=np.int64) for block in found.cells if block.type in kinds
    ]


def _merged(points: np.ndarray, faces: np.ndarray) -> Mesh:
    """An STL lists each corner of each triangle anew; neighbours are found only when equal points are one point."""
    used = np.unique(faces)
    if len(used) == 0:
        return Mesh(torch.from_numpy(points), torch.from_numpy(faces))
    kept, back = np.unique(points[used] + 0.0, axis=0, return_inverse=True)  # + 0.0 makes -0.0 equal 0.0
    new = np.zeros(len(points), dtype=np.int64)
    new[used] = back.reshape(-1)
    return Mesh(torch.from_numpy(kept), torch.from_numpy(new[faces]))
