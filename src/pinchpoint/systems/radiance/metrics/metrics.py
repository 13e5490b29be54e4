"""Distances between image sets, and the content of a set: hues and silhouettes.

Kernel distance: the unbiased squared maximum mean discrepancy with the kernel (x.y / D + 1)^3, times 1000;
its expectation for two sets from one distribution is 0 for any number of images, so it may be negative.
Frechet distance: between Gaussians fitted to both sets; it has a large positive bias for few images. Both are
named after their features: only with those of Inception are they called FID and KID. Letters: N images, D
features, W pixels per side. Images are (N, 3, W, W) in [-1, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput

HUES = 12  # bins around the circle of hues
_COLOURED = 0.25  # a pixel has a hue if its strongest and weakest channels differ by more than this
_APART = 0.06  # a pixel is not background if a channel differs from it by more than this


def kernel_distance(one: Tensor, two: Tensor) -> float:
    """Kernel distance between features (N, D) and (M, D), times 1000."""
    _check(one, two)
    one, two = one.double(), two.double()
    n, m = len(one), len(two)
    own, other, across = _kernel(one, one), _kernel(two, two), _kernel(one, two)
    # The diagonals are excluded: a feature paired with itself is not a pair of independent draws.
    within = (own.sum() - own.trace()) / (n * (n - 1)) + (other.sum() - other.trace()) / (m * (m - 1))
    return float(1000 * (within - 2 * across.mean()))


def frechet_distance(one: Tensor, two: Tensor) -> float:
    """Frechet distance between the Gaussians fitted to features (N, D) and (M, D)."""
    _check(one, two)
    one, two = one.double(), two.double()
    factors = []
    for values in (one, two):
        # covariance = factor^T factor, stored as the smaller of (N, D) and (D, D).
        factors.append(torch.linalg.qr(values - values.mean(dim=0), mode="r").R / math.sqrt(len(values) - 1))
    apart = (one.mean(dim=0) - two.mean(dim=0)).square().sum()
    spread = factors[0].square().sum() + factors[1].square().sum()
    # The trace of the root of C1 C2 is the sum of the singular values of the factors' product: no matrix root
    # is needed.
    return float(apart + spread - 2 * torch.linalg.svdvals(factors[0] @ factors[1].T).sum())


def distances(real: Tensor, generated: Tensor, *, features: str) -> dict[str, float]:
    """Both distances between features, by name."""
    kernel, frechet = ("KIDx1000", "FID") if features == "inception" else (f"KD-{features}", f"FD-{features}")
    return {kernel: kernel_distance(real, generated), frechet: frechet_distance(real, generated)}


def hues(images: Tensor) -> Tensor:
    """The hue of each image, (N,) in [0, 1), from its coloured pixels; NaN if it has none."""
    rgb = _unit(images)
    high, low = rgb.amax(dim=1), rgb.amin(dim=1)
    range_ = high - low
    red, green, blue = rgb.unbind(dim=1)
    safe = range_.clamp_min(1e-6)
    sixth = torch.where(
        red == high,
        (green - blue) / safe,
        torch.where(green == high, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    weight = torch.where(range_ > _COLOURED, range_, torch.zeros_like(range_)).flatten(1)
    # The mean around the strongest of 36 bins, so that lamps of another colour do not shift it.
    angle = (sixth / 6).flatten(1) % 1
    bins = (angle * 36).long().clamp_max(35)
    counts = torch.zeros(len(images), 36, device=images.device).scatter_add_(1, bins, weight)
    apart = (angle - (counts.argmax(dim=1, keepdim=True) + 0.5) / 36 + 0.5) % 1 - 0.5
    near = weight * (apart.abs() < 1.5 / 36)
    hue = (
        (counts.argmax(dim=1) + 0.5) / 36 + (near * apart).sum(dim=1) / near.sum(dim=1).clamp_min(1e-6)
    ) % 1
    return torch.where(weight.sum(dim=1) > 0, hue, torch.full_like(hue, math.nan))


def hue_coverage(images: Tensor, *, bins: int = HUES) -> float:
    """How evenly the images cover the circle of hues: exp(entropy) / bins, from 0 (no colour) to 1."""
    present = hues(images)
    present = present[~present.isnan()]
    if not len(present):
        return 0.0
    share = torch.bincount((present * bins).long().clamp_max(bins - 1), minlength=bins).double() / len(
        present
    )
    entropy = -(share * share.clamp_min(1e-12).log()).sum()
    return float(entropy.exp() / bins)


def silhouette_area(images: Tensor, *, white: bool = True) -> Tensor:
    """The fraction (N,) of each image that is not background (white, or black)."""
    rgb = _unit(images)
    silhouette = rgb.amin(dim=1) < 1 - _APART if white else rgb.amax(dim=1) > _APART
    return silhouette.double().mean(dim=(1, 2))


def _unit(images: Tensor) -> Tensor:
    return (images.detach().float() + 1) / 2


def _kernel(one: Tensor, two: Tensor) -> Tensor:
    return (one @ two.T / one.shape[1] + 1) ** 3


def _check(one: Tensor, two: Tensor) -> None:
    if one.dim() != 2 or two.dim() != 2 or one.shape[1] != two.shape[1] or min(len(one), len(two)) < 2:
        raise BadInput(
            f"No distance is defined between features of shapes {tuple(one.shape)} and {tuple(two.shape)}.",
            hint="Give at least two images in each set, with features of the same network.",
        )
    if not (one.isfinite().all() and two.isfinite().all()):
        raise BadInput(
            "The features became NaN or infinite.",
            hint="Check the images: one of them contains NaN or infinity.",
        )
