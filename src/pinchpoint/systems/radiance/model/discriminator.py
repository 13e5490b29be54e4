"""GRAF's patch discriminator: strided convolutions with spectral and instance norm.

Patches are 32, 64 or 128 pixels wide.

The published network cannot see contrast: without biases, making a patch paler only scales the activations of
every layer, and the norm removes any scale. Here the first layer has a bias by default, so that brightness
matters.

No statistic of one image affects another, and the power iteration of the spectral norm advances only in
`refresh`, once per step: a batch that is processed in parts therefore has the same gradient as the whole.
Letters: B images, p side of a patch, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.settings import NORMS, SIDES

_SLOPE = 0.2
_WARM = 15  # power iterations before the first training step


class SpectralConv(nn.Module):
    """A convolution whose weight, as a matrix (out, in * k * k), is divided by its estimated largest singular
    value.
    """

    left: Tensor
    right: Tensor

    def __init__(self, inputs: int, outputs: int, *, stride: int, padding: int, bias: bool = False) -> None:
        super().__init__()
        conv = nn.Conv2d(inputs, outputs, 4, bias=bias)
        self.weight, self.bias, self.stride, self.padding = conv.weight, conv.bias, stride, padding
        matrix = self.weight.detach().flatten(1)
        self.register_buffer("left", functional.normalize(torch.randn(matrix.shape[0]), dim=0))
        self.register_buffer("right", functional.normalize(torch.randn(matrix.shape[1]), dim=0))
        self.refresh(rounds=_WARM)

    @torch.no_grad()
    def refresh(self, rounds: int = 1) -> None:
        matrix = self.weight.flatten(1)
        for _ in range(rounds):
            self.right.copy_(functional.normalize(matrix.mT @ self.left, dim=0))
            self.left.copy_(functional.normalize(matrix @ self.right, dim=0))

    def forward(self, images: Tensor) -> Tensor:
        # Copies: a later `refresh` must not change what a backward pass still reads.
        sigma = self.left.clone() @ (self.weight.flatten(1) @ self.right.clone())
        return functional.conv2d(
            images, self.weight / sigma, self.bias, stride=self.stride, padding=self.padding
        )


class Discriminator(nn.Module):
    """Computes one logit per patch, above 0 if it looks real.

    GRAF uses width 64, which gives 128, 256 and 512 channels for 32 x 32 patches. labels: number L of labels,
    each of which has a score too; the score of a patch's own labels is added to its logit.
    """

    def __init__(
        self,
        patch: int,
        *,
        channels: int = 3,
        width: int = 64,
        norm: str = "instance",
        bias: bool = True,
        labels: int = 0,
    ) -> None:
        super().__init__()
        check_side(patch)
        if norm not in NORMS:
            raise BadInput(f"The norm {norm!r} is unknown.", hint=f"Use one of: {', '.join(NORMS)}.")
        self.patch, self.norm = patch, norm
        halvings = patch.bit_length() - 3  # down to 4 x 4
        widths = [max(1, width * 8 >> (halvings - 1 - at)) for at in range(halvings)]
        self.convs = nn.ModuleList(
            SpectralConv(inputs, outputs, stride=2, padding=1, bias=bias and at == 0)
            for at, (inputs, outputs) in enumerate(zip([channels, *widths[:-1]], widths, strict=True))
        )
        self.last = SpectralConv(widths[-1], 1, stride=1, padding=0)
        self.scores = SpectralConv(widths[-1], labels, stride=1, padding=0, bias=True) if labels else None

    def forward(self, images: Tensor) -> Tensor:
        """images: (B, C, p, p) in [-1, 1] -> (B,)."""
        return self.last(self._features(images)).flatten()

    def judge(self, images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits (B,) of patches with these labels, (B, L) ones and zeros, and the scores of all labels."""
        if self.scores is None or labels is None:
            return self(images), None
        features = self._features(images)
        scores = self.scores(features).flatten(1)
        return self.last(features).flatten() + (scores * labels).sum(dim=1), scores

    def _features(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (self.patch, self.patch):
            raise BadInput(
                f"The patches are {images.shape[-2]} x {images.shape[-1]} pixels, "
                f"but the discriminator needs {self.patch} x {self.patch}.",
                hint="Cut patches of its size; to save memory, lower the points per ray or the chunk.",
            )
        hidden = images
        for at, conv in enumerate(self.convs):
            hidden = conv(hidden)
            if at and self.norm == "instance":
                hidden = functional.instance_norm(hidden)
            elif at and self.norm == "layer":
                hidden = functional.group_norm(hidden, 1)
            hidden = functional.leaky_relu(hidden, _SLOPE)
        return hidden

    def refresh(self) -> None:
        """Advance every power iteration by one round. Call it once per step, before the first pass."""
        for module in self.modules():
            if isinstance(module, SpectralConv):
                module.refresh()


def check_side(patch: int) -> None:
    """Raise an error for a patch size without a discriminator."""
    if patch not in SIDES:
        raise BadInput(
            f"Patches of {patch} x {patch} pixels are not supported.",
            hint=f"Use one of: {', '.join(map(str, SIDES))} pixels per side.",
        )
