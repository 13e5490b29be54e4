"""Source panels: the exact velocity of triangles that carry a source of constant strength.

Letters: F panels, E edges, V vertices, B evaluation points. A unit source density on a flat triangle gives, at x,

    v(x) = 1/(4 pi) * (n * Omega(x) + sum over its edges of m_e * L_e(x))

with n the normal, Omega the solid angle (2 pi just above the panel, -2 pi just below), m_e the in-plane normal of an
edge that looks out of the panel, and L_e = log((r1 + r2 + l) / (r1 + r2 - l)) from the distances to the edge's ends
and its length. L_e belongs to the edge, not the panel, so neighbours share it: half the logarithms of a panel loop.
The ground z = 0 is a mirror: each panel has an image of equal strength below it. Arrays are (panel, point), because
then picking the values of an edge or corner copies whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.workloads.operator.surface import Mesh, facets

# Panel-point pairs worked on at a time: about ten arrays of that many doubles are alive.
_PAIRS = {"cpu": 1 << 18, "cuda": 1 << 26}


@dataclass(frozen=True)
class Panels:
    """A closed mesh made ready for evaluation; float64 on one device."""

    vertices: Tensor  # (V, 3)
    faces: Tensor  # (F, 3)
    edges: Tensor  # (E, 2)
    face_edges: Tensor  # (F, 3) edge k of a face joins its corners k and k + 1
    lengths: Tensor  # (E,)
    across: Tensor  # (3, F, 3) in-plane unit normals of a face's edges, looking out of it
    centroids: Tensor  # (F, 3)
    normals: Tensor  # (F, 3)
    areas: Tensor  # (F,)


def panels_of(mesh: Mesh) -> Panels:
    mesh = Mesh(mesh.vertices.double(), mesh.faces.long())
    shape = facets(mesh)
    sides = torch.stack([mesh.faces, mesh.faces.roll(-1, dims=1)], dim=2).reshape(-1, 2)
    edges, face_edges = torch.unique(sides.sort(dim=1).values, dim=0, return_inverse=True)
    corner = mesh.vertices[mesh.faces]
    along = torch.nn.functional.normalize(corner.roll(-1, dims=1) - corner, dim=2)
    across = torch.linalg.cross(along, shape.normals[:, None, :].expand_as(along))
    lengths = torch.linalg.vector_norm(mesh.vertices[edges[:, 0]] - mesh.vertices[edges[:, 1]], dim=1)
    return Panels(
        mesh.vertices, mesh.faces, edges, face_edges.reshape(-1, 3), lengths,
        across.transpose(0, 1).contiguous(), shape.centroids, shape.normals, shape.areas,
    )  # fmt: skip


def normal_influence(panels: Panels, *, ground: bool) -> Tensor:
    """(F, F): entry (i, j) is the velocity along normal i, just outside centroid i, due to unit strength on panel j."""
    matrix = torch.empty(len(panels.faces), len(panels.faces), dtype=torch.float64, device=panels.vertices.device)
    for rows in _blocks(panels):
        points, directions = panels.centroids[rows], panels.normals[rows]
        block = _along(panels, points, directions, own=rows)
        if ground:
            mirror = _mirror(points)
            block += _along(panels, points * mirror, directions * mirror, own=None)
        matrix[rows] = block.T
    return matrix


def surface_velocity(panels: Panels, strengths: Tensor, *, ground: bool) -> Tensor:
    """(F, 3): the velocity just outside each centroid due to panels of these strengths (F,)."""
    return torch.cat([_total(panels, strengths, panels.centroids[rows], ground, own=rows) for rows in _blocks(panels)])


def velocity(panels: Panels, strengths: Tensor, points: Tensor, *, ground: bool = False) -> Tensor:
    """(B, 3): the velocity at any points (B, 3) off the panels due to panels of these strengths (F,)."""
    chunks = points.split(max(1, _PAIRS[points.device.type] // len(panels.faces)))
    return torch.cat([_total(panels, strengths, chunk, ground, own=None) for chunk in chunks])


def solid_angles(panels: Panels, points: Tensor) -> Tensor:
    """(F, B): the angle a panel fills as seen from a point, positive on the side its normal looks to."""
    return _solid(panels, points, torch.cdist(panels.vertices, points, compute_mode="donot_use_mm_for_euclid_dist"))


def _blocks(panels: Panels) -> Iterator[slice]:
    count = len(panels.faces)
    chunk = max(1, _PAIRS[panels.vertices.device.type] // count)
    return (slice(start, min(start + chunk, count)) for start in range(0, count, chunk))


def _mirror(like: Tensor) -> Tensor:
    return like.new_tensor([1.0, 1.0, -1.0])


def _total(panels: Panels, strengths: Tensor, points: Tensor, ground: bool, own: slice | None) -> Tensor:
    # Summed over the panels first, what an edge counts is one vector: two thin products instead of a full matrix.
    pull = strengths[:, None] * panels.normals
    edge_pull = torch.zeros(len(panels.edges), 3, dtype=pull.dtype, device=pull.device)
    for k in range(3):
        edge_pull.index_add_(0, panels.face_edges[:, k], strengths[:, None] * panels.across[k])

    def one(at: Tensor, own: slice | None) -> Tensor:
        solid, logs = _terms(panels, at, own)
        return (solid.T @ pull + logs.T @ edge_pull) / (4 * math.pi)

    found = one(points, own)
    if ground:
        mirror = _mirror(points)
        found = found + one(points * mirror, None) * mirror
    return found


def _along(panels: Panels, points: Tensor, directions: Tensor, own: slice | None) -> Tensor:
    """(F, B): velocity of each unit panel at points (B, 3), along directions (B, 3)."""
    solid, logs = _terms(panels, points, own)
    total = solid.mul_(panels.normals @ directions.T)
    for k in range(3):
        total.addcmul_(logs[panels.face_edges[:, k]], panels.across[k] @ directions.T)
    return total.div_(4 * math.pi)


def _terms(panels: Panels, points: Tensor, own: slice | None) -> tuple[Tensor, Tensor]:
    """Solid angles (F, B) and edge logarithms (E, B). `own`: the panels whose centroids the points are, in order."""
    distance = torch.cdist(panels.vertices, points, compute_mode="donot_use_mm_for_euclid_dist")  # (V, B)
    solid = _solid(panels, points, distance)
    if own is not None:
        # In its own plane a panel's angle is 2 pi from outside; rounding would choose the side by chance.
        solid[own].fill_diagonal_(2 * math.pi)
    length = panels.lengths[:, None]
    reach = distance[panels.edges[:, 0]].add_(distance[panels.edges[:, 1]])
    # On the edge itself the velocity is infinite; the clamp keeps it a number.
    logs = (reach + length).div_((reach.sub_(length)).clamp_min_(1e-300)).log_()
    return solid, logs


def _solid(panels: Panels, points: Tensor, distance: Tensor) -> Tensor:
    """From the distances alone: a.b = (|a|^2 + |b|^2 - |a - b|^2) / 2 for the vectors to two corners."""
    a, b, c = (distance[panels.faces[:, k]] for k in range(3))
    ab, bc, ca = (panels.lengths[panels.face_edges[:, k]].square()[:, None] for k in range(3))
    aa, bb, cc = a.square(), b.square(), c.square()
    below = (a * b).mul_(c).mul_(2)
    below.addcmul_(aa.add(bb).sub_(ab), c).addcmul_(bb.add_(cc).sub_(bc), a).addcmul_(cc.add_(aa).sub_(ca), b)
    offset = (panels.normals * panels.vertices[panels.faces[:, 0]]).sum(dim=1)
    above = (panels.normals @ points.T).sub_(offset[:, None]).mul_((4 * panels.areas)[:, None])
    return torch.atan2(above, below).mul_(2)
