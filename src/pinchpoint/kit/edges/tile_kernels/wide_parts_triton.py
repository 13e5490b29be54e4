"""Triton kernels of a float32 MLP over edges with hidden layers of up to 256 columns.

    first_layer     a_0 = act(x W_in' + b)
    middle_layer    z_i = a_i-1 W_i' + b,   a_i = act(z_i)
    outputs         out = a_last W_out' + b

The backward pass is in `wide_parts_backward_triton`.

Activations a and gradients dz are in memory as operands of the matrix units: a number is the sum of two fp16
numbers, which one power of 2 for all edges of a chunk brings into their range. It follows from the largest
number of the layer below (`bounds`) and the norm of the weight (`norms`), so that a kernel knows it before it
has computed the numbers. A row of 256 numbers is 512 fp16 numbers, 64 high parts and 64 low parts in turn,
so that a block of dz replaces the same block of z. The three largest of the four products of two numbers are
added up; sums over many tiles are kept in registers, because the matrix units cut digits off.

Programs, tiles, slices, sums and NET are those of `wide_triton`.
norms: (layers, 4), the largest sum of a row and of a column of |W|, the largest |b|, and the factor of the
packed weight. bounds: the largest |x|, the largest |g|, then of each hidden layer |a| and |dz|.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false, reportAssignmentType=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import (
    activation,
    add_product,
    flip,
    load_bias,
    load_inputs,
    load_weight,
    split,
)
from pinchpoint.kit.edges.tile_kernels.wide_triton import load_first_rows, wait_for_last
from pinchpoint.kit.triton_launch import Launcher

_RUN = tl.constexpr(64)  # numbers whose high parts stand together
_STEEPEST = tl.constexpr(1.13)  # no slope of an activation is larger


@Launcher
@triton.jit
def pack(packed, norms, w_in, b_in, w_1, b_1, w_2, b_2, w_3, b_3, w_4, b_4, NET: tl.constexpr):
    """The weights between hidden layers in two parts to packed: (layers, 2, H, H), and all norms.

    One program for each layer.
    """
    weights = w_in, b_in, w_1, b_1, w_2, b_2, w_3, b_3, w_4, b_4
    LAST: tl.constexpr = NET.last
    for LAYER in tl.static_range(0, LAST + 2):
        if tl.program_id(0) == LAYER:
            if LAYER == 0:
                _pack(weights[0], weights[1], packed, norms, NET.widths[0], NET.inputs, 0, NET)
            elif LAYER == LAST + 1:
                AT: tl.constexpr = 2 * LAST + 2
                _pack(weights[AT], weights[AT + 1], packed, norms, NET.outputs, NET.widths[LAST], LAYER, NET)
            else:
                _pack(
                    weights[2 * LAYER],
                    weights[2 * LAYER + 1],
                    packed,
                    norms,
                    NET.widths[LAYER],
                    NET.widths[LAYER - 1],
                    LAYER,
                    NET,
                )


@triton.jit
def _pack(
    weight,
    bias,
    packed,
    norms,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LAYER: tl.constexpr,
    NET: tl.constexpr,
):
    H: tl.constexpr = NET.hidden_padded
    TALL: tl.constexpr = 16
    r = tl.arange(0, TALL)[:, None]
    c = tl.arange(0, H)[None, :]
    largest_row = 0.0
    largest = 0.0
    columns = tl.zeros((H,), tl.float32)
    for begin in range(0, ROWS, TALL):
        mask = (begin + r < ROWS) & (c < COLUMNS)
        size = tl.abs(tl.load(weight + (begin + r) * COLUMNS + c, mask=mask, other=0.0).to(tl.float32))
        largest_row = tl.maximum(largest_row, tl.max(tl.sum(size, axis=1), axis=0))
        largest = tl.maximum(largest, tl.max(tl.max(size, axis=1), axis=0))
        columns += tl.sum(size, axis=0)
    up, factor = scale_of(largest)
    own = norms + 4 * LAYER
    tl.store(own, largest_row)
    tl.store(own + 1, tl.max(columns, axis=0))
    if NET.bias:
        row = tl.arange(0, H)
        offset = tl.load(bias + row, mask=row < ROWS, other=0.0).to(tl.float32)
        tl.store(own + 2, tl.max(tl.abs(offset), axis=0))
    else:
        tl.store(own + 2, 0.0)
    tl.store(own + 3, factor)
    if LAYER > 0 and NET.last >= LAYER:
        to = packed + (LAYER - 1) * 2 * H * H
        for begin in range(0, H, TALL):
            mask = (begin + r < ROWS) & (c < COLUMNS)
            v = tl.load(weight + (begin + r) * COLUMNS + c, mask=mask, other=0.0).to(tl.float32)
            high, low = parts_of(v, up)
            tl.store(to + (begin + r) * H + c, high)
            tl.store(to + H * H + (begin + r) * H + c, low)


@triton.jit
def scale_of(bound):
    """A power of 2 that brings numbers up to `bound` below 2^15, and its inverse; NaN if it is not finite."""
    power = bound.to(tl.int32, bitcast=True) & 0x7F800000
    power = tl.minimum(tl.maximum(power, 27 << 23), 254 << 23)
    up = ((254 << 23) - power + (14 << 23)).to(tl.float32, bitcast=True)
    factor = (power - (14 << 23)).to(tl.float32, bitcast=True)
    return up, tl.where(bound < float("inf"), factor, float("nan"))


@triton.jit
def parts_of(v, up):
    v *= up
    high = v.to(tl.float16)
    return high, (v - high.to(tl.float32)).to(tl.float16)


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def largest(values, bounds, count, programs, AT: tl.constexpr):
    """The largest of some numbers to bounds[AT], which was zero."""
    BLOCK: tl.constexpr = 2048
    most = tl.zeros((1, BLOCK), tl.float32)
    blocks = tl.cdiv(tl.cast(count, tl.int64), BLOCK)  # rounding up would pass 2^31 in 32 bits
    for block in range(tl.program_id(0), blocks, programs):
        place = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)[None, :]
        value = tl.load(values + place, mask=place < count, other=0.0)
        most = tl.maximum(most, tl.abs(value.to(tl.float32)))
    raise_bound(bounds + AT, most)


@triton.jit
def scale_of_values(norms, bounds, LAYER: tl.constexpr, NET: tl.constexpr):
    """`scale_of` of the activations of a hidden layer."""
    below = tl.load(bounds + 2 * LAYER)
    bound = below * tl.load(norms + 4 * LAYER) + tl.load(norms + 4 * LAYER + 2)
    if NET.activation == 4:  # tanh; all others are no larger than z
        bound = tl.where(below < float("inf"), tl.minimum(bound, 1.0), below)
    return scale_of(bound)


@triton.jit
def scale_of_slopes(norms, bounds, LAYER: tl.constexpr, NET: tl.constexpr):
    """`scale_of` of dz of a hidden layer."""
    above = tl.load(bounds + (2 * LAYER + 5 if NET.last > LAYER else 1))
    return scale_of(above * tl.load(norms + 4 * LAYER + 5) * _STEEPEST)


@triton.jit
def _places(edge, c, H: tl.constexpr):
    """Where the high parts of some columns are; the low parts follow after _RUN numbers."""
    return edge[:, None] * (2 * H) + (c + c // _RUN * _RUN)[None, :]


@triton.jit
def store_parts(to, edge, c, v, up, H: tl.constexpr):
    high, low = parts_of(v, up)
    place = to + _places(edge, c, H)
    tl.store(place, high)
    tl.store(place + _RUN, low)


@triton.jit
def load_parts(values, edge, c, H: tl.constexpr):
    """Both parts of some columns of a tile."""
    place = values + _places(edge, c, H)
    return tl.load(place), tl.load(place + _RUN)


@triton.jit
def load_ahead(values, edge, c, there, H: tl.constexpr):
    """The same, or zeros if the tile is not there."""
    place = values + _places(edge, c, H)
    return tl.load(place, mask=there, other=0.0), tl.load(place + _RUN, mask=there, other=0.0)


@triton.jit
def load_z(values, edge, c, there, H: tl.constexpr):
    """Some columns of a tile, or zeros if it is not there."""
    return tl.load(values + edge[:, None] * H + c[None, :], mask=there, other=0.0)


@triton.jit
def edges_of(tile, NET: tl.constexpr):
    return tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)


@triton.jit
def load_packed(packed, r, c, LAYER: tl.constexpr, H: tl.constexpr):
    """Rows r and columns c of the weight from hidden layer LAYER - 1 to LAYER, in two parts."""
    at = packed + (LAYER - 1) * 2 * H * H + r[:, None] * H + c[None, :]
    return tl.load(at), tl.load(at + H * H)


@triton.jit
def multiply(a, b, factor):
    """The product of two operands of two parts, times a factor.

    The products are added up outside of the matrix units: of a chain of products, the compiler gives the rows
    to the warps, and if a tile has fewer than 128 rows, half of the warps repeat what the others do.
    """
    small = tl.dot(a[0], b[1]) * factor + tl.dot(a[1], b[0]) * factor
    return small + tl.dot(a[0], b[0]) * factor


@triton.jit
def raise_bound(bound, largest):
    """Raise a bound to the largest of a tile; positive numbers are in the order of their bits."""
    bits = tl.max(tl.max(largest, axis=1), axis=0).to(tl.int32, bitcast=True)
    tl.atomic_max(bound.to(tl.pointer_type(tl.int32), bitcast=True), bits)


@triton.jit
def first_values(inputs, lower, tile, begin, count, NET: tl.constexpr):
    """z of the rows of the first layer that are in `lower`, of a tile."""
    return _first_product(_inputs(inputs, tile, begin, count, NET), lower, NET)


@triton.jit
def _inputs(inputs, tile, begin, count, NET: tl.constexpr):
    """The inputs of a tile with the column of ones; zeros beside it if there is no such tile."""
    return load_inputs(inputs, edges_of(tile, NET) + begin, begin + count, NET)


@triton.jit
def _first_product(x, lower, NET: tl.constexpr):
    x = split(x, NET)
    return multiply(x, flip(lower, NET), x[2] * lower[2])


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def first_layer(inputs, after, w_in, b_in, norms, bounds, begin, count, programs, NET: tl.constexpr):
    """The activations of the first hidden layer in parts to `after`, and the largest one to `bounds`."""
    H: tl.constexpr = NET.hidden_padded
    EDGES: tl.constexpr = NET.edges
    h = tl.arange(0, H)
    # What wrote the weights has ended: `largest`, which is not chained, runs before the first slice.
    lower = load_first_rows(w_in, b_in, h, NET)
    wait_for_last(NET)
    up, _ = scale_of_values(norms, bounds, 0, NET)
    largest = tl.zeros((EDGES, H), tl.float32)
    x = _inputs(inputs, tl.program_id(0), begin, count, NET)
    for tile in range(tl.program_id(0), tl.cdiv(count, EDGES), programs):
        ahead = _inputs(inputs, tile + programs, begin, count, NET)  # loaded while this tile is multiplied
        value = activation(_first_product(x, lower, NET), NET)[0]
        x = ahead
        largest = tl.maximum(largest, tl.abs(value))
        store_parts(after, edges_of(tile, NET), h, value, up, H)
    raise_bound(bounds + 2, largest)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def middle_layer(
    values,
    before,
    after,
    packed,
    bias,
    norms,
    bounds,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    NB: tl.constexpr,
    Z: tl.constexpr,
    KEEP: tl.constexpr,
):
    """A block of columns of hidden layer LAYER from the activations below, `values`.

    Z: z to `before`. KEEP: its activations in parts to `after`, and the largest one to `bounds`.
    """
    H: tl.constexpr = NET.hidden_padded
    EDGES: tl.constexpr = NET.edges
    WIDE: tl.constexpr = NET.widths[LAYER]
    BLOCKS: tl.constexpr = H // NB
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    k = tl.arange(0, H)
    block = load_packed(packed, n, k, LAYER, H)
    block = tl.trans(block[0]), tl.trans(block[1])
    start = tl.load(bias + n, mask=(n < WIDE) & NET.bias, other=0.0).to(tl.float32)
    wait_for_last(NET)
    _, factor = scale_of_values(norms, bounds, LAYER - 1, NET)
    factor *= tl.load(norms + 4 * LAYER + 3)
    up, _ = scale_of_values(norms, bounds, LAYER, NET)
    first = tl.program_id(0) // BLOCKS
    tiles, step = tl.cdiv(count, NET.edges), programs // BLOCKS
    largest = tl.zeros((EDGES, NB), tl.float32)
    high, low = load_ahead(values, edges_of(first, NET), k, first < tiles, H)
    for tile in range(first, tiles, step):
        edge = edges_of(tile, NET)
        # Loaded while this tile is multiplied.
        next_high, next_low = load_ahead(values, edges_of(tile + step, NET), k, tile + step < tiles, H)
        z = multiply((high, low), block, factor) + start[None, :]
        if Z:
            tl.store(before + edge[:, None] * H + n[None, :], z)
        if KEEP:
            value = activation(z, NET)[0]
            largest = tl.maximum(largest, tl.abs(value))
            store_parts(after, edge, n, value, up, H)
        high, low = next_high, next_low
    if KEEP:
        raise_bound(bounds + 2 * LAYER + 2, largest)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def outputs(
    values,
    before,
    out,
    w_out,
    b_out,
    norms,
    bounds,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    APPLY: tl.constexpr,
):
    """The outputs of a slice, from the activations of the last hidden layer in `values`, into their place.

    APPLY: they are computed from z in `before` instead, and go to `out` from its beginning.
    """
    H: tl.constexpr = NET.hidden_padded
    OUT: tl.constexpr = NET.outputs
    COUT: tl.constexpr = NET.outputs_padded
    LAST: tl.constexpr = NET.last
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    weight = load_weight(w_out, b_out, OUT, NET.widths[LAST], COUT, H, False, NET)
    start = load_bias(b_out, OUT, COUT, NET)
    wait_for_last(NET)
    up, factor = scale_of_values(norms, bounds, LAST, NET)
    tiles = tl.cdiv(count, NET.edges)
    first = tl.program_id(0)
    if APPLY:
        z = load_z(before, edges_of(first, NET), h, first < tiles, H)
    else:
        high, low = load_ahead(values, edges_of(first, NET), h, first < tiles, H)
    for tile in range(first, tiles, programs):
        edge = edges_of(tile, NET)
        next_edge, there = edges_of(tile + programs, NET), tile + programs < tiles
        if APPLY:
            next_z = load_z(before, next_edge, h, there, H)
            high, low = parts_of(activation(z, NET)[0], up)
            z = next_z
        else:
            next_high, next_low = load_ahead(values, next_edge, h, there, H)
        result = add_product((high, low, factor), flip(weight, NET), start, NET)
        mask = (edge < count)[:, None] & (c < OUT)[None, :]
        if not APPLY:
            edge += begin
        tl.store(out + edge[:, None] * OUT + c[None, :], result, mask=mask)
        if not APPLY:
            high, low = next_high, next_low
