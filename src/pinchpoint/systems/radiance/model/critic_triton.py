"""Triton kernels for the layers of a discriminator between convolutions, and for its spectral norm.

Images are (N, C, h, w) with channels last, S = h w. A program has all S numbers of some channels of an image,
on the chip, so it computes a norm and its derivatives in one pass; means are computed in float32 in the same
order every time. Formulas and letters are those of `critic_passes`. This module is imported only if there is
a GPU and Triton is installed.
"""

# Triton reads the source of these functions and needs plain annotations.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher

_TILE = 4096  # numbers per program, if that is at least eight channels
_PLACES = 256  # of an image per program, without a norm
_TAPS = 16  # numbers of a 4 x 4 kernel
_SLOPE, _EPS = tl.constexpr(0.2), tl.constexpr(1e-5)  # those of `critic_passes`
_CHANNELS = 64  # of a weight at a time


def activate(before: Tensor, bias: Tensor | None, units: Tensor, scale: Tensor) -> None:
    """Write leaky(norm(before)) to the first of `units`, and 1 / deviation to `scale`, (N, C).

    Without a norm, `scale` is empty, and `bias` is added unless it is None.
    """
    tensors = before, before if bias is None else bias, units, scale
    _launch(_activate, before, tensors, (), bool(scale.numel()), bias is not None)


def push(move: Tensor, units: Tensor, scale: Tensor, along: Tensor) -> None:
    """Write how the first of `units` move to the last ones, and mean(y move) to `along`, (m, C)."""
    norm = bool(scale.numel())
    _launch(_push, move, (move, units, scale, along), (len(units) - len(move),), norm)


def pull(units: Tensor, scale: Tensor, along: Tensor, slope: Tensor, out: Tensor, *, count: int) -> None:
    """Write the gradients of z, (N, ...), then of its movement, (m, ...), from those of x' and its movement,
    `slope`.
    """
    norm, penalised = bool(scale.numel()), len(slope) - count
    _launch(_pull, slope[:count], (units, scale, along, slope, out), (count, penalised), norm)


def normalise(weight: Tensor, left: Tensor, right: Tensor, shares: Tensor, out: Tensor) -> None:
    """weight: (C', C, 4, 4); left: (C',); right: (16 C,) -> shares: (C',) of sigma; out: weight / sigma."""
    rows, channels = weight.shape[:2]
    _share(rows, (weight, left, right, shares), (), channels * _TAPS, 1024)
    sizes = channels, out.shape[1], _CHANNELS, rows, triton.next_power_of_2(rows)
    _divide(rows, (weight, shares, out), (), *sizes)


def unnormalise(
    slope: Tensor, weight: Tensor, left: Tensor, right: Tensor, shares: Tensor, inner: Tensor, out: Tensor
) -> None:
    """Write the gradient of `weight` to `out`, and shares (C',) of slope . weight to `inner`."""
    rows, channels = weight.shape[:2]
    sizes = channels, slope.shape[1], _CHANNELS
    _inner(rows, (slope, weight, inner), (), *sizes)
    _undivide(rows, (slope, left, right, shares, inner, out), (), *sizes, rows, triton.next_power_of_2(rows))


