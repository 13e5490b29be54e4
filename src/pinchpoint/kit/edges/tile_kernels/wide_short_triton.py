"""Triton kernels of a 16-bit MLP over edges with hidden layers of up to 256 columns.

    first_two       z_0 = x W_in' + b,   z_1 = act(z_0) W_1' + b
    middle_layer    z_i = act(z_i-1) W_i' + b
    last_two        z_last = act(z_last-1) W' + b,   out = act(z_last) W_out' + b
    back_last       dW_out += g' act(z_last),   dz_last = (g W_out) act'(z_last),   out as above
    back_between    dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)
    first_gradient  dW_in += dz_0' x,   dx = dz_0 W_in

What one step leaves to the next stays in registers, and the activations of a step of backward are computed
once. Programs, tiles, slices, sums and NET are those of `wide_triton`.
STAGES: tiles on the chip, of which one is multiplied while the others are loaded.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import (
    activation,
    add_layer,
    add_outer,
    add_to,
    back_layer,
    load_bias,
    load_inputs,
    load_weight,
    split,
    to_16_bits,
    zeros,
)
from pinchpoint.kit.edges.tile_kernels.wide_triton import (
    add_first,
    load_first_rows,
    wait_for_last,
)
from pinchpoint.kit.triton_launch import Launcher


@triton.jit
def _load_block(weight, r, c, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows r and columns c of a weight of 16 bits, (ROWS, COLUMNS), with zeros beyond it, as an operand."""
    mask = (r < ROWS)[:, None] & (c < COLUMNS)[None, :]
    return (tl.load(weight + r[:, None] * COLUMNS + c[None, :], mask=mask, other=0.0),)


@triton.jit
def _load_values(z, place, NET: tl.constexpr):
    """The activations of some numbers of a hidden layer as an operand."""
    return split(activation(tl.load(z + place).to(tl.float32), NET)[0], NET)


@triton.jit
def _inputs(inputs, tile, begin, count, NET: tl.constexpr):
    """The inputs of a tile with the column of ones, an operand; zeros beside it if there is no such tile."""
    edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
    return split(load_inputs(inputs, edge + begin, begin + count, NET), NET)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def first_two(
    inputs,
    second,
    w_in,
    b_in,
    weight,
    bias,
    begin,
    count,
    programs,
    NET: tl.constexpr,
):
    """z of the second hidden layer from the inputs."""
    H: tl.constexpr = NET.hidden_padded
    WIDE: tl.constexpr = NET.widths[1]
    BELOW: tl.constexpr = NET.widths[0]
    h = tl.arange(0, H)
    wait_for_last(NET)  # the launch before may be what converted the weights
    lower = load_weight(w_in, b_in, BELOW, NET.inputs, H, NET.inputs_padded, NET.bias, NET)
    upper = _load_block(weight, h, h, WIDE, BELOW)
    x = _inputs(inputs, tl.program_id(0), begin, count, NET)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        ahead = _inputs(inputs, tile + programs, begin, count, NET)
        z = add_layer(lower, x, zeros(H, NET), NET)
        x = ahead
        value, _ = activation(z, NET)
        z = add_layer(upper, split(value, NET), load_bias(bias, WIDE, H, NET), NET)
        tl.store(second + edge[:, None] * H + h[None, :], z.to(second.dtype.element_ty))


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def middle_layer(below, here, weight, bias, begin, count, programs, NET: tl.constexpr, LAYER: tl.constexpr):
    """z of hidden layer LAYER from z of the one below."""
    H: tl.constexpr = NET.hidden_padded
    WIDE: tl.constexpr = NET.widths[LAYER]
    h = tl.arange(0, H)
    upper = _load_block(weight, h, h, WIDE, NET.widths[LAYER - 1])
    wait_for_last(NET)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        place = edge[:, None] * H + h[None, :]
        z = add_layer(upper, _load_values(below, place, NET), load_bias(bias, WIDE, H, NET), NET)
        tl.store(here + place, z.to(here.dtype.element_ty))


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def last_two(
    values,
    outputs,
    weight,
    bias,
    w_out,
    b_out,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    TWO: tl.constexpr,
):
    """The outputs from z of the hidden layer before the last one, or without TWO from z of the last one."""
    H: tl.constexpr = NET.hidden_padded
    OUT: tl.constexpr = NET.outputs
    COUT: tl.constexpr = NET.outputs_padded
    WIDE: tl.constexpr = NET.widths[NET.last]
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    if TWO:
        lower = _load_block(weight, h, h, WIDE, NET.widths[NET.last - 1])
    upper = _load_block(w_out, c, h, OUT, WIDE)
    wait_for_last(NET)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        a = _load_values(values, edge[:, None] * H + h[None, :], NET)
        if TWO:
            z = add_layer(lower, a, load_bias(bias, WIDE, H, NET), NET)
            a = split(activation(z, NET)[0], NET)
        result = add_layer(upper, a, load_bias(b_out, OUT, COUT, NET), NET)
        mask = (edge < count)[:, None] & (c < OUT)[None, :]
        to = outputs + (edge + begin)[:, None] * OUT + c[None, :]
        tl.store(to, result.to(outputs.dtype.element_ty), mask=mask)


