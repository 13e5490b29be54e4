"""The backward pass of a float32 MLP over edges with hidden layers of up to 256 columns, in Triton.

    back_last       dW_out += g' act(z_last),   dz_last = (g W_out) act'(z_last)
    back_between    dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)
    first_gradient  dW_in += dz_0' x,   dx = dz_0 W_in

How numbers are in memory, norms and bounds are explained in `wide_parts_triton`.
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
    load_inputs,
    load_weight,
    split,
)
from pinchpoint.kit.edges.tile_kernels.wide_parts_triton import (
    edges_of,
    first_values,
    load_ahead,
    load_packed,
    load_parts,
    load_z,
    multiply,
    parts_of,
    raise_bound,
    scale_of,
    scale_of_slopes,
    scale_of_values,
    store_parts,
)
from pinchpoint.kit.edges.tile_kernels.wide_triton import (
    add_first,
    load_first_rows,
    wait_for_last,
)
from pinchpoint.kit.triton_launch import Launcher


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
    wait_for_last(NET)
    up, factor = scale_of_values(norms, bounds, LAST, NET)
    up_dz = scale_of_slopes(norms, bounds, LAST, NET)[0]
    up_g, factor_g = scale_of(tl.load(bounds + 1))
    sum_out = tl.zeros((NB, COUT), tl.float32)
    sum_g = tl.zeros((EDGES, COUT), tl.float32)
    largest = tl.zeros((EDGES, NB), tl.float32)
    first, step = tl.program_id(0) // BLOCKS, programs // BLOCKS
    tiles = tl.cdiv(count, EDGES)
    z = load_z(before, edges_of(first, NET), n, first < tiles, H)
    for tile in range(first, tiles, step):
        edge = edges_of(tile, NET)
        ahead = load_z(before, edges_of(tile + step, NET), n, tile + step < tiles, H)
        at_edge = (edge + begin)[:, None] * OUT + c[None, :]
        inside = (edge < count)[:, None] & (c < OUT)[None, :]
        rows = tl.load(gradient + at_edge, mask=inside, other=0.0).to(tl.float32)
        sum_g += rows
        g_high, g_low = parts_of(rows, up_g)
        value, slope = activation(z, NET)
        z = ahead
        high, low = parts_of(value, up)
        sum_out = add_product(
            (tl.trans(high), tl.trans(low), factor), (g_high, g_low, factor_g), sum_out, NET
        )
        dz = multiply((g_high, g_low), weight, factor_g * weight[2]) * slope
        largest = tl.maximum(largest, tl.abs(dz))
        tl.debug_barrier()  # all threads have read z, which dz replaces
        store_parts(planes, edge, n, dz, up_dz, H)
    raise_bound(bounds + 2 * LAST + 3, largest)
    own = sums + (tl.program_id(0) // BLOCKS).to(tl.int64) * TOTAL + AT_OUT
    add_to(own + c[None, :] * WIDE + n[:, None], sum_out, (c < OUT)[None, :] & (n < WIDE)[:, None])
    # Of the programs with one block each, the first has the sum for the bias.
    is_first = tl.program_id(0) % BLOCKS == 0
    add_to(own + OUT * WIDE + c, tl.sum(sum_g, axis=0), (c < OUT) & is_first)


@triton.jit
def _add_first_rows(inputs, tile, dz_high, dz_low, dz_factor, total, begin, count, NET: tl.constexpr):
    """total + x' dz of a tile, the transposed gradient of the first weight."""
    x = split(load_inputs(inputs, edges_of(tile, NET) + begin, begin + count, NET), NET)
    turned = tl.trans(x[0])
    product = tl.dot(turned, dz_low)
    product = tl.dot(tl.trans(x[1]), dz_high, product)
    product = tl.dot(turned, dz_high, product)
    return total + product * (x[2] * dz_factor)


