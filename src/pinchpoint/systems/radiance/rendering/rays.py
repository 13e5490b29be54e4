"""Rays of a pinhole camera on a hemisphere, computed only at the requested positions of its image.

The scene lies in the unit sphere around the origin, with z up. A place in the image is (x, y) in [-1, 1],
with x to the right, y down, and pixel centres at (2 i + 1) / size - 1. This is the convention of
`grid_sample` with align_corners=False, so that patches of photographs and of renders cover the same places.
Letters: B images, R rays per image, p side of a patch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput


@dataclass(frozen=True)
class Rays:
    """origins, directions: (B, R, 3), with unit directions; near, far: range of rendered distances."""

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
    """A pinhole camera at distance `radius` that looks at the origin.

    fov_degrees: angle from one edge of the image to the opposite one.
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
        """Rays through places of the image. u, v: (B,); places: (R, 2) or (B, R, 2)."""
        frame = frames(u, v)  # right, up, back
        if places.dim() == 2:
            places = places.expand(len(u), -1, -1)
        steep = math.tan(math.radians(self.fov_degrees) / 2)
        # Rays are affine in the place, which needs three products per ray.
        across = torch.stack(
            (steep * places[..., 0], -steep * places[..., 1], -torch.ones_like(places[..., 0])), dim=2
        )
        directions = torch.nn.functional.normalize(across @ frame, dim=2)
        origins = (self.radius * frame[:, 2:]).expand_as(directions)
        return Rays(origins, directions, self.near, self.far)


def frames(u: Tensor, v: Tensor) -> Tensor:
    """The right, up and back vectors of cameras as rows: (B, 3, 3).

    u: azimuth in turns, in [0, 1); v: height, uniform in area, 0 straight above and 0.5 at the horizon.

    The right vector is always horizontal, so that straight above is not a special case.
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
    """Places of patches, (B, p * p, 2), that span `scale` (B,) of the image and are centred at `shift` (B,
    2).

    Scale 1 is the whole image. With scale side / size and a shift by whole pixels, the places are pixel
    centres of an image of that size.
    """
    return pixels(side, device=scale.device, dtype=scale.dtype) * scale[:, None, None] + shift[:, None]


def fixed_rows(batch: int, share: float) -> tuple[int, ...]:
    """Rows of a batch that make up `share` of it, rounded up.

    They are the first row and others at even distances, so that every micro-batch contains some.
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
    """Draw scales (B,) uniformly between least and most, and shifts (B, 2) that keep patches inside the
    image.

    fixed: a share of the patches (see `fixed_rows`) and their scale. edge: share of patches that touch the
    upper or lower edge; the same share touches the left or right one. With edge=0, as published, the
    discriminator hardly ever sees the outermost pixels, and nothing corrects the field there.
    """
    if not 0 < least <= most <= 1:
        raise BadInput(
            f"Patches cannot span between {least} and {most} of an image.",
            hint="Give 0 < least <= most <= 1.",
        )
    scale = torch.empty(batch, device=generator.device).uniform_(least, most, generator=generator)
    share, its_scale = fixed
    # The same rows as in `fixed_rows`, computed on the device: copying them from the host would synchronise.
    counts = (torch.arange(batch + 1, dtype=torch.float64, device=generator.device) * share).ceil()
    scale = torch.where(counts.diff() > 0, its_scale, scale)
    shift = torch.empty(batch, 2, device=generator.device).uniform_(-1, 1, generator=generator)
    return scale, (shift / (1 - edge)).clamp(-1, 1) * (1 - scale)[:, None]


def draw_poses(
    batch: int, *, v_range: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw poses u, v, each (B,), uniformly in azimuth and in area between the two heights."""
    low, high = v_range
    if not 0 <= low <= high <= 1:
        raise BadInput(
            f"Heights cannot range from {low} to {high}.",
            hint="Give 0 <= low <= high <= 1; 0.5 is the horizon.",
        )
    u, v = (torch.empty(batch, device=generator.device) for _ in range(2))
    return u.uniform_(generator=generator), v.uniform_(low, high, generator=generator)
