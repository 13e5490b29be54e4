"""Triangulated surfaces: a mesh, the centroids, normals and areas of its faces, and its mirror plane.

Letters: V vertices, F faces. Double precision throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mesh:
    """A triangulated surface; the corners of a face run anticlockwise seen from outside."""

    vertices: Tensor  # (V, 3) float64
    faces: Tensor  # (F, 3) int64

    def to(self, device: torch.device | str) -> Mesh:
        return Mesh(self.vertices.to(device), self.faces.to(device))


@dataclass(frozen=True)
class Facets:
    """What the faces of a mesh are: centroids (F, 3), outward unit normals (F, 3), areas (F,)."""

    centroids: Tensor
    normals: Tensor
    areas: Tensor


def facets(mesh: Mesh) -> Facets:
    corner = mesh.vertices[mesh.faces]  # (F, 3, 3)
    cross = torch.linalg.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    double = torch.linalg.vector_norm(cross, dim=1)
    return Facets(corner.mean(dim=1), cross / double.clamp_min(torch.finfo(double.dtype).tiny)[:, None], double / 2)


def volume(mesh: Mesh) -> float:
    """Signed volume inside a closed mesh: positive where the faces look outward."""
    a, b, c = mesh.vertices[mesh.faces].unbind(dim=1)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


def mirror_partners(mesh: Mesh) -> Tensor | None:
    """(F,) for each face the one that is its image in the plane y = 0; None where the mesh is not its own image.

    Exact: coordinates must agree to the last digit.
    """
    across = mesh.vertices * mesh.vertices.new_tensor([1.0, -1.0, 1.0])
    both = torch.cat([mesh.vertices, across]) + 0.0  # + 0.0 makes -0.0 equal 0.0
    at = torch.unique(both, dim=0, return_inverse=True)[1]
    here, there = at[mesh.faces], at[mesh.faces + len(across)]
    both = torch.cat([here, there]).sort(dim=1).values
    one, other = torch.unique(both, dim=0, return_inverse=True)[1].chunk(2)
    of_face = torch.full((int(torch.maximum(one.max(), other.max())) + 1,), -1, device=one.device)
    of_face[one] = torch.arange(len(one), device=one.device)
    partner = of_face[other]
    # Doubled faces, or some without an image, do not come back to themselves.
    numbers = torch.arange(len(partner), device=partner.device)
    return partner if bool((partner >= 0).all()) and torch.equal(partner[partner], numbers) else None
