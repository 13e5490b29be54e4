"""Sparse convolutions over occupied voxels, deterministic in the forward and backward pass.

Letters: C voxels, P voxels of the next coarser level, F input features, G output features. A convolution
gathers rows by a table and computes one matrix product. A second table lists the readers of each row, so the
gradient of a gather is a gather too: there are no atomics, and results are bitwise reproducible. A 3 x 3 x 3
convolution stores only its input (F numbers per voxel) for the backward pass; it gathers 27 F numbers per
voxel for one chunk of voxels at a time, and 27 G in the backward pass. The result equals that of a dense
torch conv3d with zeros in empty voxels.
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

# Bytes gathered at a time: what fits into the cache of a CPU core, or enough to fill a GPU.
CPU_BYTES, GPU_BYTES = 2**21, 2**28


def gather_rows(values: Tensor, table: Tensor, readers: Tensor) -> Tensor:
    """Gather values (C, F) into (R, F): row r is values[table[r]], or zeros where table[r] is C.

    table: (R,); readers: (C, k), the rows r that read each of the values, padded with R if fewer than k do.
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
    """Convolve values (C, F) with weight (27 F, G), by the neighbours of a level, to (C, G) in `dtype`.

    The gradients have the dtypes of the values and of the weight.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, level: Level, dtype: torch.dtype) -> Tensor:
        ctx.level, ctx.dtypes = level, (values.dtype, weight.dtype)
        values, weight = values.to(dtype), weight.to(dtype)
        ctx.save_for_backward(values, weight)
        source, table = _source(values), level.neighbours
        if len(chunks := _chunks(table, values)) == 1:
            return torch.mm(_gather_chunk(source, table), weight)
        result = values.new_empty(values.shape[0], weight.shape[1])
        for chunk in chunks:
            torch.mm(_gather_chunk(source, table[chunk]), weight, out=result[chunk])
        return result

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        # Voxel j reads i at an offset if and only if i reads j at the opposite offset, so one gather of the
        # gradients serves both results.
        values, weight = ctx.saved_tensors
        table, opposite = ctx.level.neighbours, ctx.level.opposite
        features, outputs = values.shape[1], weight.shape[1]
        back = weight.reshape(27, features, outputs).transpose(1, 2).index_select(0, opposite)
        back = back.reshape(27 * outputs, features)
        source = _source(grads[0])
        if len(chunks := _chunks(table, source)) == 1:
            rows = _gather_chunk(source, table)
            d_values, d_weight = torch.mm(rows, back), torch.mm(values.T, rows)
        else:
            d_values = torch.empty_like(values)
            # The sum over all voxels is accumulated in at least float32, because it adds many small terms.
            wide = torch.promote_types(values.dtype, torch.float32)
            d_weight = torch.zeros(features, 27 * outputs, dtype=wide, device=values.device)
            for chunk in chunks:
                rows = _gather_chunk(source, table[chunk])
                torch.mm(rows, back, out=d_values[chunk])
                d_weight += values[chunk].T @ rows
        d_weight = d_weight.reshape(features, 27, outputs).transpose(0, 1).index_select(0, opposite)
        of_values, of_weight = ctx.dtypes
        return d_values.to(of_values), d_weight.reshape(27 * features, outputs).to(of_weight), None, None


class Conv3(nn.Module):
    """3 x 3 x 3 convolution with stride 1 and no bias, from (C, F) to (C, G)."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(27 * features, outputs))
        # About a third of the 27 neighbours of a voxel on a surface are occupied.
        nn.init.normal_(self.weight, std=math.sqrt(1 / (9 * features)))

    def forward(self, values: Tensor, level: Level) -> Tensor:
        kind = values.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.weight.dtype
        return _Convolve.apply(values, self.weight, level, dtype)  # pyright: ignore[reportReturnType]


class Down(nn.Module):
    """2 x 2 x 2 convolution with stride 2, from (C, F) to (P, G)."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8 * features, outputs)

    def forward(self, values: Tensor, stride: Stride) -> Tensor:
        rows = gather_rows(values, stride.children, stride.place[:, None])
        return self.linear(rows.reshape(-1, 8 * values.shape[1]))


class Up(nn.Module):
    """2 x 2 x 2 transposed convolution with stride 2, at occupied voxels only, from (P, F) to (C, G)."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 8 * outputs, bias=False)
        self.outputs = outputs

    def forward(self, values: Tensor, stride: Stride) -> Tensor:
        return gather_rows(
            self.linear(values).reshape(-1, self.outputs), stride.place, stride.children[:, None]
        )


def _source(values: Tensor) -> Tensor:
    """Return the rows that `_gather_chunk` reads.

    Absent voxels, numbered C, read zeros: on a CPU from a row appended here, on a GPU from the kernel.
    """
    return values.contiguous() if own_kernels(values) else with_zeros(values)


def _gather_chunk(source: Tensor, table: Tensor) -> Tensor:
    """Gather row numbers (R, 27) into (R, 27 F)."""
    return take_rows(source, table.reshape(-1), absent=own_kernels(source)).reshape(table.shape[0], -1)


def _chunks(table: Tensor, values: Tensor) -> list[slice]:
    """Return one or more chunks of rows, each of which gathers at most CPU_BYTES or GPU_BYTES."""
    size = max(1, values.element_size() * 27 * values.shape[1])
    step = max(64, (GPU_BYTES if values.is_cuda else CPU_BYTES) // size)
    return [slice(start, start + step) for start in range(0, table.shape[0], step)]
