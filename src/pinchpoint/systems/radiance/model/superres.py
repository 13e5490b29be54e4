"""Super-resolution x2 and x4 that is faithful to the render: its averages are the rendered pixels.

All convolutions run at the size of the render; a pixel shuffle enlarges the result at the end. The inputs are
the colours, the features composited along each ray, and a code of the view. Features and view may be missing,
as for a photograph, so the network can also learn from photographs, which exist in both sizes. Letters: B
images, A of them with known features and view, h side of the render, f factor, F features per ray, K view
codes of C numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.systems.radiance.settings import FACTORS

_SLOPE = 0.2
_NONE = 1e-6  # pixels this close to their average count as equal to it


class ViewCodes(nn.Module):
    """K codes on the circle of views, interpolated linearly between neighbours; 360 degrees
    equals 0 degrees.
    """

    def __init__(self, views: int, numbers: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(0.1 * torch.randn(views, numbers))

    def forward(self, turns: Tensor) -> Tensor:
        """turns: (B,) azimuth in full turns -> (B, C)."""
        views = len(self.codes)
        place = torch.remainder(turns.float(), 1.0) * views
        below = place.floor()
        share = (place - below)[:, None]
        at = below.long() % views  # a turn just below 1 may round up
        return torch.lerp(self.codes[at], self.codes[(at + 1) % views], share)


class SuperRes(nn.Module):
    """Residual convolutions at the size of the render, followed by `project`."""

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
        with torch.random.fork_rng(devices=[]):  # leave the caller's random state untouched
            torch.manual_seed(seed)
            self.view = ViewCodes(views, code)
            self.read = nn.Conv2d(3 + features + code, width, 3, padding=1)
            self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
            # No bias: f x f different biases would print a pattern over the whole image.
            self.write = nn.Conv2d(width, 3 * factor**2, 3, padding=1, bias=False)
            # Small, so that it starts near the enlarged render; not zero, which would block all earlier
            # gradients.
            with torch.no_grad():
                self.write.weight.mul_(0.1)
                # Features start with an even smaller effect, almost as if missing: that case is learned from
                # photographs.
                self.read.weight[:, 3 : 3 + features].mul_(0.1)

    def forward(
        self,
        low: Tensor,
        features: Tensor | None = None,
        turns: Tensor | None = None,
        *,
        cover: Tensor | None = None,
    ) -> Tensor:
        """low: (B, 3, h, h); features: (A, F, h, h); turns: (A,) -> (B, 3, f h, f h), whose averages are
        `low`.

        features, turns: those of the first A images, usually all; the other images have none. cover: (B, h,
        h), the covered fraction of each pixel; where a pixel and its neighbours are empty, no detail is
        added.
        """
        inputs = torch.cat([low, *self._about(low, features, turns)], dim=1)
        # The layout in which tensor cores convolve; others are copied before every layer. A forecast counts
        # this copy on any device.
        if inputs.is_cuda or is_fake(inputs):
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        hidden = self.read(inputs)
        for block in self.blocks:
            hidden = hidden + block(functional.leaky_relu(hidden, _SLOPE))
        fine = functional.pixel_shuffle(self.write(functional.leaky_relu(hidden, _SLOPE)), self.factor)
        with torch.autocast(
            low.device.type, enabled=False
        ):  # Half precision would slightly shift the averages.
            low, fine = low.float(), _smooth(fine.float())
            if cover is not None:
                near = functional.max_pool2d(cover.detach().float()[:, None], 3, stride=1, padding=1)
                fine = fine * functional.interpolate(near, scale_factor=self.factor, mode="nearest")
            return project(enlarge(low, self.factor) + fine, low)

    def _about(self, low: Tensor, features: Tensor | None, turns: Tensor | None) -> list[Tensor]:
        """Inputs besides the colours, each (B, ..., h, h), with 0 where unknown."""
        images, _, *sides = low.shape
        numbers = self.view.codes.shape[1]
        if features is None:
            features = low.new_zeros(0, self.read.in_channels - 3 - numbers, *sides)
        code = low.new_zeros(0, numbers) if turns is None else self.view(turns)
        return [
            _pad_images(features, images),
            _pad_images(code, images)[:, :, None, None].expand(-1, -1, *sides).to(low.dtype),
        ]


def _pad_images(tensor: Tensor, images: int) -> Tensor:
    """Pad (A, ...) to (B, ...) with zeros for the images after the first A."""
    missing = images - len(tensor)
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


def project(high: Tensor, low: Tensor) -> Tensor:
    """The nearest image to `high` (B, C, f h, f h) whose averages over f x f pixels are
    `low` (B, C, h, h).
    """
    factor = high.shape[-1] // low.shape[-1]
    if high.shape[-2:] != (factor * low.shape[-2], factor * low.shape[-1]):
        raise BadInput(
            f"The large image, {tuple(high.shape[-2:])}, is not a whole multiple of the small one, "
            f"{tuple(low.shape[-2:])}.",
            hint="Give images whose sizes have an integer ratio.",
        )
    missing = low - functional.avg_pool2d(high, factor)
    return high + functional.interpolate(missing, scale_factor=factor, mode="nearest")


def confine(high: Tensor, low: Tensor) -> Tensor:
    """Pull `high` (B, C, f h, f h) towards its averages `low` where a pixel would exceed black or white.

    An area that is white on average becomes white throughout. If pixels beyond white were only clipped when
    written to a file, those that compensate for them would remain: a faint pattern around everything on a
    white background. Use it for whole images only: limited pixels no longer show how far off they were, so
    nothing could be learned from them.
    """
    factor = high.shape[-1] // low.shape[-1]
    middle = functional.interpolate(low, scale_factor=factor, mode="nearest")
    above, below = (
        functional.max_pool2d(apart, factor).clamp_min(_NONE) for apart in (high - middle, middle - high)
    )
    room = torch.minimum((1 - low) / above, (1 + low) / below).clamp(0, 1)
    return middle + functional.interpolate(room, scale_factor=factor, mode="nearest") * (high - middle)


def _smooth(fine: Tensor) -> Tensor:
    """Smooth by (1, 2, 1) / 4 along both axes; otherwise the pixel shuffle starts with a checkerboard that
    persists for long.
    """
    # Created on the device: a copy from the host waits for it and cannot be recorded in a graph.
    line = 0.5 - 0.25 * torch.arange(-1, 2, dtype=fine.dtype, device=fine.device).abs()
    kernel = (line[:, None] * line).expand(fine.shape[1], 1, 3, 3)
    return functional.conv2d(
        functional.pad(fine, (1, 1, 1, 1), mode="replicate"), kernel, groups=fine.shape[1]
    )


def residual(high: Tensor, low: Tensor) -> float:
    """Largest difference between the averages of `high` and `low`."""
    return float((functional.avg_pool2d(high, high.shape[-1] // low.shape[-1]) - low).abs().max())


def enlarge(low: Tensor, factor: int, *, mode: str = "bilinear") -> Tensor:
    """Enlarge (B, C, h, h) by bilinear (or bicubic) interpolation."""
    return functional.interpolate(low, scale_factor=factor, mode=mode, align_corners=False)


def stack_pair(high: Tensor, low: Tensor) -> Tensor:
    """Input of the second discriminator: the large image and the enlarged small one, (B, 6, f h, f h)."""
    return torch.cat([high, enlarge(low, high.shape[-1] // low.shape[-1])], dim=1)


def check_factor(factor: int) -> None:
    """Raise an error for a factor that super-resolution does not support."""
    factors = [each for each in FACTORS if each > 1]
    if factor not in factors:
        raise BadInput(
            f"Super-resolution x{factor} is not supported.",
            hint=f"Use one of: {', '.join(f'x{each}' for each in factors)}.",
        )
