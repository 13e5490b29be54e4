"""Triton kernels of a float32 MLP over edges with hidden layers of up to 256 columns.

    first_layer     a_0 = act(x W_in' + b)
    middle_layer    z_i = a_i-1 W_i' + b,   a_i = act(z_i)
    outputs         out = a_last W_out' + b
    back_last       dW_out += g' act(z_last),   dz_last = (g W_out) act'(z_last)
    back_between    dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)
    first_gradient  dW_in += dz_0' x,   dx = dz_0 W_in

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
    add_to,
    flip,
    load_bias,
    load_inputs,
    load_weight,
    split,
)
from pinchpoint.kit.edges.tile_kernels.wide_triton import add_first, load_first_rows
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
    up, factor = _scale(largest)
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
            high, low = _parts(v, up)
            tl.store(to + (begin + r) * H + c, high)
            tl.store(to + H * H + (begin + r) * H + c, low)


@triton.jit
def _scale(bound):
    """A power of 2 that brings numbers up to `bound` below 2^15, and its inverse; NaN if it is not finite."""
    power = bound.to(tl.int32, bitcast=True) & 0x7F800000
    power = tl.minimum(tl.maximum(power, 27 << 23), 254 << 23)
    up = ((254 << 23) - power + (14 << 23)).to(tl.float32, bitcast=True)
    factor = (power - (14 << 23)).to(tl.float32, bitcast=True)
    return up, tl.where(bound < float("inf"), factor, float("nan"))


@triton.jit
def _parts(v, up):
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
    _raise(bounds + AT, most)


@triton.jit
def _scale_of_values(norms, bounds, LAYER: tl.constexpr, NET: tl.constexpr):
    """`_scale` of the activations of a hidden layer."""
    below = tl.load(bounds + 2 * LAYER)
    bound = below * tl.load(norms + 4 * LAYER) + tl.load(norms + 4 * LAYER + 2)
    if NET.activation == 4:  # tanh; all others are no larger than z
        bound = tl.where(below < float("inf"), tl.minimum(bound, 1.0), below)
    return _scale(bound)


@triton.jit
def _scale_of_slopes(norms, bounds, LAYER: tl.constexpr, NET: tl.constexpr):
    """`_scale` of dz of a hidden layer."""
    above = tl.load(bounds + (2 * LAYER + 5 if NET.last > LAYER else 1))
    return _scale(above * tl.load(norms + 4 * LAYER + 5) * _STEEPEST)


@triton.jit
def _places(edge, c, H: tl.constexpr):
    """Where the high parts of some columns are; the low parts follow after _RUN numbers."""
    return edge[:, None] * (2 * H) + (c + c // _RUN * _RUN)[None, :]


@triton.jit
def _store(to, edge, c, v, up, H: tl.constexpr):
    high, low = _parts(v, up)
    place = to + _places(edge, c, H)
    tl.store(place, high)
    tl.store(place + _RUN, low)


@triton.jit
def _load(values, edge, c, H: tl.constexpr):
    """Both parts of some columns of a tile."""
    place = values + _places(edge, c, H)
    return tl.load(place), tl.load(place + _RUN)


@triton.jit
def _load_ahead(values, edge, c, there, H: tl.constexpr):
    """The same, or zeros if the tile is not there."""
    place = values + _places(edge, c, H)
    return tl.load(place, mask=there, other=0.0), tl.load(place + _RUN, mask=there, other=0.0)


@triton.jit
def _edges(tile, NET: tl.constexpr):
    return tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)


@triton.jit
def _load_weight(packed, r, c, LAYER: tl.constexpr, H: tl.constexpr):
    """Rows r and columns c of the weight from hidden layer LAYER - 1 to LAYER, in two parts."""
    at = packed + (LAYER - 1) * 2 * H * H + r[:, None] * H + c[None, :]
    return tl.load(at), tl.load(at + H * H)


@triton.jit
def _multiply(a, b, factor):
    """The product of two operands of two parts, times a factor.

    The products are added up outside of the matrix units: of a chain of products, the compiler gives the rows
    to the warps, and if a tile has fewer than 128 rows, half of the warps repeat what the others do.
    """
    small = tl.dot(a[0], b[1]) * factor + tl.dot(a[1], b[0]) * factor
    return small + tl.dot(a[0], b[0]) * factor


@triton.jit
def _raise(bound, largest):
    """Raise a bound to the largest of a tile; positive numbers are in the order of their bits."""
    bits = tl.max(tl.max(largest, axis=1), axis=0).to(tl.int32, bitcast=True)
    tl.atomic_max(bound.to(tl.pointer_type(tl.int32), bitcast=True), bits)


@triton.jit
def _first_values(inputs, lower, tile, begin, count, NET: tl.constexpr):
    """z of the rows of the first layer that are in `lower`, of a tile."""
    x = split(load_inputs(inputs, _edges(tile, NET) + begin, begin + count, NET), NET)
    return _multiply(x, flip(lower, NET), x[2] * lower[2])


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def first_layer(inputs, after, w_in, b_in, norms, bounds, begin, count, programs, NET: tl.constexpr):
    """The activations of the first hidden layer in parts to `after`, and the largest one to `bounds`."""
    H: tl.constexpr = NET.hidden_padded
    EDGES: tl.constexpr = NET.edges
    h = tl.arange(0, H)
    lower = load_first_rows(w_in, b_in, h, NET)
    up, _ = _scale_of_values(norms, bounds, 0, NET)
    largest = tl.zeros((EDGES, H), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, EDGES), programs):
        z = _first_values(inputs, lower, tile, begin, count, NET)
        value = activation(z, NET)[0]
        largest = tl.maximum(largest, tl.abs(value))
        _store(after, _edges(tile, NET), h, value, up, H)
    _raise(bounds + 2, largest)


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def middle_layer(
    values,
    before,
    after,
    packed,
    bias,
    norms,
    bounds,
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
    block = _load_weight(packed, n, k, LAYER, H)
    block = tl.trans(block[0]), tl.trans(block[1])
    start = tl.load(bias + n, mask=(n < WIDE) & NET.bias, other=0.0).to(tl.float32)
    _, factor = _scale_of_values(norms, bounds, LAYER - 1, NET)
    factor *= tl.load(norms + 4 * LAYER + 3)
    up, _ = _scale_of_values(norms, bounds, LAYER, NET)
    first = tl.program_id(0) // BLOCKS
    tiles, step = tl.cdiv(count, NET.edges), programs // BLOCKS
    largest = tl.zeros((EDGES, NB), tl.float32)
    high, low = _load_ahead(values, _edges(first, NET), k, first < tiles, H)
    for tile in range(first, tiles, step):
        edge = _edges(tile, NET)
        # Loaded while this tile is multiplied.
        next_high, next_low = _load_ahead(values, _edges(tile + step, NET), k, tile + step < tiles, H)
        z = _multiply((high, low), block, factor) + start[None, :]
        if Z:
            tl.store(before + edge[:, None] * H + n[None, :], z)
        if KEEP:
            value = activation(z, NET)[0]
            largest = tl.maximum(largest, tl.abs(value))
            _store(after, edge, n, value, up, H)
        high, low = next_high, next_low
    if KEEP:
        _raise(bounds + 2 * LAYER + 2, largest)


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def outputs(
    values,
    before,
    out,
    w_out,
    b_out,
    norms,
    bounds,
    count,
    programs,
    NET: tl.constexpr,
    APPLY: tl.constexpr,
):
    """The outputs of a slice, from the activations of the last hidden layer in `values`.

    APPLY: they are computed from z in `before` instead.
    """
    H: tl.constexpr = NET.hidden_padded
    OUT: tl.constexpr = NET.outputs
    COUT: tl.constexpr = NET.outputs_padded
    LAST: tl.constexpr = NET.last
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    weight = load_weight(w_out, b_out, OUT, NET.widths[LAST], COUT, H, False, NET)
    start = load_bias(b_out, OUT, COUT, NET)
    up, factor = _scale_of_values(norms, bounds, LAST, NET)
    tiles = tl.cdiv(count, NET.edges)
    for tile in range(tl.program_id(0), tiles, programs):
        edge = _edges(tile, NET)
        if APPLY:
            value = activation(tl.load(before + edge[:, None] * H + h[None, :]), NET)[0]
            high, low = _parts(value, up)
        else:
            high, low = _load(values, edge, h, H)
        result = add_product((high, low, factor), flip(weight, NET), start, NET)
        mask = (edge < count)[:, None] & (c < OUT)[None, :]
        tl.store(out + edge[:, None] * OUT + c[None, :], result, mask=mask)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def back_last(
    before,
    planes,
    gradient,
    sums,
    w_out,
    norms,
    bounds,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    AT_OUT: tl.constexpr,
    TOTAL: tl.constexpr,
    NB: tl.constexpr,
):
    """A block of columns of the gradient of the last layer, and of dz of the layer below.

    before: z of the last hidden layer; planes: the same memory, where dz replaces it in parts.
    sums: (programs, TOTAL); those of this layer begin at AT_OUT.
    """
    H: tl.constexpr = NET.hidden_padded
    EDGES: tl.constexpr = NET.edges
    OUT: tl.constexpr = NET.outputs
    COUT: tl.constexpr = NET.outputs_padded
    LAST: tl.constexpr = NET.last
    WIDE: tl.constexpr = NET.widths[LAST]
    BLOCKS: tl.constexpr = H // NB
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    c = tl.arange(0, COUT)
    mask = (c < OUT)[:, None] & (n < WIDE)[None, :]
    weight = split(tl.load(w_out + c[:, None] * WIDE + n[None, :], mask=mask, other=0.0).to(tl.float32), NET)
    up, factor = _scale_of_values(norms, bounds, LAST, NET)
    up_dz = _scale_of_slopes(norms, bounds, LAST, NET)[0]
    up_g, factor_g = _scale(tl.load(bounds + 1))
    sum_out = tl.zeros((NB, COUT), tl.float32)
    sum_g = tl.zeros((EDGES, COUT), tl.float32)
    largest = tl.zeros((EDGES, NB), tl.float32)
    for tile in range(tl.program_id(0) // BLOCKS, tl.cdiv(count, EDGES), programs // BLOCKS):
        edge = _edges(tile, NET)
        at_edge = (edge + begin)[:, None] * OUT + c[None, :]
        inside = (edge < count)[:, None] & (c < OUT)[None, :]
        rows = tl.load(gradient + at_edge, mask=inside, other=0.0).to(tl.float32)
        sum_g += rows
        g_high, g_low = _parts(rows, up_g)
        value, slope = activation(tl.load(before + edge[:, None] * H + n[None, :]), NET)
        high, low = _parts(value, up)
        sum_out = add_product(
            (tl.trans(high), tl.trans(low), factor), (g_high, g_low, factor_g), sum_out, NET
        )
        dz = _multiply((g_high, g_low), weight, factor_g * weight[2]) * slope
        largest = tl.maximum(largest, tl.abs(dz))
        tl.debug_barrier()  # all threads have read z, which dz replaces
        _store(planes, edge, n, dz, up_dz, H)
    _raise(bounds + 2 * LAST + 3, largest)
    own = sums + (tl.program_id(0) // BLOCKS).to(tl.int64) * TOTAL + AT_OUT
    add_to(own + c[None, :] * WIDE + n[:, None], sum_out, (c < OUT)[None, :] & (n < WIDE)[:, None])
    # Of the programs with one block each, the first has the sum for the bias.
    is_first = tl.program_id(0) % BLOCKS == 0
    add_to(own + OUT * WIDE + c, tl.sum(sum_g, axis=0), (c < OUT) & is_first)


@triton.jit
def _add_first_rows(inputs, tile, dz_high, dz_low, dz_factor, total, begin, count, NET: tl.constexpr):
    """total + x' dz of a tile, the transposed gradient of the first weight."""
    x = split(load_inputs(inputs, _edges(tile, NET) + begin, begin + count, NET), NET)
    turned = tl.trans(x[0])
    product = tl.dot(turned, dz_low)
    product = tl.dot(tl.trans(x[1]), dz_high, product)
    product = tl.dot(turned, dz_high, product)
    return total + product * (x[2] * dz_factor)


