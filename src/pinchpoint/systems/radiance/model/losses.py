"""The losses of the two players, and the penalty on the discriminator's slope at real patches.

GRAF's code counts every ray of a patch as an image when it averages the penalty: its weight of 10 at 32 x 32 is 10 / 1,024 of
an image's penalty. `graf` keeps that, `image` is the penalty as it is defined. Letters: B images, p side of a patch.
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


def taken_for_real(logits: Tensor) -> Tensor:
    """Binary cross-entropy against "real": the generator's loss, and the discriminator's of real patches. logits: (B,)."""
    return functional.softplus(-logits.float()).mean()


def taken_for_made(logits: Tensor) -> Tensor:
    """Binary cross-entropy against "made": the discriminator's of made patches."""
    return functional.softplus(logits.float()).mean()


def slope_penalty(
    critic: Callable[[Tensor], Tensor], real: Tensor, *, reduction: Reduction
) -> tuple[Tensor, Tensor]:
    """(): R1, the mean over images of |d logit / d pixel|^2, and the logits (B,) it was taken at.

    In fp32 with autocast off, whatever is on around it: squares of small slopes vanish in half precision. real: (B, C, p, p).
    """
    if reduction not in REDUCTIONS:
        raise BadInput(f"unknown reduction {reduction!r}", hint=f"use one of: {', '.join(REDUCTIONS)}")
    with torch.autocast(real.device.type, enabled=False):
        real = real.detach().float().requires_grad_()
        logits = critic(real)
        (slope,) = torch.autograd.grad(logits.sum(), real, create_graph=True)
        penalty = slope.square().sum(dim=(1, 2, 3)).mean()
        if reduction == "graf":
            penalty = penalty / (real.shape[2] * real.shape[3])
        return penalty, logits


def check_gradients(module: nn.Module, *, what: str) -> None:
    """Refuse a model of which a trainable parameter got no gradient, or only zeros: it would never learn, and nobody be told."""
    wanted = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    cut = [
        name for name, parameter in wanted.items() if parameter.grad is None or not bool(parameter.grad.any())
    ]
    if cut:
        more = f" and {len(cut) - 3} more" if len(cut) > 3 else ""
        raise TargetFailed(
            f"{len(cut)} of {len(wanted)} parameters of the {what} get no gradient: {', '.join(cut[:3])}{more}",
            hint="look for no_grad, detach or a part that is not used before the loss; an empty field needs noise on its density",
        )
