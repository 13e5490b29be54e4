"""Triton kernels of a float32 MLP over edges with hidden layers of up to 256 columns.

    middle_layer    z_i = a_i-1 W_i' + b,   a_i = act(z_i)
    back_between    dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)

Programs, tiles, slices, sums and NET are those of `wide_triton`, and so are these steps. Here the next tile
is loaded while one is multiplied, and the parts of its numbers are passed on to the next turn of the loop:
the compiler then multiplies them from shared memory, where each is once. A product of numbers of two parts
is three products that do not add to each other: of a chain of products, the compiler gives the rows to the
warps, and if a tile has fewer than 128 rows, half of the warps repeat what the others do.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false, reportAssignmentType=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import activation, add_outer, add_to, flip, split
from pinchpoint.kit.edges.tile_kernels.wide_triton import load_block
from pinchpoint.kit.triton_launch import Launcher


@triton.jit
def _multiply(a, b):
    """The product of two operands of two parts."""
    factor = a[2] * b[2]
    # Multiplied one by one, or the compiler would make one product start with the result of another.
    small = tl.dot(a[0], b[1]) * factor + tl.dot(a[1], b[0]) * factor
    return small + tl.dot(a[0], b[0]) * factor


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def middle_layer(
    values,
    before,
    after,
    weight,
    bias,
    count,
    programs,
    NET: tl.constexpr,
    WIDE: tl.constexpr,
    BELOW: tl.constexpr,
    NB: tl.constexpr,
    Z: tl.constexpr,
):
    """A block of columns of a hidden layer from the activations below: z to `before` if Z, act(z) to `after`.

    weight: (WIDE, BELOW).
    """
    H: tl.constexpr = NET.hidden_padded
    BLOCKS: tl.constexpr = H // NB
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    k = tl.arange(0, H)
    block = flip(load_block(weight, n, k, WIDE, BELOW, NET), NET)
    start = tl.load(bias + n, mask=(n < WIDE) & NET.bias, other=0.0).to(tl.float32)
    first = tl.program_id(0) // BLOCKS
    tiles, step = tl.cdiv(count, NET.edges), programs // BLOCKS
    edge = tl.cast(first, tl.int64) * NET.edges + tl.arange(0, NET.edges)
    ahead = tl.load(values + edge[:, None] * H + k[None, :], mask=first < tiles, other=0.0)
    high, low, factor = split(ahead, NET)
    for tile in range(first, tiles, step):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        more = (edge + tl.cast(step, tl.int64) * NET.edges)[:, None] * H + k[None, :]
        ahead = tl.load(values + more, mask=tile + step < tiles, other=0.0)
        place = edge[:, None] * H + n[None, :]
        z = _multiply((high, low, factor), block) + start[None, :]
        value, _ = activation(z, NET)
        if Z:
            tl.store(before + place, z)
        tl.store(after + place, value)
        high, low, factor = split(ahead, NET)


@Launcher
@triton.jit(do_not_specialize=["at", "count", "programs"])
def back_between(
    above,
    before,
    sums,
    weight,
    at,
    count,
    programs,
    NET: tl.constexpr,
    WIDE: tl.constexpr,
    BELOW: tl.constexpr,
    TOTAL: tl.constexpr,
    NB: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A block of columns of the gradient of a weight (WIDE, BELOW) between hidden layers, and of dz below it.

    above: dz of the upper layer; before: z of the lower one, which dz replaces. sums: (groups of programs,
    TOTAL); those of this weight begin at `at`, and those of its bias follow. STAGES is not used.
    """
    H: tl.constexpr = NET.hidden_padded
    BLOCKS: tl.constexpr = H // NB
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    k = tl.arange(0, H)
    block = load_block(weight, k, n, WIDE, BELOW, NET)
    total = tl.zeros((H, NB), tl.float32)
    of_bias = tl.zeros((H, 16), tl.float32)
    ones = tl.full((NET.edges, 16), 1.0, tl.float16)
    first = tl.program_id(0) // BLOCKS
    tiles, step = tl.cdiv(count, NET.edges), programs // BLOCKS
    edge = tl.cast(first, tl.int64) * NET.edges + tl.arange(0, NET.edges)
    ahead = tl.load(above + edge[:, None] * H + k[None, :], mask=first < tiles, other=0.0)
    high, low, factor = split(ahead, NET)
    for tile in range(first, tiles, step):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        more = (edge + tl.cast(step, tl.int64) * NET.edges)[:, None] * H + k[None, :]
        d = high, low, factor
        place = edge[:, None] * H + n[None, :]
        value, slope = activation(tl.load(before + place), NET)
        a = split(value, NET)
        tl.store(before + place, _multiply(d, block) * slope)
        ahead = tl.load(above + more, mask=tile + step < tiles, other=0.0)
        total = add_outer(d, a, total, NET)
        # The sum over the edges as a product: the same in all 16 columns.
        column = tl.dot(tl.trans(low), ones)
        of_bias += tl.dot(tl.trans(high), ones, column) * factor
        high, low, factor = split(ahead, NET)
    own = sums + first.to(tl.int64) * TOTAL + at
    add_to(own + k[:, None] * BELOW + n[None, :], total, (k < WIDE)[:, None] & (n < BELOW)[None, :])
    # Of the programs with one block each, the first has the sum for the bias.
    is_first = tl.program_id(0) % BLOCKS == 0
    add_to(own + WIDE * BELOW + k, tl.sum(of_bias, axis=1) * 0.0625, (k < WIDE) & is_first)
