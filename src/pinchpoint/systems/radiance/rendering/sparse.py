"""Whole images from the points that matter, for devices on which a field takes long: CPUs.

A coarse grid says where space around an object is empty. Points in empty cells are not computed, nor points
behind what is already opaque, which together are most points of an image. The image is that of `render` up to
what the grid overlooks, details between its nodes that are far from all others, up to the light that passes
what counts as opaque, and up to veils of which a layer as thick as a cell has an opacity of at most 0.1 %:
along the 40 cells of a diameter, they add up to at most 4 %. Letters: R rays, S points per ray, P
computed points, n nodes per side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.model.folded import FoldedField
from pinchpoint.systems.radiance.rendering.compositing import depths_of, path_of, points_of
from pinchpoint.systems.radiance.rendering.points import encode_with_ones, forward
from pinchpoint.systems.radiance.rendering.rays import Rays
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, RenderOutput
from pinchpoint.systems.radiance.rendering.shading import colour_points

_NODES = 41  # per side
_FAINT = 1e-3  # opacity of a layer as thick as a cell, from which a node is not empty
_OPAQUE = 7.0  # optical depth behind which points are not computed: 0.1 % of the light comes from there
_TOGETHER = 8  # points of a ray between two checks
_POINTS = 4096  # points computed at once


@dataclass(frozen=True)
class Occupancy:
    """Nodes of a grid around the origin that are not empty, or have a neighbour that is not.

    mask: (n, n, n) bool, indexed by x, y, z from -reach to reach.
    """

    mask: Tensor
    reach: float

    def at(self, points: Tensor) -> Tensor:
        """Whether points (..., 3) are near something."""
        nodes = self.mask.shape[0]
        index = ((points + self.reach) * ((nodes - 1) / (2 * self.reach))).round().long()
        inside = ((index >= 0) & (index < nodes)).all(dim=-1)
        x, y, z = index.clamp(0, nodes - 1).unbind(dim=-1)
        return self.mask[x, y, z] & inside


@torch.no_grad()
def find_occupied(field: Field, codes: Codes, reach: float) -> list[Occupancy]:
    """The occupancy of each of B objects inside a ball of radius `reach`."""
    line = torch.linspace(-reach, reach, _NODES, device=codes.shape.device)
    grid = torch.stack(torch.meshgrid(line, line, line, indexing="ij"), dim=3).view(-1, 3)
    index = torch.nonzero(grid.norm(dim=1) <= reach + 2 * reach / (_NODES - 1)).squeeze(1)
    objects = []
    for at in range(len(codes.shape)):
        one = Codes(codes.shape[at : at + 1], codes.app[at : at + 1])
        _, density, _ = evaluate_points(field, one, grid[index], features=False)
        opacity = -torch.expm1(-torch.relu(density) * (2 * reach / (_NODES - 1)))
        values = grid.new_zeros(len(grid))
        values[index] = (opacity > _FAINT).to(values.dtype)
        near = torch.nn.functional.max_pool3d(values.view(1, _NODES, _NODES, _NODES), 3, 1, 1)[0] > 0
        objects.append(Occupancy(near, reach))
    return objects


@torch.no_grad()
def render_sparse(
    field: Field,
    rays: Rays,
    codes: Codes,
    draws: Draws,
    occupancy: Occupancy,
    *,
    white: bool,
    endless: bool,
    features: bool,
) -> RenderOutput:
    """Render one object along the rays of one image, as `render` does. rays, draws: (1, R, ...)."""
    depths = depths_of(rays, draws.offsets)[0]
    points = points_of(rays, depths[None])[0]
    near = occupancy.at(points)
    noise = None if draws.noise is None else draws.noise[0]
    if noise is not None:  # points that noise makes vanish, such as those outside a ball
        near &= noise > -1
    density = torch.full_like(depths, -1.0)
    contributions: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
    clear = torch.ones_like(near[:, 0])  # rays that are not opaque yet
    options = {"far": rays.far, "noise": noise, "endless": endless}
    for first in range(0, near.shape[1], _TOGETHER):
        part = slice(first, first + _TOGETHER)
        ray, step = torch.nonzero(near[:, part] & clear[:, None]).unbind(dim=1)
        if not len(ray):
            continue
        step = step + first
        colour, thick, view = evaluate_points(
            field, codes, points[ray, step], rays.directions[0, ray], features=features
        )
        density[ray, step] = thick
        contributions.append((ray, step, colour, view))
        path = path_of(density, depths, **options)
        clear = path.before[:, -1] + path.optical_depth[:, -1] < _OPAQUE
    weights = path_of(density, depths, **options).weights
    rgb = depths.new_zeros(len(depths), 3)
    total = depths.new_zeros(len(depths), field.config.features) if features else None
    for ray, step, colour, view in contributions:
        share = weights[ray, step][:, None]
        rgb.index_add_(0, ray, share * torch.sigmoid(colour))
        if total is not None and view is not None:
            total.index_add_(0, ray, share * view)
    acc = weights.sum(dim=1)
    if white:
        rgb = rgb + (1 - acc)[:, None]
    depth = (weights * depths).sum(dim=1)
    return RenderOutput(rgb[None], depth[None], acc[None], None if total is None else total[None])


def evaluate_points(
    field: Field, code: Codes, points: Tensor, directions: Tensor | None = None, *, features: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Colour (P, 3) and density (P,) before activations, and features (P, F), of one object at points.

    If colours do not depend on the direction, the folded field computes them, with fewer operations.
    """
    if isinstance(field, Field) and field.config.direction_octaves < 0:
        return _evaluate_folded(field, code, points, features=features)
    if directions is None:
        directions = torch.zeros_like(points)
    parts = [
        field(some, along, *code, features=features)
        for some, along in zip(points.split(_POINTS), directions.split(_POINTS), strict=True)
    ]
    colour, density = (torch.cat([part[at] for part in parts]) for at in (0, 1))
    views = [part[2] for part in parts if part[2] is not None]
    return colour, density[:, 0], torch.cat(views) if views else None


def _evaluate_folded(
    field: Field, code: Codes, points: Tensor, *, features: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    config = field.config
    folded = FoldedField(config, dict(field.named_parameters()), *code, dtype=points.dtype)
    raw, views = [], []
    for some in points.split(_POINTS):
        _, view = forward(folded, encode_with_ones(config, some[None], points.dtype), slice(0, 1), keep=False)
        raw.append(colour_points(folded, view, folded.view[:, 0], write=True, own=False))
        if features:
            views.append(view[:, : config.features])
    values = torch.cat(raw, dim=1)
    return values[:3].t(), values[3], torch.cat(views) if views else None
