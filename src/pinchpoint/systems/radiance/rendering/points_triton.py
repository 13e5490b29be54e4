"""Triton kernels that encode points, and for the backward pass of an activation.

This module is imported only if there is a GPU and Triton is installed.

Letters as in `points`: B images, r rays per image in a chunk, S points per ray, K numbers per encoded point,
H units.
"""

# Triton reads the source of these functions and needs plain annotations.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import struct

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher

_ENCODED = 8192  # numbers per program
_POINTS = 128  # points per program at most: one per thread, which computes where it is
_MASKED = 4096  # numbers per program at a time
_ROUND = tl.constexpr(12582912.0)  # 1.5 x 2^23: a sum with it has no bits behind the point
# pi / 2 as a sum of three parts; the first two have so few bits that products with integers up to 2^17 are
# exact.
_HALF_1, _HALF_2, _HALF_3 = (
    tl.constexpr(part) for part in (1.5703125, 4.837512969970703125e-4, 7.549789954891882e-8)
)


def encode_points(
    origins: Tensor,
    directions: Tensor,
    offsets: Tensor,
    first: tuple[int, int],
    out: Tensor,
    *,
    octaves: int,
    samples: int,
    each: int,
    near: float,
    step: float,
) -> None:
    """Write encoded points to `out`, (B, r S, K).

    origins, directions, offsets: of all rays; first: the image and ray at which the chunk starts.
    """
    _launch(origins, directions, offsets, first, out, octaves, samples, each, near, step, True)


def encode_directions(
    directions: Tensor, first: tuple[int, int], out: Tensor, *, octaves: int, each: int
) -> None:
    """Write encoded directions to `out`, (B, r, K)."""
    _launch(directions, directions, directions, first, out, octaves, 1, each, 0.0, 0.0, False)