@triton.jit
def _load_tile(values, tile, tiles, NET: tl.constexpr):
    """The numbers of a hidden layer of a tile; zeros if there is no such tile."""
    H: tl.constexpr = NET.hidden_padded
    edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
    place = edge[:, None] * H + tl.arange(0, H)[None, :]
    return tl.load(values + place, mask=tile < tiles, other=0.0)


@triton.jit
def _activation_16_bits(z, NET: tl.constexpr):
    value, slope = activation(z.to(tl.float32), NET)
    return to_16_bits(value, NET), to_16_bits(slope, NET)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def back_last(
    before,
    gradient,
    outputs,
    sums,
    w_out,
    b_out,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    AT_OUT: tl.constexpr,
    TOTAL: tl.constexpr,
    WANT_VALUES: tl.constexpr,
):
    """The gradient of the last layer, dz of the layer below in place of its z, and outputs if WANT_VALUES.

    outputs may be the memory of gradient. sums: (programs, TOTAL); those of this layer begin at AT_OUT.
    """
    H: tl.constexpr = NET.hidden_padded
    OUT: tl.constexpr = NET.outputs
    COUT: tl.constexpr = NET.outputs_padded
    WIDE: tl.constexpr = NET.widths[NET.last]
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    weight = _load_block(w_out, c, h, OUT, WIDE)
    sum_out = tl.zeros((H, COUT), tl.float32)
    sum_g = zeros(COUT, NET)
    tiles = tl.cdiv(count, NET.edges)
    wait_for_last(NET)
    # Passed on to the next turn of the loop, or the compiler would compute them once for each of their uses.
    value, slope = _activation_16_bits(_load_tile(before, tl.program_id(0), tiles, NET), NET)
    for tile in range(tl.program_id(0), tiles, programs):
        ahead = _load_tile(before, tile + programs, tiles, NET)
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        at_edge = (edge + begin)[:, None] * OUT + c[None, :]
        mask = (edge < count)[:, None] & (c < OUT)[None, :]
        rows = tl.load(gradient + at_edge, mask=mask, other=0.0).to(tl.float32)
        sum_g += rows
        g = split(rows, NET)
        if WANT_VALUES:
            result = add_layer(weight, (value,), load_bias(b_out, OUT, COUT, NET), NET)
            tl.debug_barrier()  # all threads have read the gradient, which the outputs may replace
            tl.store(outputs + at_edge, result.to(outputs.dtype.element_ty), mask=mask)
        sum_out = add_outer((value,), g, sum_out, NET)
        dz = back_layer(weight, g, H, NET) * slope.to(tl.float32)
        tl.store(before + edge[:, None] * H + h[None, :], dz.to(before.dtype.element_ty))
        value, slope = _activation_16_bits(ahead, NET)
    own = sums + tl.program_id(0).to(tl.int64) * TOTAL + AT_OUT
    add_to(own + c[None, :] * WIDE + h[:, None], sum_out, (c < OUT)[None, :] & (h < WIDE)[:, None])
    add_to(own + OUT * WIDE + c, tl.sum(sum_g, axis=0), c < OUT)


@triton.jit
def _first_tile(inputs, lower, tile, begin, count, NB: tl.constexpr, NET: tl.constexpr):
    """A block of the first hidden layer of a tile: activations and slopes."""
    x = _inputs(inputs, tile, begin, count, NET)
    return _activation_16_bits(add_layer(lower, x, zeros(NB, NET), NET), NET)


@triton.jit
def _load_columns(values, tile, tiles, n, NET: tl.constexpr):
    """Columns n of a hidden layer of a tile; zeros if there is no such tile."""
    H: tl.constexpr = NET.hidden_padded
    edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
    return tl.load(values + edge[:, None] * H + n[None, :], mask=tile < tiles, other=0.0)


