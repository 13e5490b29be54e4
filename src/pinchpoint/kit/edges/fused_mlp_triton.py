"""Triton kernels of a small MLP over edges, forward and backward: nothing between its layers reaches memory.

Layers: inputs (width K) -> H, then MID times H -> H, then H -> C. Widths are padded to the sizes of the
matrix units; padding is zero, and the activations map zero to zero. All values are transposed,
features x edges, so that the weights' rows fill the matrix units and a tile of edges may be small.
Backward visits the tiles once for each H x H weight and recomputes what it needs, because only one such sum
fits into the registers of a multiprocessor. Each program writes its own partial sums; they are added up
afterwards in a fixed order.

PARTS = 1: products in DTYPE. PARTS = 3: float32 on the matrix units, where each number is the sum of three
bf16 numbers (24 bits in total) and the six largest of their nine products are added up.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _value(z, ACT: tl.constexpr):
    if ACT == 0:  # GELU
        value = 0.5 * z * (1.0 + tl.math.erf(z * 0.7071067811865476))
    elif ACT == 1:  # SiLU
        value = z * tl.sigmoid(z)
    else:  # ReLU
        value = tl.where(z < 0.0, 0.0, z)  # not the maximum, which turns NaN into zero
    return value


@triton.jit
def _slope(z, ACT: tl.constexpr):
    if ACT == 0:
        slope = 0.5 * (1.0 + tl.math.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(
            -0.5 * z * z
        )
    elif ACT == 1:
        s = tl.sigmoid(z)
        slope = s * (1.0 + z * (1.0 - s))
    else:
        slope = tl.where(z <= 0.0, 0.0, 1.0)
    return slope


@triton.jit
def _split(v):
    """Three bf16 numbers whose sum is v, up to the rounding of float32."""
    first = v.to(tl.bfloat16)
    rest = v - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _six(a1, a2, a3, b1, b2, b3):
    total = tl.dot(a1, b3)  # the smallest products first
    total = tl.dot(a3, b1, total)
    total = tl.dot(a2, b2, total)
    total = tl.dot(a1, b2, total)
    total = tl.dot(a2, b1, total)
    return tl.dot(a1, b1, total)


@triton.jit
def _times(a, b, DTYPE: tl.constexpr, PARTS: tl.constexpr):
    """a (M, K) times b (K, N), both float32."""
    if PARTS == 3:
        a1, a2, a3 = _split(a)
        b1, b2, b3 = _split(b)
        product = _six(a1, a2, a3, b1, b2, b3)
    else:
        product = tl.dot(a.to(DTYPE), b.to(DTYPE), input_precision="tf32")
    return product


@triton.jit
def _apply(
    weight, part, b, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr, PARTS: tl.constexpr
):
    """A weight in memory (ROWS, COLUMNS), whose parts are `part` numbers apart, times b (COLUMNS, BE)."""
    at = weight + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if PARTS == 3:
        b1, b2, b3 = _split(b)
        w1 = tl.load(at)
        total = tl.dot(w1, b3)
        total = tl.dot(w1, b2, total)
        w2 = tl.load(at + part)
        total = tl.dot(w2, b2, total)
        total = tl.dot(w2, b1, total)
        total = tl.dot(tl.load(at + 2 * part), b1, total)
        product = tl.dot(w1, b1, total)
    else:
        product = tl.dot(tl.load(at), b.to(DTYPE), input_precision="tf32")
    return product


@triton.jit
def pack(
    weight,
    bias,
    to,
    transpose,
    to_bias,
    rows,
    columns,
    row_stride,
    part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Pad a layer's weight (rows, columns) and split it into parts, plain and transposed; bias in float32."""
    r = tl.program_id(0)
    c = tl.arange(0, COLUMNS)
    rest = tl.load(weight + r * row_stride + c, mask=(c < columns) & (r < rows), other=0.0).to(tl.float32)
    for at in tl.static_range(PARTS):
        here = rest.to(to.dtype.element_ty)
        tl.store(to + at * part + r * COLUMNS + c, here)
        tl.store(transpose + at * part + c * ROWS + r, here)
        rest -= here.to(tl.float32)
    tl.store(to_bias + r, tl.load(bias + r, mask=r < rows, other=0.0).to(tl.float32))


@triton.jit
def forward(
    inputs,
    out,
    w_in,
    b_in,
    w_mid,
    b_mid,
    w_out,
    b_out,
    count,
    width,
    channels,
    KIN: tl.constexpr,
    H: tl.constexpr,
    COUT: tl.constexpr,
    MID: tl.constexpr,
    ACT: tl.constexpr,
    BE: tl.constexpr,
    DTYPE: tl.constexpr,
    PARTS: tl.constexpr,
):
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    there = (edge < count)[None, :]
    x = tl.load(inputs + edge[None, :] * width + k[:, None], mask=there & (k < width)[:, None], other=0.0).to(
        tl.float32
    )
    z = _apply(w_in, H * KIN, x, H, KIN, DTYPE, PARTS) + tl.load(b_in + h)[:, None]
    for layer in tl.static_range(MID):
        z = (
            _apply(w_mid + layer * H * H, MID * H * H, _value(z, ACT), H, H, DTYPE, PARTS)
            + tl.load(b_mid + layer * H + h)[:, None]
        )
    value = _apply(w_out, COUT * H, _value(z, ACT), COUT, H, DTYPE, PARTS) + tl.load(b_out + c)[:, None]
    tl.store(
        out + edge[None, :] * channels + c[:, None],
        value.to(out.dtype.element_ty),
        mask=there & (c < channels)[:, None],
    )


