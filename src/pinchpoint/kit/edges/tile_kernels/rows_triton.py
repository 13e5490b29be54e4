"""Triton kernels of a small MLP over edges, forward and backward: nothing between its layers reaches memory.

    forward                 z_0 = x W_in' + b,   z_i = act(z_i-1) W_i' + b,   out = act(z_MID) W_out' + b
    backward, last layer    dW_out' += act(z_MID)' g,   dz_MID = (g W_out) act'(z_MID)
    backward, layer i       dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)
    backward, first layer   dW_in += dz_0' x,   dx = dz_0 W_in

Rows are edges, columns are features. A program visits every n-th tile of BE edges; its weights stay in shared
memory, and the values of a tile in registers. Backward visits the tiles once for each weight between hidden
layers, from the last to the first, because only one such sum fits into the registers; it recomputes the
values below, and passes dz of a tile on to the next visit in a buffer. Each program keeps its own sums of the
gradients; they are added up afterwards in a fixed order.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import (
    activation,
    add_product,
    load_bias,
    load_inputs,
    load_weight,
    split,
)
from pinchpoint.kit.triton_launch import Launcher


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def forward(
    inputs,
    out,
    w_in,
    b_in,
    w_1,
    b_1,
    w_2,
    b_2,
    w_3,
    b_3,
    w_out,
    b_out,
    count,
    programs,
    IN: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    D3: tl.constexpr,
    OUT: tl.constexpr,
    KIN: tl.constexpr,
    H: tl.constexpr,
    COUT: tl.constexpr,
    MID: tl.constexpr,
    ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
    PARTS: tl.constexpr,
    FAST: tl.constexpr,
    BE: tl.constexpr,
):
    """inputs: (count, IN) to out: (count, OUT). D0 to D3: the widths of the hidden layers."""
    LAST: tl.constexpr = D0 if MID == 0 else (D1 if MID == 1 else (D2 if MID == 2 else D3))
    i1, i2, i3 = load_weight(w_in, b_in, D0, IN, H, KIN, HAS_BIAS, DTYPE, PARTS)
    o1, o2, o3 = load_weight(w_out, b_out, OUT, LAST, COUT, H, False, DTYPE, PARTS)
    if MID >= 1:
        p1, p2, p3 = load_weight(w_1, b_1, D1, D0, H, H, False, DTYPE, PARTS)
    if MID >= 2:
        q1, q2, q3 = load_weight(w_2, b_2, D2, D1, H, H, False, DTYPE, PARTS)
    if MID >= 3:
        r1, r2, r3 = load_weight(w_3, b_3, D3, D2, H, H, False, DTYPE, PARTS)
    c = tl.arange(0, COUT)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(count, BE), programs):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        a1, a2, a3 = split(load_inputs(inputs, edge, count, IN, KIN), DTYPE, PARTS)
        z = tl.zeros((BE, H), tl.float32)
        z = add_product(a1, a2, a3, tl.trans(i1), tl.trans(i2), tl.trans(i3), z, PARTS)
        value, _ = activation(z, ACT, FAST)
        a1, a2, a3 = split(value, DTYPE, PARTS)
        if MID >= 1:
            z = load_bias(b_1, D1, BE, H, HAS_BIAS)
            z = add_product(a1, a2, a3, tl.trans(p1), tl.trans(p2), tl.trans(p3), z, PARTS)
            value, _ = activation(z, ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
        if MID >= 2:
            z = load_bias(b_2, D2, BE, H, HAS_BIAS)
            z = add_product(a1, a2, a3, tl.trans(q1), tl.trans(q2), tl.trans(q3), z, PARTS)
            value, _ = activation(z, ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
        if MID >= 3:
            z = load_bias(b_3, D3, BE, H, HAS_BIAS)
            z = add_product(a1, a2, a3, tl.trans(r1), tl.trans(r2), tl.trans(r3), z, PARTS)
            value, _ = activation(z, ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
        result = load_bias(b_out, OUT, BE, COUT, HAS_BIAS)
        result = add_product(a1, a2, a3, tl.trans(o1), tl.trans(o2), tl.trans(o3), result, PARTS)
        mask = (edge < count)[:, None] & (c < OUT)
        tl.store(out + edge[:, None] * OUT + c, result.to(out.dtype.element_ty), mask=mask)


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def backward(
    inputs,
    gradient,
    passed_on,
    of_inputs,
    values,
    sums,
    w_in,
    b_in,
    w_1,
    b_1,
    w_2,
    b_2,
    w_low,
    b_low,
    w_out,
    b_out,
    count,
    programs,
    IN: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    D2: tl.constexpr,
    BELOW: tl.constexpr,
    WIDE: tl.constexpr,
    OUT: tl.constexpr,
    AT_LOW: tl.constexpr,
    AT_OUT: tl.constexpr,
    TOTAL: tl.constexpr,
    KIN: tl.constexpr,
    H: tl.constexpr,
    COUT: tl.constexpr,
    LOW: tl.constexpr,
    TOP: tl.constexpr,
    WANT_INPUTS: tl.constexpr,
    WANT_VALUES: tl.constexpr,
    ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
    PARTS: tl.constexpr,
    FAST: tl.constexpr,
    BE: tl.constexpr,
):
    """One visit, for the weight `w_low` between hidden layers LOW - 1 and LOW; LOW = 0 if there is none.

    TOP: the visit begins with the last layer; else with dz in passed_on, (tiles, BE, H). LOW <= 1: it ends
    with the first layer; else it leaves dz in passed_on. BELOW, WIDE: the widths of w_low, or twice that of
    the only hidden layer. sums: (programs, TOTAL), each weight followed by its bias, from the first layer to
    the last; that of w_low begins at AT_LOW. WANT_VALUES: also write the outputs of the forward pass.
    """
    BOTTOM: tl.constexpr = LOW <= 1
    i1, i2, i3 = load_weight(w_in, b_in, D0, IN, H, KIN, HAS_BIAS, DTYPE, PARTS)
    if LOW >= 1:
        m1, m2, m3 = load_weight(w_low, b_low, WIDE, BELOW, H, H, False, DTYPE, PARTS)
        sum_low = tl.zeros((H, H), tl.float32)
        sum_b_low = tl.zeros((H, 16), tl.float32)
        ones, _, _ = split(tl.full((BE, 16), 1.0, tl.float32), DTYPE, PARTS)
    if LOW >= 2:
        p1, p2, p3 = load_weight(w_1, b_1, D1, D0, H, H, False, DTYPE, PARTS)
    if LOW >= 3:
        q1, q2, q3 = load_weight(w_2, b_2, D2, D1, H, H, False, DTYPE, PARTS)
    if BOTTOM:
        sum_in = tl.zeros((H, KIN), tl.float32)
    if TOP:
        o1, o2, o3 = load_weight(w_out, b_out, OUT, WIDE, COUT, H, False, DTYPE, PARTS)
        sum_out = tl.zeros((H, COUT), tl.float32)
        sum_g = tl.zeros((BE, COUT), tl.float32)
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    for tile in range(tl.program_id(0), tl.cdiv(count, BE), programs):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        there = (edge < count)[:, None]
        x1, x2, x3 = split(load_inputs(inputs, edge, count, IN, KIN), DTYPE, PARTS)
        z = tl.zeros((BE, H), tl.float32)
        z = add_product(x1, x2, x3, tl.trans(i1), tl.trans(i2), tl.trans(i3), z, PARTS)
        value, slope = activation(z, ACT, FAST)
        a1, a2, a3 = split(value, DTYPE, PARTS)
        if LOW >= 2:
            z = load_bias(b_1, D1, BE, H, HAS_BIAS)
            z = add_product(a1, a2, a3, tl.trans(p1), tl.trans(p2), tl.trans(p3), z, PARTS)
            value, slope = activation(z, ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
        if LOW >= 3:
            z = load_bias(b_2, D2, BE, H, HAS_BIAS)
            z = add_product(a1, a2, a3, tl.trans(q1), tl.trans(q2), tl.trans(q3), z, PARTS)
            value, slope = activation(z, ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
        if PARTS == 1:
            slope = slope.to(DTYPE)  # fewer registers
        at_tile = passed_on + edge[:, None] * H + h[None, :]
        if TOP:
            mask = there & (c < OUT)[None, :]
            g = tl.load(gradient + edge[:, None] * OUT + c[None, :], mask=mask, other=0.0).to(tl.float32)
            sum_g += g
            g1, g2, g3 = split(g, DTYPE, PARTS)
            t1, t2, t3 = a1, a2, a3
            last_slope = slope
            if LOW >= 1:
                z = load_bias(b_low, WIDE, BE, H, HAS_BIAS)
                z = add_product(a1, a2, a3, tl.trans(m1), tl.trans(m2), tl.trans(m3), z, PARTS)
                last_value, last_slope = activation(z, ACT, FAST)
                t1, t2, t3 = split(last_value, DTYPE, PARTS)
                if PARTS == 1:
                    last_slope = last_slope.to(DTYPE)
            if WANT_VALUES:
                result = load_bias(b_out, OUT, BE, COUT, HAS_BIAS)
                result = add_product(t1, t2, t3, tl.trans(o1), tl.trans(o2), tl.trans(o3), result, PARTS)
                to = values + edge[:, None] * OUT + c[None, :]
                tl.store(to, result.to(values.dtype.element_ty), mask=mask)
            sum_out = add_product(tl.trans(t1), tl.trans(t2), tl.trans(t3), g1, g2, g3, sum_out, PARTS)
            dz = tl.zeros((BE, H), tl.float32)
            dz = add_product(g1, g2, g3, o1, o2, o3, dz, PARTS) * last_slope.to(tl.float32)
            d1, d2, d3 = split(dz, DTYPE, PARTS)
        else:
            d1, d2, d3 = split(tl.load(at_tile).to(tl.float32), DTYPE, PARTS)
        if LOW >= 1:
            sum_low = add_product(tl.trans(d1), tl.trans(d2), tl.trans(d3), a1, a2, a3, sum_low, PARTS)
            if HAS_BIAS:
                if PARTS == 3:
                    column = tl.dot(tl.trans(d3), ones)
                    column = tl.dot(tl.trans(d2), ones, column)
                    sum_b_low += tl.dot(tl.trans(d1), ones, column)
                else:
                    sum_b_low = tl.dot(tl.trans(d1), ones, sum_b_low)
            dz = tl.zeros((BE, H), tl.float32)
            dz = add_product(d1, d2, d3, m1, m2, m3, dz, PARTS) * slope.to(tl.float32)
            d1, d2, d3 = split(dz, DTYPE, PARTS)
        if BOTTOM:
            sum_in = add_product(tl.trans(d1), tl.trans(d2), tl.trans(d3), x1, x2, x3, sum_in, PARTS)
            if WANT_INPUTS:
                back = tl.zeros((BE, KIN), tl.float32)
                back = add_product(d1, d2, d3, i1, i2, i3, back, PARTS)
                to = of_inputs + edge[:, None] * IN + k[None, :]
                tl.store(to, back.to(of_inputs.dtype.element_ty), mask=there & (k < IN)[None, :])
        else:
            tl.store(at_tile, dz.to(passed_on.dtype.element_ty))
    # The sums continue from one launch to the next.
    own = sums + tl.program_id(0).to(tl.int64) * TOTAL
    if LOW >= 1:
        at = own + AT_LOW + h[:, None] * BELOW + h[None, :]
        mask = (h < WIDE)[:, None] & (h < BELOW)[None, :]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_low, mask=mask)
        if HAS_BIAS:
            at = own + AT_LOW + WIDE * BELOW + h
            b_low_total = tl.sum(sum_b_low, axis=1) * 0.0625  # the same sum in all 16 columns
            tl.store(at, tl.load(at, mask=h < WIDE, other=0.0) + b_low_total, mask=h < WIDE)
    if BOTTOM:
        # The column of ones is the bias, which follows the weight.
        at = own + tl.where((k < IN)[None, :], h[:, None] * IN + k[None, :], D0 * IN + h[:, None])
        mask = (h < D0)[:, None] & (k < IN + HAS_BIAS)[None, :]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_in, mask=mask)
    if TOP:
        at = own + AT_OUT + c[None, :] * WIDE + h[:, None]
        mask = (c < OUT)[None, :] & (h < WIDE)[:, None]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_out, mask=mask)
        at = own + AT_OUT + OUT * WIDE + c
        tl.store(at, tl.load(at, mask=c < OUT, other=0.0) + tl.sum(sum_g, axis=0), mask=c < OUT)
