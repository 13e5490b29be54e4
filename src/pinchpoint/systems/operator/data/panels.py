"""Source panels: the exact velocity of triangles with a source density of constant or linear strength.

Letters: F panels, E edges, V vertices, B evaluation points. A unit source density on a flat triangle gives,
at x,

v(x) = 1/(4 pi) * (n * Omega(x) + sum over its edges of m_e * L_e(x))

with n the normal, Omega the solid angle (2 pi just above the panel, -2 pi just below), m_e the in-plane
normal of an edge that points out of the panel, and L_e = log((r1 + r2 + l) / (r1 + r2 - l)) from the
distances to the edge's ends and its length. L_e belongs to the edge, not the panel, so neighbours share it,
which takes half the logarithms of a loop over panels. A density s + g . (y - c), with g in the panel's plane,
adds only products of Omega and L_e with x, and distances:

n (g.(x-c) Omega - z g.M) + sum over edges of m_e (g.(f_e-c) L_e + (g.t_e) (r2 - r1)) - g (sum of d_e L_e
    - z Omega)

where z is the height of x over the plane, M the sum of m_e L_e, t_e the edge's direction, f_e the foot of x
on the edge's line and d_e the distance from x to that line within the plane. So a sum over panels is a
product with 12 columns for each Omega and L_e: a constant vector, and a matrix that multiplies x.

The ground z = 0 is a mirror: each panel has an image of equal strength below it. A body that is symmetric in
y = 0 needs the influence on one half only; the other half is the same with panels exchanged. Arrays are
(panel, point), so that selecting the values of an edge or corner copies whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.systems.operator.data.surface import Mesh, edges_of, facets, mirror_partners

# Panel-point pairs processed together: about ten arrays of that many doubles are alive.
_PAIRS = {"cpu": 1 << 18, "cuda": 1 << 26}


@dataclass(frozen=True)
class Panels:
    """A closed mesh prepared for evaluation; float64 on one device."""

    vertices: Tensor  # (V, 3)
    faces: Tensor  # (F, 3)
    edges: Tensor  # (E, 2)
    face_edges: Tensor  # (F, 3) edge k of a face joins its corners k and k + 1
    lengths: Tensor  # (E,)
    across: Tensor  # (3, F, 3) in-plane unit normals of a face's edges, pointing outward
    centroids: Tensor  # (F, 3)
    normals: Tensor  # (F, 3)
    areas: Tensor  # (F,)
    partners: Tensor | None  # (F,) each panel's image in y = 0, if the mesh is symmetric


def panels_of(mesh: Mesh) -> Panels:
    mesh = Mesh(mesh.vertices.double(), mesh.faces.long())
    shape = facets(mesh)
    edges, face_edges = edges_of(mesh.faces)
    corner = mesh.vertices[mesh.faces]
    along = torch.nn.functional.normalize(corner.roll(-1, dims=1) - corner, dim=2)
    across = torch.linalg.cross(along, shape.normals[:, None, :].expand_as(along))
    lengths = torch.linalg.vector_norm(mesh.vertices[edges[:, 0]] - mesh.vertices[edges[:, 1]], dim=1)
    return Panels(
        mesh.vertices,
        mesh.faces,
        edges,
        face_edges,
        lengths,
        across.transpose(0, 1).contiguous(),
        shape.centroids,
        shape.normals,
        shape.areas,
        mirror_partners(mesh),
    )


def slopes(panels: Panels, strengths: Tensor) -> Tensor:
    """(F, 3) gradients of strengths (F,) in each panel of a closed mesh, from means around its corners."""
    total, count = (
        torch.zeros(len(panels.vertices), dtype=strengths.dtype, device=strengths.device) for _ in range(2)
    )
    for k in range(3):
        _add(total, panels.faces[:, k], strengths)
        _add(count, panels.faces[:, k], torch.ones_like(strengths))
    corner = (total / count)[panels.faces]
    # The weight of a corner falls from 1 to 0 towards the opposite edge.
    over = panels.lengths[panels.face_edges] / (2 * panels.areas[:, None])
    # (3, F), along the edges' outward normals.
    fall = torch.stack([over[:, k] * corner[:, (k + 2) % 3] for k in range(3)])
    return -(fall[:, :, None] * panels.across).sum(dim=0)


def normal_influence(panels: Panels, *, ground: bool) -> Tensor:
    """(F, F): entry (i, j) is the velocity along normal i, just outside centroid i, from unit panel j."""
    matrix = torch.empty(
        len(panels.faces), len(panels.faces), dtype=torch.float64, device=panels.vertices.device
    )
    for rows in _blocks(panels):
        points, directions = panels.centroids[rows], panels.normals[rows]
        block = _along(panels, points, directions, own=rows)
        if ground:
            mirror = _mirror(points)
            block += _along(panels, points * mirror, directions * mirror, own=None)
        matrix[rows] = block.T
        if panels.partners is not None:
            matrix[panels.partners[rows]] = block[panels.partners].T
    return matrix


def surface_velocity(
    panels: Panels, strengths: Tensor, *, ground: bool, slope: Tensor | None = None
) -> Tensor:
    """(F, 3): the velocity just outside each centroid. strengths: (F,); slope: (F, 3), their gradients."""
    sums = [_Sums.of(panels, strengths, slope)]
    velocities = torch.empty_like(panels.centroids)
    across = velocities.new_tensor([1.0, -1.0, 1.0])
    partners = panels.partners
    if partners is not None:
        sums.append(
            _Sums.of(panels, strengths[partners], None if slope is None else slope[partners] * across)
        )
    for rows in _blocks(panels):
        here, *image = _total(panels, sums, panels.centroids[rows], ground, own=rows)
        velocities[rows] = here
        if partners is not None:
            velocities[partners[rows]] = image[0] * across
    return velocities


def velocity(
    panels: Panels, strengths: Tensor, points: Tensor, *, ground: bool = False, slope: Tensor | None = None
) -> Tensor:
    """(B, 3): the velocity at points (B, 3) that are not on a panel. strengths: (F,)."""
    chunks = points.split(max(1, _PAIRS[points.device.type] // len(panels.faces)))
    sums = [_Sums.of(panels, strengths, slope)]
    return torch.cat([_total(panels, sums, chunk, ground, own=None)[0] for chunk in chunks])


def solid_angles(panels: Panels, points: Tensor) -> Tensor:
    """(F, B): the solid angle of a panel as seen from a point, positive on the side of its normal."""
    return _solid(
        panels, points, torch.cdist(panels.vertices, points, compute_mode="donot_use_mm_for_euclid_dist")
    )


def _blocks(panels: Panels) -> Iterator[Tensor]:
    """Blocks of panel indices; of two panels that are mirror images, only the first."""
    numbers = torch.arange(len(panels.faces), device=panels.faces.device)
    if panels.partners is not None:
        numbers = numbers[numbers <= panels.partners]
    return iter(numbers.split(max(1, _PAIRS[panels.vertices.device.type] // len(panels.faces))))


def _mirror(like: Tensor) -> Tensor:
    return like.new_tensor([1.0, 1.0, -1.0])


@dataclass(frozen=True)
class _Sums:
    """The factors of solid angles, logarithms and distances, summed over the panels that share them."""

    solid: Tensor  # (F, 12): 3 for a constant vector, 9 for a matrix that multiplies the point
    logs: Tensor  # (E, 12)
    distance: Tensor  # (V, 3)

    @staticmethod
    def of(panels: Panels, strengths: Tensor, slope: Tensor | None) -> _Sums:
        normals = panels.normals
        slope = torch.zeros_like(normals) if slope is None else slope
        at_origin = strengths[:, None] - _dot(slope, panels.centroids)
        height = _dot(normals, panels.centroids)
        solid = torch.cat(
            [normals * at_origin - slope * height, _outer(normals, slope) + _outer(slope, normals)], dim=1
        )
        logs = solid.new_zeros(len(panels.edges), 12)
        distance = solid.new_zeros(len(panels.vertices), 3)
        for k in range(3):
            start, end = panels.faces[:, k], panels.faces[:, (k + 1) % 3]
            corner, out = panels.vertices[start], panels.across[k]
            along = torch.nn.functional.normalize(panels.vertices[end] - corner, dim=1)
            outward, forward = _dot(slope, out), _dot(slope, along)
            foot = at_origin + _dot(slope, corner) - forward * _dot(along, corner)
            constant = out * foot + normals * (height * outward) - slope * _dot(out, corner)
            times_point = (
                _outer(out * forward, along) + _outer(slope, out) - _outer(normals * outward, normals)
            )
            _add(logs, panels.face_edges[:, k], torch.cat([constant, times_point], dim=1))
            _add(distance, end, out * forward)
            _add(distance, start, -out * forward)
        return _Sums(solid, logs, distance)


def _add(into: Tensor, rows: Tensor, values: Tensor) -> None:
    # Unlike index_add_, this sums in a fixed order on a GPU too: the same body has the same bytes.
    into.index_put_((rows,), values, accumulate=True)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(dim=1, keepdim=True)


def _outer(one: Tensor, other: Tensor) -> Tensor:
    """(F, 3) and (F, 3) to (F, 9)."""
    return (one[:, :, None] * other[:, None, :]).flatten(1)


def _total(
    panels: Panels, sums: list[_Sums], points: Tensor, ground: bool, own: Tensor | None
) -> list[Tensor]:
    """The velocity (B, 3) at points (B, 3) for each of the sums, from one evaluation of the panels."""

    def each(at: Tensor, own: Tensor | None) -> list[Tensor]:
        solid, logs, distance = _terms(panels, at, own)
        answers = []
        for one in sums:
            constant, times_point = (solid.T @ one.solid + logs.T @ one.logs).split([3, 9], dim=1)
            linear = (times_point.reshape(-1, 3, 3) * at[:, None, :]).sum(dim=2)
            answers.append((constant + linear + distance.T @ one.distance) / (4 * math.pi))
        return answers

    velocities = each(points, own)
    if ground:
        mirror = _mirror(points)
        velocities = [
            direct + image * mirror
            for direct, image in zip(velocities, each(points * mirror, None), strict=True)
        ]
    return velocities


def _along(panels: Panels, points: Tensor, directions: Tensor, own: Tensor | None) -> Tensor:
    """(F, B): the velocity of each unit panel at points (B, 3), along directions (B, 3)."""
    solid, logs, _ = _terms(panels, points, own)
    total = solid.mul_(panels.normals @ directions.T)
    for k in range(3):
        total.addcmul_(logs[panels.face_edges[:, k]], panels.across[k] @ directions.T)
    return total.div_(4 * math.pi)


def _terms(panels: Panels, points: Tensor, own: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Solid angles (F, B), edge logarithms (E, B), distances (V, B).

    own: the panels that have the points as centroids.
    """
    distance = torch.cdist(panels.vertices, points, compute_mode="donot_use_mm_for_euclid_dist")  # (V, B)
    solid = _solid(panels, points, distance)
    if own is not None:
        # In its own plane a panel's angle is 2 pi from outside; rounding would choose the side at random.
        solid[own, torch.arange(len(own), device=own.device)] = 2 * math.pi
    length = panels.lengths[:, None]
    reach = distance[panels.edges[:, 0]].add_(distance[panels.edges[:, 1]])
    # On the edge itself the velocity is infinite; the clamp keeps it finite.
    logs = (reach + length).div_((reach.sub_(length)).clamp_min_(1e-300)).log_()
    return solid, logs, distance


def _solid(panels: Panels, points: Tensor, distance: Tensor) -> Tensor:
    """Solid angles from distances: a.b = (|a|^2 + |b|^2 - |a - b|^2) / 2 for the vectors to two corners."""
    a, b, c = (distance[panels.faces[:, k]] for k in range(3))
    ab, bc, ca = (panels.lengths[panels.face_edges[:, k]].square()[:, None] for k in range(3))
    aa, bb, cc = a.square(), b.square(), c.square()
    below = (a * b).mul_(c).mul_(2)
    below.addcmul_(aa.add(bb).sub_(ab), c).addcmul_(bb.add_(cc).sub_(bc), a).addcmul_(cc.add_(aa).sub_(ca), b)
    offset = (panels.normals * panels.vertices[panels.faces[:, 0]]).sum(dim=1)
    above = (panels.normals @ points.T).sub_(offset[:, None]).mul_((4 * panels.areas)[:, None])
    return torch.atan2(above, below).mul_(2)
