"""Attention: windows contain each voxel of a group once, along the curve; the result equals a loop over
windows.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from pinchpoint.systems.cloud.model.attention import WindowAttention, make_windows
from pinchpoint.systems.cloud.model.voxels import Level, voxelise


def _level(*sizes: int) -> Level:
    """Return a level with one voxel per point: the points lie in different cells of a grid."""
    at = torch.cartesian_prod(*[torch.arange(8)] * 3).double() + 0.5
    parts = [
        at[torch.randperm(512, generator=torch.Generator().manual_seed(seed))[:size]]
        for seed, size in enumerate(sizes)
    ]
    return voxelise(torch.cat(parts), torch.tensor([0, *sizes]).cumsum(0), cell=1.0).levels[0]


SIZES = [(37, 0, 8, 1, 20), (16,), (1,), (8, 8), (3, 3, 3, 3, 3, 3)]


@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize("sizes", SIZES)
def test_windows_contain_each_voxel_once_in_order_and_never_mix_groups(
    sizes: tuple[int, ...], shift: int
) -> None:
    level = _level(*sizes)
    windows = make_windows(level, len(sizes), 8, shift=shift)
    rows = windows.table[windows.table < level.voxels]
    assert rows.tolist() == list(range(level.voxels))
    assert windows.table[windows.place.long()].tolist() == list(range(level.voxels))
    group = level.group.tolist()
    full = 0
    for window, readable in zip(
        windows.table.reshape(-1, 8).tolist(), windows.mask[:, 0, 0].tolist(), strict=True
    ):
        voxels = [row for row in window if row < level.voxels]
        assert len({group[row] for row in voxels}) <= 1
        assert readable == ([row < level.voxels for row in window] if voxels else [True] * 8)
        full += len(voxels) == 8
    assert full >= sum(max(0, size - 2 * shift) // 8 for size in sizes)


@pytest.mark.parametrize("shift", [0, 4])
def test_attention_equals_a_softmax_over_each_window_alone(shift: int) -> None:
    sizes = (37, 0, 8, 1, 20)
    level = _level(*sizes)
    torch.manual_seed(0)
    attention = WindowAttention(12, 3).double()
    values = torch.randn(level.voxels, 12, dtype=torch.float64, requires_grad=True)
    result = attention(values, make_windows(level, len(sizes), 8, shift=shift))
    mixed, start = [], 0
    for size in sizes:
        cuts = [start, *range(start + 8 - shift, start + size, 8), start + size]
        mixed += [attend_window(attention, values[a:b]) for a, b in pairwise(cuts) if b > a]
        start += size
    truth = attention.write(torch.cat(mixed))
    assert torch.allclose(result, truth, atol=1e-10)
    grad_output = torch.randn_like(truth)
    inputs = [values, attention.read.weight]
    for a, b in zip(
        torch.autograd.grad(result, inputs, grad_output),
        torch.autograd.grad(truth, inputs, grad_output),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-10)


def attend_window(attention: WindowAttention, values: Tensor) -> Tensor:
    query, key, value = attention.read(values).chunk(3, dim=1)
    heads = []
    for part in range(3):
        columns = slice(4 * part, 4 * part + 4)
        # 2 is the square root of the 4 columns of a head.
        weights = (query[:, columns] @ key[:, columns].T / 2).softmax(1)
        heads.append(weights @ value[:, columns])
    return torch.cat(heads, dim=1)


def test_voxels_of_a_window_are_close_to_each_other() -> None:
    """A full cube of 512 voxels has windows of 64 along the curve, each a cube of 4 x 4 x 4."""
    level = _level(512)
    at = level.coordinates()
    for window in make_windows(level, 1, 64).table.reshape(-1, 64)[:8].long():
        assert (at[window].amax(0) - at[window].amin(0)).tolist() == [3, 3, 3]