@Launcher
@triton.jit(do_not_specialize=["begin", "at", "count", "programs"])
def back_between(
    above,
    inputs,
    before,
    planes,
    sums,
    ends,
    packed,
    w_in,
    b_in,
    norms,
    bounds,
    begin,
    at,
    count,
    programs,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    TOTAL: tl.constexpr,
    TOTAL_ENDS: tl.constexpr,
    NB: tl.constexpr,
    STORE: tl.constexpr,
    STAGES: tl.constexpr,
    TURNED: tl.constexpr,
):
    """A block of columns of the gradient of weight LAYER between hidden layers, and of dz below it.

    above: dz of the upper layer in parts. z of the lower one is in `before`, or is computed from the inputs
    if it is the first. planes: where its dz goes if STORE, which may be the memory of `before`. Without
    STORE, the gradient of the first layer's weight is added to `ends`, each program its block of rows.
    sums: (groups of programs, TOTAL); those of this weight begin at `at`, and those of its bias follow.
    ends: (programs, TOTAL_ENDS). TURNED: the sums are those of the transposed gradients. Before Hopper,
    Triton divides all products among warps in the same way, so that each would hold all of dz without it.
    """
    H: tl.constexpr = NET.hidden_padded
    EDGES: tl.constexpr = NET.edges
    KIN: tl.constexpr = NET.inputs_padded
    WIDE: tl.constexpr = NET.widths[LAYER]
    BELOW: tl.constexpr = NET.widths[LAYER - 1]
    BLOCKS: tl.constexpr = H // NB
    FIRST: tl.constexpr = LAYER == 1
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    k = tl.arange(0, H)
    block = _load_weight(packed, k, n, LAYER, H)
    up, factor_a = _scale_of_values(norms, bounds, LAYER - 1, NET)
    _, factor = _scale_of_slopes(norms, bounds, LAYER, NET)
    up_dz, factor_dz = _scale_of_slopes(norms, bounds, LAYER - 1, NET)
    factor_z = factor * tl.load(norms + 4 * LAYER + 3)
    if TURNED:
        total = tl.zeros((NB, H), tl.float32)
        of_bias = tl.zeros((16, H), tl.float32)
        ones = tl.full((16, EDGES), 1.0, tl.float16)
    else:
        total = tl.zeros((H, NB), tl.float32)
        of_bias = tl.zeros((H, 16), tl.float32)
        ones = tl.full((EDGES, 16), 1.0, tl.float16)
    first = tl.program_id(0) // BLOCKS
    tiles, step = tl.cdiv(count, EDGES), programs // BLOCKS
    largest = tl.zeros((EDGES, NB), tl.float32)
    # Passed on to the next turn of the loop: of products in one turn, some would be computed twice.
    if FIRST:
        lower = load_first_rows(w_in, b_in, n, NET)
        z = _first_values(inputs, lower, first, begin, count, NET)
    else:
        z = tl.load(before + _edges(first, NET)[:, None] * H + n[None, :], mask=first < tiles, other=0.0)
    if not STORE:
        # Transposed, so that the matrix units take its operands from registers.
        sum_in = tl.zeros((KIN, NB), tl.float32)
        e_high = tl.zeros((EDGES, NB), tl.float16)
        e_low = tl.zeros((EDGES, NB), tl.float16)
    for tile in tl.range(first, tiles, step, num_stages=STAGES):
        edge = _edges(tile, NET)
        d = _load(above, edge, k, H)
        if not STORE:
            # x is loaded again: Triton does not load ahead in a loop that keeps a value for two turns.
            at_tile = tl.maximum(tile - step, first)
            sum_in = _add_first_rows(inputs, at_tile, e_high, e_low, factor_dz, sum_in, begin, count, NET)
        value, slope = activation(z, NET)
        a_high, a_low = _parts(value, up)
        if TURNED:
            turned = tl.trans(a_high), tl.trans(a_low)
            product = tl.dot(turned[1], d[0])
            product = tl.dot(turned[0], d[1], product)
            product = tl.dot(turned[0], d[0], product)
            total += product * (factor * factor_a)
            row = tl.dot(ones, d[1])
            of_bias += tl.dot(ones, d[0], row) * factor
        else:
            turned = tl.trans(d[0]), tl.trans(d[1])
            product = tl.dot(turned[0], a_low)
            product = tl.dot(turned[1], a_high, product)
            product = tl.dot(turned[0], a_high, product)
            total += product * (factor * factor_a)
            # The sum over the edges as a product: the same in all 16 columns.
            column = tl.dot(turned[1], ones)
            of_bias += tl.dot(turned[0], ones, column) * factor
        dz = _multiply(d, block, factor_z) * slope
        if FIRST:
            z = _first_values(inputs, lower, tile + step, begin, count, NET)
        else:
            place = before + _edges(tile + step, NET)[:, None] * H + n[None, :]
            z = tl.load(place, mask=tile + step < tiles, other=0.0)
        if not FIRST:
            largest = tl.maximum(largest, tl.abs(dz))
        if STORE:
            _store(planes, edge, n, dz, up_dz, H)
        else:
            e_high, e_low = _parts(dz, up_dz)
    if not FIRST:
        _raise(bounds + 2 * LAYER + 1, largest)
    own = sums + first.to(tl.int64) * TOTAL + at
    # Of the programs with one block each, the first has the sum for the bias.
    is_first = tl.program_id(0) % BLOCKS == 0
    if TURNED:
        add_to(own + k[None, :] * BELOW + n[:, None], total, (k < WIDE)[None, :] & (n < BELOW)[:, None])
        add_to(own + WIDE * BELOW + k, tl.sum(of_bias, axis=0) * 0.0625, (k < WIDE) & is_first)
    else:
        add_to(own + k[:, None] * BELOW + n[None, :], total, (k < WIDE)[:, None] & (n < BELOW)[None, :])
        add_to(own + WIDE * BELOW + k, tl.sum(of_bias, axis=1) * 0.0625, (k < WIDE) & is_first)
    if not STORE:
        last_tile = first + tl.maximum(tl.cdiv(tiles - first, step) - 1, 0) * step
        sum_in = _add_first_rows(inputs, last_tile, e_high, e_low, factor_dz, sum_in, begin, count, NET)
        add_first(ends + tl.program_id(0).to(tl.int64) * TOTAL_ENDS, n, tl.trans(sum_in), NET)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def first_gradient(
    inputs,
    above,
    of_inputs,
    sums,
    w_in,
    norms,
    bounds,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    TOTAL: tl.constexpr,
):
    """The gradients of the first layer from dz of the first hidden layer, `above`, and of the inputs.

    of_inputs may be the memory of inputs. sums: (programs, TOTAL).
    """
    H: tl.constexpr = NET.hidden_padded
    IN: tl.constexpr = NET.inputs
    KIN: tl.constexpr = NET.inputs_padded
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    weight = load_weight(w_in, w_in, NET.widths[0], IN, H, KIN, False, NET)
    _, factor = _scale_of_slopes(norms, bounds, 0, NET)
    EDGES: tl.constexpr = NET.edges
    total = tl.zeros((H, KIN), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, EDGES), programs):
        edge = _edges(tile, NET)
        x = split(load_inputs(inputs, edge + begin, begin + count, NET), NET)
        high, low = _load(above, edge, h, H)
        d = high, low, factor
        total = add_product(flip(d, NET), x, total, NET)
        back = add_product(d, weight, tl.zeros((EDGES, KIN), tl.float32), NET)
        tl.debug_barrier()  # all threads have read the inputs, which their gradient may replace
        to = of_inputs + (edge + begin)[:, None] * IN + k[None, :]
        mask = (edge < count)[:, None] & (k < IN)[None, :]
        tl.store(to, back.to(of_inputs.dtype.element_ty), mask=mask)
    add_first(sums + tl.program_id(0).to(tl.int64) * TOTAL, h, total, NET)
