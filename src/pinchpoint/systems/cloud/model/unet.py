"""U-Net over voxels: residual 3 x 3 x 3 convolutions at every level and attention at the coarse levels.

Letters: C voxels of the finest level, F features per voxel. For the backward pass a block stores 6 F numbers
per voxel of its level: the inputs of its two convolutions, norms and GELUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, cat, nn
from torch.nn import functional

from pinchpoint.systems.cloud.model.attention import AttentionLayer, Windows, make_windows
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.convolution import Conv3, Down, Up
from pinchpoint.systems.cloud.model.norms import make_norm
from pinchpoint.systems.cloud.model.voxels import Level, Voxels


class Block(nn.Module):
    """Residual block from (C, F) to (C, F): two convolutions, each after a norm and a GELU."""

    def __init__(self, width: int, config: CloudConfig) -> None:
        super().__init__()
        self.norms = nn.ModuleList(make_norm(config.norm, width, config.statistics) for _ in range(2))
        self.convs = nn.ModuleList(Conv3(width, width) for _ in range(2))

    def forward(self, values: Tensor, level: Level, view: Tensor) -> Tensor:
        hidden = values
        for norm, conv in zip(self.norms, self.convs, strict=True):
            hidden = conv(functional.gelu(norm(hidden, view)), level)
        return values + hidden


class Stage(nn.Module):
    """One level on the way down: blocks, then attention layers, every second one with shifted windows."""

    def __init__(self, depth: int, config: CloudConfig) -> None:
        super().__init__()
        width = config.widths[depth]
        self.window = config.window
        self.blocks = nn.ModuleList(Block(width, config) for _ in range(config.blocks[depth]))
        self.layers = nn.ModuleList(AttentionLayer(width, config) for _ in range(config.attention[depth]))

    def windows(self, level: Level, groups: int) -> tuple[Windows, ...]:
        """Return the windows of the first two layers.

        All even layers share those of the first layer, all odd layers those of the second.
        """
        shifts = (0, self.window // 2)[: len(self.layers)]
        return tuple(make_windows(level, groups, self.window, shift=shift) for shift in shifts)

    def forward(self, values: Tensor, level: Level, view: Tensor, windows: Sequence[Windows]) -> Tensor:
        for block in self.blocks:
            values = block(values, level, view)
        for number, layer in enumerate(self.layers):
            values = layer(values, level, view, windows[number % 2])
        return values


class Merge(nn.Module):
    """One level on the way up: concatenates the coarser level and the skip, then applies a block."""

    def __init__(self, depth: int, config: CloudConfig) -> None:
        super().__init__()
        width, below = config.widths[depth], config.widths[depth + 1]
        self.norm = make_norm(config.norm, below, config.statistics)
        self.up = Up(below, width)
        self.linear = nn.Linear(2 * width, width)
        self.block = Block(width, config)

    def forward(
        self, values: Tensor, skip: Tensor, voxels: Voxels, depth: int, views: Sequence[Tensor]
    ) -> Tensor:
        upsampled = self.up(functional.gelu(self.norm(values, views[depth + 1])), voxels.strides[depth])
        # The residual stream keeps the dtype of the weights, because half precision under autocast would lose
        # small additions.
        merged = self.linear(cat([upsampled, skip.to(upsampled.dtype)], dim=1)).to(self.linear.weight.dtype)
        return self.block(merged, voxels.levels[depth], views[depth])


class UNet(nn.Module):
    """Map values (C, widths[0]) at the finest voxels to (C, widths[0])."""

    def __init__(self, config: CloudConfig) -> None:
        super().__init__()
        depths = range(len(config.widths) - 1)
        self.stem = Conv3(config.widths[0], config.widths[0])
        self.stages = nn.ModuleList(Stage(depth, config) for depth in range(len(config.widths)))
        self.downs = nn.ModuleList(Down(config.widths[depth], config.widths[depth + 1]) for depth in depths)
        self.down_norms = nn.ModuleList(
            make_norm(config.norm, config.widths[depth], config.statistics) for depth in depths
        )
        self.merges = nn.ModuleList(Merge(depth, config) for depth in depths)
        self.norm = make_norm(config.norm, config.widths[0], config.statistics)

    def windows(self, voxels: Voxels) -> tuple[tuple[Windows, ...], ...]:
        """Return the windows of the attention layers of every level."""
        return tuple(
            cast("Stage", stage).windows(level, voxels.groups)
            for stage, level in zip(self.stages, voxels.levels, strict=True)
        )

    def forward(
        self,
        values: Tensor,
        voxels: Voxels,
        view: Tensor,
        windows: Sequence[Sequence[Windows]] | None = None,
    ) -> Tensor:
        """Run the U-Net. view: (B,), the statistics that each group uses; windows: if made before."""
        windows = self.windows(voxels) if windows is None else windows
        views = [view[level.group] for level in voxels.levels]
        values = values + self.stem(values, voxels.levels[0])
        skips: list[Tensor] = []
        for depth, stage in enumerate(self.stages):
            values = stage(values, voxels.levels[depth], views[depth], windows[depth])
            if depth < len(self.downs):
                skips.append(values)
                values = self.downs[depth](
                    functional.gelu(self.down_norms[depth](values, views[depth])), voxels.strides[depth]
                )
                values = values.to(self.stem.weight.dtype)
        for depth in reversed(range(len(self.merges))):
            values = self.merges[depth](values, skips[depth], voxels, depth, views)
        return functional.gelu(self.norm(values, views[0]))
