"""Parts of the kernels of small MLPs: activations, products of tiles, and loads of weights and inputs.

Widths are padded to the sizes of the matrix units; padding is zero, and the activations map zero to zero. The
first padded input is 1, and its weights are the first bias.

PARTS = 1: products in DTYPE. PARTS = 3: float32 on the matrix units, where each number is the sum of three
bf16 numbers (24 bits in total) and the six largest of their nine products are added up.
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
def activation(z, ACT: tl.constexpr, FAST: tl.constexpr):
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
def split(v, DTYPE: tl.constexpr, PARTS: tl.constexpr):
    """The operands of a product: v in DTYPE, or three bf16 numbers whose sum is v to float32's rounding."""
    if PARTS == 3:
        first = v.to(tl.bfloat16)
        rest = v - first.to(tl.float32)
        second = rest.to(tl.bfloat16)
        third = (rest - second.to(tl.float32)).to(tl.bfloat16)
    else:
        first = v.to(DTYPE)
        second = first
        third = first
    return first, second, third


@triton.jit
def add_product(a1, a2, a3, b1, b2, b3, total, PARTS: tl.constexpr):
    """total + a b; the smallest products first.

    Three parts are added up from zero: the matrix units cut digits off each sum, relative to its size.
    """
    if PARTS == 3:
        product = tl.dot(a1, b3)
        product = tl.dot(a3, b1, product)
        product = tl.dot(a2, b2, product)
        product = tl.dot(a1, b2, product)
        product = tl.dot(a2, b1, product)
        total += tl.dot(a1, b1, product)
    else:
        total = tl.dot(a1, b1, total)
    return total


@triton.jit
def load_weight(
    weight,
    bias,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    BIAS_COLUMN: tl.constexpr,
    DTYPE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """A weight in memory (ROWS, COLUMNS), padded to (R, C), in parts; with the bias as a further column."""
    r = tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    here = tl.load(weight + r * COLUMNS + c, mask=(r < ROWS) & (c < COLUMNS), other=0.0).to(tl.float32)
    if BIAS_COLUMN:
        row = tl.arange(0, R)
        column = tl.load(bias + row, mask=row < ROWS, other=0.0).to(tl.float32)
        here = tl.where(c == COLUMNS, column[:, None], here)
    return split(here, DTYPE, PARTS)


@triton.jit
def load_bias(bias, WIDE: tl.constexpr, BE: tl.constexpr, H: tl.constexpr, HAS_BIAS: tl.constexpr):
    """The value with which the sum of a layer's products starts, (BE, H)."""
    total = tl.zeros((BE, H), tl.float32)
    if HAS_BIAS:
        h = tl.arange(0, H)
        total += tl.load(bias + h, mask=h < WIDE, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit
def load_inputs(inputs, edge, count, IN: tl.constexpr, KIN: tl.constexpr):
    """(BE, KIN): the inputs of a tile, then a column of ones."""
    k = tl.arange(0, KIN)[None, :]
    mask = (edge < count)[:, None] & (k < IN)
    x = tl.load(inputs + edge[:, None] * IN + k, mask=mask, other=0.0).to(tl.float32)
    return tl.where(k == IN, 1.0, x)
