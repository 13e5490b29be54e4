"""Sparse convolutions and their gradients equal dense ones of torch with zeros in empty voxels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.systems.cloud.model import convolution
from pinchpoint.systems.cloud.model.convolution import Conv3, Down, Up, gather_rows
from pinchpoint.systems.cloud.model.voxels import Voxels, voxelise

SIDE = 8


def _voxels(share: float, *, seed: int = 0) -> Voxels:
    """Return a grid of SIDE**3 cells, of which a random share is occupied."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.cartesian_prod(*[torch.arange(SIDE)] * 3)
    at = at[torch.rand(len(at), generator=generator) < share]
    return voxelise(at.double() + 0.5, torch.tensor([0, len(at)]), cell=1.0, levels=3)


def _dense(values: Tensor, voxels: Voxels, depth: int = 0) -> Tensor:
    """Return the dense grid (1, F, side, side, side), with zeros in empty voxels."""
    side = SIDE >> depth
    x, y, z = voxels.levels[depth].coordinates().T
    grid = values.new_zeros(side, side, side, values.shape[1])
    return grid.index_put((x, y, z), values).permute(3, 0, 1, 2)[None]


def _sparse(grid: Tensor, voxels: Voxels, depth: int = 0) -> Tensor:
    x, y, z = voxels.levels[depth].coordinates().T
    return grid[0].permute(1, 2, 3, 0)[x, y, z]


def _assert_same(result: Tensor, truth: Tensor, inputs: list[Tensor]) -> None:
    assert torch.allclose(result, truth, atol=1e-10)
    grad_output = torch.randn(result.shape, dtype=result.dtype, generator=torch.Generator().manual_seed(5))
    for a, b in zip(
        torch.autograd.grad(result, inputs, grad_output),
        torch.autograd.grad(truth, inputs, grad_output),
        strict=True,
    ):
        assert a.abs().max() > 0
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("chunk_bytes", [2**21, 1])
def test_a_convolution_equals_the_dense_one(
    share: float, depth: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "CPU_BYTES", chunk_bytes)  # 1 gives many chunks of the smallest size
    voxels = _voxels(share)
    level = voxels.levels[depth]
    conv = Conv3(5, 7).double()
    values = torch.randn(level.voxels, 5, dtype=torch.float64, requires_grad=True)
    weight = conv.weight.reshape(3, 3, 3, 5, 7).permute(4, 3, 0, 1, 2)
    truth = _sparse(functional.conv3d(_dense(values, voxels, depth), weight, padding=1), voxels, depth)
    _assert_same(conv(values, level), truth, [values, conv.weight])


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_strided_convolution_equals_the_dense_one(share: float) -> None:
    voxels = _voxels(share)
    down = Down(5, 7).double()
    values = torch.randn(voxels.levels[0].voxels, 5, dtype=torch.float64, requires_grad=True)
    weight = down.linear.weight.reshape(7, 2, 2, 2, 5).permute(0, 4, 1, 2, 3)
    truth = _sparse(functional.conv3d(_dense(values, voxels), weight, down.linear.bias, stride=2), voxels, 1)
    _assert_same(down(values, voxels.strides[0]), truth, [values, down.linear.weight, down.linear.bias])


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_transposed_convolution_equals_the_dense_one(share: float) -> None:
    voxels = _voxels(share)
    up = Up(5, 7).double()
    values = torch.randn(voxels.levels[1].voxels, 5, dtype=torch.float64, requires_grad=True)
    weight = up.linear.weight.reshape(2, 2, 2, 7, 5).permute(4, 3, 0, 1, 2)
    truth = _sparse(functional.conv_transpose3d(_dense(values, voxels, 1), weight, stride=2), voxels, 0)
    _assert_same(up(values, voxels.strides[0]), truth, [values, up.linear.weight])


def test_the_gradient_of_a_gather_equals_that_of_indexing() -> None:
    table = torch.tensor([2, 0, 3, 2, 1, 2], dtype=torch.int32)  # 3 means absent
    readers = torch.tensor([[1, 6, 6], [4, 6, 6], [0, 3, 5]], dtype=torch.int32)
    values = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    truth = torch.cat([values, torch.zeros(1, 4, dtype=torch.float64)])[table.long()]
    _assert_same(gather_rows(values, table, readers), truth, [values])


def test_autocast_convolves_in_bfloat16_close_to_float32() -> None:
    voxels = _voxels(0.4)
    conv = Conv3(8, 8)
    values = torch.randn(voxels.levels[0].voxels, 8, requires_grad=True)
    plain = conv(values, voxels.levels[0])
    exact = torch.autograd.grad(plain.square().sum(), [values, conv.weight])
    with torch.autocast("cpu", torch.bfloat16):
        low_precision = conv(values, voxels.levels[0])
    assert low_precision.dtype is torch.bfloat16
    low_precision_grads = torch.autograd.grad(low_precision.float().square().sum(), [values, conv.weight])
    for a, b in zip([plain, *exact], [low_precision, *low_precision_grads], strict=True):
        assert (a - b).norm() < 0.02 * a.norm()
    assert all(grad.dtype is torch.float32 for grad in low_precision_grads)


def test_gradients_are_bitwise_reproducible() -> None:
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
