"""Triton kernels of a small MLP over edges, forward and backward: nothing between its layers reaches memory.

    forward                 z_0 = x W_in' + b,   z_i = act(z_i-1) W_i' + b,   out = act(z_MID) W_out' + b
    backward, last layer    dW_out' += act(z_MID)' g,   dz_MID = (g W_out) act'(z_MID)
    backward, layer i       dW_i += dz_i' act(z_i-1),   dz_i-1 = (dz_i W_i) act'(z_i-1)
    backward, first layer   dW_in += dz_0' x,   dx = dz_0 W_in

Rows are edges, columns are features. A program visits every n-th tile of BE edges; its weights stay in
shared memory, and the values of a tile in registers. Backward visits the tiles once for each weight between
hidden layers, from the last to the first, because only one such sum fits into the registers; it recomputes
the values below, and passes dz of a tile on to the next visit in a buffer. Each program keeps its own sums of
the gradients; they are added up afterwards in a fixed order.

Widths are padded to the sizes of the matrix units; padding is zero, and the activations map zero to zero. The
first padded input is 1, and its weights are the first bias.

Products are computed in DTYPE, a dtype of 16 bits, and added up in float32.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl

from pinchpoint.kit.triton_launch import Launcher


@triton.jit
def _tanh(z, FAST: tl.constexpr):
    """tanh; with FAST by one instruction of the special function units, with a relative error of 5e-4."""
    if FAST:
        result = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        small = tl.exp(-2.0 * tl.abs(z))
        size = (1.0 - small) / (1.0 + small)
        result = tl.where(z < 0.0, -size, size)
    return result


@triton.jit
def _activation(z, ACT: tl.constexpr, FAST: tl.constexpr):
    """The value and the slope of an activation; the compiler drops the one that is not used.

    FAST: with absolute errors of 3e-4, which is less than the rounding of 16-bit numbers of size 1.
    """
    if ACT == 1 and FAST:  # GELU: the normal law as a tanh of a polynomial, fitted with an error of 5e-5
        square = tl.minimum(z * z, 50.0)  # beyond, tanh is 1; the polynomial holds up to there
        t = _tanh(z * ((-0.00034091753 * square + 0.036978658) * square + 0.79747416), FAST)
        share = 0.5 * t + 0.5
        value = z * share
        rise = (-0.00085229383 * square + 0.055467987) * square + 0.39873708
        slope = share + z * (rise - rise * t * t)
    elif ACT == 1:
        share = 0.5 + 0.5 * tl.math.erf(0.7071067811865476 * z)
        value = z * share
        slope = share + 0.3989422804014327 * z * tl.exp(-0.5 * z * z)
    elif ACT == 2:  # SiLU
        if FAST:
            share = 0.5 * _tanh(0.5 * z, FAST) + 0.5
        else:
            share = 1.0 / (1.0 + tl.exp(-z))
        value = z * share
        slope = share * (1.0 + z * (1.0 - share))
    elif ACT == 3:  # ReLU
        value = tl.where(z < 0.0, 0.0, z)  # not the maximum, which turns NaN into zero
        slope = tl.where(z <= 0.0, 0.0, 1.0)
    else:  # tanh
        value = _tanh(z, FAST)
        slope = 1.0 - value * value
    return value, slope


@triton.jit
def _weight(
    weight,
    bias,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    BIAS_COLUMN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """A weight in memory (ROWS, COLUMNS), padded to (R, C); with the bias as a further column."""
    r = tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    here = tl.load(weight + r * COLUMNS + c, mask=(r < ROWS) & (c < COLUMNS), other=0.0).to(tl.float32)
    if BIAS_COLUMN:
        here += tl.load(bias + r, mask=(r < ROWS) & (c == COLUMNS), other=0.0).to(tl.float32)
    return here.to(DTYPE)


@triton.jit
def _bias(bias, WIDE: tl.constexpr, BE: tl.constexpr, H: tl.constexpr):
    """The value with which the sum of a layer's products starts, (BE, H)."""
    h = tl.arange(0, H)
    return tl.zeros((BE, H), tl.float32) + tl.load(bias + h, mask=h < WIDE, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _inputs(inputs, edge, count, IN: tl.constexpr, KIN: tl.constexpr):
    """(BE, KIN): the inputs of a tile, then a column of ones."""
    k = tl.arange(0, KIN)[None, :]
    mask = (edge < count)[:, None] & (k < IN)
    x = tl.load(inputs + edge[:, None] * IN + k, mask=mask, other=0.0).to(tl.float32)
    return tl.where(k == IN, 1.0, x)


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
    DTYPE: tl.constexpr,
    FAST: tl.constexpr,
    BE: tl.constexpr,
):
    """inputs: (count, IN) to out: (count, OUT). D0 to D3: the widths of the hidden layers."""
    LAST: tl.constexpr = D1 if MID == 1 else (D2 if MID == 2 else D3)
    first = _weight(w_in, b_in, D0, IN, H, KIN, True, DTYPE)
    final = _weight(w_out, b_out, OUT, LAST, COUT, H, False, DTYPE)
    second = _weight(w_1, b_1, D1, D0, H, H, False, DTYPE)
    if MID >= 2:
        third = _weight(w_2, b_2, D2, D1, H, H, False, DTYPE)
    if MID >= 3:
        fourth = _weight(w_3, b_3, D3, D2, H, H, False, DTYPE)
    c = tl.arange(0, COUT)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(count, BE), programs):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        a = _inputs(inputs, edge, count, IN, KIN).to(DTYPE)
        z = tl.dot(a, tl.trans(first), tl.zeros((BE, H), tl.float32))
        value, _ = _activation(z, ACT, FAST)
        a = value.to(DTYPE)
        z = tl.dot(a, tl.trans(second), _bias(b_1, D1, BE, H))
        value, _ = _activation(z, ACT, FAST)
        a = value.to(DTYPE)
        if MID >= 2:
            z = tl.dot(a, tl.trans(third), _bias(b_2, D2, BE, H))
            value, _ = _activation(z, ACT, FAST)
            a = value.to(DTYPE)
        if MID >= 3:
            z = tl.dot(a, tl.trans(fourth), _bias(b_3, D3, BE, H))
            value, _ = _activation(z, ACT, FAST)
            a = value.to(DTYPE)
        result = tl.dot(a, tl.trans(final), _bias(b_out, OUT, BE, COUT))
        mask = (edge < count)[:, None] & (c < OUT)
        tl.store(out + edge[:, None] * OUT + c, result.to(out.dtype.element_ty), mask=mask)


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def backward(
    inputs,
    gradient,
    passed_on,
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
    ACT: tl.constexpr,
    DTYPE: tl.constexpr,
    FAST: tl.constexpr,
    BE: tl.constexpr,
):
    """One visit, for the weight `w_low` between hidden layers LOW - 1 and LOW.

    TOP: the visit begins with the last layer; else with dz in passed_on, (tiles, BE, H). LOW = 1: it ends
    with the first layer; else it leaves dz in passed_on. BELOW, WIDE: the widths of w_low. sums:
    (programs, TOTAL), each weight followed by its bias, from the first layer to the last; that of w_low
    begins at AT_LOW. values: the outputs of the forward pass, (count, OUT), which the visit with TOP writes.
    """
    BOTTOM: tl.constexpr = LOW == 1
    first = _weight(w_in, b_in, D0, IN, H, KIN, True, DTYPE)
    middle = _weight(w_low, b_low, WIDE, BELOW, H, H, False, DTYPE)
    sum_low = tl.zeros((H, H), tl.float32)
    sum_b_low = tl.zeros((H, 16), tl.float32)
    ones = tl.full((BE, 16), 1.0, tl.float32).to(DTYPE)
    if LOW >= 2:
        second = _weight(w_1, b_1, D1, D0, H, H, False, DTYPE)
    if LOW >= 3:
        third = _weight(w_2, b_2, D2, D1, H, H, False, DTYPE)
    if BOTTOM:
        sum_in = tl.zeros((H, KIN), tl.float32)
    if TOP:
        final = _weight(w_out, b_out, OUT, WIDE, COUT, H, False, DTYPE)
        sum_out = tl.zeros((H, COUT), tl.float32)
        sum_g = tl.zeros((BE, COUT), tl.float32)
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    for tile in range(tl.program_id(0), tl.cdiv(count, BE), programs):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        there = (edge < count)[:, None]
        x16 = _inputs(inputs, edge, count, IN, KIN).to(DTYPE)
        z = tl.dot(x16, tl.trans(first), tl.zeros((BE, H), tl.float32))
        value, slope = _activation(z, ACT, FAST)
        a = value.to(DTYPE)
        if LOW >= 2:
            z = tl.dot(a, tl.trans(second), _bias(b_1, D1, BE, H))
            value, slope = _activation(z, ACT, FAST)
            a = value.to(DTYPE)
        if LOW >= 3:
            z = tl.dot(a, tl.trans(third), _bias(b_2, D2, BE, H))
            value, slope = _activation(z, ACT, FAST)
            a = value.to(DTYPE)
        slope = slope.to(DTYPE)  # fewer registers
        at_tile = passed_on + edge[:, None] * H + h[None, :]
        if TOP:
            mask = there & (c < OUT)[None, :]
            g = tl.load(gradient + edge[:, None] * OUT + c[None, :], mask=mask, other=0.0).to(tl.float32)
            sum_g += g
            g16 = g.to(DTYPE)
            z = tl.dot(a, tl.trans(middle), _bias(b_low, WIDE, BE, H))
            last_value, last_slope = _activation(z, ACT, FAST)
            top = last_value.to(DTYPE)
            last_slope = last_slope.to(DTYPE)
            result = tl.dot(top, tl.trans(final), _bias(b_out, OUT, BE, COUT))
            to = values + edge[:, None] * OUT + c[None, :]
            tl.store(to, result.to(values.dtype.element_ty), mask=mask)
            sum_out = tl.dot(tl.trans(top), g16, sum_out)
            dz = tl.dot(g16, final, tl.zeros((BE, H), tl.float32)) * last_slope.to(tl.float32)
            d = dz.to(DTYPE)
        else:
            d = tl.load(at_tile).to(tl.float32).to(DTYPE)
        sum_low = tl.dot(tl.trans(d), a, sum_low)
        sum_b_low = tl.dot(tl.trans(d), ones, sum_b_low)
        dz = tl.dot(d, middle, tl.zeros((BE, H), tl.float32)) * slope.to(tl.float32)
        d = dz.to(DTYPE)
        if BOTTOM:
            sum_in = tl.dot(tl.trans(d), x16, sum_in)
        else:
            tl.store(at_tile, dz.to(passed_on.dtype.element_ty))
    # The sums continue from one launch to the next.
    own = sums + tl.program_id(0).to(tl.int64) * TOTAL
    at = own + AT_LOW + h[:, None] * BELOW + h[None, :]
    mask = (h < WIDE)[:, None] & (h < BELOW)[None, :]
    tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_low, mask=mask)
    at = own + AT_LOW + WIDE * BELOW + h
    b_low_total = tl.sum(sum_b_low, axis=1) * 0.0625  # the same sum in all 16 columns
    tl.store(at, tl.load(at, mask=h < WIDE, other=0.0) + b_low_total, mask=h < WIDE)
    if BOTTOM:
        # The column of ones is the bias, which follows the weight.
        at = own + tl.where((k < IN)[None, :], h[:, None] * IN + k[None, :], D0 * IN + h[:, None])
        mask = (h < D0)[:, None] & (k <= IN)[None, :]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_in, mask=mask)
    if TOP:
        at = own + AT_OUT + c[None, :] * WIDE + h[:, None]
        mask = (c < OUT)[None, :] & (h < WIDE)[:, None]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_out, mask=mask)
        at = own + AT_OUT + OUT * WIDE + c
        tl.store(at, tl.load(at, mask=c < OUT, other=0.0) + tl.sum(sum_g, axis=0), mask=c < OUT)


