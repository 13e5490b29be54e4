"""Patches of a training step, and patches of photographs with the same sizes and places.

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
    """Patches of real images. low: (B, 3, p, p); high: (B, 3, f p, f p) or None; labels: (B, L) or None."""

    low: Tensor
    high: Tensor | None = None
    labels: Tensor | None = None

    def part(self, images: slice) -> Real:
        return Real(*(None if part is None else part[images] for part in self))  # pyright: ignore[reportArgumentType]

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in the order in which `of` takes them."""
        return tuple(part for part in self if part is not None)

    @staticmethod
    def of(*tensors: Tensor, has_labels: bool) -> Real:
        """has_labels: whether the last tensor is that of the labels."""
        return Real(*tensors[:-1])._replace(labels=tensors[-1]) if has_labels else Real(*tensors)


def real_patches(
    images: Tensor, settings: Settings, *, step: int, what: str, every: int | None = None, first: int = 0
) -> Real:
    """Cut patches of images (B, 3, f W, f W).

    The images are all images of a step, or the part from index `first` on of `every` images.
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
    """Draw scales (B,) and shifts (B, 2) of a step's patches, generated or real."""
    fixed = settings.whole, settings.patch / settings.size
    return draw_patches(
        batch, least=settings.least_at(step), fixed=fixed, edge=settings.edge, generator=generator
    )


def whole_rows(batch: int, settings: Settings) -> tuple[int, ...]:
    """Indices of a step's patches whose rays are adjacent pixels of a render; they are not random.

    Super-resolution cannot learn from the other patches: its averages are what the rays see, not the area
    between the rays.
    """
    return tuple(range(batch)) if settings.always_whole else fixed_rows(batch, settings.whole)


def rows_among(rows: tuple[int, ...], images: range) -> tuple[int, ...]:
    """The rows that are among `images`, counted from the first of these images."""
    return tuple(images.index(row) for row in rows if row in images)


def cut_patches(images: Tensor, settings: Settings, scale: Tensor, shift: Tensor) -> Real:
    """Cut patches as rays see them.

    With super-resolution, a pixel of `low` is the average over one pixel of a whole render, also in wide
    patches, whose rays are farther apart. An average over the whole area between two rays would grow with the
    patch, and a field, which is equally sharp in all patches, would learn to be blurred. Only in patches of
    whole pixels is `low` the average of `high`.
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
