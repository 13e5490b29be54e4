"""The patches of a step, and those of photographs: as rays see them, with the same sizes and places.

Letters: B images, p side of a patch, f factor of the super-resolution (1: none), W pixels per side of a whole
render.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.systems.radiance.rendering.rays import draw_patches, fixed_rows, patches
from pinchpoint.systems.radiance.rendering.render import generator_for
from pinchpoint.systems.radiance.settings import Settings


class Real(NamedTuple):
    """Patches of real images. low: (B, 3, p, p); high: (B, 3, f p, f p) or None."""

    low: Tensor
    high: Tensor | None = None

    def part(self, images: slice) -> Real:
        return Real(self.low[images], None if self.high is None else self.high[images])

    def tensors(self) -> tuple[Tensor, ...]:
        """All its tensors, in the order `Real` takes them."""
        return (self.low,) if self.high is None else (self.low, self.high)


def real_patches(
    images: Tensor, settings: Settings, *, step: int, what: str, every: int | None = None, first: int = 0
) -> Real:
    """Patches of images (B, 3, f W, f W): all of a step's images, or `every` images' share
    from `first` on.
    """
    generator = generator_for(settings.seed, step, what, device=images.device)
    own = slice(first, first + len(images))
    scale, shift = (
        values[own] for values in draw_step_patches(every or len(images), settings, step, generator)
    )
    return cut_patches(images, settings, scale, shift)


def draw_step_patches(
    batch: int, settings: Settings, step: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Scales (B,) and shifts (B, 2) of a step's patches, generated or real."""
    fixed = settings.whole, settings.patch / settings.size
    return draw_patches(
        batch, least=settings.least_at(step), fixed=fixed, edge=settings.edge, generator=generator
    )


def whole_rows(batch: int, settings: Settings) -> tuple[int, ...]:
    """Indices of a step's patches whose rays are adjacent pixels of a render: fixed by number, not by chance.

    A super-resolution cannot learn from the others: averaged back it gives what its rays see, not everything
    between them.
    """
    return tuple(range(batch)) if settings.always_whole else fixed_rows(batch, settings.whole)


def rows_among(rows: tuple[int, ...], images: range) -> tuple[int, ...]:
    """The rows among the images, counted from the first of these."""
    return tuple(images.index(row) for row in rows if row in images)


def cut_patches(images: Tensor, settings: Settings, scale: Tensor, shift: Tensor) -> Real:
    """Patches as rays see them; with a super-resolution a pixel of `low` averages one pixel of a whole
    render.

    This holds for wide patches too, whose rays are farther apart. An average over everything between two rays
    would grow with the patch, and a field, which is equally sharp in all patches, would learn to be blurred.
    In patches of whole pixels, and only there, `low` is the average of `high`.
    """
    factor, side = settings.superres, settings.patch * settings.superres
    rays = patches(settings.patch, scale, shift).unflatten(1, (settings.patch, settings.patch))
    if factor == 1:
        return Real(_read(images, rays, mode="bilinear"))  # as published
    within = (torch.arange(factor, device=rays.device) + 0.5 - factor / 2) * (2 / (factor * settings.size))
    across = within.repeat(settings.patch)
    around = rays.repeat_interleave(factor, 1).repeat_interleave(factor, 2) + torch.stack(
        [across.expand(side, -1), across[:, None].expand(-1, side)], dim=2
    )
    low = functional.avg_pool2d(_read(images, around, mode="bicubic"), factor)
    high = _read(images, patches(side, scale, shift).unflatten(1, (side, side)), mode="bicubic")
    return Real(low, high)


def _read(images: Tensor, places: Tensor, *, mode: str) -> Tensor:
    """Sample images (B, C, W, W) at places (B, h, w, 2). Bicubic blurs less than bilinear, but overshoots
    white and black.
    """
    return functional.grid_sample(
        images, places, mode=mode, padding_mode="border", align_corners=False
    ).clamp(-1, 1)
