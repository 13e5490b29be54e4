"""Whether the views of an orbit show one thing: smooth silhouettes, one hue, and depths that agree from view to view.

A views around the circle, W pixels a side. Images (A, 3, W, W) in [-1, 1], depth and cover (A, W, W): the distance along
rays of length 1 and the part of a pixel that is not background. The last view is beside the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.metrics.metrics import hues
from pinchpoint.systems.radiance.rendering.rays import Camera, frames, pixels

_SOLID = 0.9  # cover of a pixel whose depth is that of a surface
_HIDDEN = 0.1  # a surface this far behind another is hidden by it, and says nothing


@dataclass(frozen=True)
class Consistency:
    """0 is best in all of them."""

    area_roughness: (
        float  # mean second difference of the silhouette's area over the angle, over the mean area
    )
    hue_spread: float  # circular standard deviation of the views' hues, in turns; NaN where no view has a hue
    depth_error: float  # median distance between a view's surface and the next view's, in units of the scene
    colour_error: float  # median difference of colour there, of 1


def orbit_consistency(
    images: Tensor, depth: Tensor, cover: Tensor, u: Tensor, v: Tensor, *, camera: Camera | None = None
) -> Consistency:
    """Of views at poses (u, v), each (A,), in the order in which they lie around the circle."""
    if len(images) < 3 or not len(images) == len(depth) == len(cover) == len(u) == len(v):
        raise BadInput(
            f"{len(images)} views and {len(u)} poses", hint="give three or more views, and a pose for each"
        )
    area = cover.double().mean(dim=(1, 2))
    bend = (area.roll(1) - 2 * area + area.roll(-1)).abs().mean()
    depths, colours = _reprojected(images, depth, cover, u, v, camera or Camera())
    return Consistency(
        float(bend / area.mean().clamp_min(1e-12)),
        _spread(hues(images)),
        float(depths.median()),
        float(colours.median()),
    )


def _spread(found: Tensor) -> float:
    found = found[~found.isnan()]
    if not len(found):
        return math.nan
    turn = 2 * math.pi * found.double()
    length = torch.sqrt(torch.cos(turn).mean().square() + torch.sin(turn).mean().square()).clamp(1e-12, 1)
    return float(torch.sqrt(-2 * length.log()) / (2 * math.pi))


def _reprojected(
    images: Tensor, depth: Tensor, cover: Tensor, u: Tensor, v: Tensor, camera: Camera
) -> tuple[Tensor, Tensor]:
    """Errors of depth and colour of every surface point that the next view sees too; NaN where there is none."""
    rays = camera.rays(u, v, pixels(images.shape[-1], device=images.device))
    points = rays.origins + depth.flatten(1).nan_to_num(posinf=0.0)[..., None] * rays.directions
    # Seen from the next camera: along its right, up and back.
    frame = frames(u, v).roll(-1, dims=0)
    apart = points - camera.radius * frame[:, 2:]
    right, up, back = (apart @ frame.transpose(1, 2)).unbind(dim=2)
    reach = apart.norm(dim=2)
    steep = math.tan(math.radians(camera.fov_degrees / 2))
    at = torch.stack([right, -up], dim=2) / (-back * steep)[..., None]

    def next_view(values: Tensor) -> Tensor:
        """(A, C, W, W) read in the next view where each point falls: (A, C, W W)."""
        return F.grid_sample(values.roll(-1, dims=0), at[:, None], mode="nearest", align_corners=False)[
            :, :, 0
        ]

    seen = next_view(depth.nan_to_num(posinf=0.0)[:, None])[:, 0]
    shared = (
        (cover.flatten(1) > _SOLID) & (next_view(cover[:, None])[:, 0] > _SOLID) & (reach - seen < _HIDDEN)
    )
    colour = (images.flatten(2) - next_view(images)).abs().mean(dim=1) / 2
    if not shared.any():
        nothing = torch.full((1,), math.nan)
        return nothing, nothing
    return (reach - seen).abs()[shared], colour[shared]
