"""Triton kernels of a small MLP over edges in which edges are columns: wide weights fill the matrix units.

The formulas are those of `rows_triton`, transposed. A tile of edges may be small, so that the wide sums of a
weight's gradient fit into registers. Weights between hidden layers are packed: padded, and split into parts
of a product.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.edges.tile_kernels.arithmetic_triton import (
    activation,
    add_product,
    load_weight,
    split,
)
from pinchpoint.kit.triton_launch import Launcher


@Launcher
@triton.jit
def pack(
    weight,
    to,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    DTYPE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Pad a weight (ROWS, COLUMNS) and split it into the parts of a product, `to`: (PARTS, R, C)."""
    r = tl.program_id(0)
    c = tl.arange(0, C)
    row = tl.load(weight + r * COLUMNS + c, mask=(c < COLUMNS) & (r < ROWS), other=0.0).to(tl.float32)
    first, second, third = split(row, DTYPE, PARTS)
    tl.store(to + r * C + c, first)
    if PARTS == 3:
        tl.store(to + (R + r) * C + c, second)
        tl.store(to + (2 * R + r) * C + c, third)


@triton.jit
def load_square(weight, H: tl.constexpr, PARTS: tl.constexpr):
    """A packed weight, (PARTS, H, H), which needs no registers on its way to shared memory."""
    at = weight + tl.arange(0, H)[:, None] * H + tl.arange(0, H)[None, :]
    first = tl.load(at)
    second = first
    third = first
    if PARTS == 3:
        second = tl.load(at + H * H)
        third = tl.load(at + 2 * H * H)
    return first, second, third