@triton.jit
def _next_tile(before, tile, tiles, n, NET: tl.constexpr):
    """A block of activations and slopes of a tile from z; of zeros if there is no such tile."""
    return _activation_16_bits(_load_columns(before, tile, tiles, n, NET), NET)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def back_between(
    above,
    inputs,
    before,
    sums,
    ends,
    weight,
    w_in,
    b_in,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    AT: tl.constexpr,
    TOTAL: tl.constexpr,
    TOTAL_ENDS: tl.constexpr,
    NB: tl.constexpr,
    STORE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A block of columns of the gradient of weight LAYER between hidden layers, and of dz below it.

    above: dz of the upper layer. z of the lower one is in `before`, or is computed from the inputs if it is
    the first. STORE: dz of the lower layer goes to `before`. If not, the gradient of the first layer's weight
    is added to `ends`, each program its block of rows. sums: (groups of programs, TOTAL); those of this
    weight begin at AT, and those of its bias follow, of which each program has its block, too. ends:
    (programs, TOTAL_ENDS).
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
    block = _load_block(weight, k, n, WIDE, BELOW)
    total = tl.zeros((H, NB), tl.float32)
    of_bias = tl.zeros((EDGES, NB), tl.float32)
    first = tl.program_id(0) // BLOCKS
    tiles, step = tl.cdiv(count, EDGES), programs // BLOCKS
    if FIRST:
        lower = load_first_rows(w_in, b_in, n, NET)
    wait_for_last(NET)
    mine = _load_columns(above, first, tiles, n, NET)
    # Passed on to the next turn of the loop: of products in one turn, some would be computed twice.
    if FIRST:
        value, slope = _first_tile(inputs, lower, first, begin, count, NB, NET)
    else:
        value, slope = _next_tile(before, first, tiles, n, NET)
    if not STORE:
        # Transposed, so that the matrix units take its operands from registers.
        sum_in = tl.zeros((KIN, NB), tl.float32)
        dz_before = to_16_bits(tl.zeros((EDGES, NB), tl.float32), NET)
    for tile in tl.range(first, tiles, step, num_stages=STAGES):
        edge = tl.cast(tile, tl.int64) * EDGES + tl.arange(0, EDGES)
        d = (tl.load(above + edge[:, None] * H + k[None, :]),)
        if not STORE:
            # Loaded again: Triton does not load ahead in a loop that keeps a value for two turns.
            x = _inputs(inputs, tl.maximum(tile - step, first), begin, count, NET)
            sum_in = tl.dot(tl.trans(x[0]), dz_before, sum_in)
        total = add_outer(d, (value,), total, NET)
        of_bias += mine.to(tl.float32)
        mine = _load_columns(above, tile + step, tiles, n, NET)
        dz = to_16_bits(back_layer(block, d, NB, NET) * slope.to(tl.float32), NET)
        if FIRST:
            value, slope = _first_tile(inputs, lower, tile + step, begin, count, NB, NET)
        else:
            value, slope = _next_tile(before, tile + step, tiles, n, NET)
        if STORE:
            tl.store(before + edge[:, None] * H + n[None, :], dz)
        else:
            dz_before = dz
    own = sums + first.to(tl.int64) * TOTAL + AT
    add_to(own + k[:, None] * BELOW + n[None, :], total, (k < WIDE)[:, None] & (n < BELOW)[None, :])
    add_to(own + WIDE * BELOW + n, tl.sum(of_bias, axis=0), n < WIDE)
    if not STORE:
        last_tile = first + tl.maximum(tl.cdiv(tiles - first, step) - 1, 0) * step
        x = _inputs(inputs, last_tile, begin, count, NET)
        sum_in = tl.dot(tl.trans(x[0]), dz_before, sum_in)
        add_first(ends + tl.program_id(0).to(tl.int64) * TOTAL_ENDS, n, tl.trans(sum_in), NET)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def first_gradient(
    inputs,
    above,
    of_inputs,
    sums,
    w_in,
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
    total = tl.zeros((H, KIN), tl.float32)
    tiles = tl.cdiv(count, NET.edges)
    wait_for_last(NET)
    x = _inputs(inputs, tl.program_id(0), begin, count, NET)
    d = _load_tile(above, tl.program_id(0), tiles, NET)
    for tile in range(tl.program_id(0), tiles, programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        next_x = _inputs(inputs, tile + programs, begin, count, NET)
        next_d = _load_tile(above, tile + programs, tiles, NET)
        total = add_outer((d,), x, total, NET)
        back = back_layer(weight, (d,), KIN, NET)
        x, d = next_x, next_d
        tl.debug_barrier()  # all threads have read the inputs, which their gradient may replace
        to = of_inputs + (edge + begin)[:, None] * IN + k[None, :]
        mask = (edge < count)[:, None] & (k < IN)[None, :]
        tl.store(to, back.to(of_inputs.dtype.element_ty), mask=mask)
    add_first(sums + tl.program_id(0).to(tl.int64) * TOTAL, h, total, NET)
