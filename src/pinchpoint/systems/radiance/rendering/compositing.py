"""Points along rays and their compositing as published, with autograd, in fp32 or wider.

`shading` computes the same with a handwritten backward pass. Letters: B images, R rays per image, S points
per ray.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pinchpoint.systems.radiance.rendering.rays import Rays

ENDLESS = 1e10  # length of the last interval if it is endless, as published


class Scene(NamedTuple):
    """Inputs of a render besides a field and its codes. offsets, noise: (B, R, S), drawn beforehand."""

    rays: Rays
    offsets: Tensor
    noise: Tensor | None
    white: bool  # white background
    endless: bool  # whether the last interval is endless


class Path(NamedTuple):
    """Points along rays: interval length, density, optical depth and optical depth before the point, each
    (..., S).
    """

    lengths: Tensor
    thick: Tensor
    optical_depth: Tensor
    before: Tensor

    @property
    def weights(self) -> Tensor:
        """The weight of each point: its share of the ray's light."""
        return torch.exp(-self.before) * -torch.expm1(-self.optical_depth)


def depths_of(rays: Rays, offsets: Tensor) -> Tensor:
    """Distances of points, one in each of S equal intervals: (B, R, S)."""
    samples = offsets.shape[2]
    numbers = torch.arange(samples, dtype=offsets.dtype, device=offsets.device)
    return rays.near + (rays.far - rays.near) / samples * (numbers + offsets)


def points_of(rays: Rays, depths: Tensor) -> Tensor:
    """Positions of points at these depths: (B, R, S, 3)."""
    return rays.origins[:, :, None] + rays.directions[:, :, None] * depths[..., None]


def path_of(density: Tensor, depths: Tensor, *, far: float, noise: Tensor | None, endless: bool) -> Path:
    """Optical depths along rays. density: (..., S), before its activation.

    The last interval ends at `far` or is endless.
    """
    thick = torch.relu(density if noise is None else density + noise)
    lengths = torch.diff(depths, dim=-1, append=torch.full_like(depths[..., :1], far))
    if endless:
        lengths[..., -1] = ENDLESS
    optical_depth = thick * lengths
    # Sum up to the previous point: subtracting a point's own part from a running sum would cancel all digits
    # if an interval is endless.
    return Path(
        lengths, thick, optical_depth, torch.nn.functional.pad(optical_depth[..., :-1].cumsum(-1), (1, 0))
    )


def composite(
    colour: Tensor,
    density: Tensor,
    depths: Tensor,
    *,
    far: float,
    noise: Tensor | None = None,
    white: bool = True,
    endless: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Composite points along rays: rgb (..., 3), depth, acc (...), weights (..., S).

    colour: (..., S, 3), density: (..., S), before activations. Transmittance is the exponential of a sum
    instead of a product, because its gradient needs no division and does not synchronise with the device.
    """
    wide = torch.promote_types(density.dtype, torch.float32)
    weights = path_of(density.to(wide), depths, far=far, noise=noise, endless=endless).weights
    acc = weights.sum(-1)
    # Not a matrix product, which may run in tf32.
    rgb = (weights[..., None] * torch.sigmoid(colour.to(wide))).sum(-2)
    if white:
        rgb = rgb + (1 - acc)[..., None]
    return rgb, (weights * depths).sum(-1), acc, weights
