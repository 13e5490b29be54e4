"""Triton kernels from the view layer to colour and density, and back.

This module is imported only if there is a GPU and Triton is installed.

Everything is computed in float32, in the same order every time. Letters as in `shading`: r rays of a chunk
(over all its images), S points per ray, N = r S, C width of the view layer with the density and zeros, F
features of the view layer.
"""

# Triton reads the source of these functions and needs plain annotations.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher
from pinchpoint.systems.radiance.rendering.compositing_triton import Along

_TILE = 4096  # numbers per program at a time
# Rays per program: several if tiles are loaded ahead, which takes longer if they are written, too.
_RAYS, _RAYS_WRITTEN = 8, 2
_SUMMED = 1024  # sums per program of the gradient of a colour
_STAGES = 3  # tiles on the chip: one that is computed with, and those that are loaded


def colour(
    view: Tensor, tints: Tensor, weight: Tensor, bias: Tensor, raw: Tensor, *, features: int, write: bool
) -> None:
    """view: (N, C) before tints; tints: (r, C); weight: (3, F) -> raw: (4, N), colour and density.

    write: store the relu in `view`.
    """
    rays, wide = tints.shape
    samples = view.shape[0] // rays
    lanes, tall = _tile(features, _TILE)
    each = _RAYS_WRITTEN if write else _RAYS
    _colour(
        triton.cdiv(rays, each),
        (view, tints, weight, bias, raw),
        (rays, samples),
        features,
        wide,
        lanes,
        tall,
        each,
        write,
        _STAGES,
    )


