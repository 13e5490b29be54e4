"""Which patches a step looks at, and those of photographs: as rays see them, of the same sizes and at the same places.

Letters: B images, p side of a patch, f factor of the super-resolution (1: none), W pixels a side of a whole render.
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
    """Patches of real images, as the generator's. low: (B, 3, p, p); high: (B, 3, f p, f p) or None."""

    low: Tensor
    high: Tensor | None = None

    def part(self, images: slice) -> Real:
        return Real(self.low[images], None if self.high is None else self.high[images])

    def tensors(self) -> tuple[Tensor, ...]:
        """All there is in it, for `Real` again."""
        return (self.low,) if self.high is None else (self.low, self.high)


def real_patches(
    images: Tensor, told: Settings, *, step: int, what: str, every: int | None = None, first: int = 0
) -> Real:
    """Patches of images (B, 3, f W, f W), which are all of a step's, or of `every` of them those from `first` on."""
    generator = generator_for(told.seed, step, what, device=images.device)
    own = slice(first, first + len(images))
    scale, shift = (drawn[own] for drawn in drawn_patches(every or len(images), told, step, generator))
    return cut_patches(images, told, scale, shift)


def drawn_patches(batch: int, told: Settings, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Scales (B,) and shifts (B, 2) of a step's patches, made or real."""
    fixed = told.whole, told.patch / told.size
    return draw_patches(batch, least=told.least_at(step), fixed=fixed, edge=told.edge, generator=generator)


def whole_rows(batch: int, told: Settings) -> tuple[int, ...]:
    """Which of so many patches of a step have rays that are a render's pixels, side by side: by their number, not by chance.

    From the others a super-resolution cannot learn: averaged back it gives what its rays see, which is not all between them.
    """
    return tuple(range(batch)) if told.always_whole else fixed_rows(batch, told.whole)


def rows_among(rows: tuple[int, ...], images: range) -> tuple[int, ...]:
    """Those of the rows that are among the images, counted from the first of these."""
    return tuple(images.index(row) for row in rows if row in images)


def cut_patches(images: Tensor, told: Settings, scale: Tensor, shift: Tensor) -> Real:
    """Patches as rays see them, with a super-resolution: a pixel of `low` is the average over one pixel of a whole render.

    So in wide patches too, whose rays are farther apart. The average over all that lies between two rays would grow with the
    patch: a field, which is no more blurred in one than in another, would learn to be in all. In patches of whole pixels, and
    in those alone, `low` is the average of `high`.
    """
    factor, side = told.superres, told.patch * told.superres
    rays = patches(told.patch, scale, shift).unflatten(1, (told.patch, told.patch))
    if factor == 1:
        return Real(_read(images, rays, mode="bilinear"))  # as published
    within = (torch.arange(factor, device=rays.device) + 0.5 - factor / 2) * (2 / (factor * told.size))
    across = within.repeat(told.patch)
    around = rays.repeat_interleave(factor, 1).repeat_interleave(factor, 2) + torch.stack(
        [across.expand(side, -1), across[:, None].expand(-1, side)], dim=2
    )
    low = functional.avg_pool2d(_read(images, around, mode="bicubic"), factor)
    high = _read(images, patches(side, scale, shift).unflatten(1, (side, side)), mode="bicubic")
    return Real(low, high)


def _read(images: Tensor, places: Tensor, *, mode: str) -> Tensor:
    """Images (B, C, W, W) at places (B, h, w, 2). Curves between pixels blur less than lines, but pass white and black."""
    return functional.grid_sample(
        images, places, mode=mode, padding_mode="border", align_corners=False
    ).clamp(-1, 1)
