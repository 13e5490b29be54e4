"""The U-Net on a full grid equals the same network built from torch's dense convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.convolution import Conv3
from pinchpoint.systems.cloud.model.unet import UNet
from pinchpoint.systems.cloud.model.voxels import voxelise

SIDE = 8


def test_on_a_full_grid_the_unet_equals_dense_convolutions() -> None:
    torch.manual_seed(0)
    config = CloudConfig(
        in_features=0, classes=2, widths=(6, 8, 10), blocks=(1, 2, 0), attention=(0, 0, 0), heads=1
    )
    net = UNet(config).double()
    at = torch.cartesian_prod(*[torch.arange(SIDE)] * 3)
    voxels = voxelise(at.double() + 0.5, torch.tensor([0, len(at)]), cell=1.0, levels=3)
    values = torch.randn(len(at), 6, dtype=torch.float64)
    x, y, z = voxels.levels[0].coordinates().T
    grid = torch.zeros(SIDE, SIDE, SIDE, 6, dtype=torch.float64)
    grid[x, y, z] = values
    result = net(values, voxels, torch.zeros(1, dtype=torch.int64))
    assert torch.allclose(result, _dense(net, grid)[x, y, z], atol=1e-9)


def _dense(net: UNet, grid: Tensor) -> Tensor:
    """Run the network with dense convolutions. grid: (side, side, side, F), features last."""
    grid = grid + _conv(net.stem, grid)
    skips = []
    for depth, stage in enumerate(net.stages):
        for block in stage.blocks:  # pyright: ignore[reportGeneralTypeIssues]
            grid = _block(block, grid)
        if depth < 2:
            skips.append(grid)
            linear: nn.Linear = net.downs[depth].linear  # pyright: ignore[reportAssignmentType]
            wide, outputs = grid.shape[-1], linear.out_features
            weight = linear.weight.reshape(outputs, 2, 2, 2, wide).permute(0, 4, 1, 2, 3)
            grid = functional.gelu(_norm(net.down_norms[depth], grid)).permute(3, 0, 1, 2)[None]
            grid = functional.conv3d(grid, weight, linear.bias, stride=2)[0].permute(1, 2, 3, 0)
    for depth in (1, 0):
        merge = net.merges[depth]
        up: nn.Linear = merge.up.linear  # pyright: ignore[reportAttributeAccessIssue, reportAssignmentType]
        weight = up.weight.reshape(2, 2, 2, -1, up.in_features).permute(4, 3, 0, 1, 2)
        grid = functional.gelu(_norm(merge.norm, grid)).permute(3, 0, 1, 2)[None]  # pyright: ignore[reportArgumentType]
        grid = functional.conv_transpose3d(grid, weight, stride=2)[0].permute(1, 2, 3, 0)
        grid = _block(merge.block, merge.linear(torch.cat([grid, skips[depth]], dim=-1)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return functional.gelu(_norm(net.norm, grid))


def _block(block: nn.Module, grid: Tensor) -> Tensor:
    hidden = grid
    for norm, conv in zip(block.norms, block.convs, strict=True):  # pyright: ignore[reportArgumentType]
        hidden = _conv(conv, functional.gelu(_norm(norm, hidden)))
    return grid + hidden


def _conv(conv: Conv3, grid: Tensor) -> Tensor:
    wide = grid.shape[-1]
    weight = conv.weight.reshape(3, 3, 3, wide, -1).permute(4, 3, 0, 1, 2)
    return functional.conv3d(grid.permute(3, 0, 1, 2)[None], weight, padding=1)[0].permute(1, 2, 3, 0)


def _norm(norm: nn.Module, grid: Tensor) -> Tensor:
    return functional.layer_norm(grid, grid.shape[-1:], norm.weight, norm.bias)  # pyright: ignore[reportArgumentType]