@triton.jit
def load_row_bias(bias, WIDE: tl.constexpr, H: tl.constexpr, BE: tl.constexpr, HAS_BIAS: tl.constexpr):
    """The value with which the sum of a layer's products starts, (H, BE)."""
    total = tl.zeros((H, BE), tl.float32)
    if HAS_BIAS:
        h = tl.arange(0, H)
        total += tl.load(bias + h, mask=h < WIDE, other=0.0).to(tl.float32)[:, None]
    return total


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def backward_columns(
    inputs,
    gradient,
    passed_on,
    stored,
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
    STORED: tl.constexpr,
    BE: tl.constexpr,
):
    """The same with edges as columns: wide weights fill the matrix units, and a tile of edges may be small.

    w_1, w_2 and w_low are packed; passed_on is (tiles, H, BE). STORED: `layer_columns` has left dz of layer
    LOW in passed_on and, for LOW >= 2, z of layer LOW - 1 in `stored`, where dz replaces it. Only one weight
    between hidden layers then has to be in shared memory.
    """
    BOTTOM: tl.constexpr = LOW <= 1
    COMPUTED: tl.constexpr = BOTTOM or not STORED
    if COMPUTED:
        i1, i2, i3 = load_weight(w_in, b_in, D0, IN, H, KIN, HAS_BIAS, DTYPE, PARTS)
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    if LOW >= 1:
        m1, m2, m3 = load_square(w_low, H, PARTS)
        sum_low = tl.zeros((H, H), tl.float32)
        sum_b_low = tl.zeros((H,), tl.float32)
    if LOW >= 2 and COMPUTED:
        p1, p2, p3 = load_square(w_1, H, PARTS)
    if LOW >= 3 and COMPUTED:
        q1, q2, q3 = load_square(w_2, H, PARTS)
    if BOTTOM:
        sum_in = tl.zeros((H, KIN), tl.float32)
    if TOP:
        o1, o2, o3 = load_weight(w_out, b_out, OUT, WIDE, COUT, H, False, DTYPE, PARTS)
        sum_out = tl.zeros((H, COUT), tl.float32)
        sum_g = tl.zeros((COUT, BE), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, BE), programs):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        there = (edge < count)[None, :]
        at_tile = tl.cast(tile, tl.int64) * (H * BE) + h[:, None] * BE + tl.arange(0, BE)[None, :]
        if COMPUTED:
            mask = there & (k < IN)[:, None]
            x = tl.load(inputs + edge[None, :] * IN + k[:, None], mask=mask, other=0.0).to(tl.float32)
            x1, x2, x3 = split(tl.where((k == IN)[:, None], 1.0, x), DTYPE, PARTS)
            z = add_product(i1, i2, i3, x1, x2, x3, tl.zeros((H, BE), tl.float32), PARTS)
            value, slope = activation(z, ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
            if LOW >= 2:
                z = add_product(p1, p2, p3, a1, a2, a3, load_row_bias(b_1, D1, H, BE, HAS_BIAS), PARTS)
                value, slope = activation(z, ACT, FAST)
                a1, a2, a3 = split(value, DTYPE, PARTS)
            if LOW >= 3:
                z = add_product(q1, q2, q3, a1, a2, a3, load_row_bias(b_2, D2, H, BE, HAS_BIAS), PARTS)
                value, slope = activation(z, ACT, FAST)
                a1, a2, a3 = split(value, DTYPE, PARTS)
        else:
            value, slope = activation(tl.load(stored + at_tile).to(tl.float32), ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
        if PARTS == 1:
            slope = slope.to(DTYPE)  # fewer registers
        if TOP:
            mask = there & (c < OUT)[:, None]
            g = tl.load(gradient + edge[None, :] * OUT + c[:, None], mask=mask, other=0.0).to(tl.float32)
            sum_g += g
            g1, g2, g3 = split(g, DTYPE, PARTS)
            t1, t2, t3 = a1, a2, a3
            last_slope = slope
            if LOW >= 1:
                z = add_product(m1, m2, m3, a1, a2, a3, load_row_bias(b_low, WIDE, H, BE, HAS_BIAS), PARTS)
                last_value, last_slope = activation(z, ACT, FAST)
                t1, t2, t3 = split(last_value, DTYPE, PARTS)
                if PARTS == 1:
                    last_slope = last_slope.to(DTYPE)
            if WANT_VALUES:
                result = load_row_bias(b_out, OUT, COUT, BE, HAS_BIAS)
                result = add_product(o1, o2, o3, t1, t2, t3, result, PARTS)
                to = values + edge[None, :] * OUT + c[:, None]
                tl.store(to, result.to(values.dtype.element_ty), mask=mask)
            sum_out = add_product(t1, t2, t3, tl.trans(g1), tl.trans(g2), tl.trans(g3), sum_out, PARTS)
            dz = tl.zeros((H, BE), tl.float32)
            dz = add_product(tl.trans(o1), tl.trans(o2), tl.trans(o3), g1, g2, g3, dz, PARTS)
            dz *= last_slope.to(tl.float32)
        else:
            dz = tl.load(passed_on + at_tile).to(tl.float32)
        d1, d2, d3 = split(dz, DTYPE, PARTS)
        if LOW >= 1:
            if HAS_BIAS:
                sum_b_low += tl.sum(dz, axis=1)
            sum_low = add_product(d1, d2, d3, tl.trans(a1), tl.trans(a2), tl.trans(a3), sum_low, PARTS)
            dz = tl.zeros((H, BE), tl.float32)
            dz = add_product(tl.trans(m1), tl.trans(m2), tl.trans(m3), d1, d2, d3, dz, PARTS)
            dz *= slope.to(tl.float32)
            d1, d2, d3 = split(dz, DTYPE, PARTS)
        if BOTTOM:
            sum_in = add_product(d1, d2, d3, tl.trans(x1), tl.trans(x2), tl.trans(x3), sum_in, PARTS)
            if WANT_INPUTS:
                back = tl.zeros((KIN, BE), tl.float32)
                back = add_product(tl.trans(i1), tl.trans(i2), tl.trans(i3), d1, d2, d3, back, PARTS)
                to = of_inputs + edge[None, :] * IN + k[:, None]
                tl.store(to, back.to(of_inputs.dtype.element_ty), mask=there & (k < IN)[:, None])
        else:
            to = passed_on if COMPUTED else stored
            tl.store(to + at_tile, dz.to(passed_on.dtype.element_ty))
    own = sums + tl.program_id(0).to(tl.int64) * TOTAL
    if LOW >= 1:
        at = own + AT_LOW + h[:, None] * BELOW + h[None, :]
        mask = (h < WIDE)[:, None] & (h < BELOW)[None, :]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_low, mask=mask)
        if HAS_BIAS:
            at = own + AT_LOW + WIDE * BELOW + h
            tl.store(at, tl.load(at, mask=h < WIDE, other=0.0) + sum_b_low, mask=h < WIDE)
    if BOTTOM:
        at = own + tl.where((k < IN)[None, :], h[:, None] * IN + k[None, :], D0 * IN + h[:, None])
        mask = (h < D0)[:, None] & (k < IN + HAS_BIAS)[None, :]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_in, mask=mask)
    if TOP:
        at = own + AT_OUT + c[None, :] * WIDE + h[:, None]
        mask = (c < OUT)[None, :] & (h < WIDE)[:, None]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_out, mask=mask)
        at = own + AT_OUT + OUT * WIDE + c
        tl.store(at, tl.load(at, mask=c < OUT, other=0.0) + tl.sum(sum_g, axis=1), mask=c < OUT)


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def layer_columns(
    inputs,
    gradient,
    below,
    stored,
    values,
    sums,
    w_in,
    b_in,
    w_low,
    b_low,
    w_out,
    b_out,
    count,
    programs,
    IN: tl.constexpr,
    D0: tl.constexpr,
    BELOW: tl.constexpr,
    WIDE: tl.constexpr,
    OUT: tl.constexpr,
    AT_OUT: tl.constexpr,
    TOTAL: tl.constexpr,
    KIN: tl.constexpr,
    H: tl.constexpr,
    COUT: tl.constexpr,
    LOW: tl.constexpr,
    TOP: tl.constexpr,
    BACK: tl.constexpr,
    WANT_VALUES: tl.constexpr,
    ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
    PARTS: tl.constexpr,
    FAST: tl.constexpr,
    BE: tl.constexpr,
):
    """One layer alone, z of hidden layer LOW >= 1: from z of the layer below in `below`, or from the inputs.

    Edges are columns, and w_low is packed. TOP: the last layer follows, and its outputs go to `values` if
    WANT_VALUES. BACK: the backward pass begins here too, and dz is left in `stored`, (tiles, H, BE);
    without TOP, z is left there.
    """
    if LOW == 1:
        i1, i2, i3 = load_weight(w_in, b_in, D0, IN, H, KIN, HAS_BIAS, DTYPE, PARTS)
    m1, m2, m3 = load_square(w_low, H, PARTS)
    if TOP:
        o1, o2, o3 = load_weight(w_out, b_out, OUT, WIDE, COUT, H, False, DTYPE, PARTS)
    if BACK:
        sum_out = tl.zeros((H, COUT), tl.float32)
        sum_g = tl.zeros((COUT, BE), tl.float32)
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    for tile in range(tl.program_id(0), tl.cdiv(count, BE), programs):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        there = (edge < count)[None, :]
        at_tile = tl.cast(tile, tl.int64) * (H * BE) + h[:, None] * BE + tl.arange(0, BE)[None, :]
        if LOW == 1:
            mask = there & (k < IN)[:, None]
            x = tl.load(inputs + edge[None, :] * IN + k[:, None], mask=mask, other=0.0).to(tl.float32)
            x1, x2, x3 = split(tl.where((k == IN)[:, None], 1.0, x), DTYPE, PARTS)
            z = add_product(i1, i2, i3, x1, x2, x3, tl.zeros((H, BE), tl.float32), PARTS)
        else:
            z = tl.load(below + at_tile).to(tl.float32)
        value, slope = activation(z, ACT, FAST)
        a1, a2, a3 = split(value, DTYPE, PARTS)
        z = add_product(m1, m2, m3, a1, a2, a3, load_row_bias(b_low, WIDE, H, BE, HAS_BIAS), PARTS)
        if TOP:
            value, slope = activation(z, ACT, FAST)
            a1, a2, a3 = split(value, DTYPE, PARTS)
            mask = there & (c < OUT)[:, None]
            if WANT_VALUES:
                result = load_row_bias(b_out, OUT, COUT, BE, HAS_BIAS)
                result = add_product(o1, o2, o3, a1, a2, a3, result, PARTS)
                to = values + edge[None, :] * OUT + c[:, None]
                tl.store(to, result.to(values.dtype.element_ty), mask=mask)
            if BACK:
                g = tl.load(gradient + edge[None, :] * OUT + c[:, None], mask=mask, other=0.0).to(tl.float32)
                sum_g += g
                g1, g2, g3 = split(g, DTYPE, PARTS)
                sum_out = add_product(a1, a2, a3, tl.trans(g1), tl.trans(g2), tl.trans(g3), sum_out, PARTS)
                dz = tl.zeros((H, BE), tl.float32)
                dz = add_product(tl.trans(o1), tl.trans(o2), tl.trans(o3), g1, g2, g3, dz, PARTS) * slope
                tl.store(stored + at_tile, dz.to(stored.dtype.element_ty))
        else:
            tl.store(stored + at_tile, z.to(stored.dtype.element_ty))
    if BACK:
        own = sums + tl.program_id(0).to(tl.int64) * TOTAL
        at = own + AT_OUT + c[None, :] * WIDE + h[:, None]
        mask = (c < OUT)[None, :] & (h < WIDE)[:, None]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_out, mask=mask)
        at = own + AT_OUT + OUT * WIDE + c
        tl.store(at, tl.load(at, mask=c < OUT, other=0.0) + tl.sum(sum_g, axis=1), mask=c < OUT)
