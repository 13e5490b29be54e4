"""Rays of a pinhole camera on a hemisphere, evaluated at points of its image: no map of all rays is made.

B images, R rays of each, p the side of a patch. The scene lies in the unit sphere around the origin, z up. A place in the
image is (x, y) in [-1, 1], x to the right, y down, pixel centres at (2 i + 1) / size - 1: what `grid_sample` with
align_corners=False reads, so that a patch of a photograph and a patch of a render are of the same places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput


@dataclass(frozen=True)
class Rays:
    """origins, directions: (B, R, 3), directions of length 1; near, far: distances between which something may lie."""

    origins: Tensor
    directions: Tensor
    near: float
    far: float

    def __post_init__(self) -> None:
        if (
            self.origins.shape != self.directions.shape
            or self.origins.dim() != 3
            or self.origins.shape[2] != 3
        ):
            raise BadInput(
                f"origins {tuple(self.origins.shape)}, directions {tuple(self.directions.shape)}",
                hint="give both as (B, R, 3)",
            )

    def part(self, images: slice, rays: slice) -> Rays:
        return Rays(self.origins[images, rays], self.directions[images, rays], self.near, self.far)


@dataclass(frozen=True)
class Camera:
    """A pinhole that looks at the origin from `radius` away; fov_degrees: what the image spans, from edge to edge."""

    fov_degrees: float = 30.0
    radius: float = 4.0
    near: float = 3.0
    far: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.fov_degrees < 180:
            raise BadInput(
                f"a field of view of {self.fov_degrees} degrees", hint="give one between 0 and 180"
            )
        if not 0 <= self.near < self.far or not self.radius > 0:
            raise BadInput(
                f"near {self.near}, far {self.far}, radius {self.radius}",
                hint="give a radius above 0, and 0 <= near < far",
            )

    def rays(self, u: Tensor, v: Tensor, places: Tensor) -> Rays:
        """u, v: (B,); places: (R, 2) or (B, R, 2) in the image."""
        frame = frames(u, v)  # right, up, back
        if places.dim() == 2:
            places = places.expand(len(u), -1, -1)
        steep = math.tan(math.radians(self.fov_degrees) / 2)
        # Affine in the place: three products for each ray, wherever it goes through the image.
        across = torch.stack(
            (steep * places[..., 0], -steep * places[..., 1], -torch.ones_like(places[..., 0])), dim=2
        )
        directions = torch.nn.functional.normalize(across @ frame, dim=2)
        origins = (self.radius * frame[:, 2:]).expand_as(directions)
        return Rays(origins, directions, self.near, self.far)


def frames(u: Tensor, v: Tensor) -> Tensor:
    """Right, up and back of cameras as rows: (B, 3, 3). u in [0, 1): the turn; v: even in area, 0 above, 0.5 at the horizon.

    The sideways direction is level by construction, so that straight above is no special case.
    """
    turn = 2 * math.pi * u
    high = 1 - 2 * v
    flat = (1 - high * high).clamp_min(0).sqrt()
    cos, sin, none = turn.cos(), turn.sin(), torch.zeros_like(turn)
    right = torch.stack((-sin, cos, none), dim=1)
    up = torch.stack((-high * cos, -high * sin, flat), dim=1)
    back = torch.stack((flat * cos, flat * sin, high), dim=1)
    return torch.stack((right, up, back), dim=1)


def pixels(size: int, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Centres of all pixels of a square image, row by row: (size * size, 2)."""
    if size < 1:
        raise BadInput(f"an image of {size} pixels", hint="give at least 1")
    line = (2 * torch.arange(size, dtype=dtype, device=device) + 1) / size - 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((x, y), dim=2).reshape(size * size, 2)


def patches(side: int, scale: Tensor, shift: Tensor) -> Tensor:
    """Places of a patch: p * p points over `scale` (B,) of the image, its middle at `shift` (B, 2): (B, p * p, 2).

    Scale 1 is the whole image; side / size with a shift by whole pixels is exactly those pixels of an image of that size.
    """
    return pixels(side, device=scale.device, dtype=scale.dtype) * scale[:, None, None] + shift[:, None]


def fixed_rows(batch: int, share: float) -> tuple[int, ...]:
    """Of so many, a share, rounded up: the first among it and the others evenly, so that every part of a batch has some."""
    return tuple(row for row in range(batch) if math.ceil((row + 1) * share) > math.ceil(row * share))


def draw_patches(
    batch: int,
    *,
    least: float,
    most: float = 1.0,
    fixed: tuple[float, float] = (0.0, 1.0),
    edge: float = 0.0,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Scales (B,) even between least and most, shifts (B, 2) that keep every patch inside its image.

    fixed: a share of them, see `fixed_rows`, and its scale. edge: share of those that touch the upper or the lower edge, and as
    many the left or the right one. Without, as published, the outermost pixels are hardly ever looked at, and what a field
    leaves there nobody corrects.
    """
    if not 0 < least <= most <= 1:
        raise BadInput(f"patches between {least} and {most} of an image", hint="give 0 < least <= most <= 1")
    scale = torch.empty(batch, device=generator.device).uniform_(least, most, generator=generator)
    share, its_scale = fixed
    # As `fixed_rows` counts, on the device: numbers sent there from the host would be waited for.
    counted = (torch.arange(batch + 1, dtype=torch.float64, device=generator.device) * share).ceil()
    scale = torch.where(counted.diff() > 0, its_scale, scale)
    shift = torch.empty(batch, 2, device=generator.device).uniform_(-1, 1, generator=generator)
    return scale, (shift / (1 - edge)).clamp(-1, 1) * (1 - scale)[:, None]


def draw_poses(
    batch: int, *, v_range: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """u, v: (B,), even over the turn and over the area between the two heights."""
    low, high = v_range
    if not 0 <= low <= high <= 1:
        raise BadInput(f"heights from {low} to {high}", hint="give 0 <= low <= high <= 1; 0.5 is the horizon")
    u, v = (torch.empty(batch, device=generator.device) for _ in range(2))
    return u.uniform_(generator=generator), v.uniform_(low, high, generator=generator)
