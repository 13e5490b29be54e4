"""Triton kernels of a 16-bit MLP over edges with hidden layers of up to 256 columns: two steps each.

    first_two       z_0 = x W_in' + b,   z_1 = act(z_0) W_1' + b
    last_two        z_last = act(z_last-1) W' + b,   out = act(z_last) W_out' + b
    back_last       dW_out += g' act(z_last),   dz_last = (g W_out) act'(z_last),   out as above
    back_between    dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)

What one step leaves to the next stays in registers, and the activations of a step of backward are computed
once. Programs, tiles, slices, sums and NET are those of `wide_triton`, which has the steps one by one.
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
from pinchpoint.kit.edges.tile_kernels.wide_triton import load_block, load_values
from pinchpoint.kit.triton_launch import Launcher


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def first_two(
    inputs,
    first,
    second,
    w_in,
    b_in,
    weight,
    bias,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    STORE_FIRST: tl.constexpr,
):
    """z of the first hidden layer to `first` if STORE_FIRST, and z of the second one to `second`."""
    H: tl.constexpr = NET.hidden_padded
    WIDE: tl.constexpr = NET.widths[1]
    BELOW: tl.constexpr = NET.widths[0]
    h = tl.arange(0, H)
    lower = load_weight(w_in, b_in, BELOW, NET.inputs, H, NET.inputs_padded, NET.bias, NET)
    upper = load_block(weight, h, h, WIDE, BELOW, NET)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        x = split(load_inputs(inputs, edge + begin, begin + count, NET), NET)
        z = add_layer(lower, x, zeros(H, NET), NET)
        place = edge[:, None] * H + h[None, :]
        if STORE_FIRST:
            tl.store(first + place, z.to(first.dtype.element_ty))
        value, _ = activation(z, NET)
        z = add_layer(upper, split(value, NET), load_bias(bias, WIDE, H, NET), NET)
        tl.store(second + place, z.to(second.dtype.element_ty))


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
):
    """The outputs from z of the hidden layer before the last one."""
    H: tl.constexpr = NET.hidden_padded
    OUT: tl.constexpr = NET.outputs
    COUT: tl.constexpr = NET.outputs_padded
    WIDE: tl.constexpr = NET.widths[NET.last]
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    lower = load_block(weight, h, h, WIDE, NET.widths[NET.last - 1], NET)
    upper = load_block(w_out, c, h, OUT, WIDE, NET)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        a = load_values(values, edge[:, None] * H + h[None, :], True, NET)
        value, _ = activation(add_layer(lower, a, load_bias(bias, WIDE, H, NET), NET), NET)
        result = add_layer(upper, split(value, NET), load_bias(b_out, OUT, COUT, NET), NET)
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
    weight = load_block(w_out, c, h, OUT, WIDE, NET)
    sum_out = tl.zeros((H, COUT), tl.float32)
    sum_g = zeros(COUT, NET)
    tiles = tl.cdiv(count, NET.edges)
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
    TOTAL); those of this weight begin at `at`, and those of its bias follow.
    """
    H: tl.constexpr = NET.hidden_padded
    BLOCKS: tl.constexpr = H // NB
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    k = tl.arange(0, H)
    block = load_block(weight, k, n, WIDE, BELOW, NET)
    total = tl.zeros((H, NB), tl.float32)
    of_bias = tl.zeros((H, 16), tl.float32)
    ones = to_16_bits(tl.full((NET.edges, 16), 1.0, tl.float32), NET)
    first = tl.program_id(0) // BLOCKS
    for tile in tl.range(first, tl.cdiv(count, NET.edges), programs // BLOCKS, num_stages=STAGES):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        d = (tl.load(above + edge[:, None] * H + k[None, :]),)
        place = edge[:, None] * H + n[None, :]
        value, slope = activation(tl.load(before + place).to(tl.float32), NET)
        a = split(value, NET)
        dz = back_layer(block, d, NB, NET) * slope
        tl.store(before + place, dz.to(before.dtype.element_ty))
        total = add_outer(d, a, total, NET)
        # The sum over the edges as a product: the same in all 16 columns.
        of_bias = tl.dot(tl.trans(d[0]), ones, of_bias)
    own = sums + first.to(tl.int64) * TOTAL + at
    add_to(own + k[:, None] * BELOW + n[None, :], total, (k < WIDE)[:, None] & (n < BELOW)[None, :])
    # Of the programs with one block each, the first has the sum for the bias.
    is_first = tl.program_id(0) % BLOCKS == 0
    add_to(own + WIDE * BELOW + k, tl.sum(of_bias, axis=1) * 0.0625, (k < WIDE) & is_first)
