"""Super-resolution x2 and x4 of a render that stays true to it: averaged back, the large image is the small one.

All convolutions run at the size of the render; pixels are shuffled out at the end. They read the colours, the features the
renderer composited along each ray, and a code of the view. Without features and view, as of a photograph, it still enlarges:
so it can learn from photographs, which are there in both sizes. Letters: B images, A of which features and view are known, h
side of the render, f factor, F features of a ray, K view codes of C numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.settings import FACTORS

_SLOPE = 0.2
_NONE = 1e-6  # less than this a pixel does not differ from the average around it


class ViewCodes(nn.Module):
    """K codes on the circle of views, straight between neighbours: 360 degrees is 0 degrees."""

    def __init__(self, views: int, numbers: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(0.1 * torch.randn(views, numbers))

    def forward(self, turns: Tensor) -> Tensor:
        """turns: (B,) azimuth in whole turns -> (B, C)."""
        views = len(self.codes)
        place = torch.remainder(turns.float(), 1.0) * views
        below = place.floor()
        share = (place - below)[:, None]
        at = below.long() % views  # a turn just under 1 may round up to it
        return torch.lerp(self.codes[at], self.codes[(at + 1) % views], share)


class SuperRes(nn.Module):
    """A few residual convolutions in the space of the render, then `project`."""

    def __init__(
        self,
        factor: int,
        *,
        features: int,
        width: int = 64,
        depth: int = 3,
        views: int = 16,
        code: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_factor(factor)
        self.factor = factor
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay where they are
            torch.manual_seed(seed)
            self.view = ViewCodes(views, code)
            self.read = nn.Conv2d(3 + features + code, width, 3, padding=1)
            self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
            # No bias: one for each of f x f pixels would be a pattern over the whole image.
            self.write = nn.Conv2d(width, 3 * factor**2, 3, padding=1, bias=False)
            # Small, so that it begins near the enlarged render; not zero, or nothing before it would get a gradient.
            with torch.no_grad():
                self.write.weight.mul_(0.1)
                # Smaller still what features change: it begins much as it is without them, and learns that from photographs.
                self.read.weight[:, 3 : 3 + features].mul_(0.1)

    def forward(
        self,
        low: Tensor,
        features: Tensor | None = None,
        turns: Tensor | None = None,
        *,
        cover: Tensor | None = None,
    ) -> Tensor:
        """low: (B, 3, h, h); features: (A, F, h, h); turns: (A,) -> (B, 3, f h, f h) whose averages are `low`.

        features, turns: of the first A images, mostly of all; of the others, as of all without them, they are not known.
        cover: (B, h, h) how much there is in a pixel; where there is nothing, and nothing beside it, nothing is added.
        """
        hidden = self.read(torch.cat([low, *self._about(low, features, turns)], dim=1))
        for block in self.blocks:
            hidden = hidden + block(functional.leaky_relu(hidden, _SLOPE))
        fine = functional.pixel_shuffle(self.write(functional.leaky_relu(hidden, _SLOPE)), self.factor)
        with torch.autocast(
            low.device.type, enabled=False
        ):  # in half precision the averages would be off by a shade
            low, fine = low.float(), _smoothed(fine.float())
            if cover is not None:
                near = functional.max_pool2d(cover.detach().float()[:, None], 3, stride=1, padding=1)
                fine = fine * functional.interpolate(near, scale_factor=self.factor, mode="nearest")
            return project(enlarged(low, self.factor) + fine, low)

    def _about(self, low: Tensor, features: Tensor | None, turns: Tensor | None) -> list[Tensor]:
        """What is read beside the colours, (B, ..., h, h) each: 0 where it is not known."""
        images, _, *sides = low.shape
        numbers = self.view.codes.shape[1]
        if features is None:
            features = low.new_zeros(0, self.read.in_channels - 3 - numbers, *sides)
        code = low.new_zeros(0, numbers) if turns is None else self.view(turns)
        return [
            _filled(features, images),
            _filled(code, images)[:, :, None, None].expand(-1, -1, *sides).to(low.dtype),
        ]


def _filled(known: Tensor, images: int) -> Tensor:
    """(A, ...) -> (B, ...): 0 of images after the first A."""
    missing = images - len(known)
    return torch.cat([known, known.new_zeros(missing, *known.shape[1:])]) if missing else known


def project(high: Tensor, low: Tensor) -> Tensor:
    """The nearest image to `high` (B, C, f h, f h) whose averages over f x f pixels are `low` (B, C, h, h)."""
    factor = high.shape[-1] // low.shape[-1]
    if high.shape[-2:] != (factor * low.shape[-2], factor * low.shape[-1]):
        raise BadInput(
            f"images of {tuple(high.shape[-2:])} over {tuple(low.shape[-2:])}",
            hint="give the larger a whole multiple of the smaller",
        )
    missing = low - functional.avg_pool2d(high, factor)
    return high + functional.interpolate(missing, scale_factor=factor, mode="nearest")


def confined(high: Tensor, low: Tensor) -> Tensor:
    """`high` (B, C, f h, f h), whose averages are `low`, drawn towards these where a pixel would pass black or white.

    What is white on average is white throughout. Cut off by a file, pixels that pass white would leave those they were weighed
    up by: a faint pattern around all that lies before a white background. For whole images: where it draws pixels in, how far
    they strayed no longer shows, and nothing could be learned from it.
    """
    factor = high.shape[-1] // low.shape[-1]
    middle = functional.interpolate(low, scale_factor=factor, mode="nearest")
    above, below = (
        functional.max_pool2d(apart, factor).clamp_min(_NONE) for apart in (high - middle, middle - high)
    )
    room = torch.minimum((1 - low) / above, (1 + low) / below).clamp(0, 1)
    return middle + functional.interpolate(room, scale_factor=factor, mode="nearest") * (high - middle)


def _smoothed(fine: Tensor) -> Tensor:
    """(1, 2, 1) / 4 along both sides: without it the shuffled pixels begin as a checkerboard, and are slow to leave it."""
    # Made on the device: a copy from the host waits for it, and cannot be recorded in a graph.
    line = 0.5 - 0.25 * torch.arange(-1, 2, dtype=fine.dtype, device=fine.device).abs()
    kernel = (line[:, None] * line).expand(fine.shape[1], 1, 3, 3)
    return functional.conv2d(
        functional.pad(fine, (1, 1, 1, 1), mode="replicate"), kernel, groups=fine.shape[1]
    )


def residual(high: Tensor, low: Tensor) -> float:
    """How far the averages of `high` are from `low` at most."""
    return float((functional.avg_pool2d(high, high.shape[-1] // low.shape[-1]) - low).abs().max())


def enlarged(low: Tensor, factor: int, *, mode: str = "bilinear") -> Tensor:
    """Between pixels straight, or with mode bicubic smooth. low: (B, C, h, h)."""
    return functional.interpolate(low, scale_factor=factor, mode=mode, align_corners=False)


def both(high: Tensor, low: Tensor) -> Tensor:
    """What the second discriminator sees, (B, 6, f h, f h): the large image with the enlarged small one, which must agree."""
    return torch.cat([high, enlarged(low, high.shape[-1] // low.shape[-1])], dim=1)


def check_factor(factor: int) -> None:
    """Refuse factors there is no super-resolution for."""
    known = [each for each in FACTORS if each > 1]
    if factor not in known:
        raise BadInput(
            f"super-resolution x{factor}", hint=f"use one of: {', '.join(f'x{each}' for each in known)}"
        )
