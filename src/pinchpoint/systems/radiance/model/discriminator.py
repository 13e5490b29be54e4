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

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edge_ops import own_kernels
from pinchpoint.systems.radiance.model import critic_passes
from pinchpoint.systems.radiance.model.critic_passes import SLOPE
from pinchpoint.systems.radiance.settings import NORMS, SIDES

_aten = torch.ops.aten
_LEAST = 1e-12  # norm by which a vector is divided
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

    def refresh(self, rounds: int = 1) -> None:
        refresh([self], rounds=rounds)

    def normalised(self, *, lanes: bool = False) -> Tensor:
        """The weight of the convolution; see `critic_passes.normalise`."""
        return critic_passes.normalise(self.weight, self.left, self.right, lanes=lanes)

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

    def judge(
        self, images: Tensor, labels: Tensor | None, *, twice: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (B,) of patches with these labels, (B, L) ones and zeros, and the scores of all labels.

        twice: support second derivatives; without them, a GPU needs fewer kernels.
        """
        if not twice and self.has_passes(images):
            logits, scores, _ = self.judge_slopes(images, labels, penalised=0)
            return logits, scores
        if self.scores is None or labels is None:
            return self(images), None
        features = self._features(images)
        scores = self.scores(features).flatten(1)
        return self.last(features).flatten() + (scores * labels).sum(dim=1), scores

    def judge_both(
        self, real: Tensor, generated: Tensor, labels: Tensor | None, *, penalised: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Judge as many real as generated patches in one pass, with the labels of both, (2 B, L): the logits
        of both, (B,), the scores of the real ones' labels and, if they are penalised, the squares (B,) of
        their slopes.
        """
        images, squares = torch.cat([real, generated]), None
        if penalised:
            logits, scores, squares = self.judge_slopes(images, labels, penalised=len(real))
        else:
            logits, scores = self.judge(images, labels, twice=False)
        of_real, of_generated = logits.chunk(2)
        return of_real, of_generated, None if scores is None else scores.chunk(2)[0], squares

    def has_passes(self, images: Tensor) -> bool:
        """Whether `judge_slopes` is for these images, real or simulated: on a GPU, in fp32."""
        return own_kernels(images) and images.dtype is torch.float32 and self.norm != "layer"

    def judge_slopes(
        self, images: Tensor, labels: Tensor | None, *, penalised: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Like `judge`, with the squared norms (m,) of the slopes of the first m = `penalised` logits.

        They are differentiable once; second derivatives are not supported.
        """
        self._check(images)
        weights = [conv.normalised(lanes=at == 0) for at, conv in enumerate(self.convs)]  # type: ignore[operator]
        last = self.last.normalised()
        towards = images.new_ones(len(images), 1)
        if self.scores is not None and labels is not None:
            last = torch.cat([last, self.scores.normalised()])
            towards = torch.cat([towards, labels], dim=1)
        bias: Tensor | None = self.convs[0].bias  # type: ignore[assignment]
        outputs, squares = critic_passes.judge(
            images,
            [*weights, last],
            bias,
            norm=self.norm == "instance",
            towards=towards[:penalised] if penalised else None,
        )
        if self.scores is None or self.scores.bias is None or labels is None:
            return outputs[:, 0], None, squares
        scores = outputs[:, 1:] + self.scores.bias
        return outputs[:, 0] + (scores * labels).sum(dim=1), scores, squares

    def _features(self, images: Tensor) -> Tensor:
        self._check(images)
        hidden = images
        for at, conv in enumerate(self.convs):
            hidden = conv(hidden)
            if at and self.norm == "instance":
                hidden = functional.instance_norm(hidden)
            elif at and self.norm == "layer":
                hidden = functional.group_norm(hidden, 1)
            hidden = functional.leaky_relu(hidden, SLOPE)
        return hidden

    def _check(self, images: Tensor) -> None:
        if images.shape[-2:] != (self.patch, self.patch):
            raise BadInput(
                f"The patches are {images.shape[-2]} x {images.shape[-1]} pixels, "
                f"but the discriminator needs {self.patch} x {self.patch}.",
                hint="Cut patches of its size; to save memory, lower the points per ray or the chunk.",
            )

    def refresh(self) -> None:
        """Advance every power iteration by one round. Call it once per step, before the first pass."""
        refresh(self.spectral_convs())

    def spectral_convs(self) -> list[SpectralConv]:
        return [module for module in self.modules() if isinstance(module, SpectralConv)]


@torch.no_grad()
def refresh(convs: Sequence[SpectralConv], *, rounds: int = 1) -> None:
    """Advance the power iterations of these convolutions, together: on a GPU in few kernels."""
    matrices = [conv.weight.flatten(1) for conv in convs]
    left, right = [conv.left for conv in convs], [conv.right for conv in convs]
    for _ in range(rounds):
        _set(right, [matrix.mT @ vector for matrix, vector in zip(matrices, left, strict=True)])
        _set(left, [matrix @ vector for matrix, vector in zip(matrices, right, strict=True)])


def _set(vectors: list[Tensor], values: list[Tensor]) -> None:
    """Set vectors to values of norm one."""
    lengths = _aten._foreach_norm.Scalar(values)
    _aten._foreach_clamp_min_.Scalar(lengths, _LEAST)
    # By its name: a search for it would read the lengths as numbers, which waits for a GPU.
    _aten._foreach_div_.List(values, lengths)
    _aten._foreach_copy_.default(vectors, values)


def check_side(patch: int) -> None:
    """Raise an error for a patch size without a discriminator."""
    if patch not in SIDES:
        raise BadInput(
            f"Patches of {patch} x {patch} pixels are not supported.",
            hint=f"Use one of: {', '.join(map(str, SIDES))} pixels per side.",
        )
