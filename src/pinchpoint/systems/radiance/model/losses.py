"""Losses of the two networks, and the R1 penalty on the discriminator's gradient at real patches.

GRAF's code counts every ray of a patch as an image when it averages the penalty, so that its weight of 10 at
32 x 32 is really 10 / 1,024 of the penalty per image. The reduction `graf` reproduces that, `image` is the
penalty as defined. Letters: B images, p side of a patch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.systems.radiance.settings import REDUCTIONS

Reduction = Literal["graf", "image"]


def loss_as_real(logits: Tensor) -> Tensor:
    """Cross-entropy against "real": the generator's loss, and the discriminator's on real patches. logits:
    (B,).
    """
    return functional.softplus(-logits.float()).mean()


def loss_as_generated(logits: Tensor) -> Tensor:
    """Cross-entropy against "generated": the discriminator's loss on generated patches."""
    return functional.softplus(logits.float()).mean()


def label_loss(scores: Tensor, labels: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Cross-entropy of the labels, (), summed over groups of labels that exclude each other.

    scores, labels: (B, L), a row of labels has a 1 in each group; groups: sizes, L in all.
    """
    parts = zip(scores.float().split(groups, dim=1), labels.split(groups, dim=1), strict=True)
    return torch.stack([-(true * part.log_softmax(dim=1)).sum(dim=1).mean() for part, true in parts]).sum()


def slope_penalty(
    critic: Callable[[Tensor], Tensor], real: Tensor, *, reduction: Reduction
) -> tuple[Tensor, Tensor]:
    """The R1 penalty (), which is the mean over images of |d logit / d pixel|^2, and the logits (B,).

    Computed in fp32 with autocast off: squares of small gradients vanish in half precision. real: (B, C, p,
    p).
    """
    with torch.autocast(real.device.type, enabled=False):
        real = real.detach().float().requires_grad_()
        logits = critic(real)
        (slope,) = torch.autograd.grad(logits.sum(), real, create_graph=True)
        return mean_square(slope.square().sum(dim=(1, 2, 3)), real, reduction=reduction), logits


def mean_square(squares: Tensor, images: Tensor, *, reduction: Reduction) -> Tensor:
    """The R1 penalty (), from the squared norms (B,) of the slopes at images (B, C, p, p)."""
    if reduction not in REDUCTIONS:
        raise BadInput(
            f"The reduction {reduction!r} is unknown.", hint=f"Use one of: {', '.join(REDUCTIONS)}."
        )
    penalty = squares.mean()
    return penalty / (images.shape[2] * images.shape[3]) if reduction == "graf" else penalty


def check_gradients(module: nn.Module, *, what: str) -> None:
    """Raise an error if the gradient of a trainable parameter is missing or zero.

    Such a parameter would silently never learn.
    """
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    dead = [
        name
        for name, parameter in trainable.items()
        if parameter.grad is None or not bool(parameter.grad.any())
    ]
    if dead:
        more = f" and {len(dead) - 3} more" if len(dead) > 3 else ""
        raise TargetFailed(
            f"{len(dead)} of {len(trainable)} parameters of the {what} do not get a gradient: "
            f"{', '.join(dead[:3])}{more}.",
            hint="Look for no_grad, detach or unused modules before the loss; an empty field needs noise.",
        )