@triton.jit
def backward(
    inputs,
    gradient,
    of_inputs,
    values,
    w_in,
    b_in,
    w_mid,
    b_mid,
    w_out,
    b_out,
    w_mid_t,
    w_in_t,
    w_out_t,
    of_in,
    of_b_in,
    of_mid,
    of_b_mid,
    of_out,
    of_b_out,
    count,
    width,
    channels,
    zero,
    KIN: tl.constexpr,
    H: tl.constexpr,
    COUT: tl.constexpr,
    MID: tl.constexpr,
    LOW: tl.constexpr,
    ACT: tl.constexpr,
    WANT_INPUTS: tl.constexpr,
    WANT_VALUES: tl.constexpr,
    RELOAD: tl.constexpr,
    BE: tl.constexpr,
    DTYPE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One pass for the weight of middle layer LOW (1..MID).

    The top pass adds the last layer, the lowest pass the first layer.

    Weights with _t are transposes: w_mid_t (MID, H in, H out), w_in_t (KIN, H), w_out_t (H, COUT).
    WANT_VALUES: the top pass also writes the outputs of the forward pass. zero: 0, but unknown to the
    compiler. RELOAD: read the weights again for every tile; otherwise all of them stay in shared memory.
    """
    TOP: tl.constexpr = LOW == MID
    BOTTOM: tl.constexpr = LOW <= 1
    program = tl.program_id(0)
    k = tl.arange(0, KIN)
    h = tl.arange(0, H)
    c = tl.arange(0, COUT)
    # The sums continue from one chunk to the next.
    at_mid = of_mid + program * H * H + h[:, None] * H + h[None, :]
    at_in = of_in + program * H * KIN + h[:, None] * KIN + k[None, :]
    at_out = of_out + program * COUT * H + c[:, None] * H + h[None, :]
    if MID >= 1:
        sum_mid = tl.load(at_mid)
        sum_b_mid = tl.load(of_b_mid + program * H + h)
    if BOTTOM:
        sum_in = tl.load(at_in)
        sum_b_in = tl.load(of_b_in + program * H + h)
    if TOP:
        sum_out = tl.load(at_out)
        sum_b_out = tl.load(of_b_out + program * COUT + c)
    for tile in range(program, tl.cdiv(count, BE), tl.num_programs(0)):
        edge = tl.cast(tile, tl.int64) * BE + tl.arange(0, BE)
        there = (edge < count)[None, :]
        inside = there & (k < width)[:, None]
        x = tl.load(inputs + edge[None, :] * width + k[:, None], mask=inside, other=0.0).to(tl.float32)
        g = tl.load(
            gradient + edge[None, :] * channels + c[:, None], mask=there & (c < channels)[:, None], other=0.0
        )
        g = g.to(tl.float32)
        if RELOAD:
            w_in += tile * zero
            w_mid += tile * zero
            w_out += tile * zero
            w_mid_t += tile * zero
            w_in_t += tile * zero
            w_out_t += tile * zero
        z0 = _apply(w_in, H * KIN, x, H, KIN, DTYPE, PARTS) + tl.load(b_in + h)[:, None]
        z1 = z0
        z2 = z0
        if MID >= 1:
            z1 = _apply(w_mid, MID * H * H, _value(z0, ACT), H, H, DTYPE, PARTS) + tl.load(b_mid + h)[:, None]
            z2 = z1
        if MID >= 2:
            z2 = (
                _apply(w_mid + H * H, MID * H * H, _value(z1, ACT), H, H, DTYPE, PARTS)
                + tl.load(b_mid + H + h)[:, None]
            )
        if TOP:
            a2 = _value(z2, ACT)
            if WANT_VALUES:
                value = _apply(w_out, COUT * H, a2, COUT, H, DTYPE, PARTS) + tl.load(b_out + c)[:, None]
                to = values + edge[None, :] * channels + c[:, None]
                tl.store(to, value.to(values.dtype.element_ty), mask=there & (c < channels)[:, None])
            sum_out += _times(g, tl.trans(a2), DTYPE, PARTS)
            sum_b_out += tl.sum(g, axis=1)
        g = _apply(w_out_t, COUT * H, g, H, COUT, DTYPE, PARTS) * _slope(z2, ACT)
        if MID >= 2:
            if LOW == 2:
                sum_mid += _times(g, tl.trans(_value(z1, ACT)), DTYPE, PARTS)
                sum_b_mid += tl.sum(g, axis=1)
            else:
                g = _apply(w_mid_t + H * H, MID * H * H, g, H, H, DTYPE, PARTS) * _slope(z1, ACT)
        if BOTTOM:
            if MID >= 1:
                sum_mid += _times(g, tl.trans(_value(z0, ACT)), DTYPE, PARTS)
                sum_b_mid += tl.sum(g, axis=1)
                g = _apply(w_mid_t, MID * H * H, g, H, H, DTYPE, PARTS) * _slope(z0, ACT)
            sum_in += _times(g, tl.trans(x), DTYPE, PARTS)
            sum_b_in += tl.sum(g, axis=1)
            if WANT_INPUTS:
                back = _apply(w_in_t, H * KIN, g, KIN, H, DTYPE, PARTS)
                tl.store(
                    of_inputs + edge[None, :] * width + k[:, None],
                    back.to(of_inputs.dtype.element_ty),
                    mask=inside,
                )
    if MID >= 1:
        tl.store(at_mid, sum_mid)
        tl.store(of_b_mid + program * H + h, sum_b_mid)
    if BOTTOM:
        tl.store(at_in, sum_in)
        tl.store(of_b_in + program * H + h, sum_b_in)
    if TOP:
        tl.store(at_out, sum_out)
        tl.store(of_b_out + program * COUT + c, sum_b_out)
