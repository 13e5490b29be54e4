"""Triton kernels for the layers of a folded field in half precision, whose products memory limits.

A layer of half a million points moves more bytes than its products take time, so each kernel does all that a
layer needs while its rows are on the chip. With x a row of one layer, y = relu(x W) a row of the next one, e
an encoded point, y = relu(e E) in the first layer, y = relu(x W + e E) in the one after the skip connection,
and a prime for gradients:

- `read` computes relu(e E), and `read_again` relu(x W + e E);
- `back` computes x' = (y' W^T where x > 0), its sum over rows, and W' = y'^T x;
- `gather` computes E' = e^T y'.

A program keeps its part of the weights and sums in shared memory and registers, and goes through many rows.
Sums over rows are written per program and added in a fixed order, so that gradients never change. This module
is imported only if there is a GPU and Triton is installed. Letters as in `points`; A columns of y'.
"""

# Triton reads the source of these functions and needs plain annotations.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher

_ROWS = 64  # rows at a time
_COLUMNS = 128  # columns of a layer per program
_STAGES = 3  # blocks of rows on the chip: those that are multiplied, and those that are loaded
_WARPS = 8
# Programs of kernels without sums, whose results do not depend on it: several per processor, and one.
_READERS, _PROGRAMS = 528, 132
_TALL = 128  # rows of a tile that is multiplied in steps
_DEEP = 64  # columns of a row that are multiplied at a time
# Steps on the chip: 224 KiB of the 227 KiB that a program can have on Hopper cards. Before version 3.5,
# Triton takes 258 KiB for four.
_DEPTH = 4 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 5) else 3
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter runs no assembly


def read(encoding: Tensor, entry: Tensor, out: Tensor) -> None:
    """Write relu(encoding @ entry) to `out`, (B P, H). encoding: (B, P, K); entry: (B, K, H)."""
    images, each, wide = encoding.shape
    width = out.shape[1]
    parts = triton.cdiv(width, _COLUMNS)
    groups = max(1, triton.cdiv(_READERS, images * parts))
    _read(
        images * groups * parts,
        (encoding, entry, out),
        (each, groups, parts),
        width,
        wide,
        max(64, triton.next_power_of_2(wide)),
        min(_COLUMNS, width),
        _ROWS,
        _STAGES,
        warps=_WARPS,
    )


def read_again(hidden: Tensor, encoding: Tensor, weights: Tensor, out: Tensor) -> None:
    """Write relu of (hidden, encoding) @ weights, for each image, to `out`, (B P, H).

    hidden: (B P, H); encoding: (B, P, K); weights: (B, H + K, H).
    """
    images, each, wide = encoding.shape
    width = out.shape[1]
    assert width % _DEEP == 0 and weights.is_contiguous(), "steps are not cut in the middle of a row"
    tiles = triton.cdiv(each, _TALL)
    _read_again(
        min(_PROGRAMS, images * tiles),
        (hidden, encoding, weights, out),
        (each, tiles, images * tiles),
        width,
        triton.next_power_of_2(width),
        wide,
        width // _DEEP,
        triton.cdiv(wide, _DEEP),
        _DEEP,
        _TALL,
        _DEPTH,
        warps=_WARPS,
    )


def back(
    slope: Tensor, weight: Tensor, hidden: Tensor, out: Tensor, products: Tensor, sums: Tensor | None
) -> None:
    """Write (slope @ weight where hidden > 0) to `out`, (N, H), and slope^T @ hidden to `products`.

    slope: (N, A); weight: (A, H); hidden: (N, H); products: (groups, A, H), one for each group of rows; sums:
    (groups, H), to which the sums of `out` over rows, before it is rounded, are added. The rows of the weight
    may be apart.
    """
    assert weight.stride(1) == 1, "the columns of a row are next to each other"
    count, wide = slope.shape
    width = hidden.shape[1]
    parts = triton.cdiv(width, _COLUMNS)
    _back(
        products.shape[0] * parts,
        (slope, weight, hidden, out, products, products if sums is None else sums),
        (count, triton.cdiv(triton.cdiv(count, _ROWS), products.shape[0]), parts, weight.stride(0)),
        wide,
        max(128, triton.next_power_of_2(wide)),
        width,
        min(_COLUMNS, width),
        _ROWS,
        _STAGES,
        sums is not None,
        not _INTERPRETED,
        warps=_WARPS,
    )


