"""Parts of the kernels of small MLPs: activations, products of tiles, and loads of weights and inputs.

Widths are padded to the sizes of the matrix units; padding is zero, and the activations map zero to zero. The
first padded input is 1, and its weights are the first bias.

NET: a `tile_mlp.Net`, what the kernels are compiled for. With one part, products are those of bf16 or fp16
numbers. With two parts, they are those of float32 on the matrix units: each number is the sum of two fp16
numbers (22 bits in total), and the three largest of their four products are added up; a power of 2 brings the
largest number of a tile to the upper end of fp16's range. With columns, the edges of a tile are columns,
(features, edges), so that wide weights fill the matrix units and a tile may have few edges; else they are
rows, (edges, features).
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl


@triton.jit
def _normal(z):
    """The cumulative distribution of the normal law and exp(-z^2/2), with an error of 1e-7."""
    t = 1.0 / (1.0 + 0.2316418885 * tl.abs(z))  # 0.3275911 / sqrt(2)
    bell = tl.exp2(-0.7213475204444817 * z * z)  # 1 / (2 ln 2)
    series = 0.5307027145 * t - 0.726576076
    series = series * t + 0.7107068705
    series = series * t - 0.142248368
    series = series * t + 0.127414796
    tail = series * t * bell
    return tl.where(z < 0.0, tail, 1.0 - tail), bell


@triton.jit
def _tanh(z, FAST: tl.constexpr):
    """tanh with a relative error of 3e-7; FAST: 5e-4, by one instruction of the special function units."""
    if FAST:
        result = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        small = tl.exp(-2.0 * tl.abs(z))
        size = (1.0 - small) / (1.0 + small)
        square = z * z
        series = ((0.0218694885 * square - 0.053968254) * square + 0.1333333333) * square - 0.3333333333
        # Near zero the difference above loses digits.
        result = tl.where(tl.abs(z) < 0.3, z + z * square * series, tl.where(z < 0.0, -size, size))
    return result


@triton.jit
def activation(z, NET: tl.constexpr):
    """The value and the slope of an activation; the compiler drops the one that is not used.

    Fast: with absolute errors of 3e-4, which is less than the rounding of 16-bit numbers of size 1.
    """
    ACT: tl.constexpr = NET.activation
    FAST: tl.constexpr = NET.fast
    if ACT == 1 and FAST:  # GELU: the normal law as a tanh of a polynomial, fitted with an error of 5e-5
        square = tl.minimum(z * z, 50.0)  # beyond, tanh is 1; the polynomial holds up to there
        t = _tanh(z * ((-0.00034091753 * square + 0.036978658) * square + 0.79747416), FAST)
        share = 0.5 * t + 0.5
        value = z * share
        rise = (-0.00085229383 * square + 0.055467987) * square + 0.39873708
        slope = share + z * (rise - rise * t * t)
    elif ACT == 1:
        share, bell = _normal(z)
        value = z * share
        slope = share + 0.3989422804014327 * z * bell
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
    elif ACT == 4:  # tanh
        value = _tanh(z, FAST)
        slope = 1.0 - value * value
    else:  # GELU by tanh
        inner = _tanh(0.7978845608028654 * z * (1.0 + 0.044715 * z * z), FAST)
        value = 0.5 * z * (1.0 + inner)
        rise = 0.7978845608028654 * (1.0 + 0.134145 * z * z)
        slope = 0.5 * (1.0 + inner) + 0.5 * z * (1.0 - inner * inner) * rise
    return value, slope


@triton.jit
def split(v, NET: tl.constexpr):
    """The operand of a product, a tuple: v in 16 bits, or two fp16 numbers and the factor of their sum."""
    if NET.parts == 2:
        largest = tl.max(tl.max(tl.abs(v), axis=1), axis=0)
        # The power of 2 below it, which is its exponent alone; from 2^-100 to 2^127.
        power = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) & 0x7F800000, 27 << 23), 254 << 23)
        v *= ((254 << 23) - power + (14 << 23)).to(tl.float32, bitcast=True)  # now below 2^15
        first = v.to(tl.float16)
        second = (v - first.to(tl.float32)).to(tl.float16)
        parts = first, second, (power - (14 << 23)).to(tl.float32, bitcast=True)
    else:
        parts = (to_16_bits(v, NET),)
    return parts


@triton.jit
def to_16_bits(v, NET: tl.constexpr):
    if NET.bf16:
        short = v.to(tl.bfloat16)
    else:
        short = v.to(tl.float16)
    return short


@triton.jit
def flip(a, NET: tl.constexpr):
    """The transposed operand."""
    if NET.parts == 2:
        turned = tl.trans(a[0]), tl.trans(a[1]), a[2]
    else:
        turned = (tl.trans(a[0]),)
    return turned


@triton.jit
def add_product(a, b, total, NET: tl.constexpr):
    """total + a b.

    Parts are added up from zero, the smallest first: the matrix units cut digits off each sum, relative to
    its size.
    """
    if NET.parts == 2:
        product = tl.dot(a[0], b[1])
        product = tl.dot(a[1], b[0], product)
        product = tl.dot(a[0], b[0], product)
        total += product * (a[2] * b[2])
    else:
        total = tl.dot(a[0], b[0], total)
    return total


@triton.jit
def add_layer(weight, a, total, NET: tl.constexpr):
    """total + W a of each edge."""
    if NET.columns:
        total = add_product(weight, a, total, NET)
    else:
        total = add_product(a, flip(weight, NET), total, NET)
    return total


@triton.jit
def back_layer(weight, d, WIDTH: tl.constexpr, NET: tl.constexpr):
    """W' d of each edge: the gradient of the WIDTH features below a layer."""
    if NET.columns:
        product = add_product(flip(weight, NET), d, zeros(WIDTH, NET), NET)
    else:
        product = add_product(d, weight, zeros(WIDTH, NET), NET)
    return product


