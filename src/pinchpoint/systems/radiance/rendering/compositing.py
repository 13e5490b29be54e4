"""Points along rays and what a ray sees of them: as published, by autograd, in fp32 at least.

B images, R rays of each, S points of a ray. `shading` computes the same without autograd, with a backward pass of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pinchpoint.systems.radiance.rendering.rays import Rays

ENDLESS = 1e10  # length of a last interval that has no end, as published


class Scene(NamedTuple):
    """What an image is of, beside a field and its codes. offsets, noise: (B, R, S), drawn before."""

    rays: Rays
    offsets: Tensor
    noise: Tensor | None
    white: bool  # behind everything
    endless: bool  # the last interval


class Path(NamedTuple):
    """Light along rays, (..., S) each: length of an interval, its density, their product, and that of all points before."""

    lengths: Tensor
    thick: Tensor
    passed: Tensor
    before: Tensor

    @property
    def weights(self) -> Tensor:
        """How much of a ray's light comes from each point."""
        return torch.exp(-self.before) * -torch.expm1(-self.passed)


def depths_of(rays: Rays, offsets: Tensor) -> Tensor:
    """Distances of points, one in each of S equal intervals: (B, R, S)."""
    samples = offsets.shape[2]
    numbers = torch.arange(samples, dtype=offsets.dtype, device=offsets.device)
    return rays.near + (rays.far - rays.near) / samples * (numbers + offsets)


def points_of(rays: Rays, depths: Tensor) -> Tensor:
    """(B, R, S, 3)."""
    return rays.origins[:, :, None] + rays.directions[:, :, None] * depths[..., None]


def path_of(density: Tensor, depths: Tensor, *, far: float, noise: Tensor | None, endless: bool) -> Path:
    """density: (..., S), before its activation. The last interval ends at `far` or, as published, nowhere."""
    thick = torch.relu(density if noise is None else density + noise)
    lengths = torch.diff(depths, dim=-1, append=torch.full_like(depths[..., :1], far))
    if endless:
        lengths[..., -1] = ENDLESS
    passed = thick * lengths
    # What lies before a point: the sum up to it less its own part, which for an endless interval would cancel to nothing.
    return Path(lengths, thick, passed, torch.nn.functional.pad(passed[..., :-1].cumsum(-1), (1, 0)))


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
    """What a ray sees of its points: rgb (..., 3), depth, acc (...), weights (..., S).

    colour: (..., S, 3), density: (..., S), before activations. Transmittance is the exponential of a sum, not a product: no
    division by zero in its gradient, no wait for the device.
    """
    wide = torch.promote_types(density.dtype, torch.float32)
    weights = path_of(density.to(wide), depths, far=far, noise=noise, endless=endless).weights
    acc = weights.sum(-1)
    rgb = (weights[..., None] * torch.sigmoid(colour.to(wide))).sum(
        -2
    )  # no product of matrices: those may be set to tf32
    if white:
        rgb = rgb + (1 - acc)[..., None]
    return rgb, (weights * depths).sum(-1), acc, weights
