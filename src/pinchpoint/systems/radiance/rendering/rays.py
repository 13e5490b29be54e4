"""Rays of a pinhole camera on a hemisphere, computed at positions of its image without a map of all rays.

B images, R rays of each, p the side of a patch. The scene lies in the unit sphere around the origin, z up. A
place in the image is (x, y) in [-1, 1], x to the right, y down, pixel centres at (2 i + 1) / size - 1: the
convention of `grid_sample` with align_corners=False, so that patches of a photograph and of a render cover
the same places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput


@dataclass(frozen=True)
class Rays:
    """origins, directions: (B, R, 3), unit directions; near, far: distances between which objects may lie."""

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
                f"Origins of shape {tuple(self.origins.shape)} do not match directions of shape "
                f"{tuple(self.directions.shape)}.",
                hint="Give both as (B, R, 3).",
            )

    def part(self, images: slice, rays: slice) -> Rays:
        return Rays(self.origins[images, rays], self.directions[images, rays], self.near, self.far)


@dataclass(frozen=True)
class Camera:
    """A pinhole camera at distance `radius` that looks at the origin; fov_degrees: what the image spans from
    edge to edge.
    """

    fov_degrees: float = 30.0
    radius: float = 4.0
    near: float = 3.0
    far: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.fov_degrees < 180:
            raise BadInput(
                f"The field of view is {self.fov_degrees} degrees, but it must be between 0 and 180.",
                hint="Give a field of view such as 30.",
            )
        if not 0 <= self.near < self.far or not self.radius > 0:
            raise BadInput(
                f"A camera cannot have near {self.near}, far {self.far} and radius {self.radius}.",
                hint="Give a radius above 0, and 0 <= near < far.",
            )

    def rays(self, u: Tensor, v: Tensor, places: Tensor) -> Rays:
        """Rays through places. u, v: (B,); places: (R, 2) or (B, R, 2) in the image."""
        frame = frames(u, v)  # right, up, back
        if places.dim() == 2:
            places = places.expand(len(u), -1, -1)
        steep = math.tan(math.radians(self.fov_degrees) / 2)
        # Affine in the place: three products per ray, wherever it crosses the image.
        across = torch.stack(
            (steep * places[..., 0], -steep * places[..., 1], -torch.ones_like(places[..., 0])), dim=2
        )
        directions = torch.nn.functional.normalize(across @ frame, dim=2)
        origins = (self.radius * frame[:, 2:]).expand_as(directions)
        return Rays(origins, directions, self.near, self.far)


def frames(u: Tensor, v: Tensor) -> Tensor:
    """Right, up and back of cameras as rows: (B, 3, 3). u in [0, 1): the turn; v: uniform in area, 0 above,
    0.5 at the horizon.

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
        raise BadInput(
            f"The image is {size} pixels wide, but it must be at least 1.", hint="Give a size of at least 1."
        )
    line = (2 * torch.arange(size, dtype=dtype, device=device) + 1) / size - 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((x, y), dim=2).reshape(size * size, 2)


def patches(side: int, scale: Tensor, shift: Tensor) -> Tensor:
    """Places of a patch: p * p points over `scale` (B,) of the image, centred at `shift` (B, 2): (B, p * p,
    2).

    Scale 1 is the whole image; side / size with a shift by whole pixels is exactly those pixels of an image
    of that size.
    """
    return pixels(side, device=scale.device, dtype=scale.dtype) * scale[:, None, None] + shift[:, None]


def fixed_rows(batch: int, share: float) -> tuple[int, ...]:
    """Rows of a batch that make up `share`, rounded up: the first and others evenly, so that every
    micro-batch has some.
    """
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
    """Scales (B,) uniform between least and most, shifts (B, 2) that keep every patch inside its image.

    fixed: a share of the patches (see `fixed_rows`) and their scale. edge: share of patches that touch the
    upper or lower edge, and as many the left or right one. Without it, as published, the outermost pixels are
    hardly ever seen, and nothing corrects what a field leaves there.
    """
    if not 0 < least <= most <= 1:
        raise BadInput(
            f"Patches cannot span between {least} and {most} of an image.",
            hint="Give 0 < least <= most <= 1.",
        )
    scale = torch.empty(batch, device=generator.device).uniform_(least, most, generator=generator)
    share, its_scale = fixed
    # Counted as in `fixed_rows`, but on the device: numbers sent from the host would make it wait.
    counted = (torch.arange(batch + 1, dtype=torch.float64, device=generator.device) * share).ceil()
    scale = torch.where(counted.diff() > 0, its_scale, scale)
    shift = torch.empty(batch, 2, device=generator.device).uniform_(-1, 1, generator=generator)
    return scale, (shift / (1 - edge)).clamp(-1, 1) * (1 - scale)[:, None]


def draw_poses(
    batch: int, *, v_range: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Poses u, v: (B,), uniform over the turn and over the area between the two heights."""
    low, high = v_range
    if not 0 <= low <= high <= 1:
        raise BadInput(
            f"Heights cannot range from {low} to {high}.",
            hint="Give 0 <= low <= high <= 1; 0.5 is the horizon.",
        )
    u, v = (torch.empty(batch, device=generator.device) for _ in range(2))
    return u.uniform_(generator=generator), v.uniform_(low, high, generator=generator)
