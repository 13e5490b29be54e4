"""Rotary position embedding in three dimensions: scores of attention depend on the offset between patches alone.

N patches, W wide heads, A axes. The pairs of a head are dealt out evenly over the axes; what does
not divide stays unturned. Along one axis (A = 1, patches numbered one after the other) it is the
embedding of sequences, which takes neighbours across a row's end for far away.
"""

from __future__ import annotations

import torch
from torch import Tensor

BASE_3D = (
    100.0  # the slowest turn takes 2 pi x 100 patches: far beyond any lattice, so no two offsets look alike
)
BASE_1D = 10_000.0


def grid(shape: tuple[int, ...]) -> Tensor:
    """(N, A) float32: where every patch lies, the last axis running fastest."""
    axes = [torch.arange(count, dtype=torch.float32) for count in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(shape))


def angles(places: Tensor, head_width: int, *, base: float) -> Tensor:
    """(N, W/2): by how much each pair of a head is turned at each place. places: (N, A)."""
    axes = places.shape[1]
    pairs = head_width // 2 // axes
    steps = base ** (-torch.arange(pairs, dtype=torch.float32, device=places.device) / max(pairs, 1))
    turned = (places[:, :, None] * steps).reshape(len(places), axes * pairs)
    still = places.new_zeros(len(places), head_width // 2 - axes * pairs)
    return torch.cat([turned, still], dim=1)


def turn(values: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Each pair (i, i + W/2) of the last axis turned by its angle. values: (..., N, W); cosines, sines: (N, W/2)."""
    first, second = values.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines], dim=-1)
