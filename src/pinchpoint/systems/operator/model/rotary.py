"""Rotary position embedding in three dimensions: attention scores depend only on the offset between patches.

N patches, heads of width W, A axes. The pairs of a head are distributed evenly over the axes; the remainder
is not rotated. Along one axis (A = 1, patches numbered one after the other) it is the embedding of sequences,
for which neighbours across the end of a row are far away.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The slowest rotation takes 2 pi x 100 patches, far more than any lattice has: all offsets are
# distinguishable.
BASE_3D = 100.0
BASE_1D = 10_000.0


def grid(shape: tuple[int, ...]) -> Tensor:
    """(N, A) float32: the place of every patch, with the last axis varying fastest."""
    axes = [torch.arange(count, dtype=torch.float32) for count in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(shape))


def angles(places: Tensor, head_width: int, *, base: float) -> Tensor:
    """(N, W/2): the rotation angle of each pair of a head at each place. places: (N, A)."""
    axes = places.shape[1]
    pairs = head_width // 2 // axes
    steps = base ** (-torch.arange(pairs, dtype=torch.float32, device=places.device) / max(pairs, 1))
    rotating = (places[:, :, None] * steps).reshape(len(places), axes * pairs)
    zeros = places.new_zeros(len(places), head_width // 2 - axes * pairs)
    return torch.cat([rotating, zeros], dim=1)


def rotate(values: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair (i, i + W/2) of the last axis by its angle.

    values: (..., N, W); cosines, sines: (N, W/2).
    """
    first, second = values.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines], dim=-1)
