"""Sparse convolutions equal torch's dense ones with zeros where no voxel is; gradients too, and bit for bit
each time.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.systems.cloud.model import convolution
from pinchpoint.systems.cloud.model.convolution import Conv3, Down, Up, gather_rows
from pinchpoint.systems.cloud.model.voxels import Voxels, voxelise

SIDE = 8


def _voxels(kept: float, *, seed: int = 0) -> Voxels:
    """A grid of SIDE**3 voxels of which a share is there."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.cartesian_prod(*[torch.arange(SIDE)] * 3)
    at = at[torch.rand(len(at), generator=generator) < kept]
    return voxelise(at.double() + 0.5, torch.tensor([0, len(at)]), cell=1.0, levels=3)


def _dense(values: Tensor, voxels: Voxels, depth: int = 0) -> Tensor:
    """(1, F, side, side, side) with zeros where no voxel is."""
    side = SIDE >> depth
    x, y, z = voxels.levels[depth].coordinates().T
    grid = values.new_zeros(side, side, side, values.shape[1])
    return grid.index_put((x, y, z), values).permute(3, 0, 1, 2)[None]


def _sparse(grid: Tensor, voxels: Voxels, depth: int = 0) -> Tensor:
    x, y, z = voxels.levels[depth].coordinates().T
    return grid[0].permute(1, 2, 3, 0)[x, y, z]


def _same(ours: Tensor, truth: Tensor, inputs: list[Tensor]) -> None:
    assert torch.allclose(ours, truth, atol=1e-10)
    toward = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(5))
    for a, b in zip(
        torch.autograd.grad(ours, inputs, toward), torch.autograd.grad(truth, inputs, toward), strict=True
    ):
        assert a.abs().max() > 0
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("kept", [1.0, 0.3])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("part_bytes", [2**21, 1])
def test_a_convolution_equals_the_dense_one(
    kept: float, depth: int, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        convolution, "CPU_BYTES", part_bytes
    )  # 1: parts of the least size, so that there are many
    voxels = _voxels(kept)
    level = voxels.levels[depth]
    conv = Conv3(5, 7).double()
    values = torch.randn(level.voxels, 5, dtype=torch.float64, requires_grad=True)
    weight = conv.weight.reshape(3, 3, 3, 5, 7).permute(4, 3, 0, 1, 2)
    truth = _sparse(functional.conv3d(_dense(values, voxels, depth), weight, padding=1), voxels, depth)
    _same(conv(values, level), truth, [values, conv.weight])


@pytest.mark.parametrize("kept", [1.0, 0.3])
def test_a_strided_convolution_equals_the_dense_one(kept: float) -> None:
    voxels = _voxels(kept)
    down = Down(5, 7).double()
    values = torch.randn(voxels.levels[0].voxels, 5, dtype=torch.float64, requires_grad=True)
    weight = down.linear.weight.reshape(7, 2, 2, 2, 5).permute(0, 4, 1, 2, 3)
    truth = _sparse(functional.conv3d(_dense(values, voxels), weight, down.linear.bias, stride=2), voxels, 1)
    _same(down(values, voxels.strides[0]), truth, [values, down.linear.weight, down.linear.bias])


@pytest.mark.parametrize("kept", [1.0, 0.3])
def test_a_transposed_convolution_equals_the_dense_one(kept: float) -> None:
    voxels = _voxels(kept)
    up = Up(5, 7).double()
    values = torch.randn(voxels.levels[1].voxels, 5, dtype=torch.float64, requires_grad=True)
    weight = up.linear.weight.reshape(2, 2, 2, 7, 5).permute(4, 3, 0, 1, 2)
    truth = _sparse(functional.conv_transpose3d(_dense(values, voxels, 1), weight, stride=2), voxels, 0)
    _same(up(values, voxels.strides[0]), truth, [values, up.linear.weight])


def test_the_gradient_of_a_gather_is_that_of_an_index() -> None:
    table = torch.tensor([2, 0, 3, 2, 1, 2], dtype=torch.int32)  # 3: none
    readers = torch.tensor([[1, 6, 6], [4, 6, 6], [0, 3, 5]], dtype=torch.int32)
    values = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    truth = torch.cat([values, torch.zeros(1, 4, dtype=torch.float64)])[table.long()]
    _same(gather_rows(values, table, readers), truth, [values])


def test_autocast_convolves_in_bfloat16_near_the_float32_values_and_gradients() -> None:
    voxels = _voxels(0.4)
    conv = Conv3(8, 8)
    values = torch.randn(voxels.levels[0].voxels, 8, requires_grad=True)
    plain = conv(values, voxels.levels[0])
    exact = torch.autograd.grad(plain.square().sum(), [values, conv.weight])
    with torch.autocast("cpu", torch.bfloat16):
        half = conv(values, voxels.levels[0])
    assert half.dtype is torch.bfloat16
    rough = torch.autograd.grad(half.float().square().sum(), [values, conv.weight])
    for a, b in zip([plain, *exact], [half, *rough], strict=True):
        assert (a - b).norm() < 0.02 * a.norm()
    assert all(grad.dtype is torch.float32 for grad in rough)


def test_gradients_are_the_same_bits_each_time() -> None:
    voxels = _voxels(0.4)
    torch.manual_seed(0)
    conv, down, up = Conv3(8, 8), Down(8, 8), Up(8, 8)
    values = torch.randn(voxels.levels[0].voxels, 8, requires_grad=True)

    def grads() -> tuple[Tensor, ...]:
        coarse = down(conv(values, voxels.levels[0]), voxels.strides[0])
        return torch.autograd.grad(
            up(coarse, voxels.strides[0]).sin().sum(), [values, conv.weight, down.linear.weight]
        )

    assert all(torch.equal(a, b) for a, b in zip(grads(), grads(), strict=True))
