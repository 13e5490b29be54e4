"""Triton kernels of an MLP over edges with hidden layers of up to 256 columns: one per layer and slice.

    forward                 z_0 = x W_in' + b,   z_i = act(z_i-1) W_i' + b,   out = act(z_last) W_out' + b
    backward, last layer    dW_out += g' act(z_last),   dz_last = (g W_out) act'(z_last)
    backward, layer i       dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)
    backward, first layer   dW_in += dz_0' x,   dx = dz_0 W_in

Rows are edges, columns are features. A weight of 256 x 256, or the sum of its gradient, does not fit into
shared memory or registers in every precision: a program takes one block of columns, NB of H, and every n-th
tile of BE edges. z of a slice of edges is in memory, (slice, H) for each hidden layer, and dz replaces it.
KEEP: so are the activations, which several programs would otherwise compute again. The slice begins at edge
`begin` of the chunk. Rows beyond the chunk have gradients of zero. Each program, or each group of programs
with one block each, keeps its own sums of gradients; they are added up afterwards in a fixed order.

NET: a `tile_mlp.Net` without columns, what the kernels are compiled for, and the parts of a product.
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
from pinchpoint.kit.triton_launch import Launcher


@triton.jit
def load_block(weight, r, c, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NET: tl.constexpr):
    """Rows r and columns c of a weight (ROWS, COLUMNS), with zeros beyond it; with one part, of 16 bits."""
    mask = (r < ROWS)[:, None] & (c < COLUMNS)[None, :]
    here = tl.load(weight + r[:, None] * COLUMNS + c[None, :], mask=mask, other=0.0)
    if NET.parts == 2:
        block = split(here.to(tl.float32), NET)
    else:
        block = (here,)
    return block


@triton.jit
def load_values(values, place, APPLY: tl.constexpr, NET: tl.constexpr):
    """Some numbers of a hidden layer as an operand. APPLY: they are z, and the activations are returned."""
    v = tl.load(values + place)
    if APPLY:
        v, _ = activation(v.to(tl.float32), NET)
    if APPLY or NET.parts == 2:
        operand = split(v.to(tl.float32), NET)
    else:
        operand = (v,)
    return operand


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def first_layer(
    inputs,
    before,
    after,
    w_in,
    b_in,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    Z: tl.constexpr,
    KEEP: tl.constexpr,
):
    """z of the first hidden layer to `before` if Z; its activations to `after` if KEEP."""
    H: tl.constexpr = NET.hidden_padded
    weight = load_weight(w_in, b_in, NET.widths[0], NET.inputs, H, NET.inputs_padded, NET.bias, NET)
    h = tl.arange(0, H)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        x = split(load_inputs(inputs, edge + begin, begin + count, NET), NET)
        z = add_layer(weight, x, zeros(H, NET), NET)
        place = edge[:, None] * H + h[None, :]
        if Z:
            tl.store(before + place, z.to(before.dtype.element_ty))
        if KEEP:
            value, _ = activation(z, NET)
            tl.store(after + place, value.to(after.dtype.element_ty))


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
    BACK: tl.constexpr,
    Z: tl.constexpr,
    KEEP: tl.constexpr,
):
    """A block of columns of a hidden layer from that below; with BACK, dz of the layer below from it.

    weight: (WIDE, BELOW), that between the two. values: activations if KEEP, z if not, dz with BACK. Forward
    writes z to `before` if Z, and activations to `after` if KEEP; backward replaces z in `before` by dz.
    """
    H: tl.constexpr = NET.hidden_padded
    BLOCKS: tl.constexpr = H // NB
    APPLY: tl.constexpr = not (BACK or KEEP)
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    k = tl.arange(0, H)
    if BACK:
        block = load_block(weight, k, n, WIDE, BELOW, NET)
    else:
        block = load_block(weight, n, k, WIDE, BELOW, NET)
    for tile in range(tl.program_id(0) // BLOCKS, tl.cdiv(count, NET.edges), programs // BLOCKS):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        a = load_values(values, edge[:, None] * H + k[None, :], APPLY, NET)
        place = edge[:, None] * H + n[None, :]
        if BACK:
            dz = back_layer(block, a, NB, NET)
            _, slope = activation(tl.load(before + place).to(tl.float32), NET)
            tl.store(before + place, (dz * slope).to(before.dtype.element_ty))
        else:
            z = zeros(NB, NET)
            if NET.bias:
                z += tl.load(bias + n, mask=n < WIDE, other=0.0).to(tl.float32)[None, :]
            z = add_layer(block, a, z, NET)
            if Z:
                tl.store(before + place, z.to(before.dtype.element_ty))
            if KEEP:
                value, _ = activation(z, NET)
                tl.store(after + place, value.to(after.dtype.element_ty))


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
def last_layer(
    activations,
    before,
    gradient,
    values,
    sums,
    w_out,
    b_out,
    begin,
    count,
    programs,
    NET: tl.constexpr,
    AT_OUT: tl.constexpr,
    TOTAL: tl.constexpr,
    NB: tl.constexpr,
    BACK: tl.constexpr,
    WANT_VALUES: tl.constexpr,
    KEEP: tl.constexpr,
):
    """The outputs, if WANT_VALUES (NB = H); with BACK, the gradient of the last layer, and dz in place of z.

    before: z of the last hidden layer; activations: its activations if KEEP. values may be the memory of
    gradient. sums: (groups of programs, TOTAL); those of this layer begin at AT_OUT.
    """
    H: tl.constexpr = NET.hidden_padded
    OUT: tl.constexpr = NET.outputs
    COUT: tl.constexpr = NET.outputs_padded
    WIDE: tl.constexpr = NET.widths[NET.last]
    BLOCKS: tl.constexpr = H // NB
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    c = tl.arange(0, COUT)
    weight = load_block(w_out, c, n, OUT, WIDE, NET)
    if BACK:
        sum_out = tl.zeros((NB, COUT), tl.float32)
        sum_g = zeros(COUT, NET)
    for tile in range(tl.program_id(0) // BLOCKS, tl.cdiv(count, NET.edges), programs // BLOCKS):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        place = edge[:, None] * H + n[None, :]
        at_edge = (edge + begin)[:, None] * OUT + c[None, :]
        # A tile may have more rows than those of the layer below have written.
        inside = (edge < count)[:, None]
        mask = inside & (c < OUT)[None, :]
        if BACK or not KEEP:
            z = tl.load(before + place, mask=inside, other=0.0)
            value, slope = activation(z.to(tl.float32), NET)
            if NET.parts == 1:
                slope = to_16_bits(slope, NET)  # fewer registers
        if KEEP:
            value = tl.load(activations + place, mask=inside, other=0.0).to(tl.float32)
        a = split(value, NET)
        if BACK:
            rows = tl.load(gradient + at_edge, mask=mask, other=0.0).to(tl.float32)
            sum_g += rows
            g = split(rows, NET)
        if WANT_VALUES:
            result = add_layer(weight, a, load_bias(b_out, OUT, COUT, NET), NET)
            if BACK:
                tl.debug_barrier()  # all threads have read the gradient, which the outputs may replace
            tl.store(values + at_edge, result.to(values.dtype.element_ty), mask=mask)
        if BACK:
            sum_out = add_outer(a, g, sum_out, NET)
            dz = back_layer(weight, g, NB, NET) * slope.to(tl.float32)
            tl.store(before + place, dz.to(before.dtype.element_ty))
    if BACK:
        own = sums + (tl.program_id(0) // BLOCKS).to(tl.int64) * TOTAL + AT_OUT
        add_to(own + c[None, :] * WIDE + n[:, None], sum_out, (c < OUT)[None, :] & (n < WIDE)[:, None])
        # Of the programs with one block each, the first has the sum for the bias.
        add_to(own + OUT * WIDE + c, tl.sum(sum_g, axis=0), (c < OUT) & (tl.program_id(0) % BLOCKS == 0))


@Launcher
@triton.jit(do_not_specialize=["at", "count", "programs"])
def weight_gradient(
    above,
    values,
    sums,
    at,
    count,
    programs,
    NET: tl.constexpr,
    WIDE: tl.constexpr,
    BELOW: tl.constexpr,
    TOTAL: tl.constexpr,
    NB: tl.constexpr,
    KEEP: tl.constexpr,
):
    """A block of rows of the gradient of a weight (WIDE, BELOW) between hidden layers, and of its bias.

    above: dz of the upper layer; values: activations of the lower one, or its z without KEEP. sums: (groups
    of programs, TOTAL); those of this weight begin at `at`.
    """
    H: tl.constexpr = NET.hidden_padded
    BLOCKS: tl.constexpr = H // NB
    n = (tl.program_id(0) % BLOCKS) * NB + tl.arange(0, NB)
    k = tl.arange(0, H)
    total = tl.zeros((NB, H), tl.float32)
    of_bias = tl.zeros((NB, 16), tl.float32)
    ones = to_16_bits(tl.full((NET.edges, 16), 1.0, tl.float32), NET)
    for tile in range(tl.program_id(0) // BLOCKS, tl.cdiv(count, NET.edges), programs // BLOCKS):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        d = load_values(above, edge[:, None] * H + n[None, :], False, NET)
        # The sum over the edges as a product: the same in all 16 columns.
        if NET.parts == 2:
            column = tl.dot(tl.trans(d[1]), ones)
            of_bias += tl.dot(tl.trans(d[0]), ones, column) * d[2]
        else:
            of_bias = tl.dot(tl.trans(d[0]), ones, of_bias)
        a = load_values(values, edge[:, None] * H + k[None, :], not KEEP, NET)
        total = add_outer(d, a, total, NET)
    own = sums + (tl.program_id(0) // BLOCKS).to(tl.int64) * TOTAL + at
    add_to(own + n[:, None] * BELOW + k[None, :], total, (n < WIDE)[:, None] & (k < BELOW)[None, :])
    add_to(own + WIDE * BELOW + n, tl.sum(of_bias, axis=1) * 0.0625, n < WIDE)


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
    WANT_INPUTS: tl.constexpr,
):
    """The gradient of the first weight and bias from dz of the first hidden layer, `above`.

    of_inputs may be the memory of inputs.
    """
    H: tl.constexpr = NET.hidden_padded
    IN: tl.constexpr = NET.inputs
    KIN: tl.constexpr = NET.inputs_padded
    D0: tl.constexpr = NET.widths[0]
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    if WANT_INPUTS:
        weight = load_weight(w_in, w_in, D0, IN, H, KIN, False, NET)
    total = tl.zeros((H, KIN), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        x = split(load_inputs(inputs, edge + begin, begin + count, NET), NET)
        d = load_values(above, edge[:, None] * H + h[None, :], False, NET)
        total = add_outer(d, x, total, NET)
        if WANT_INPUTS:
            back = back_layer(weight, d, KIN, NET)
            tl.debug_barrier()  # all threads have read the inputs, which their gradient may replace
            to = of_inputs + (edge + begin)[:, None] * IN + k[None, :]
            mask = (edge < count)[:, None] & (k < IN)[None, :]
            tl.store(to, back.to(of_inputs.dtype.element_ty), mask=mask)
    # The column of ones is the bias, which follows the weight.
    own = sums + tl.program_id(0).to(tl.int64) * TOTAL
    at = own + tl.where((k < IN)[None, :], h[:, None] * IN + k[None, :], D0 * IN + h[:, None])
    add_to(at, total, (h < D0)[:, None] & (k < IN + NET.bias)[None, :])
