"""Triton kernels of `edge_ops` for CUDA. Imported only where a GPU and Triton are present.

One program computes each sum, in the order of the edges, in float32 (float64 for float64).
"""

# Triton reads these functions' source: only annotations that Triton knows are allowed.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import torch
import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.edges.row_chunks import Rows

_TILE = 2048  # values that a program processes at one time


def gather(x: Tensor, y: Tensor, f: Tensor | None, rows: Rows, at: Tensor, inputs: Tensor) -> None:
    block = 256
    first_offset = rows.edges.offsets[rows.first :]
    channels = 0 if f is None else f.shape[1]
    _gather[(triton.cdiv(rows.count, block),)](
        x,
        y,
        x if f is None else f,
        first_offset,
        rows.sources(),
        at,
        inputs,
        rows.count,
        rows.begin,
        rows.first,
        rows.last - rows.first,
        max(1, (rows.last - rows.first).bit_length()),
        x.stride(0),
        y.stride(0),
        0 if f is None else f.stride(0),
        DX=x.shape[1],
        DY=y.shape[1],
        C=channels,
        BLOCK=block,
    )


def reduce_into(out: Tensor, kernel: Tensor, f: Tensor | None, weights: Tensor | None, rows: Rows) -> None:
    channels = kernel.shape[1]
    wide = triton.next_power_of_2(channels)
    mean_degree = rows.count // max(rows.last - rows.first, 1)
    tall = max(1, min(_TILE // wide, triton.next_power_of_2(max(mean_degree, 1)), 64))
    _reduce[(rows.last - rows.first,)](
        out,
        kernel,
        kernel if f is None else f,
        kernel if weights is None else weights,
        rows.edges.offsets,
        rows.edges.sources,
        rows.first,
        rows.begin,
        rows.end,
        out.stride(0),
        kernel.stride(0),
        0 if f is None else f.stride(0),
        C=channels,
        WIDE=wide,
        TALL=tall,
        HAS_F=f is not None,
        HAS_W=weights is not None,
        SUM=_sum_type(out, kernel),
    )


def spread(
    gradient: Tensor, f: Tensor | None, weights: Tensor | None, rows: Rows, at: Tensor, out: Tensor
) -> None:
    _spread_to(out, gradient, f, weights, rows.sources(), at, by_edge=False)


def spread_to_f(
    gradient: Tensor, kernel: Tensor, weights: Tensor | None, rows: Rows, at: Tensor, out: Tensor
) -> None:
    _spread_to(out, gradient, kernel, weights, rows.sources(), at, by_edge=True)


def _spread_to(
    out: Tensor,
    gradient: Tensor,
    factor: Tensor | None,
    weights: Tensor | None,
    sources: Tensor,
    at: Tensor,
    *,
    by_edge: bool,
) -> None:
    channels = out.shape[1]
    wide = triton.next_power_of_2(channels)
    tall = max(1, _TILE // wide)
    _spread[(triton.cdiv(len(out), tall),)](
        gradient,
        gradient if factor is None else factor,
        gradient if weights is None else weights,
        sources,
        at,
        out,
        len(out),
        gradient.stride(0),
        0 if factor is None else factor.stride(0),
        C=channels,
        WIDE=wide,
        TALL=tall,
        HAS_F=factor is not None,
        BY_EDGE=by_edge,
        HAS_W=weights is not None,
        SUM=_sum_type(gradient, out),
    )


def add_runs(total: Tensor, values: Tensor, ordered: Tensor, order: Tensor) -> None:
    """Add values (e, W), taken in `order`, to total (S, W); `ordered` are their sources, sorted."""
    width = values.shape[1]
    wide = triton.next_power_of_2(width)
    tall = 16
    count = ordered.shape[0]
    _add_runs[(count,)](
        total,
        values,
        ordered,
        order,
        count,
        total.stride(0),
        values.stride(0),
        W=width,
        WIDE=wide,
        TALL=tall,
        SUM=_sum_type(total, values),
        num_warps=1,
    )


def _sum_type(*tensors: Tensor) -> Any:
    return tl.float64 if any(tensor.dtype is torch.float64 for tensor in tensors) else tl.float32


@triton.jit
def _gather(
    x,
    y,
    f,
    offsets,
    sources,
    at,
    inputs,
    count,
    begin,
    first,
    rows,
    steps,
    x_stride,
    y_stride,
    f_stride,
    DX: tl.constexpr,
    DY: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = edge < count
    # The row of an edge is the last whose offset is not above the edge's number (binary search).
    low = tl.zeros((BLOCK,), tl.int32)
    high = low + rows
    number = edge + begin
    for _ in range(steps):
        middle = low + (high - low) // 2
        below = tl.load(offsets + middle, mask=there, other=0) <= number
        low = tl.where(below, middle, low)
        high = tl.where(below, high, middle)
    row = low + first
    tl.store(at + edge, row, mask=there)
    source = tl.load(sources + edge, mask=there, other=0).to(tl.int64)
    to = inputs + edge * (DX + DY + C)
    for d in tl.static_range(DY):
        tl.store(to + d, tl.load(y + source * y_stride + d, mask=there), mask=there)
    for d in tl.static_range(DX):
        tl.store(to + DY + d, tl.load(x + row.to(tl.int64) * x_stride + d, mask=there), mask=there)
    for c in tl.static_range(C):
        tl.store(to + DX + DY + c, tl.load(f + source * f_stride + c, mask=there), mask=there)


@triton.jit
def _reduce(
    out,
    kernel,
    f,
    weights,
    offsets,
    sources,
    first,
    begin,
    end,
    out_stride,
    kernel_stride,
    f_stride,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    HAS_W: tl.constexpr,
    SUM: tl.constexpr,
):
    row = (first + tl.program_id(0)).to(tl.int64)
    start = tl.maximum(tl.load(offsets + row), begin)  # for a row split over chunks, only this chunk's edges
    stop = tl.minimum(tl.load(offsets + row + 1), end)
    channel = tl.arange(0, WIDE)
    in_width = channel < C
    total = tl.zeros((TALL, WIDE), SUM)
    for base in range(start, stop, TALL):
        edge = base + tl.arange(0, TALL)
        there = edge < stop
        both = there[:, None] & in_width[None, :]
        value = tl.load(
            kernel + (edge - begin)[:, None] * kernel_stride + channel[None, :], mask=both, other=0
        ).to(SUM)
        if HAS_F:
            source = tl.load(sources + edge, mask=there, other=0).to(tl.int64)
            value *= tl.load(f + source[:, None] * f_stride + channel[None, :], mask=both, other=0).to(SUM)
        if HAS_W:
            value *= tl.load(weights + edge - begin, mask=there, other=0).to(SUM)[:, None]
        total += value
    place = out + row * out_stride + channel
    row_sum = tl.sum(total, axis=0) + tl.load(place, mask=in_width, other=0).to(SUM)
    tl.store(place, row_sum.to(out.dtype.element_ty), mask=in_width)


@triton.jit
def _spread(
    gradient,
    factor,
    weights,
    sources,
    at,
    out,
    count,
    g_stride,
    factor_stride,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    BY_EDGE: tl.constexpr,
    HAS_W: tl.constexpr,
    SUM: tl.constexpr,
):
    edge = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    there = edge < count
    channel = tl.arange(0, WIDE)
    both = there[:, None] & (channel < C)[None, :]
    row = tl.load(at + edge, mask=there, other=0).to(tl.int64)
    value = tl.load(gradient + row[:, None] * g_stride + channel[None, :], mask=both, other=0).to(SUM)
    if HAS_F:
        place = edge
        if not BY_EDGE:
            place = tl.load(sources + edge, mask=there, other=0).to(tl.int64)
        value *= tl.load(factor + place[:, None] * factor_stride + channel[None, :], mask=both, other=0).to(
            SUM
        )
    if HAS_W:
        value *= tl.load(weights + edge, mask=there, other=0).to(SUM)[:, None]
    tl.store(out + edge[:, None] * C + channel[None, :], value.to(out.dtype.element_ty), mask=both)


@triton.jit
def _add_runs(
    total,
    values,
    ordered,
    order,
    count,
    total_stride,
    values_stride,
    W: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    SUM: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    source = tl.load(ordered + place)
    before = tl.load(ordered + place - 1, mask=place > 0, other=-1)
    if source != before:  # the first of its run adds the whole run
        column = tl.arange(0, WIDE)
        in_width = column < W
        sums = tl.zeros((TALL, WIDE), SUM)
        at = place
        same = 1
        while same > 0:
            among = at + tl.arange(0, TALL)
            mine = tl.load(ordered + among, mask=among < count, other=-1) == source
            edge = tl.load(order + among, mask=mine, other=0)
            both = mine[:, None] & in_width[None, :]
            sums += tl.load(values + edge[:, None] * values_stride + column[None, :], mask=both, other=0).to(
                SUM
            )
            same = tl.sum(mine.to(tl.int32), axis=0) // TALL  # the tile is full: more may follow
            at += TALL
        to = total + source.to(tl.int64) * total_stride + column
        row_sum = tl.sum(sums, axis=0) + tl.load(to, mask=in_width, other=0).to(SUM)
        tl.store(to, row_sum.to(total.dtype.element_ty), mask=in_width)
