"""Triangulated surfaces: a mesh with its centroids, normals and areas, and the grid every body is made from.

Letters: V vertices, F faces, Q quads. A body is the surface of a cuboid lattice of a x b x c cells,
mapped by a smooth one-to-one function and cut into triangles along the shorter diagonal of each quad.
The lattice is as fine as one likes, so one shape exists at every panel count; it is mirror-symmetric in y,
because a body without yaw must get a symmetric flow. Double precision throughout.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput

FEWEST_PANELS = 64


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


def divisions(panels: int, extents: tuple[float, float, float]) -> tuple[int, int, int]:
    """Cells (a, b, c) along each axis whose surface has close to `panels` triangles, the cells close to cubes.

    b is even, so that no quad lies across the plane y = 0, where its diagonal would break the symmetry.
    """
    if panels < FEWEST_PANELS:
        raise BadInput(
            f"{panels} panels cannot show a body; {FEWEST_PANELS} is the least", mend=f"ask for {FEWEST_PANELS} or more"
        )
    length, width, height = extents
    cell = math.sqrt(4 * (length * width + width * height + height * length) / panels)
    ideal = (length / cell, width / cell, height / cell)

    def cost(counts: tuple[int, int, int]) -> float:
        a, b, c = counts
        missed = abs(4 * (a * b + b * c + c * a) / panels - 1)
        return 8 * missed + sum(abs(math.log(n / wanted)) for n, wanted in zip(counts, ideal, strict=True))

    a_range, c_range = (range(max(2, round(n) - 3), round(n) + 4) for n in (ideal[0], ideal[2]))
    half = round(ideal[1] / 2)
    b_range = range(max(2, 2 * half - 2), 2 * half + 3, 2)
    return min(itertools.product(a_range, b_range, c_range), key=cost)


def box_lattice(counts: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The surface of the cube [-1, 1]^3 cut into a x b x c cells: vertices (V, 3), quads (Q, 4) seen from outside."""
    shape = tuple(n + 1 for n in counts)
    # One number for every lattice point, inside ones too; those on the surface are renumbered below.
    number = torch.arange(math.prod(shape)).reshape(shape)
    quads = []
    for axis in range(3):
        u, v = (axis + 1) % 3, (axis + 2) % 3  # e_u x e_v = e_axis
        for side in (0, counts[axis]):
            sheet = number.select(axis, side)
            sheet = sheet if u < v else sheet.T  # rows along u, columns along v
            ring = [sheet[:-1, :-1], sheet[1:, :-1], sheet[1:, 1:], sheet[:-1, 1:]]
            quads.append(torch.stack([part.reshape(-1) for part in (ring if side else ring[::-1])], dim=1))
    used, quad = torch.unique(torch.cat(quads), return_inverse=True)
    place = torch.stack(torch.unravel_index(used, shape), dim=1).double()
    size = torch.tensor(counts, dtype=torch.float64)
    return (2 * place - size) / size, quad


def triangulate(vertices: Tensor, quads: Tensor, lattice: Tensor) -> Mesh:
    """Each quad cut along its shorter diagonal; a tie goes to the one that reaches farther from the face's middle.

    vertices: (V, 3) where the lattice points (V, 3) came to lie. Lengths are equal on both sides of y = 0, so is the choice.
    """
    corner, origin = vertices[quads], lattice[quads].square().sum(dim=2)
    one = (corner[:, 0] - corner[:, 2]).square().sum(dim=1)
    other = (corner[:, 1] - corner[:, 3]).square().sum(dim=1)
    tie = (one - other).abs() <= 1e-9 * (one + other)
    farther = torch.maximum(origin[:, 0], origin[:, 2]) > torch.maximum(origin[:, 1], origin[:, 3])
    first = torch.where(tie, farther, one < other)[:, None, None]
    by_first = torch.stack([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]], dim=1)
    by_other = torch.stack([quads[:, [0, 1, 3]], quads[:, [1, 2, 3]]], dim=1)
    return Mesh(vertices, torch.where(first, by_first, by_other).reshape(-1, 3))


def sphere_directions(lattice: Tensor) -> Tensor:
    """The cube's surface (V, 3) onto the unit sphere with equal angles, so that no panel is much smaller than another."""
    bent = torch.tan(lattice * (math.pi / 4))
    return bent / torch.linalg.vector_norm(bent, dim=1, keepdim=True)