def gather(encoding: Tensor, slope: Tensor, products: Tensor) -> None:
    """Write encoding^T @ slope of each image to `products`, (B, groups, K, H), one for each group of rows.

    encoding: (B, P, K); slope: (B P, H).
    """
    images, each, wide = encoding.shape
    groups, width = products.shape[1], slope.shape[1]
    _gather(
        images * groups,
        (encoding, slope, products),
        (each, groups, triton.cdiv(triton.cdiv(each, _ROWS), groups)),
        width,
        triton.next_power_of_2(width),
        wide,
        max(64, triton.next_power_of_2(wide)),
        _ROWS,
        _STAGES,
        warps=_WARPS,
    )


@Launcher
@triton.jit(do_not_specialize=["each", "groups", "parts"])
def _read(
    encoding,
    entry,
    out,
    each,
    groups,
    parts,
    H: tl.constexpr,
    K: tl.constexpr,
    LANES: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    column = (program % parts) * COLUMNS + tl.arange(0, COLUMNS)
    group = program // parts % groups
    image = (program // (parts * groups)).to(tl.int64)
    lane = tl.arange(0, LANES)
    inside, within = lane < K, column < H
    at = entry + image * K * H + lane[:, None] * H + column[None, :]
    own_entry = tl.load(at, mask=inside[:, None] & within[None, :], other=0.0)
    for tile in tl.range(group, tl.cdiv(each, ROWS), groups, num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < each)[:, None]
        place = (image * each + row)[:, None]
        own = tl.load(encoding + place * K + lane[None, :], mask=there & inside[None, :], other=0.0)
        value = tl.dot(own, own_entry)
        # Not a maximum, which would hide NaN.
        value = tl.where(value < 0, 0.0, value).to(out.dtype.element_ty)
        tl.store(out + place * H + column[None, :], value, mask=there & within[None, :])


@Launcher
@triton.jit(do_not_specialize=["each", "tiles", "total"])
def _read_again(
    hidden,
    encoding,
    weights,
    out,
    each,
    tiles,
    total,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    OWN: tl.constexpr,
    MORE: tl.constexpr,
    DEEP: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program, programs = tl.program_id(0), tl.num_programs(0)
    lane, column, line = tl.arange(0, DEEP), tl.arange(0, WIDE), tl.arange(0, ROWS)
    within = (column < H)[None, :]
    value = tl.zeros((ROWS, WIDE), tl.float32)
    # Tiles and their steps are one loop, so that a tile is loaded while another one is stored.
    for step in tl.range(0, tl.cdiv(total - program, programs) * (OWN + MORE), num_stages=STAGES):
        tile = program + step // (OWN + MORE) * programs
        part = step % (OWN + MORE)
        image = (tile // tiles).to(tl.int64)
        first = tile % tiles * ROWS
        place = image * each + first
        there = (first + line < each)[:, None]
        # The first steps read the row of the layer, the last ones the encoded point.
        is_own = part < OWN
        start = tl.where(is_own, hidden + place * H + part * DEEP, encoding + place * K + (part - OWN) * DEEP)
        apart = tl.where(is_own, H, K)
        deep = part * DEEP + lane
        valid, inside = there, within
        if K % DEEP != 0:
            valid, inside = there & (deep < H + K)[None, :], within & (deep < H + K)[:, None]
        own = tl.load(start + line[:, None] * apart + lane[None, :], mask=valid, other=0.0)
        weight = tl.load(
            weights + image * (H + K) * H + deep[:, None] * H + column[None, :], mask=inside, other=0.0
        )
        value = tl.dot(own, weight, value)
        if part == OWN + MORE - 1:
            # Not a maximum, which would hide NaN.
            result = tl.where(value < 0, 0.0, value).to(out.dtype.element_ty)
            tl.store(out + place * H + line[:, None] * H + column[None, :], result, mask=there & within)
            value = tl.zeros((ROWS, WIDE), tl.float32)


@triton.jit
def _finish_products():
    """Wait until no product of any thread is running, so that loads may overwrite what they read.

    Triton starts the loads of another tile without it: it knows of reads by products only if all that a
    product reads is in memory of its own.
    """
    zero = tl.full((), 0, tl.int32)
    tl.inline_asm_elementwise(
        "wgmma.wait_group.sync.aligned 0; bar.sync 0; mov.b32 $0, $1;",
        "=r,r",
        [zero],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@Launcher
@triton.jit(do_not_specialize=["count", "turns", "parts", "w_row"])
def _back(
    slope,
    weight,
    hidden,
    out,
    products,
    sums,
    count,
    turns,
    parts,
    w_row,
    A: tl.constexpr,
    WIDE: tl.constexpr,
    H: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    SUMMED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    program = tl.program_id(0)
    # The parts of one group run at the same time and read the same gradient, mostly from the cache.
    group = program // parts
    column = (program % parts) * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, WIDE)
    inside, within = lane < A, column < H
    valid = inside[:, None] & within[None, :]
    own_weight = tl.load(weight + lane[:, None] * w_row + column[None, :], mask=valid, other=0.0)
    product = tl.zeros((WIDE, COLUMNS), tl.float32)
    total = tl.zeros((ROWS // 16, 8, COLUMNS), tl.float32)
    first = group * turns
    line = tl.arange(0, ROWS)
    at_later, at = line[:, None] * A + lane[None, :], line[:, None] * H + column[None, :]
    # At least one turn, with rows that do not exist if need be: otherwise products wait for each other.
    for turn in tl.range(
        0, tl.maximum(tl.minimum(turns, tl.cdiv(count, ROWS) - first), 1), num_stages=STAGES
    ):
        start = (first + turn) * ROWS
        there = (line < count - start)[:, None]
        begin = start.to(tl.int64)
        later = tl.load(slope + begin * A + at_later, mask=there & inside[None, :], other=0.0)
        before = tl.load(hidden + begin * H + at, mask=there & within[None, :], other=0.0)
        # The second product runs while the first one is masked and stored.
        value = tl.dot(later, own_weight)
        product = tl.dot(tl.trans(later), before, product)
        value = tl.where(before <= 0, 0.0, value)
        tl.store(out + begin * H + at, value.to(out.dtype.element_ty), mask=there & within[None, :])
        if SUMMED:
            # A thread has rows that are eight apart; threads are added up at the end.
            total += tl.sum(tl.reshape(value, (ROWS // 16, 2, 8, COLUMNS)), axis=1)
        if OVERLAPS:
            _finish_products()
    to = products + group.to(tl.int64) * A * H + lane[:, None] * H + column[None, :]
    tl.store(to, product, mask=valid)
    if SUMMED:
        to = sums + group * H + column
        tl.store(to, tl.load(to, mask=within, other=0.0) + tl.sum(tl.sum(total, axis=0), axis=0), mask=within)


@Launcher
@triton.jit(do_not_specialize=["each", "groups", "turns"])
def _gather(
    encoding,
    slope,
    products,
    each,
    groups,
    turns,
    H: tl.constexpr,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    image = (program // groups).to(tl.int64)
    lane, unit = tl.arange(0, LANES), tl.arange(0, WIDE)
    product = tl.zeros((LANES, WIDE), tl.float32)
    first = program % groups * turns
    for tile in tl.range(first, tl.minimum(first + turns, tl.cdiv(each, ROWS)), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < each)[:, None]
        place = (image * each + row)[:, None]
        own = tl.load(encoding + place * K + lane[None, :], mask=there & (lane < K)[None, :], other=0.0)
        later = tl.load(slope + place * H + unit[None, :], mask=there & (unit < H)[None, :], other=0.0)
        product = tl.dot(tl.trans(own), later, product)
    to = products + program.to(tl.int64) * K * H + lane[:, None] * H + unit[None, :]
    tl.store(to, product, mask=(lane < K)[:, None] & (unit < H)[None, :])