def _launch(
    kernel: Launcher,
    images: Tensor,
    tensors: tuple[Tensor, ...],
    counts: tuple[int, ...],
    norm: bool,
    *options: bool,
) -> None:
    """Launch a kernel for these images, (N, C, h, w); empty tensors are not read."""
    channels, *sides = images.shape[1:]
    places = sides[0] * sides[1]
    tall = triton.next_power_of_2(places)
    if not norm:
        tall = min(tall, _PLACES)
    some = max(8, min(32, _TILE // tall))
    across, down = triton.cdiv(channels, some), triton.cdiv(places, tall)
    kernel(
        len(images) * across * down,
        tuple(tensor if tensor.numel() else images for tensor in tensors),
        (across, down, *counts),
        places,
        channels,
        tall,
        some,
        norm,
        *options,
        warps=8 if tall * some > 2048 else 4,
    )


@triton.jit
def _places(across, down, S: tl.constexpr, C: tl.constexpr, TALL: tl.constexpr, SOME: tl.constexpr):
    """The image of this program, its channels, and where its numbers are in an image."""
    program = tl.program_id(0)
    channel = program % across * SOME + tl.arange(0, SOME)[None, :]
    place = program // across % down * TALL + tl.arange(0, TALL)[:, None]
    image = (program // (across * down)).to(tl.int64)
    return image, channel, place * C + channel, (place < S) & (channel < C)


@triton.jit
def _mean(values, S: tl.constexpr):
    return (tl.sum(values, axis=0) / S)[None, :]


@triton.jit
def _value(units):
    """y and s, from x'."""
    leak = tl.where(units > 0, 1.0, _SLOPE)
    return tl.where(units > 0, units, units / _SLOPE), leak


@triton.jit
def _through(value, scale, slope, valid, S):
    """J times `slope`, which is 0 where it is not valid."""
    return tl.where(valid, scale * (slope - _mean(slope, S) - value * _mean(value * slope, S)), 0.0)


@Launcher
@triton.jit(do_not_specialize=["across", "down"])
def _activate(
    before,
    bias,
    units,
    scale,
    across,
    down,
    S: tl.constexpr,
    C: tl.constexpr,
    TALL: tl.constexpr,
    SOME: tl.constexpr,
    NORM: tl.constexpr,
    BIASED: tl.constexpr,
):
    image, channel, own, valid = _places(across, down, S, C, TALL, SOME)
    at = image * S * C + own
    value = tl.load(before + at, mask=valid, other=0.0)
    if NORM:
        value = tl.where(valid, value - _mean(value, S), 0.0)
        own_scale = tl.rsqrt(_mean(value * value, S) + _EPS)
        tl.store(scale + image * C + channel, own_scale, mask=channel < C)
        value *= own_scale
    elif BIASED:
        value += tl.load(bias + channel, mask=channel < C, other=0.0)
    tl.store(units + at, tl.where(value > 0, value, _SLOPE * value), mask=valid)


@Launcher
@triton.jit(do_not_specialize=["across", "down", "count"])
def _push(
    move,
    units,
    scale,
    along,
    across,
    down,
    count,
    S: tl.constexpr,
    C: tl.constexpr,
    TALL: tl.constexpr,
    SOME: tl.constexpr,
    NORM: tl.constexpr,
):
    image, channel, own, valid = _places(across, down, S, C, TALL, SOME)
    at = image * S * C + own
    value, leak = _value(tl.load(units + at, mask=valid, other=0.0))
    result = tl.load(move + at, mask=valid, other=0.0)
    if NORM:
        inside = channel < C
        own_scale = tl.load(scale + image * C + channel, mask=inside, other=0.0)
        tl.store(along + image * C + channel, _mean(value * result, S), mask=inside)
        result = _through(value, own_scale, result, valid, S)
    tl.store(units + (image + count) * S * C + own, leak * result, mask=valid)


@Launcher
@triton.jit(do_not_specialize=["across", "down", "count", "penalised"])
def _pull(
    units,
    scale,
    along,
    slope,
    out,
    across,
    down,
    count,
    penalised,
    S: tl.constexpr,
    C: tl.constexpr,
    TALL: tl.constexpr,
    SOME: tl.constexpr,
    NORM: tl.constexpr,
):
    image, channel, own, valid = _places(across, down, S, C, TALL, SOME)
    at = image * S * C + own
    inside = channel < C
    value, leak = _value(tl.load(units + at, mask=valid, other=0.0))
    of_value = leak * tl.load(slope + at, mask=valid, other=0.0)
    own_scale = tl.full((1, 1), 1.0, tl.float32)
    if NORM:
        own_scale = tl.load(scale + image * C + channel, mask=inside, other=0.0)
    if image < penalised:
        later = (image + count) * S * C + own
        of_move = leak * tl.load(slope + later, mask=valid, other=0.0)
        if NORM:
            moved = tl.load(units + later, mask=valid, other=0.0) / leak
            own_along = tl.load(along + image * C + channel, mask=inside, other=0.0)
            of_value = _through(value, own_scale, of_value - own_scale * own_along * of_move, valid, S)
            of_value -= own_scale * (_mean(value * of_move, S) * moved + value * _mean(of_move * moved, S))
            of_move = _through(value, own_scale, of_move, valid, S)
        tl.store(out + at, of_value, mask=valid)
        tl.store(out + later, of_move, mask=valid)
    else:
        if NORM:
            of_value = _through(value, own_scale, of_value, valid, S)
        tl.store(out + at, of_value, mask=valid)


@Launcher
@triton.jit
def _share(weight, left, right, shares, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, K, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < K
        total += tl.load(weight + row * K + at, mask=inside, other=0.0) * tl.load(
            right + at, mask=inside, other=0.0
        )
    tl.store(shares + row, tl.load(left + row) * tl.sum(total, axis=0))


@Launcher
@triton.jit
def _divide(
    weight,
    shares,
    out,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    sigma = tl.sum(tl.load(shares + lane, mask=lane < ROWS, other=0.0), axis=0)
    tap = tl.arange(0, 16)[None, :]
    for first in range(0, WIDE, BLOCK):
        channel = (first + tl.arange(0, BLOCK))[:, None]
        value = tl.load(
            weight + row * C * 16 + channel * 16 + tap, mask=(channel < C) & (tap < 16), other=0.0
        )
        to = out + row * WIDE * 16 + tap * WIDE + channel
        tl.store(to, value / sigma, mask=(channel < WIDE) & (tap < 16))


@Launcher
@triton.jit
def _inner(slope, weight, inner, C: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tap = tl.arange(0, 16)[None, :]
    total = tl.zeros((BLOCK, 16), tl.float32)
    for first in range(0, C, BLOCK):
        channel = (first + tl.arange(0, BLOCK))[:, None]
        valid = (channel < C) & (tap < 16)
        own = tl.load(weight + row * C * 16 + channel * 16 + tap, mask=valid, other=0.0)
        total += own * tl.load(slope + row * WIDE * 16 + tap * WIDE + channel, mask=valid, other=0.0)
    tl.store(inner + row, tl.sum(tl.sum(total, axis=1), axis=0))


@Launcher
@triton.jit
def _undivide(
    slope,
    left,
    right,
    shares,
    inner,
    out,
    C: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    sigma = tl.sum(tl.load(shares + lane, mask=lane < ROWS, other=0.0), axis=0)
    whole = tl.sum(tl.load(inner + lane, mask=lane < ROWS, other=0.0), axis=0)
    of_sigma = -whole / (sigma * sigma) * tl.load(left + row)
    tap = tl.arange(0, 16)[None, :]
    for first in range(0, C, BLOCK):
        channel = (first + tl.arange(0, BLOCK))[:, None]
        valid = (channel < C) & (tap < 16)
        value = tl.load(slope + row * WIDE * 16 + tap * WIDE + channel, mask=valid, other=0.0) / sigma
        value += of_sigma * tl.load(right + channel * 16 + tap, mask=valid, other=0.0)
        tl.store(out + row * C * 16 + channel * 16 + tap, value, mask=valid)