def _launch(
    origins: Tensor,
    directions: Tensor,
    offsets: Tensor,
    first: tuple[int, int],
    out: Tensor,
    octaves: int,
    samples: int,
    each: int,
    near: float,
    step: float,
    along: bool,
) -> None:
    count, wide = out.shape[0] * out.shape[1], out.shape[2]
    lanes = triton.next_power_of_2(wide)
    rows = max(1, min(_POINTS, _ENCODED // lanes))
    _encode(
        triton.cdiv(count, rows),
        (origins, directions, offsets, out),
        (
            count,
            samples,
            each,
            *first,
            *origins.stride()[:2],
            *directions.stride()[:2],
            *offsets.stride(),
            bits(near),
            bits(step),
        ),
        along,
        octaves,
        wide,
        lanes,
        rows,
    )


def bits(value: float) -> int:
    """The bits of a float32, for a kernel that must not be recompiled per value; `number_of` decodes them."""
    return struct.unpack("<i", struct.pack("<f", value))[0]


def mask(slope: Tensor, hidden: Tensor, sums: Tensor | None) -> None:
    """Zero `slope` where `hidden` is zero, and add the sums over the rows of each program to `sums`.

    slope, hidden: (N, H); sums: (programs, H).
    """
    count, width = slope.shape
    wide = triton.next_power_of_2(width)
    rows = max(1, _MASKED // wide)
    programs = triton.cdiv(count, rows) if sums is None else sums.shape[0]
    turns = triton.cdiv(count, programs * rows)
    _mask(
        programs,
        (slope, hidden, slope if sums is None else sums),
        (count, turns),
        width,
        wide,
        rows,
        sums is not None,
    )


@triton.jit
def _times(a, b, nothing):
    """The product a b, rounded before anything is added to it, as in torch's kernels.

    A fused multiply-add would give slightly different points.

    nothing: a zero that the compiler cannot recognise as one.
    """
    return ((a * b).to(tl.int32, bitcast=True) ^ nothing).to(tl.float32, bitcast=True)


@triton.jit
def number_of(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def depth_of(offset, number, nothing, near, step):
    """Distance of a point in its interval."""
    return _times(number.to(tl.float32) + offset, number_of(step), nothing) + number_of(near)


@triton.jit
def _wave(angle, quarters):
    """The sine, or with a quarter turn added the cosine, to float32 accuracy.

    The hardware's functions are inaccurate for angles in the thousands.
    """
    # A multiple of pi, or for the cosine one that is half a turn of pi further, leaves at most pi / 2. Adding
    # the large number rounds to an integer, which is in the last bits of the sum.
    shifted = angle * 0.3183098861837907 - 0.5 * quarters.to(tl.float32) + _ROUND
    halves = 2 * (shifted - _ROUND) + quarters.to(tl.float32)
    rest = tl.fma(halves, tl.full(halves.shape, -_HALF_1, tl.float32), angle)
    rest = tl.fma(halves, tl.full(halves.shape, -_HALF_2, tl.float32), rest)
    rest = tl.fma(halves, tl.full(halves.shape, -_HALF_3, tl.float32), rest)
    square = rest * rest
    series = (2.5999031412e-6 * square - 1.98065470522e-4) * square + 8.333016354653e-3
    wave = (series * square - 1.66666570585568e-1) * (square * rest) + rest
    # Odd multiples of pi change the sign.
    sign = (shifted.to(tl.int32, bitcast=True) + quarters) << 31
    return (wave.to(tl.int32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@Launcher
@triton.jit(
    do_not_specialize=[
        "count",
        "samples",
        "each",
        "image0",
        "ray0",
        "o_image",
        "o_ray",
        "d_image",
        "d_ray",
        "t_image",
        "t_ray",
        "t_sample",
        "near",
        "step",
    ]
)
def _encode(
    origins,
    directions,
    offsets,
    out,
    count,
    samples,
    each,
    image0,
    ray0,
    o_image,
    o_ray,
    d_image,
    d_ray,
    t_image,
    t_ray,
    t_sample,
    near,
    step,
    ALONG: tl.constexpr,
    OCTAVES: tl.constexpr,
    K: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < count
    ray = row // samples
    image = (ray // each + image0).to(tl.int64)
    across = (ray % each + ray0).to(tl.int64)
    way = directions + image * d_image + across * d_ray
    x = tl.load(way, mask=there, other=0.0)
    y = tl.load(way + 1, mask=there, other=0.0)
    z = tl.load(way + 2, mask=there, other=0.0)
    if ALONG:
        nothing = count >> 31
        number = row % samples
        offset = tl.load(
            offsets + image * t_image + across * t_ray + number.to(tl.int64) * t_sample, mask=there, other=0.0
        )
        depth = depth_of(offset, number, nothing, near, step)
        begin = origins + image * o_image + across * o_ray
        x = tl.load(begin, mask=there, other=0.0) + _times(x, depth, nothing)
        y = tl.load(begin + 1, mask=there, other=0.0) + _times(y, depth, nothing)
        z = tl.load(begin + 2, mask=there, other=0.0) + _times(z, depth, nothing)
    column = tl.arange(0, LANES)
    which = (column % 3)[None, :]
    value = tl.where(which == 0, x[:, None], tl.where(which == 1, y[:, None], z[:, None]))
    if OCTAVES > 0:
        # From column 3 on: the sines of all octaves, then the cosines.
        number = tl.maximum(column // 3 - 1, 0)
        wave = _wave(value * (1 << (number % OCTAVES)).to(tl.float32)[None, :], (number // OCTAVES)[None, :])
        value = tl.where((column < 3)[None, :], value, wave)
    value = tl.where((column < 3 + 6 * OCTAVES)[None, :], value, 1.0)
    to = out + row.to(tl.int64)[:, None] * K + column[None, :]
    tl.store(to, value, mask=there[:, None] & (column < K)[None, :])


@Launcher
@triton.jit(do_not_specialize=["count", "turns"])
def _mask(
    slope,
    hidden,
    sums,
    count,
    turns,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    SUMMED: tl.constexpr,
):
    column = tl.arange(0, WIDE)
    inside = column < WIDTH
    total = tl.zeros((ROWS, WIDE), tl.float32)
    first = tl.program_id(0).to(tl.int64) * turns * ROWS
    for turn in range(turns):
        row = first + turn * ROWS + tl.arange(0, ROWS)
        at = row[:, None] * WIDTH + column[None, :]
        valid = (row < count)[:, None] & inside[None, :]
        value = tl.load(slope + at, mask=valid, other=0.0)
        value = tl.where(tl.load(hidden + at, mask=valid, other=0.0) <= 0, 0.0, value).to(
            slope.dtype.element_ty
        )
        tl.store(slope + at, value, mask=valid)
        if SUMMED:
            total += value.to(tl.float32)
    if SUMMED:
        to = sums + tl.program_id(0) * WIDTH + column
        tl.store(to, tl.load(to, mask=inside, other=0.0) + tl.sum(total, axis=0), mask=inside)
