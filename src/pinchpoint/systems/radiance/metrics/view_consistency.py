"""Consistency of the views of an orbit: smooth silhouettes, one hue, and depths that agree from view to view.

Images are (A, 3, W, W) in [-1, 1]; depth and cover, each (A, W, W), are the distance along unit rays and the
covered fraction of a pixel. The last view is adjacent to the first. Letters: A views around the circle, W
pixels per side.
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

_SOLID = 0.9  # cover above which a pixel shows a surface
_HIDDEN = 0.1  # a surface this far behind another is hidden and ignored


@dataclass(frozen=True)
class Consistency:
    """Consistency errors; 0 is best for each."""

    # Mean second difference of the silhouette area over the angle, relative to the mean area.
    area_roughness: float
    hue_spread: float  # circular standard deviation of the views' hues, in turns; NaN if no view has a hue
    depth_error: float  # median distance between the surfaces of adjacent views, in scene units
    colour_error: float  # median colour difference at these surfaces, from 0 to 1


def orbit_consistency(
    images: Tensor, depth: Tensor, cover: Tensor, u: Tensor, v: Tensor, *, camera: Camera | None = None
) -> Consistency:
    """Consistency of views at poses u, v, each (A,), in order around the circle."""
    if len(images) < 3 or not len(images) == len(depth) == len(cover) == len(u) == len(v):
        raise BadInput(
            f"An orbit needs three or more views with one pose each, not {len(images)} views "
            f"and {len(u)} poses.",
            hint="Give three or more views, and one pose per view.",
        )
    area = cover.double().mean(dim=(1, 2))
    bend = (area.roll(1) - 2 * area + area.roll(-1)).abs().mean()
    depths, colours = _reprojection_errors(images, depth, cover, u, v, camera or Camera())
    return Consistency(
        float(bend / area.mean().clamp_min(1e-12)),
        _spread(hues(images)),
        float(depths.median()),
        float(colours.median()),
    )


def _spread(hue: Tensor) -> float:
    hue = hue[~hue.isnan()]
    if not len(hue):
        return math.nan
    turn = 2 * math.pi * hue.double()
    length = torch.sqrt(torch.cos(turn).mean().square() + torch.sin(turn).mean().square()).clamp(1e-12, 1)
    return float(torch.sqrt(-2 * length.log()) / (2 * math.pi))


def _reprojection_errors(
    images: Tensor, depth: Tensor, cover: Tensor, u: Tensor, v: Tensor, camera: Camera
) -> tuple[Tensor, Tensor]:
    """Median depth and colour errors of the surface points that the next view also sees; NaN without any."""
    rays = camera.rays(u, v, pixels(images.shape[-1], device=images.device))
    points = rays.origins + depth.flatten(1).nan_to_num(posinf=0.0)[..., None] * rays.directions
    # In the frame of the next camera: right, up and back.
    frame = frames(u, v).roll(-1, dims=0)
    apart = points - camera.radius * frame[:, 2:]
    right, up, back = (apart @ frame.transpose(1, 2)).unbind(dim=2)
    reach = apart.norm(dim=2)
    steep = math.tan(math.radians(camera.fov_degrees / 2))
    at = torch.stack([right, -up], dim=2) / (-back * steep)[..., None]

    def next_view(values: Tensor) -> Tensor:
        """Sample (A, C, W, W) in the next view at the projection of each point: (A, C, W W)."""
        return F.grid_sample(values.roll(-1, dims=0), at[:, None], mode="nearest", align_corners=False)[
            :, :, 0
        ]

    next_depth = next_view(depth.nan_to_num(posinf=0.0)[:, None])[:, 0]
    shared = (
        (cover.flatten(1) > _SOLID)
        & (next_view(cover[:, None])[:, 0] > _SOLID)
        & (reach - next_depth < _HIDDEN)
    )
    colour = (images.flatten(2) - next_view(images)).abs().mean(dim=1) / 2
    if not shared.any():
        nothing = torch.full((1,), math.nan)
        return nothing, nothing
    return (reach - next_depth).abs()[shared], colour[shared]