@Launcher
@triton.jit(do_not_specialize=["begin", "count", "programs"])
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
    TURNED: tl.constexpr,
):
    """A block of columns of the gradient of weight LAYER between hidden layers, and of dz below it.

    above: dz of the upper layer in parts. z of the lower one is in `before`, or is computed from the inputs
    if it is the first. planes: where its dz goes if STORE, which may be the memory of `before`. Without
    STORE, the gradient of the first layer's weight is added to `ends`, each program its block of rows.
    sums: (groups of programs, TOTAL); those of this weight begin at AT, and those of its bias follow, of
    which each program has its block, too. ends: (programs, TOTAL_ENDS). TURNED: the sums are those of the
    transposed gradients. Before Hopper, Triton divides all products among warps in the same way, so that each
    would hold all of dz without it.
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
    block = load_packed(packed, k, n, LAYER, H)
    if FIRST:
        lower = load_first_rows(w_in, b_in, n, NET)
    wait_for_last(NET)
    up, factor_a = scale_of_values(norms, bounds, LAYER - 1, NET)
    _, factor = scale_of_slopes(norms, bounds, LAYER, NET)
    up_dz, factor_dz = scale_of_slopes(norms, bounds, LAYER - 1, NET)
    factor_z = factor * tl.load(norms + 4 * LAYER + 3)
    if TURNED:
        total = tl.zeros((NB, H), tl.float32)
    else:
        total = tl.zeros((H, NB), tl.float32)
    of_bias = tl.zeros((EDGES, NB), tl.float32)
    first = tl.program_id(0) // BLOCKS
    tiles, step = tl.cdiv(count, EDGES), programs // BLOCKS
    mine = load_ahead(above, edges_of(first, NET), n, first < tiles, H)
    largest = tl.zeros((EDGES, NB), tl.float32)
    # Passed on to the next turn of the loop: of products in one turn, some would be computed twice.
    if FIRST:
        z = first_values(inputs, lower, first, begin, count, NET)
    else:
        z = load_z(before, edges_of(first, NET), n, first < tiles, H)
    if not STORE:
        # Transposed, so that the matrix units take its operands from registers.
        sum_in = tl.zeros((KIN, NB), tl.float32)
        e_high = tl.zeros((EDGES, NB), tl.float16)
        e_low = tl.zeros((EDGES, NB), tl.float16)
    for tile in tl.range(first, tiles, step, num_stages=STAGES):
        edge = edges_of(tile, NET)
        d = load_parts(above, edge, k, H)
        if not STORE:
            # x is loaded again: Triton does not load ahead in a loop that keeps a value for two turns.
            at_tile = tl.maximum(tile - step, first)
            sum_in = _add_first_rows(inputs, at_tile, e_high, e_low, factor_dz, sum_in, begin, count, NET)
        value, slope = activation(z, NET)
        a_high, a_low = parts_of(value, up)
        if TURNED:
            turned = tl.trans(a_high), tl.trans(a_low)
            product = tl.dot(turned[1], d[0])
            product = tl.dot(turned[0], d[1], product)
            product = tl.dot(turned[0], d[0], product)
            total += product * (factor * factor_a)
        else:
            turned = tl.trans(d[0]), tl.trans(d[1])
            product = tl.dot(turned[0], a_low)
            product = tl.dot(turned[1], a_high, product)
            product = tl.dot(turned[0], a_high, product)
            total += product * (factor * factor_a)
        of_bias += mine[0].to(tl.float32) + mine[1].to(tl.float32)
        mine = load_ahead(above, edges_of(tile + step, NET), n, tile + step < tiles, H)
        dz = multiply(d, block, factor_z) * slope
        if FIRST:
            z = first_values(inputs, lower, tile + step, begin, count, NET)
        else:
            z = load_z(before, edges_of(tile + step, NET), n, tile + step < tiles, H)
        if not FIRST:
            largest = tl.maximum(largest, tl.abs(dz))
        if STORE:
            store_parts(planes, edge, n, dz, up_dz, H)
        else:
            e_high, e_low = parts_of(dz, up_dz)
    if not FIRST:
        raise_bound(bounds + 2 * LAYER + 1, largest)
    own = sums + first.to(tl.int64) * TOTAL + AT
    if TURNED:
        add_to(own + k[None, :] * BELOW + n[:, None], total, (k < WIDE)[None, :] & (n < BELOW)[:, None])
    else:
        add_to(own + k[:, None] * BELOW + n[None, :], total, (k < WIDE)[:, None] & (n < BELOW)[None, :])
    add_to(own + WIDE * BELOW + n, tl.sum(of_bias, axis=0) * factor, n < WIDE)
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
    STAGES: tl.constexpr,
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
    wait_for_last(NET)
    _, factor = scale_of_slopes(norms, bounds, 0, NET)
    EDGES: tl.constexpr = NET.edges
    total = tl.zeros((H, KIN), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(count, EDGES), programs, num_stages=STAGES):
        edge = edges_of(tile, NET)
        # It looks for the largest input, and so waits until all threads have read the inputs, which their
        # gradient may replace.
        x = split(load_inputs(inputs, edge + begin, begin + count, NET), NET)
        high, low = load_parts(above, edge, h, H)
        d = high, low, factor
        total = add_product(flip(d, NET), x, total, NET)
        back = add_product(d, weight, tl.zeros((EDGES, KIN), tl.float32), NET)
        to = of_inputs + (edge + begin)[:, None] * IN + k[None, :]
        mask = (edge < count)[:, None] & (k < IN)[None, :]
        tl.store(to, back.to(of_inputs.dtype.element_ty), mask=mask)
    add_first(sums + tl.program_id(0).to(tl.int64) * TOTAL, h, total, NET)
