"""Triangulated surfaces: a mesh, and the centroids, normals and areas of its faces.

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
