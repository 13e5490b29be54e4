"""Triton kernels of a small MLP over edges, forward and backward, one launch each.

    forward                 z_0 = W_in x + b,   z_i = W_i act(z_i-1) + b,   out = W_out act(z_last) + b
    backward, last layer    dW_out += g act(z_last)',   dz_last = (W_out' g) act'(z_last)
    backward, layer i       dW_i += dz_i act(z_i-1)',   dz_i-1 = (W_i' dz_i) act'(z_i-1)
    backward, first layer   dW_in += dz_0 x',   dx = W_in' dz_0

A program visits every n-th tile of edges; its weights stay in shared memory, and the values of a tile in
registers. Backward visits the tiles of a round once for each weight between hidden layers, from the last to
the first, because only one such sum fits into the registers; it recomputes the values below, and passes dz of
a tile on to the next visit in a buffer that has room for one round. No program reads what another one wrote:
each keeps its own sums of the gradients, which are added up afterwards in a fixed order.

NET: a `tile_mlp.Net`, what the kernels are compiled for. weights: all weights and biases, from the first
layer to the last, then the results of `pack`.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import (
    activation,
    add_outer,
    add_to,
    along,
    back_layer,
    load_inputs,
    split,
    to_16_bits,
    zeros,
)
from pinchpoint.kit.edges.tile_kernels.layers_triton import (
    add_last,
    first_layer,
    load_between,
    load_first,
    load_gradient,
    load_hidden,
    load_last,
    next_layer,
    place_of,
    write_outputs,
)
from pinchpoint.kit.triton_launch import Launcher


@Launcher
@triton.jit
def pack(packed, factors, w_in, b_in, w_1, b_1, w_2, b_2, w_3, b_3, w_4, b_4, NET: tl.constexpr):
    """Write the weights between hidden layers, padded and split, to packed: (layers, parts, width, width).

    factors: (layers,), the factors of two parts. One program for each weight.
    """
    weights = w_in, b_in, w_1, b_1, w_2, b_2, w_3, b_3, w_4, b_4
    LAST: tl.constexpr = NET.last
    WIDTH: tl.constexpr = NET.hidden_padded
    for LAYER in tl.static_range(1, LAST + 1):
        if tl.program_id(0) == LAYER - 1:
            weight = load_between(weights, LAYER, NET)
            to = packed + (LAYER - 1) * NET.parts * WIDTH * WIDTH
            to += tl.arange(0, WIDTH)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
            tl.store(to, weight[0])
            if NET.parts == 2:
                tl.store(to + WIDTH * WIDTH, weight[1])
                tl.store(factors + LAYER - 1, weight[2])


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def forward(
    inputs,
    out,
    packed,
    factors,
    w_in,
    b_in,
    w_1,
    b_1,
    w_2,
    b_2,
    w_3,
    b_3,
    w_4,
    b_4,
    count,
    programs,
    NET: tl.constexpr,
):
    """inputs: (count, inputs) to out: (count, outputs)."""
    weights = w_in, b_in, w_1, b_1, w_2, b_2, w_3, b_3, w_4, b_4, packed, factors
    first = load_first(weights, NET)
    last = load_last(weights, NET)
    if NET.last >= 1:
        second = load_hidden(weights, 1, NET)
    if NET.last >= 2:
        third = load_hidden(weights, 2, NET)
    if NET.last >= 3:
        fourth = load_hidden(weights, 3, NET)
    for tile in range(tl.program_id(0), tl.cdiv(count, NET.edges), programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        z = first_layer(first, split(load_inputs(inputs, edge, count, NET), NET), NET)
        a = split(activation(z, NET)[0], NET)
        if NET.last >= 1:
            a = split(activation(next_layer(second, weights, a, 1, NET), NET)[0], NET)
        if NET.last >= 2:
            a = split(activation(next_layer(third, weights, a, 2, NET), NET)[0], NET)
        if NET.last >= 3:
            a = split(activation(next_layer(fourth, weights, a, 3, NET), NET)[0], NET)
        write_outputs(out, last, weights, a, edge, count, NET)


@Launcher
@triton.jit(do_not_specialize=["count", "programs", "round_tiles"])
def backward(
    inputs,
    gradient,
    buffer,
    of_inputs,
    values,
    sums,
    packed,
    factors,
    w_in,
    b_in,
    w_1,
    b_1,
    w_2,
    b_2,
    w_3,
    b_3,
    w_4,
    b_4,
    count,
    programs,
    round_tiles,
    NET: tl.constexpr,
    WANT_INPUTS: tl.constexpr,
    WANT_VALUES: tl.constexpr,
):
    """Add the gradients of all layers to `sums`; gradient: (count, outputs), that of the outputs.

    sums: (programs, NET.places[-1]), from the first layer to the last each weight followed by its bias; the
    first with padded columns, of which one is its bias.
    round_tiles: the tiles of a round, of all programs together. buffer: a tile of hidden values for each tile
    of a round, and if NET.stored for each hidden layer but the first. packed, factors: those of `pack` if
    NET.columns, else not read. WANT_INPUTS: write the gradient of the inputs to of_inputs, which may be the
    inputs. WANT_VALUES: also write the outputs of the forward pass to values, which may be the gradient.
    """
    weights = w_in, b_in, w_1, b_1, w_2, b_2, w_3, b_3, w_4, b_4, packed, factors
    own = sums + tl.program_id(0).to(tl.int64) * NET.places[NET.last + 2]
    layer_size = tl.cast(round_tiles, tl.int64) * (NET.hidden_padded * NET.edges)
    tiles = tl.cdiv(count, NET.edges)
    LAST: tl.constexpr = NET.last
    END: tl.constexpr = 0 if LAST > 0 else -1  # one visit if there is no weight between hidden layers
    # Values that do not change between rounds would take registers from the visits.
    for begin in tl.range(0, tiles, round_tiles, disable_licm=True):
        end = tl.minimum(begin + round_tiles, tiles)
        if NET.stored:
            for LAYER in tl.static_range(1, LAST + 1):
                stored = buffer + (LAYER - 1) * layer_size
                below = buffer + (LAYER - 2) * layer_size
                _visit_forward(
                    inputs,
                    gradient,
                    below,
                    stored,
                    values,
                    own,
                    weights,
                    count,
                    programs,
                    begin,
                    end,
                    NET,
                    LAYER,
                    WANT_VALUES,
                )
                tl.debug_barrier()  # the threads of the next visit read what others wrote
        for LAYER in tl.static_range(LAST, END, -1):
            passed = buffer
            below = buffer
            if NET.stored:
                passed += (LAYER - 1) * layer_size
                below += (LAYER - 2) * layer_size
            _visit(
                inputs,
                gradient,
                passed,
                below,
                of_inputs,
                values,
                own,
                weights,
                count,
                programs,
                begin,
                end,
                NET,
                LAYER,
                WANT_INPUTS,
                WANT_VALUES,
            )
            tl.debug_barrier()


@triton.jit
def _visit_forward(
    inputs,
    gradient,
    below,
    stored,
    values,
    own,
    weights,
    count,
    programs,
    begin,
    end,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    WANT_VALUES: tl.constexpr,
):
    """Leave z of hidden layer LAYER >= 1 in `stored`; of the last one, dz instead.

    It is computed from z of the layer below in `below`, or from the inputs.
    """
    WIDTH: tl.constexpr = NET.hidden_padded
    OUTPUTS: tl.constexpr = NET.outputs_padded
    LAST: tl.constexpr = NET.last
    TOP: tl.constexpr = LAYER == LAST
    if LAYER == 1:
        first = load_first(weights, NET)
    weight = load_hidden(weights, LAYER, NET)
    if TOP:
        last = load_last(weights, NET)
        sum_out = tl.zeros((WIDTH, OUTPUTS), tl.float32)
        sum_g = zeros(NET.outputs_padded, NET)
    for tile in range(begin + tl.program_id(0), end, programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        at = place_of(tile - begin, NET)
        if LAYER == 1:
            z = first_layer(first, split(load_inputs(inputs, edge, count, NET), NET), NET)
        else:
            z = tl.load(below + at).to(tl.float32)
        z = next_layer(weight, weights, split(activation(z, NET)[0], NET), LAYER, NET)
        if TOP:
            value, slope = activation(z, NET)
            a = split(value, NET)
            g = load_gradient(gradient, edge, count, NET)
            sum_g += g
            of_outputs = split(g, NET)
            sum_out = add_outer(a, of_outputs, sum_out, NET)
            if WANT_VALUES:
                tl.debug_barrier()  # other threads have read the gradient, which the values may replace
                write_outputs(values, last, weights, a, edge, count, NET)
            z = back_layer(last, of_outputs, WIDTH, NET) * slope
        tl.store(stored + at, z.to(stored.dtype.element_ty))
    if TOP:
        add_last(own, sum_out, sum_g, NET)


@triton.jit
def _visit(
    inputs,
    gradient,
    passed,
    below,
    of_inputs,
    values,
    own,
    weights,
    count,
    programs,
    begin,
    end,
    NET: tl.constexpr,
    LAYER: tl.constexpr,
    WANT_INPUTS: tl.constexpr,
    WANT_VALUES: tl.constexpr,
):
    """Add the gradient of the weight between hidden layers LAYER - 1 and LAYER; 0 if there is none.

    The visit of the last one begins with the last layer of the network, the others with dz in `passed`. That
    of LAYER <= 1 ends with the first layer of the network, the others leave dz in `below`. NET.stored: dz of
    all layers is in `passed`, and z of the layer below in `below`, where dz replaces it.
    """
    WIDTH: tl.constexpr = NET.hidden_padded
    INPUTS: tl.constexpr = NET.inputs_padded
    OUTPUTS: tl.constexpr = NET.outputs_padded
    EDGES: tl.constexpr = NET.edges
    LAST: tl.constexpr = NET.last
    TOP: tl.constexpr = LAYER == LAST and not NET.stored
    BOTTOM: tl.constexpr = LAYER <= 1
    COMPUTED: tl.constexpr = BOTTOM or not NET.stored
    if COMPUTED:
        first = load_first(weights, NET)
    if LAYER >= 1:
        weight = load_hidden(weights, LAYER, NET)
        sum_weight = tl.zeros((WIDTH, WIDTH), tl.float32)
        if NET.columns:
            sum_bias = tl.zeros((WIDTH,), tl.float32)
        else:
            sum_bias = tl.zeros((WIDTH, 16), tl.float32)
            ones = split(tl.full((EDGES, 16), 1.0, tl.float32), NET)
    if LAYER >= 2 and COMPUTED:
        second = load_hidden(weights, 1, NET)
    if LAYER >= 3 and COMPUTED:
        third = load_hidden(weights, 2, NET)
    if BOTTOM:
        sum_in = tl.zeros((WIDTH, INPUTS), tl.float32)
    if TOP:
        last = load_last(weights, NET)
        sum_out = tl.zeros((WIDTH, OUTPUTS), tl.float32)
        sum_g = zeros(NET.outputs_padded, NET)
    for tile in range(begin + tl.program_id(0), end, programs):
        edge = tl.cast(tile, tl.int64) * NET.edges + tl.arange(0, NET.edges)
        at = place_of(tile - begin, NET)
        if COMPUTED:
            x = split(load_inputs(inputs, edge, count, NET), NET)
            z = first_layer(first, x, NET)
            if LAYER >= 2:
                z = next_layer(second, weights, split(activation(z, NET)[0], NET), 1, NET)
            if LAYER >= 3:
                z = next_layer(third, weights, split(activation(z, NET)[0], NET), 2, NET)
        else:
            z = tl.load(below + at).to(tl.float32)
        value, slope = activation(z, NET)
        a = split(value, NET)
        if NET.parts == 1:
            slope = to_16_bits(slope, NET)  # fewer registers
        if TOP:
            top = a
            top_slope = slope
            if LAYER >= 1:
                value, top_slope = activation(next_layer(weight, weights, a, LAYER, NET), NET)
                top = split(value, NET)
                if NET.parts == 1:
                    top_slope = to_16_bits(top_slope, NET)
            g = load_gradient(gradient, edge, count, NET)
            sum_g += g
            of_outputs = split(g, NET)
            sum_out = add_outer(top, of_outputs, sum_out, NET)
            if WANT_VALUES:
                tl.debug_barrier()  # other threads have read the gradient, which the values may replace
                write_outputs(values, last, weights, top, edge, count, NET)
            dz = back_layer(last, of_outputs, WIDTH, NET) * top_slope.to(tl.float32)
        else:
            dz = tl.load(passed + at).to(tl.float32)
        d = split(dz, NET)
        if LAYER >= 1:
            if NET.bias:
                if NET.columns:
                    sum_bias += tl.sum(dz, axis=1)
                else:
                    sum_bias = add_outer(d, ones, sum_bias, NET)
            sum_weight = add_outer(d, a, sum_weight, NET)
            dz = back_layer(weight, d, WIDTH, NET) * slope.to(tl.float32)
        if BOTTOM:
            if LAYER >= 1:
                d = split(dz, NET)
            sum_in = add_outer(d, x, sum_in, NET)
            if WANT_INPUTS:
                back = back_layer(first, d, NET.inputs_padded, NET)
                tl.debug_barrier()  # as above, with the inputs
                k, e = along(tl.arange(0, NET.inputs_padded), edge, NET)
                mask = (e < count) & (k < NET.inputs)
                tl.store(of_inputs + e * NET.inputs + k, back.to(of_inputs.dtype.element_ty), mask=mask)
        else:
            tl.store(below + at, dz.to(below.dtype.element_ty))
    h = tl.arange(0, WIDTH)
    if LAYER >= 1:
        WIDE: tl.constexpr = NET.widths[LAYER]
        BELOW: tl.constexpr = NET.widths[LAYER - 1]
        to = own + NET.places[LAYER]
        add_to(to + h[:, None] * BELOW + h[None, :], sum_weight, (h < WIDE)[:, None] & (h < BELOW)[None, :])
        if NET.bias:
            if not NET.columns:
                sum_bias = tl.sum(sum_bias, axis=1) * 0.0625  # the same sum in all 16 columns
            add_to(to + WIDE * BELOW + h, sum_bias, h < WIDE)
    if BOTTOM:
        # With the padded columns, of which that of ones is the bias.
        KIN: tl.constexpr = NET.inputs_padded
        k = tl.arange(0, KIN)[None, :]
        add_to(own + h[:, None] * KIN + k, sum_in, (h < NET.widths[0])[:, None] & (k < KIN))
    if TOP:
        add_last(own, sum_out, sum_g, NET)