@Launcher
@triton.jit
def pack(weight, to, ROWS: tl.constexpr, COLUMNS: tl.constexpr, H: tl.constexpr, DTYPE: tl.constexpr):
    """Pad a weight (ROWS, COLUMNS) with zeros to (H, H), in DTYPE."""
    r = tl.program_id(0)
    c = tl.arange(0, H)
    row = tl.load(weight + r * COLUMNS + c, mask=(c < COLUMNS) & (r < ROWS), other=0.0)
    tl.store(to + r * H + c, row.to(DTYPE))


@triton.jit
def _square(weight, H: tl.constexpr):
    """A packed weight, which needs no registers on its way to shared memory."""
    return tl.load(weight + tl.arange(0, H)[:, None] * H + tl.arange(0, H)[None, :])


@triton.jit
def _row_bias(bias, WIDE: tl.constexpr, H: tl.constexpr, BE: tl.constexpr):
    """The value with which the sum of a layer's products starts, (H, BE)."""
    h = tl.arange(0, H)
    return tl.zeros((H, BE), tl.float32) + tl.load(bias + h, mask=h < WIDE, other=0.0).to(tl.float32)[:, None]


@Launcher
@triton.jit(do_not_specialize=["count", "programs"])
def backward_columns(
    inputs,
    gradient,
    passed_on,
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
    ACT: tl.constexpr,
    DTYPE: tl.constexpr,
    FAST: tl.constexpr,
    BE: tl.constexpr,
):
    """The same with edges as columns: wide weights fill the matrix units, and a tile of edges may be small.

    passed_on: (tiles, H, BE). w_1, w_2 and w_low are packed.
    """
    BOTTOM: tl.constexpr = LOW == 1
    first = _weight(w_in, b_in, D0, IN, H, KIN, True, DTYPE)
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    middle = _square(w_low, H)
    sum_low = tl.zeros((H, H), tl.float32)
    sum_b_low = tl.zeros((H,), tl.float32)
    if LOW >= 2:
        second = _square(w_1, H)
    if LOW >= 3:
        third = _square(w_2, H)
    if BOTTOM:
        sum_in = tl.zeros((H, KIN), tl.float32)
    if TOP:
        final = _weight(w_out, b_out, OUT, WIDE, COUT, H, False, DTYPE)
        sum_out = tl.zeros((H, COUT), tl.float32)
        sum_g = tl.zeros((COUT, BE), tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, BE), programs):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        there = (edge < count)[None, :]
        mask = there & (k < IN)[:, None]
        x = tl.load(inputs + edge[None, :] * IN + k[:, None], mask=mask, other=0.0).to(tl.float32)
        x16 = tl.where((k == IN)[:, None], 1.0, x).to(DTYPE)
        z = tl.dot(first, x16, tl.zeros((H, BE), tl.float32))
        value, slope = _activation(z, ACT, FAST)
        a = value.to(DTYPE)
        if LOW >= 2:
            z = tl.dot(second, a, _row_bias(b_1, D1, H, BE))
            value, slope = _activation(z, ACT, FAST)
            a = value.to(DTYPE)
        if LOW >= 3:
            z = tl.dot(third, a, _row_bias(b_2, D2, H, BE))
            value, slope = _activation(z, ACT, FAST)
            a = value.to(DTYPE)
        slope = slope.to(DTYPE)  # fewer registers
        at_tile = passed_on + tl.cast(tile, tl.int64) * (H * BE) + h[:, None] * BE + tl.arange(0, BE)[None, :]
        if TOP:
            mask = there & (c < OUT)[:, None]
            g = tl.load(gradient + edge[None, :] * OUT + c[:, None], mask=mask, other=0.0).to(tl.float32)
            sum_g += g
            g16 = g.to(DTYPE)
            z = tl.dot(middle, a, _row_bias(b_low, WIDE, H, BE))
            last_value, last_slope = _activation(z, ACT, FAST)
            top = last_value.to(DTYPE)
            last_slope = last_slope.to(DTYPE)
            result = tl.dot(final, top, _row_bias(b_out, OUT, COUT, BE))
            to = values + edge[None, :] * OUT + c[:, None]
            tl.store(to, result.to(values.dtype.element_ty), mask=mask)
            sum_out = tl.dot(top, tl.trans(g16), sum_out)
            dz = tl.dot(tl.trans(final), g16, tl.zeros((H, BE), tl.float32))
            dz *= last_slope.to(tl.float32)
        else:
            dz = tl.load(at_tile).to(tl.float32)
        d = dz.to(DTYPE)
        sum_b_low += tl.sum(dz, axis=1)
        sum_low = tl.dot(d, tl.trans(a), sum_low)
        dz = tl.dot(tl.trans(middle), d, tl.zeros((H, BE), tl.float32))
        dz *= slope.to(tl.float32)
        d = dz.to(DTYPE)
        if BOTTOM:
            sum_in = tl.dot(d, tl.trans(x16), sum_in)
        else:
            tl.store(at_tile, dz.to(passed_on.dtype.element_ty))
    own = sums + tl.program_id(0).to(tl.int64) * TOTAL
    at = own + AT_LOW + h[:, None] * BELOW + h[None, :]
    mask = (h < WIDE)[:, None] & (h < BELOW)[None, :]
    tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_low, mask=mask)
    at = own + AT_LOW + WIDE * BELOW + h
    tl.store(at, tl.load(at, mask=h < WIDE, other=0.0) + sum_b_low, mask=h < WIDE)
    if BOTTOM:
        at = own + tl.where((k < IN)[None, :], h[:, None] * IN + k[None, :], D0 * IN + h[:, None])
        mask = (h < D0)[:, None] & (k <= IN)[None, :]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_in, mask=mask)
    if TOP:
        at = own + AT_OUT + c[None, :] * WIDE + h[:, None]
        mask = (c < OUT)[None, :] & (h < WIDE)[:, None]
        tl.store(at, tl.load(at, mask=mask, other=0.0) + sum_out, mask=mask)
        at = own + AT_OUT + OUT * WIDE + c
        tl.store(at, tl.load(at, mask=c < OUT, other=0.0) + tl.sum(sum_g, axis=1), mask=c < OUT)
