"""Triton kernels of `weight_ops` for CUDA. Imported only where a GPU and Triton are present.

One program computes each row, or each tile of edges, in the order of the edges, in float32 (float64 for
float64).
"""

# Triton reads these functions' source: only annotations that Triton knows are allowed.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.edges.edge_ops_triton import power_of_2, row_tile, sum_type
from pinchpoint.kit.edges.row_chunks import Rows
from pinchpoint.kit.triton_launch import Launcher

_TILE = 2048  # values of a tile of edges


def softmax_into(
    out: Tensor, lse: Tensor, kernel: Tensor, f: Tensor | None, score: Tensor, rows: Rows
) -> None:
    channels = kernel.shape[1]
    wide, tall, warps = row_tile(channels, rows)
    _softmax(
        rows.last - rows.first,
        (out, lse, kernel, kernel if f is None else f, score, rows.edges.offsets, rows.edges.sources),
        (rows.first, rows.begin, rows.end),
        out.stride(0),
        kernel.stride(0),
        0 if f is None else f.stride(0),
        channels,
        wide,
        tall,
        f is not None,
        rows.continues,
        sum_type(out, kernel, lse),
        warps=warps,
    )


def spread_softmax(
    gradient: Tensor,
    f: Tensor | None,
    score: Tensor,
    lse: Tensor,
    rows: Rows,
    at: Tensor,
    out: Tensor,
    weights: Tensor,
) -> None:
    channels = out.shape[1]
    wide = power_of_2(channels)
    tall = max(1, _TILE // wide)
    _spread_softmax(
        -(-rows.count // tall),
        (gradient, gradient if f is None else f, score, lse, rows.edges.sources, at, out, weights),
        (rows.count, rows.begin),
        gradient.stride(0),
        0 if f is None else f.stride(0),
        channels,
        wide,
        tall,
        f is not None,
        sum_type(gradient, out, lse),
    )


def spread_to_weights(
    gradient: Tensor,
    out: Tensor | None,
    kernel: Tensor,
    f: Tensor | None,
    weights: Tensor | None,
    rows: Rows,
    at: Tensor,
    result: Tensor,
) -> None:
    """With `out` and `weights`, the gradient of scores; without, that of weights."""
    channels = kernel.shape[1]
    wide = power_of_2(channels)
    tall = max(1, _TILE // wide)
    _spread_to_weights(
        -(-rows.count // tall),
        (
            gradient,
            gradient if out is None else out,
            kernel,
            kernel if f is None else f,
            kernel if weights is None else weights,
            rows.edges.sources,
            at,
            result,
        ),
        (rows.count, rows.begin),
        gradient.stride(0),
        0 if out is None else out.stride(0),
        kernel.stride(0),
        0 if f is None else f.stride(0),
        channels,
        wide,
        tall,
        f is not None,
        out is not None,
        weights is not None,
        sum_type(gradient, kernel, result),
    )


def raise_largest(largest: Tensor, ties: Tensor, kernel: Tensor, f: Tensor | None, rows: Rows) -> None:
    channels = kernel.shape[1]
    wide, tall, warps = row_tile(channels, rows)
    _largest(
        rows.last - rows.first,
        (largest, ties, kernel, kernel if f is None else f, rows.edges.offsets, rows.edges.sources),
        (rows.first, rows.begin, rows.end),
        kernel.stride(0),
        0 if f is None else f.stride(0),
        channels,
        wide,
        tall,
        f is not None,
        rows.continues,
        sum_type(largest, kernel),
        warps=warps,
    )


def spread_maximum(
    gradient: Tensor,
    maxima: tuple[Tensor, Tensor],
    kernel: Tensor,
    f: Tensor | None,
    rows: Rows,
    at: Tensor,
    out: Tensor,
) -> None:
    """Overwrite `kernel` with the gradient of f[source], if there is f."""
    channels = out.shape[1]
    wide = power_of_2(channels)
    tall = max(1, _TILE // wide)
    _spread_maximum(
        -(-rows.count // tall),
        (gradient, *maxima, kernel, kernel if f is None else f, rows.edges.sources, at, out),
        (rows.count, rows.begin),
        gradient.stride(0),
        kernel.stride(0),
        0 if f is None else f.stride(0),
        channels,
        wide,
        tall,
        f is not None,
        sum_type(gradient, kernel, maxima[0]),
    )


@triton.jit
def load_values(
    kernel,
    f,
    sources,
    edge,
    begin,
    channel,
    there,
    both,
    KERNEL_STRIDE: tl.constexpr,
    F_STRIDE: tl.constexpr,
    HAS_F: tl.constexpr,
    SUM: tl.constexpr,
):
    """(TALL, WIDE): the kernel of some edges of a chunk that starts at `begin`, times f at their sources."""
    place = (edge - begin).to(tl.int64)[:, None] * KERNEL_STRIDE + channel[None, :]
    value = tl.load(kernel + place, mask=both, other=0).to(SUM)
    if HAS_F:
        source = tl.load(sources + edge, mask=there, other=0).to(tl.int64)
        value *= tl.load(f + source[:, None] * F_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    return value


@Launcher
@triton.jit(do_not_specialize=["first", "begin", "end"])
def _softmax(
    out,
    lse,
    kernel,
    f,
    scores,
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
    CONTINUES: tl.constexpr,
    SUM: tl.constexpr,
):
    """A program for each row: its largest score; then the sums of the powers and of the weighted values."""
    row = (first + tl.program_id(0)).to(tl.int64)
    start = tl.maximum(tl.load(offsets + row), begin)  # for a row split over chunks, only this chunk's edges
    stop = tl.minimum(tl.load(offsets + row + 1), end)
    channel = tl.arange(0, WIDE)
    in_width = channel < C
    peaks = tl.full((TALL,), -float("inf"), SUM)
    for base in range(start, stop, TALL):
        edge = base + tl.arange(0, TALL)
        score = tl.load(scores + edge - begin, mask=edge < stop, other=-float("inf")).to(SUM)
        peaks = tl.maximum(peaks, score)
    shift = tl.max(peaks, axis=0)
    shift = tl.where(shift == -float("inf"), 0.0, shift)  # no edges, or none that counts
    total = tl.zeros((TALL, WIDE), SUM)
    powers = tl.zeros((TALL,), SUM)
    for base in range(start, stop, TALL):
        edge = base + tl.arange(0, TALL)
        there = edge < stop
        both = there[:, None] & in_width[None, :]
        score = tl.load(scores + edge - begin, mask=there, other=-float("inf")).to(SUM)
        power = tl.where(there, tl.exp(score - shift), 0.0)
        value = load_values(
            kernel, f, sources, edge, begin, channel, there, both, KERNEL_STRIDE, F_STRIDE, HAS_F, SUM
        )
        powers += power
        total += value * power[:, None]
    place = out + row * OUT_STRIDE + channel
    power_sum = tl.sum(powers, axis=0)
    row_lse = shift + tl.log(power_sum)
    mean = tl.sum(total, axis=0) / power_sum
    if CONTINUES:
        before = tl.load(lse + row).to(SUM)
        highest = tl.maximum(before, row_lse)
        earlier = tl.exp(before - highest)
        later = tl.exp(row_lse - highest)
        both_sum = earlier + later
        old = tl.load(place, mask=in_width, other=0).to(SUM) * earlier
        new = mean * later
        # A piece whose scores are all -inf has no mean; it has no weight unless the others are like it.
        NONE: tl.constexpr = -float("inf")
        old = tl.where((before == NONE) & (row_lse != NONE), 0.0, old)
        new = tl.where((row_lse == NONE) & (before != NONE), 0.0, new)
        mean = (old + new) / both_sum
        row_lse = highest + tl.log(both_sum)
    if stop <= start:
        mean = tl.zeros((WIDE,), SUM)
        row_lse = tl.sum(tl.full((1,), -float("inf"), SUM), axis=0)
    tl.store(place, mean.to(out.dtype.element_ty), mask=in_width)
    tl.store(lse + row, row_lse.to(lse.dtype.element_ty))


@Launcher
@triton.jit(do_not_specialize=["count", "begin"])
def _spread_softmax(
    gradient,
    f,
    scores,
    lse,
    sources,
    at,
    out,
    weights,
    count,
    begin,
    G_STRIDE: tl.constexpr,
    F_STRIDE: tl.constexpr,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    SUM: tl.constexpr,
):
    edge = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    there = edge < count
    channel = tl.arange(0, WIDE)
    both = there[:, None] & (channel < C)[None, :]
    row = tl.load(at + edge, mask=there, other=0).to(tl.int64)
    score = tl.load(scores + edge, mask=there, other=0).to(SUM)
    weight = tl.exp(score - tl.load(lse + row, mask=there, other=0).to(SUM))
    tl.store(weights + edge, weight.to(weights.dtype.element_ty), mask=there)
    value = tl.load(gradient + row[:, None] * G_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    if HAS_F:
        source = tl.load(sources + begin + edge, mask=there, other=0).to(tl.int64)
        value *= tl.load(f + source[:, None] * F_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    value *= weight[:, None]
    tl.store(out + edge[:, None] * C + channel[None, :], value.to(out.dtype.element_ty), mask=both)


@Launcher
@triton.jit(do_not_specialize=["count", "begin"])
def _spread_to_weights(
    gradient,
    out,
    kernel,
    f,
    weights,
    sources,
    at,
    result,
    count,
    begin,
    G_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    KERNEL_STRIDE: tl.constexpr,
    F_STRIDE: tl.constexpr,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    HAS_OUT: tl.constexpr,
    HAS_W: tl.constexpr,
    SUM: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    there = place < count
    channel = tl.arange(0, WIDE)
    both = there[:, None] & (channel < C)[None, :]
    row = tl.load(at + place, mask=there, other=0).to(tl.int64)
    value = load_values(
        kernel, f, sources, place + begin, begin, channel, there, both, KERNEL_STRIDE, F_STRIDE, HAS_F, SUM
    )
    if HAS_OUT:
        value -= tl.load(out + row[:, None] * OUT_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    value *= tl.load(gradient + row[:, None] * G_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    dot = tl.sum(value, axis=1)
    if HAS_W:
        dot *= tl.load(weights + place, mask=there, other=0).to(SUM)
    tl.store(result + place, dot.to(result.dtype.element_ty), mask=there)


@triton.jit
def larger(a, b):
    """The larger of two numbers; NaN, if one of them is NaN."""
    return tl.where((a > b) | (a != a), a, b)


@Launcher
@triton.jit(do_not_specialize=["first", "begin", "end"])
def _largest(
    largest,
    ties,
    kernel,
    f,
    offsets,
    sources,
    first,
    begin,
    end,
    KERNEL_STRIDE: tl.constexpr,
    F_STRIDE: tl.constexpr,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    CONTINUES: tl.constexpr,
    SUM: tl.constexpr,
):
    """A program for each row: the largest value of each channel, and how many edges have it."""
    row = (first + tl.program_id(0)).to(tl.int64)
    start = tl.maximum(tl.load(offsets + row), begin)
    stop = tl.minimum(tl.load(offsets + row + 1), end)
    channel = tl.arange(0, WIDE)
    in_width = channel < C
    best = tl.full((TALL, WIDE), -float("inf"), SUM)
    count = tl.zeros((TALL, WIDE), SUM)
    for base in range(start, stop, TALL):
        edge = base + tl.arange(0, TALL)
        there = edge < stop
        both = there[:, None] & in_width[None, :]
        value = load_values(
            kernel, f, sources, edge, begin, channel, there, both, KERNEL_STRIDE, F_STRIDE, HAS_F, SUM
        )
        higher = larger(best, tl.where(both, value, -float("inf")))
        count = tl.where(best == higher, count, 0.0) + tl.where(both & (value == higher), 1.0, 0.0)
        best = higher
    top = tl.reduce(best, 0, larger)
    number = tl.sum(tl.where(best == top[None, :], count, 0.0), axis=0)
    place = row * C + channel
    if CONTINUES:
        before = tl.load(largest + place, mask=in_width, other=0).to(SUM)
        earlier = tl.load(ties + place, mask=in_width, other=0).to(SUM)
        higher = larger(before, top)
        number = tl.where(top == higher, number, 0.0) + tl.where(before == higher, earlier, 0.0)
        top = higher
    if stop <= start:
        top = tl.zeros((WIDE,), SUM)
    tl.store(largest + place, top.to(largest.dtype.element_ty), mask=in_width)
    tl.store(ties + place, number.to(ties.dtype.element_ty), mask=in_width)


@Launcher
@triton.jit(do_not_specialize=["count", "begin"])
def _spread_maximum(
    gradient,
    largest,
    ties,
    kernel,
    f,
    sources,
    at,
    out,
    count,
    begin,
    G_STRIDE: tl.constexpr,
    KERNEL_STRIDE: tl.constexpr,
    F_STRIDE: tl.constexpr,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    HAS_F: tl.constexpr,
    SUM: tl.constexpr,
):
    edge = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    there = edge < count
    channel = tl.arange(0, WIDE)
    both = there[:, None] & (channel < C)[None, :]
    row = tl.load(at + edge, mask=there, other=0).to(tl.int64)
    own = tl.load(kernel + edge[:, None] * KERNEL_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    value = own
    if HAS_F:
        source = tl.load(sources + begin + edge, mask=there, other=0).to(tl.int64)
        factor = tl.load(f + source[:, None] * F_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
        value = own * factor
    of_row = row[:, None] * C + channel[None, :]
    holds = both & (value == tl.load(largest + of_row, mask=both, other=0).to(SUM))
    among = tl.maximum(tl.load(ties + of_row, mask=both, other=1).to(SUM), 1.0)
    whole = tl.load(gradient + row[:, None] * G_STRIDE + channel[None, :], mask=both, other=0).to(SUM)
    share = tl.where(holds, whole / among, 0.0)
    of_kernel = share
    if HAS_F:
        of_kernel = share * factor
        of_f = (share * own).to(kernel.dtype.element_ty)
        tl.store(kernel + edge[:, None] * KERNEL_STRIDE + channel[None, :], of_f, mask=both)
    tl.store(out + edge[:, None] * C + channel[None, :], of_kernel.to(out.dtype.element_ty), mask=both)
