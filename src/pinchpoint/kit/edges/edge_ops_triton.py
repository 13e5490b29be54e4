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
from pinchpoint.kit.triton_launch import Launcher

_TILE = 2048  # values that a program processes at one time
_NARROW_TILE = 512  # values for which one warp is enough
_PROBES = 32  # places of a search that are read at the same time
_GATHERED = 32  # columns of f that a program gathers at one time


def gather(
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    rows: Rows,
    at: Tensor,
    inputs: Tensor,
    relative: Tensor | None = None,
) -> None:
    """relative: (e, d), filled with y - x."""
    channels = 0 if f is None else f.shape[1]
    block, count = 128 if channels else 256, rows.last - rows.first
    tensors = x, y, x if f is None else f, rows.edges.offsets, rows.edges.sources, at, inputs
    _gather(
        -(-rows.count // block),
        (*tensors, inputs if relative is None else relative),
        (rows.count, rows.begin, rows.first, count, max(1, count.bit_length())),
        x.stride(0),
        y.stride(0),
        0 if f is None else f.stride(0),
        x.shape[1],
        y.shape[1],
        channels,
        min(power_of_2(channels), _GATHERED),
        relative is not None,
        block,
    )


def reduce_into(
    out: Tensor,
    kernel: Tensor,
    f: Tensor | None,
    weights: Tensor | None,
    rows: Rows,
    *,
    once: bool = False,
    mean: bool = False,
    column: int = 0,
) -> None:
    """once: `out` need not have values yet; mean: divide by the edges of a row (with once).

    column: the first column of `kernel` that is read.
    """
    channels = out.shape[1]
    wide, tall, warps = row_tile(channels, rows)
    _reduce(
        rows.last - rows.first,
        (
            out,
            kernel,
            kernel if f is None else f,
            kernel if weights is None else weights,
            rows.edges.offsets,
            rows.edges.sources,
        ),
        (rows.first, rows.begin, rows.end),
        out.stride(0),
        kernel.stride(0),
        0 if f is None else f.stride(0),
        channels,
        wide,
        tall,
        f is not None,
        weights is not None,
        once,
        mean,
        column,
        sum_type(out, kernel),
        warps=warps,
    )


def spread(
    gradient: Tensor,
    f: Tensor | None,
    weights: Tensor | None,
    rows: Rows,
    at: Tensor,
    out: Tensor,
    *,
    mean: bool = False,
) -> None:
    channels = out.shape[1]
    wide = power_of_2(channels)
    tall = max(1, _TILE // wide)
    _spread(
        -(-len(out) // tall),
        (
            gradient,
            gradient if f is None else f,
            gradient if weights is None else weights,
            rows.edges.offsets,
            rows.edges.sources,
            at,
            out,
        ),
        (len(out), rows.begin),
        gradient.stride(0),
        0 if f is None else f.stride(0),
        channels,
        wide,
        tall,
        f is not None,
        weights is not None,
        mean,
        sum_type(gradient, out),
    )


def add_runs(
    total: Tensor,
    values: Tensor,
    ordered: Tensor,
    order: Tensor,
    of_rows: tuple[Tensor, Tensor | None, Rows, Tensor, bool] | None = None,
    *,
    column: int = 0,
    more: tuple[Tensor, int] | None = None,
) -> None:
    """Add values (e, W), taken in `order`, to total (S, W); `ordered` are their sources, sorted.

    of_rows: multiply each by the gradient of its row, (Q, W), and the edge's weight, (e,); the chunk, the row
    of each edge, (e,), and whether to divide by the edges of the row. column: the first column of `values`
    that is added: a view that begins there is not aligned, and Triton launches it slowly. more: further
    values that are added as they are, and their first column.
    """
    width, count = total.shape[1], ordered.shape[0]
    by_source = total.shape[0] <= count
    gradient, weights, rows, at, mean = of_rows or (None, None, None, None, False)
    _add_runs(
        min(total.shape[0], count),
        (
            total,
            values,
            ordered,
            order,
            total if gradient is None else gradient,
            total if weights is None else weights,
            order if rows is None else rows.edges.offsets,
            order if at is None else at,
            total if more is None else more[0],
        ),
        (count, _search_steps(count)),
        total.stride(0),
        values.stride(0),
        0 if gradient is None else gradient.stride(0),
        0 if more is None else more[0].stride(0),
        column,
        0 if more is None else more[1],
        width,
        power_of_2(width),
        16,
        _PROBES,
        sum_type(total, values),
        by_source,
        gradient is not None,
        weights is not None,
        mean,
        more is not None,
        warps=1,
    )


def row_tile(channels: int, rows: Rows) -> tuple[int, int, int]:
    """For a program that goes through a row: the channels and the edges of a tile, and the warps."""
    wide = power_of_2(channels)
    mean_degree = rows.count // max(rows.last - rows.first, 1)
    tall = max(1, min(_TILE // wide, power_of_2(mean_degree), 64))
    return wide, tall, 1 if wide * tall <= _NARROW_TILE else 4


def power_of_2(number: int) -> int:
    """The least power of 2 that is not below a number. That of Triton takes as long as a launch."""
    return 1 << max(number - 1, 0).bit_length()


def _search_steps(count: int) -> int:
    """The steps in which `_add_runs` finds one of so many places."""
    return 0 if count <= 0 else 1 + _search_steps(-(-count // _PROBES) - 1)


def sum_type(*tensors: Tensor) -> Any:
    return tl.float64 if any(tensor.dtype is torch.float64 for tensor in tensors) else tl.float32


@Launcher
@triton.jit(do_not_specialize=["count", "begin", "first", "rows", "steps"])
def _gather(
    x,
    y,
    f,
    offsets,
    sources,
    at,
    inputs,
    relative,
    count,
    begin,
    first,
    rows,
    steps,
    X_STRIDE: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    F_STRIDE: tl.constexpr,
    DX: tl.constexpr,
    DY: tl.constexpr,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    RELATIVE: tl.constexpr,
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
        below = tl.load(offsets + first + middle, mask=there, other=0) <= number
        low = tl.where(below, middle, low)
        high = tl.where(below, high, middle)
    row = low + first
    tl.store(at + edge, row, mask=there)
    source = tl.load(sources + number, mask=there, other=0).to(tl.int64)
    to = inputs + edge * (DX + DY + C)
    for d in tl.static_range(DY):
        tl.store(to + d, tl.load(y + source * Y_STRIDE + d, mask=there), mask=there)
    for d in tl.static_range(DX):
        tl.store(to + DY + d, tl.load(x + row.to(tl.int64) * X_STRIDE + d, mask=there), mask=there)
    if RELATIVE:
        for d in tl.static_range(DX):
            here = tl.load(x + row.to(tl.int64) * X_STRIDE + d, mask=there).to(relative.dtype.element_ty)
            far = tl.load(y + source * Y_STRIDE + d, mask=there).to(relative.dtype.element_ty)
            tl.store(relative + edge * DX + d, far - here, mask=there)
    # Neighbouring threads take neighbouring columns, which share a sector of memory.
    for begin_column in tl.static_range(0, C, WIDE):
        column = begin_column + tl.arange(0, WIDE)[None, :]
        both = there[:, None] & (column < C)
        value = tl.load(f + source[:, None] * F_STRIDE + column, mask=both)
        tl.store(to[:, None] + DX + DY + column, value, mask=both)


@Launcher
@triton.jit(do_not_specialize=["first", "begin", "end"])
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
    OUT_STRIDE: tl.constexpr,
    KERNEL_STRIDE: tl.constexpr,
    F_STRIDE: tl.constexpr,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    HAS_W: tl.constexpr,
    ONCE: tl.constexpr,
    MEAN: tl.constexpr,
    COLUMN: tl.constexpr,
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
            kernel + (edge - begin)[:, None] * KERNEL_STRIDE + COLUMN + channel[None, :], mask=both, other=0
        ).to(SUM)
        if HAS_F:
            source = tl.load(sources + edge, mask=there, other=0).to(tl.int64)
            value *= tl.load(f + source[:, None] * F_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
        if HAS_W:
            value *= tl.load(weights + edge - begin, mask=there, other=0).to(SUM)[:, None]
        total += value
    place = out + row * OUT_STRIDE + channel
    row_sum = tl.sum(total, axis=0)
    if not ONCE:
        row_sum += tl.load(place, mask=in_width, other=0).to(SUM)
    if MEAN:
        row_sum = row_sum / tl.maximum(stop - start, 1).to(SUM)
    tl.store(place, row_sum.to(out.dtype.element_ty), mask=in_width)


@triton.jit
def _row_edges(offsets, row, there, SUM: tl.constexpr):
    """The number of edges of some rows, in the dtype of a sum."""
    edges = tl.load(offsets + row + 1, mask=there, other=1) - tl.load(offsets + row, mask=there, other=0)
    return edges.to(SUM)


@Launcher
@triton.jit(do_not_specialize=["count", "begin"])
def _spread(
    gradient,
    factor,
    weights,
    offsets,
    sources,
    at,
    out,
    count,
    begin,
    G_STRIDE: tl.constexpr,
    FACTOR_STRIDE: tl.constexpr,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    HAS_W: tl.constexpr,
    MEAN: tl.constexpr,
    SUM: tl.constexpr,
):
    edge = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    there = edge < count
    channel = tl.arange(0, WIDE)
    both = there[:, None] & (channel < C)[None, :]
    row = tl.load(at + edge, mask=there, other=0).to(tl.int64)
    value = tl.load(gradient + row[:, None] * G_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    if MEAN:
        value = value / _row_edges(offsets, row, there, SUM)[:, None]
    if HAS_F:
        place = tl.load(sources + begin + edge, mask=there, other=0).to(tl.int64)
        value *= tl.load(factor + place[:, None] * FACTOR_STRIDE + channel[None, :], mask=both, other=0).to(
            SUM
        )
    if HAS_W:
        value *= tl.load(weights + edge, mask=there, other=0).to(SUM)[:, None]
    tl.store(out + edge[:, None] * C + channel[None, :], value.to(out.dtype.element_ty), mask=both)


@Launcher
@triton.jit(do_not_specialize=["count", "steps"])
def _add_runs(
    total,
    values,
    ordered,
    order,
    gradient,
    weights,
    offsets,
    rows,
    more,
    count,
    steps,
    TOTAL_STRIDE: tl.constexpr,
    VALUES_STRIDE: tl.constexpr,
    G_STRIDE: tl.constexpr,
    MORE_STRIDE: tl.constexpr,
    COLUMN: tl.constexpr,
    MORE_COLUMN: tl.constexpr,
    W: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    PROBES: tl.constexpr,
    SUM: tl.constexpr,
    BY_SOURCE: tl.constexpr,
    HAS_G: tl.constexpr,
    HAS_W: tl.constexpr,
    MEAN: tl.constexpr,
    HAS_MORE: tl.constexpr,
):
    """A program for each source, which searches its run; or for each place, if it is the first of a run.

    HAS_G: each value is multiplied by the gradient of the edge's row.
    """
    at = tl.program_id(0).to(tl.int64)
    source = at
    if BY_SOURCE:
        # Of the `left` places from `at` on, those before the run have lower sources.
        at = at * 0
        left = at + count
        for _ in range(steps):
            stride = (left + PROBES - 1) // PROBES
            ahead = tl.arange(0, PROBES) * stride
            below = tl.load(ordered + at + ahead, mask=ahead < left, other=2147483647) < source
            passed = tl.sum(below.to(tl.int32), axis=0)
            beyond = tl.where(passed > 0, (passed - 1) * stride + 1, 0)
            at += beyond
            left = tl.where(passed > 0, tl.minimum(stride - 1, left - beyond), 0)
        mine = tl.load(ordered + at, mask=at < count, other=-1) == source
    else:
        source = tl.load(ordered + at).to(tl.int64)
        mine = tl.load(ordered + at - 1, mask=at > 0, other=-1) != source
    if mine:
        column = tl.arange(0, WIDE)
        in_width = column < W
        sums = tl.zeros((TALL, WIDE), SUM)
        same = 1
        while same > 0:
            among = at + tl.arange(0, TALL)
            here = tl.load(ordered + among, mask=among < count, other=-1) == source
            edge = tl.load(order + among, mask=here, other=0)
            both = here[:, None] & in_width[None, :]
            place = edge[:, None] * VALUES_STRIDE + COLUMN + column[None, :]
            value = tl.load(values + place, mask=both, other=0).to(SUM)
            if HAS_G:
                row = tl.load(rows + edge, mask=here, other=0).to(tl.int64)
                of_row = tl.load(gradient + row[:, None] * G_STRIDE + column[None, :], mask=both, other=0).to(
                    SUM
                )
                if MEAN:
                    of_row = of_row / _row_edges(offsets, row, here, SUM)[:, None]
                value *= of_row
            if HAS_W:
                value *= tl.load(weights + edge, mask=here, other=0).to(SUM)[:, None]
            if HAS_MORE:
                place = edge[:, None] * MORE_STRIDE + MORE_COLUMN + column[None, :]
                value += tl.load(more + place, mask=both, other=0).to(SUM)
            sums += value
            same = tl.sum(here.to(tl.int32), axis=0) // TALL  # the tile is full: more may follow
            at += TALL
        to = total + source * TOTAL_STRIDE + column
        row_sum = tl.sum(sums, axis=0) + tl.load(to, mask=in_width, other=0).to(SUM)
        tl.store(to, row_sum.to(total.dtype.element_ty), mask=in_width)