@triton.jit
def add_outer(d, a, total, NET: tl.constexpr):
    """total + the sum over a tile's edges of d a': the gradient of a weight."""
    if NET.columns:
        total = add_product(d, flip(a, NET), total, NET)
    else:
        total = add_product(flip(d, NET), a, total, NET)
    return total


@triton.jit
def sum_edges(tile, NET: tl.constexpr):
    """The sum over the edges of a tile."""
    if NET.columns:
        total = tl.sum(tile, axis=1)
    else:
        total = tl.sum(tile, axis=0)
    return total


@triton.jit
def zeros(WIDTH: tl.constexpr, NET: tl.constexpr):
    """Zeros for WIDTH features of each edge of a tile."""
    EDGES: tl.constexpr = NET.edges
    if NET.columns:
        tile = tl.zeros((WIDTH, EDGES), tl.float32)
    else:
        tile = tl.zeros((EDGES, WIDTH), tl.float32)
    return tile


@triton.jit
def along(feature, edge, NET: tl.constexpr):
    """A number for each feature and one for each edge, which broadcast to a tile."""
    if NET.columns:
        both = feature[:, None], edge[None, :]
    else:
        both = feature[None, :], edge[:, None]
    return both


@triton.jit
def load_weight(
    weight,
    bias,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    BIAS_COLUMN: tl.constexpr,
    NET: tl.constexpr,
):
    """A weight in memory (ROWS, WIDE), padded to (R, C), in parts; with the bias as a further column."""
    r = tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    here = tl.load(weight + r * WIDE + c, mask=(r < ROWS) & (c < WIDE), other=0.0).to(tl.float32)
    if BIAS_COLUMN:
        row = tl.arange(0, R)
        column = tl.load(bias + row, mask=row < ROWS, other=0.0).to(tl.float32)
        here = tl.where(c == WIDE, column[:, None], here)
    return split(here, NET)


@triton.jit
def load_bias(bias, WIDE: tl.constexpr, WIDTH: tl.constexpr, NET: tl.constexpr):
    """The value with which the sum of a layer's products starts: WIDE features, padded to WIDTH."""
    total = zeros(WIDTH, NET)
    if NET.bias:
        h = tl.arange(0, WIDTH)
        row = tl.load(bias + h, mask=h < WIDE, other=0.0).to(tl.float32)
        if NET.columns:
            total += row[:, None]
        else:
            total += row[None, :]
    return total


@triton.jit
def load_inputs(inputs, edge, count, NET: tl.constexpr):
    """The inputs of a tile's edges, followed by 1 if there are biases, and zeros."""
    k, e = along(tl.arange(0, NET.inputs_padded), edge, NET)
    x = tl.load(inputs + e * NET.inputs + k, mask=(e < count) & (k < NET.inputs), other=0.0).to(tl.float32)
    if NET.bias:  # without one, the 1 would only raise the power of 2 that small inputs share
        x = tl.where(k == NET.inputs, 1.0, x)
    return x


@triton.jit
def add_to(place, value, mask):
    """Add a value to that in memory."""
    tl.store(place, tl.load(place, mask=mask, other=0.0) + value, mask=mask)
