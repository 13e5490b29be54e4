"""Convolutions over the occupied voxels alone: gather by a table, then one matrix product. Deterministic forward and backward.

C voxels, P of the next coarser level, F features in, G out. The rows that read a row are in a table too, so the gradient of a
gather is a gather: no atomics, the same bits each time. A 3 x 3 x 3 convolution keeps its input alone (F numbers a voxel) and
gathers 27 F numbers of a part of the voxels at a time, again 27 G in the backward pass. Equal to torch's dense conv3d with
zeros where no voxel is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pinchpoint.kit.edges.edge_ops import own_kernels
from pinchpoint.kit.segments.take_rows import take_rows, with_zeros
from pinchpoint.systems.cloud.model.voxels import Level, Stride

# What is gathered at a time: on a CPU what a core's cache holds, on a GPU enough to fill it.
CPU_BYTES, GPU_BYTES = 2**21, 2**28


def gather_rows(values: Tensor, table: Tensor, readers: Tensor) -> Tensor:
    """values (C, F) -> (R, F), row r being values[table[r]], or zeros where table[r] is C.

    table: (R,); readers: (C, k), the rows r that read each of the values, R where there are fewer than k.
    """
    return _Gather.apply(values, table, readers)  # pyright: ignore[reportReturnType]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, table: Tensor, readers: Tensor) -> Tensor:
        ctx.save_for_backward(readers)
        return take_rows(values.contiguous(), table, absent=True)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None, None]:
        (readers,) = ctx.saved_tensors
        count, most = readers.shape
        rows = take_rows(grads[0].contiguous(), readers.reshape(-1), absent=True)
        return (rows if most == 1 else rows.reshape(count, most, -1).sum(1)), None, None


class _Convolve(torch.autograd.Function):
    """values (C, F), weight (27 F, G), table (C, 27) -> (C, G)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight, table)
        source = _source(values)
        made = values.new_empty(values.shape[0], weight.shape[1])
        for part in _parts(table, values):
            torch.mm(_gathered(source, table[part]), weight, out=made[part])
        return made

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        # Voxel j reads i at an offset exactly where i reads j at the opposite one: both gradients come of one gather of grads.
        values, weight, table = ctx.saved_tensors
        features, given = values.shape[1], weight.shape[1]
        back = weight.reshape(27, features, given).flip(0).transpose(1, 2).reshape(27 * given, features)
        source = _source(grads[0])
        d_values = torch.empty_like(values)
        # Sums over all voxels are kept in float32 at the least: many small parts are added.
        d_weight = torch.zeros(
            features, 27 * given, dtype=torch.promote_types(values.dtype, torch.float32), device=values.device
        )
        for part in _parts(table, grads[0]):
            rows = _gathered(source, table[part])
            torch.mm(rows, back, out=d_values[part])
            d_weight += values[part].T @ rows
        d_weight = d_weight.reshape(features, 27, given).flip(1).transpose(0, 1).reshape(27 * features, given)
        return d_values, d_weight.to(weight.dtype), None


class Conv3(nn.Module):
    """3 x 3 x 3, stride 1, no bias. values: (C, F) -> (C, G)."""

    def __init__(self, features: int, given: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(27 * features, given))
        # About a third of the 27 neighbours of a surface voxel are there.
        nn.init.normal_(self.weight, std=math.sqrt(1 / (9 * features)))

    def forward(self, values: Tensor, level: Level) -> Tensor:
        kind = values.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        return _Convolve.apply(values.to(dtype), self.weight.to(dtype), level.neighbours)  # pyright: ignore[reportReturnType]


class Down(nn.Module):
    """2 x 2 x 2, stride 2. values: (C, F) -> (P, G)."""

    def __init__(self, features: int, given: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8 * features, given)

    def forward(self, values: Tensor, stride: Stride) -> Tensor:
        rows = gather_rows(values, stride.children, stride.place[:, None])
        return self.linear(rows.reshape(-1, 8 * values.shape[1]))


class Up(nn.Module):
    """2 x 2 x 2 transposed, stride 2, at the voxels that are there. values: (P, F) -> (C, G)."""

    def __init__(self, features: int, given: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 8 * given, bias=False)
        self.given = given

    def forward(self, values: Tensor, stride: Stride) -> Tensor:
        return gather_rows(
            self.linear(values).reshape(-1, self.given), stride.place, stride.children[:, None]
        )


def _source(values: Tensor) -> Tensor:
    """What `_gathered` reads part by part. Absent voxels, numbered C, read zeros, which lie after the rows but on a GPU."""
    return values.contiguous() if own_kernels(values) else with_zeros(values)


def _gathered(source: Tensor, table: Tensor) -> Tensor:
    """(R, 27) numbers of rows -> (R, 27 F)."""
    return take_rows(source, table.reshape(-1), absent=own_kernels(source)).reshape(table.shape[0], -1)


def _parts(table: Tensor, values: Tensor) -> list[slice]:
    """Parts of the rows of which no more than the bytes above are gathered."""
    size = max(1, values.element_size() * 27 * values.shape[1])
    step = max(64, (GPU_BYTES if values.is_cuda else CPU_BYTES) // size)
    return [slice(start, start + step) for start in range(0, table.shape[0], step)]
