"""Attention within windows of voxels that are consecutive along the Morton curve.

Letters: C voxels of a level in B groups, windows of W voxels, width D, H heads. Voxels are already sorted by
group and along the curve, so a window is W consecutive voxels. Every second layer shifts the windows by half
their width, so that information passes from one window to the next. A 3 x 3 x 3 convolution before the
attention encodes positions. No window contains voxels of two groups; the last window of a group is padded
with empty rows that are never read. Each layer stores about 28 D numbers per voxel for the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.convolution import Conv3, gather_rows
from pinchpoint.systems.cloud.model.norms import make_norm
from pinchpoint.systems.cloud.model.voxels import Level


@dataclass(frozen=True)
class Windows:
    """Windows over the voxels of a level.

    table: (windows * W,) int32, the voxel in each slot, or C for an empty slot; place: (C,) int32, the slot
    of each voxel; mask: (windows, 1, 1, W) bool, the slots that attention reads.
    """

    table: Tensor
    place: Tensor
    mask: Tensor
    width: int


def make_windows(level: Level, groups: int, width: int, *, shift: int = 0) -> Windows:
    """Return windows of `width` voxels, each within one group.

    shift: number of empty slots before the first voxel of each group. The number of windows is an upper bound
    that can be computed without waiting for the device; surplus windows are empty.
    """
    count = level.voxels
    group = level.group
    device = group.device
    starts = torch.searchsorted(group, torch.arange(groups + 1, device=device))  # (B + 1,)
    windows_per_group = (starts.diff() + (shift + width - 1)).div(width, rounding_mode="floor")
    first = windows_per_group.cumsum(0) - windows_per_group
    place = (first * width + shift - starts[:-1])[group] + torch.arange(count, device=device)
    windows = count // width + groups * (2 if shift else 1)
    table = torch.full((windows * width,), count, dtype=torch.int32, device=device)
    table[place] = torch.arange(count, dtype=torch.int32, device=device)
    mask = (table < count).reshape(windows, 1, 1, width)
    # The softmax of an empty window would be 0 / 0, so let its rows attend to themselves; nothing reads them.
    mask = mask | ~mask.any(-1, keepdim=True)
    return Windows(table, place.int(), mask, width)


class WindowAttention(nn.Module):
    """Map (C, D) to (C, D); every voxel attends to the voxels of its window."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, values: Tensor, windows: Windows) -> Tensor:
        rows = gather_rows(self.read(values), windows.table, windows.place[:, None])
        shape = (-1, windows.width, 3, self.heads, values.shape[1] // self.heads)
        query, key, value = rows.reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=windows.mask)
        mixed = mixed.transpose(1, 2).reshape(-1, values.shape[1])
        return self.write(gather_rows(mixed, windows.place, windows.table[:, None]))


class AttentionLayer(nn.Module):
    """Map (C, D) to (C, D): position encoding, attention, then a feed-forward layer for each voxel."""

    def __init__(self, width: int, config: CloudConfig) -> None:
        super().__init__()
        self.place = Conv3(width, width)
        self.norms = nn.ModuleList(make_norm(config.norm, width, config.statistics) for _ in range(2))
        self.attention = WindowAttention(width, config.heads)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, values: Tensor, level: Level, view: Tensor, windows: Windows) -> Tensor:
        values = values + self.place(values, level)
        values = values + self.attention(self.norms[0](values, view), windows)
        return values + self.wide(self.norms[1](values, view))
