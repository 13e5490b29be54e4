"""Users' surface meshes: reading, checking, orienting, conversion to a Sample, and writing with fields.

Letters: V vertices, F faces. A mesh must be a closed surface in metres with z up; errors give the number of
faults and say how to fix them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices
from pinchpoint.systems.operator.data.body import flow_features
from pinchpoint.systems.operator.data.sample import Sample, check_sample
from pinchpoint.systems.operator.data.surface import Mesh, facets, smooth_normals
from pinchpoint.systems.operator.files.formats import MESHES, read_grid, write_grid
from pinchpoint.systems.operator.files.grid import Cells, Grid
from pinchpoint.systems.operator.files.orientation import orient_outward

# Relative to the square of the mesh's diagonal: a smaller face has no meaningful normal in float32.
_SMALLEST_AREA = 1e-12


@dataclass(frozen=True)
class Conditions:
    """The position of a mesh in the flow. Without a clearance, it keeps its height over the ground z = 0."""

    yaw_deg: float = 0.0
    clearance: float | None = None  # metres from the ground to the lowest point


def read_mesh(path: str | Path) -> Mesh:
    """The triangles of a file, unchecked: equal vertices are merged, unused ones dropped, polygons split."""
    path = Path(path)
    if path.suffix.lower() not in MESHES:
        raise BadInput(
            f"A mesh cannot be read from {path.name!r}: its file type is not supported.",
            hint=f"Give a file that ends in {show_choices(MESHES)}.",
        )
    grid = read_grid(path)
    return _merge_points(grid.points, triangles_of([block for block in grid.cells if block.dimension == 2]))


def triangles_of(blocks: list[Cells]) -> np.ndarray:
    """(N, 3) int64: polygons split into triangles that share their first corner."""
    faces = [
        np.stack([block.linear[:, 0], block.linear[:, k], block.linear[:, k + 1]], axis=1)
        for block in blocks
        for k in range(1, block.linear.shape[1] - 1)
    ]
    return np.concatenate([np.zeros((0, 3), dtype=np.int64), *faces])


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
    return write_grid(Path(path), Grid(points, (Cells("triangle", faces),), cell_fields=values))


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