def uncolour(
    slopes: Tensor,
    view: Tensor,
    weight: Tensor,
    of_view: Tensor,
    of_tints: Tensor,
    sums: Tensor,
    point_weights: Tensor | None,
    of_features: Tensor | None,
    along: Along,
    *,
    features: int,
) -> None:
    """slopes: (4, N) of raw; view: (N, C) after relu -> of_view: (N, C) before it, of_tints: (r, C).

    sums: (programs, 3, F + 1), to which the gradients of the colour's weights and, in the last column, of its
    bias are added. point_weights: (N,) and of_features: (B, R, F), the weights of the points and the gradient
    of composited features, or None.
    """
    rays, wide = of_tints.shape
    samples, programs = view.shape[0] // rays, sums.shape[0]
    lanes, tall = _tile(features, _TILE)
    _uncolour(
        programs,
        (
            slopes,
            view,
            weight,
            of_view,
            of_tints,
            sums,
            slopes if point_weights is None else point_weights,
            slopes if of_features is None else of_features,
        ),
        (rays, samples, triton.cdiv(rays, programs), along.each, *along.first, along.offsets.shape[1]),
        features,
        wide,
        lanes,
        triton.next_power_of_2(wide - features),
        tall,
        max(1, min(tall, _SUMMED // lanes)),
        of_features is not None,
        _STAGES,
    )


def _tile(features: int, numbers: int) -> tuple[int, int]:
    """Lanes per point, and points per tile."""
    lanes = max(16, triton.next_power_of_2(features))
    return lanes, max(1, min(64, numbers // lanes))


@Launcher
@triton.jit(do_not_specialize=["rays", "samples"])
def _colour(
    view,
    tints,
    weight,
    bias,
    raw,
    rays,
    samples,
    F: tl.constexpr,
    C: tl.constexpr,
    LANES: tl.constexpr,
    TALL: tl.constexpr,
    RAYS: tl.constexpr,
    WRITE: tl.constexpr,
    STAGES: tl.constexpr,
):
    lane = tl.arange(0, LANES)
    inside = lane < F
    red = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    green = tl.load(weight + F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    blue = tl.load(weight + 2 * F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    plane = rays.to(tl.int64) * samples
    if WRITE:
        first = tl.program_id(0).to(tl.int64) * RAYS
        for ray in range(first, tl.minimum(first + RAYS, rays)):
            tint = tl.load(tints + ray * C + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
            of_density = tl.load(tints + ray * C + F).to(tl.float32)
            for tile in range(0, samples, TALL):
                sample = tile + tl.arange(0, TALL)
                _colour_tile(
                    view,
                    raw,
                    plane,
                    samples,
                    ray,
                    sample,
                    tint,
                    of_density,
                    red,
                    green,
                    blue,
                    bias,
                    0.0,
                    0.0,
                    0.0,
                    F,
                    C,
                    WRITE,
                )
    else:
        of_red = tl.load(bias).to(tl.float32)
        of_green = tl.load(bias + 1).to(tl.float32)
        of_blue = tl.load(bias + 2).to(tl.float32)
        first = tl.program_id(0) * RAYS
        tiles = tl.cdiv(samples, TALL)
        # Rays and their tiles are one loop, so that a tile is loaded while another one is computed with.
        for step in tl.range(0, tl.minimum(RAYS, rays - first) * tiles, num_stages=STAGES):
            ray = (first + step // tiles).to(tl.int64)
            sample = step % tiles * TALL + tl.arange(0, TALL)
            tint = tl.load(tints + ray * C + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
            of_density = tl.load(tints + ray * C + F).to(tl.float32)
            _colour_tile(
                view,
                raw,
                plane,
                samples,
                ray,
                sample,
                tint,
                of_density,
                red,
                green,
                blue,
                bias,
                of_red,
                of_green,
                of_blue,
                F,
                C,
                WRITE,
            )


@triton.jit
def _colour_tile(
    view,
    raw,
    plane,
    samples,
    ray,
    sample,
    tint,
    of_density,
    red,
    green,
    blue,
    bias,
    of_red,
    of_green,
    of_blue,
    F: tl.constexpr,
    C: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Colour and density of some points of a ray. red, ...: weights; of_red, ..., of_density: biases.

    With WRITE, biases are read here, for few registers. Triton has tuples since version 3.3 only.
    """
    lane = tl.arange(0, red.shape[1])
    there = sample < samples
    point = ray * samples + sample
    valid = there[:, None] & (lane < F)[None, :]
    at = view + point[:, None] * C + lane[None, :]
    value = tl.load(at, mask=valid, other=0.0).to(tl.float32) + tint
    # Not a maximum, which would hide NaN.
    value = tl.where(value < 0, 0.0, value).to(view.dtype.element_ty)
    if WRITE:
        tl.store(at, value, mask=valid)
    value = value.to(tl.float32)
    density = tl.load(view + point * C + F, mask=there, other=0.0).to(tl.float32) + of_density
    if WRITE:
        of_red = tl.load(bias).to(tl.float32)
    tl.store(raw + point, tl.sum(value * red, axis=1) + of_red, mask=there)
    if WRITE:
        of_green = tl.load(bias + 1).to(tl.float32)
    tl.store(raw + plane + point, tl.sum(value * green, axis=1) + of_green, mask=there)
    if WRITE:
        of_blue = tl.load(bias + 2).to(tl.float32)
    tl.store(raw + 2 * plane + point, tl.sum(value * blue, axis=1) + of_blue, mask=there)
    tl.store(raw + 3 * plane + point, density, mask=there)


@Launcher
@triton.jit(do_not_specialize=["rays", "samples", "turns", "each", "image0", "ray0", "width"])
def _uncolour(
    slopes,
    view,
    weight,
    of_view,
    of_tints,
    sums,
    point_weights,
    of_features,
    rays,
    samples,
    turns,
    each,
    image0,
    ray0,
    width,
    F: tl.constexpr,
    C: tl.constexpr,
    LANES: tl.constexpr,
    REST: tl.constexpr,
    TALL: tl.constexpr,
    APART: tl.constexpr,
    MIXED: tl.constexpr,
    STAGES: tl.constexpr,
):
    lane = tl.arange(0, LANES)
    rest = tl.arange(0, REST)
    inside = lane < F
    red = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    green = tl.load(weight + F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    blue = tl.load(weight + 2 * F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    plane = rays.to(tl.int64) * samples
    # Sums are kept per lane of some rows and combined at the end.
    of_red = tl.zeros((APART, LANES), tl.float32)
    of_green = tl.zeros((APART, LANES), tl.float32)
    of_blue = tl.zeros((APART, LANES), tl.float32)
    of_tint = tl.zeros((APART, LANES), tl.float32)
    of_density = tl.zeros((TALL,), tl.float32)
    reds = tl.zeros((TALL,), tl.float32)
    greens = tl.zeros((TALL,), tl.float32)
    blues = tl.zeros((TALL,), tl.float32)
    first = tl.program_id(0) * turns
    tiles = tl.cdiv(samples, TALL)
    # Rays and their tiles are one loop, so that a tile is loaded while another one is computed with.
    steps = tl.maximum(tl.minimum(turns, rays - first), 0) * tiles
    for step in tl.range(0, steps, num_stages=STAGES):
        ray = (first + step // tiles).to(tl.int64)
        tile = step % tiles
        sample = tile * TALL + tl.arange(0, TALL)
        there = sample < samples
        point = ray * samples + sample
        valid = there[:, None] & inside[None, :]
        r = tl.load(slopes + point, mask=there, other=0.0)
        g = tl.load(slopes + plane + point, mask=there, other=0.0)
        b = tl.load(slopes + 2 * plane + point, mask=there, other=0.0)
        d = tl.load(slopes + 3 * plane + point, mask=there, other=0.0)
        value = tl.load(view + point[:, None] * C + lane[None, :], mask=valid, other=0.0).to(tl.float32)
        # The mask first: it has the layout in which a tile is loaded and stored.
        lit = ~(value <= 0) & valid
        slope = (
            tl.where(lit, r[:, None], 0.0) * red
            + tl.where(lit, g[:, None], 0.0) * green
            + tl.where(lit, b[:, None], 0.0) * blue
        )
        if MIXED:
            pixel = (ray // each + image0) * width + ray % each + ray0
            share = tl.load(point_weights + point, mask=there, other=0.0)
            of_feature = tl.load(of_features + pixel * F + lane, mask=inside, other=0.0).to(tl.float32)
            slope += tl.where(lit, share[:, None], 0.0) * of_feature[None, :]
        tl.store(of_view + point[:, None] * C + lane[None, :], slope, mask=valid)
        beside = tl.where((rest == 0)[None, :], d[:, None], 0.0)
        tl.store(
            of_view + point[:, None] * C + F + rest[None, :],
            beside,
            mask=there[:, None] & (rest < C - F)[None, :],
        )
        of_tint = tl.where(tile == 0, 0.0, of_tint) + _sum_apart(slope, APART)
        of_density = tl.where(tile == 0, 0.0, of_density) + d
        of_red += _sum_apart(r[:, None] * value, APART)
        of_green += _sum_apart(g[:, None] * value, APART)
        of_blue += _sum_apart(b[:, None] * value, APART)
        reds += r
        greens += g
        blues += b
        if tile == tiles - 1:
            tl.store(of_tints + ray * C + lane, tl.sum(of_tint, axis=0), mask=inside)
            tl.store(
                of_tints + ray * C + F + rest, tl.where(rest == 0, tl.sum(of_density), 0.0), mask=rest < C - F
            )
    row = sums + tl.program_id(0) * 3 * (F + 1)
    _add(row, tl.sum(of_red, axis=0), tl.sum(reds), lane, F)
    _add(row + F + 1, tl.sum(of_green, axis=0), tl.sum(greens), lane, F)
    _add(row + 2 * (F + 1), tl.sum(of_blue, axis=0), tl.sum(blues), lane, F)


@triton.jit
def _sum_apart(values, APART: tl.constexpr):
    """Sums of the rows of a tile that are this far apart: they are in one thread."""
    return tl.sum(tl.reshape(values, (values.shape[0] // APART, APART, values.shape[1])), axis=0)


@triton.jit
def _add(to, many, one, lane, F: tl.constexpr):
    tl.store(to + lane, tl.load(to + lane, mask=lane < F, other=0.0) + many, mask=lane < F)
    tl.store(to + F, tl.load(to + F) + one)
