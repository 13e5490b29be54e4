"""Triangulated surfaces: meshes, centroids, normals and areas of faces, neighbours, and mirror symmetry.

Letters: V vertices, F faces. Everything is in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Faces that meet at a larger angle form a sharp edge of the body.
_SHARP = math.cos(math.radians(40))


@dataclass(frozen=True)
class Mesh:
    """A triangulated surface; the corners of a face are anticlockwise seen from outside."""

    vertices: Tensor  # (V, 3) float64
    faces: Tensor  # (F, 3) int64

    def to(self, device: torch.device | str) -> Mesh:
        return Mesh(self.vertices.to(device), self.faces.to(device))


@dataclass(frozen=True)
class Facets:
    """Geometry of the faces of a mesh: centroids (F, 3), outward unit normals (F, 3), areas (F,)."""

    centroids: Tensor
    normals: Tensor
    areas: Tensor


def facets(mesh: Mesh) -> Facets:
    corner = mesh.vertices[mesh.faces]  # (F, 3, 3)
    cross = torch.linalg.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    double = torch.linalg.vector_norm(cross, dim=1)
    return Facets(
        corner.mean(dim=1), cross / double.clamp_min(torch.finfo(double.dtype).tiny)[:, None], double / 2
    )


def edges_of(faces: Tensor) -> tuple[Tensor, Tensor]:
    """The edges (E, 2) of faces (F, 3), and those of each face (F, 3): edge k joins corners k and k + 1."""
    sides = torch.stack([faces, faces.roll(-1, dims=1)], dim=2).reshape(-1, 2)
    edges, face_edges = torch.unique(sides.sort(dim=1).values, dim=0, return_inverse=True)
    return edges, face_edges.reshape(-1, 3)


def neighbours(face_edges: Tensor) -> Tensor:
    """(F, 3) the face beyond each edge of a closed surface, from the edges of each face (F, 3)."""
    order = face_edges.reshape(-1).argsort(stable=True)  # the two uses of an edge become adjacent
    beyond = torch.empty_like(order)
    beyond[order[0::2]], beyond[order[1::2]] = order[1::2] // 3, order[0::2] // 3
    return beyond.reshape(-1, 3)


def smooth(values: Tensor, beside: Tensor) -> Tensor:
    """Remove from values (F,) or (F, n) what changes sign from a face to its neighbours (F, 3).

    A mean over a face and its neighbours removes the alternation and some of the smooth part; the mean of the
    mean shows how much, and that is added back.
    """

    def mean(values: Tensor) -> Tensor:
        return (values + values[beside].mean(dim=1)) / 2

    once = mean(values)
    return 2 * once - mean(once)


def smooth_normals(mesh: Mesh, normals: Tensor) -> Tensor:
    """(F, 3) normals of the smooth surface that a closed mesh approximates, from those of its faces (F, 3).

    Where a surface bends more in one direction than in the other, flat faces tilt alternately: by about 1
    degree on a car with 5,000 panels, and half of that with four times as many. Nothing is smoothed across
    sharp edges.
    """
    beside = neighbours(edges_of(mesh.faces)[1])
    sharp = (normals[beside] * normals[:, None]).sum(dim=2) < _SHARP
    own = torch.arange(len(normals), device=normals.device)[:, None]
    return torch.nn.functional.normalize(smooth(normals, torch.where(sharp, own, beside)), dim=1)


def volume(mesh: Mesh) -> float:
    """Signed volume of a closed mesh: positive if the faces point outward."""
    a, b, c = mesh.vertices[mesh.faces].unbind(dim=1)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


def mirror_partners(mesh: Mesh) -> Tensor | None:
    """(F,) for each face its mirror image in the plane y = 0; None if the mesh is not symmetric.

    Coordinates must agree exactly, to the last digit.
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
    # With duplicate faces, or faces without an image, the image of the image is another face.
    numbers = torch.arange(len(partner), device=partner.device)
    return partner if bool((partner >= 0).all()) and torch.equal(partner[partner], numbers) else None
