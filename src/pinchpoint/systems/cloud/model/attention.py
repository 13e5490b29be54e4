"""Attention among voxels that follow one another along the Morton curve, in windows of one group.

C voxels of a level in B groups, windows of W, D the width, H heads. Voxels are sorted by group and curve already: a window is
W of them in a row, and every second layer moves the windows by half, so that what one window knows passes on to the next.
Places are told by a 3 x 3 x 3 convolution before the attention. No window holds voxels of two groups; the last one of a group
is filled up with empty rows that are never read. A voxel takes about 28 D numbers a layer for the backward pass.
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
    """table: (windows * W,) int32, the voxel at each place, C: none; place: (C,) int32; seen: (windows, 1, 1, W) bool."""

    table: Tensor
    place: Tensor
    seen: Tensor
    width: int


def make_windows(level: Level, groups: int, width: int, *, shift: int = 0) -> Windows:
    """Windows of `width` voxels of one group; `shift` places are left empty before the first voxel of each group.

    Their number is a bound known without waiting for the device; windows too many are empty.
    """
    count = level.voxels
    group = level.group
    device = group.device
    starts = torch.searchsorted(group, torch.arange(groups + 1, device=device))  # (B + 1,)
    taken = (starts.diff() + (shift + width - 1)).div(width, rounding_mode="floor")  # windows of each group
    first = taken.cumsum(0) - taken
    place = (first * width + shift - starts[:-1])[group] + torch.arange(count, device=device)
    windows = count // width + groups * (2 if shift else 1)
    table = torch.full((windows * width,), count, dtype=torch.int32, device=device)
    table[place] = torch.arange(count, dtype=torch.int32, device=device)
    seen = (table < count).reshape(windows, 1, 1, width)
    # A window without voxels would divide nothing by nothing: its rows look at themselves and nobody reads them.
    seen = seen | ~seen.any(-1, keepdim=True)
    return Windows(table, place.int(), seen, width)


class WindowAttention(nn.Module):
    """(C, D) to (C, D), every voxel reading those of its window."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, values: Tensor, windows: Windows) -> Tensor:
        rows = gather_rows(self.read(values), windows.table, windows.place[:, None])
        shape = (-1, windows.width, 3, self.heads, values.shape[1] // self.heads)
        query, key, value = rows.reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=windows.seen)
        mixed = mixed.transpose(1, 2).reshape(-1, values.shape[1])
        return self.write(gather_rows(mixed, windows.place, windows.table[:, None]))


class AttentionLayer(nn.Module):
    """(C, D) to (C, D): place, attention, then each voxel alone."""

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
