"""Triton kernels for compositing and its backward pass.

This module is imported only if there is a GPU and Triton is installed.

A program processes some rays, with the points of a ray in lanes. Everything is computed in float32, in the
same order every time. Letters: r rays of a chunk (over all its images), S points per ray, N = r S.
"""

# Triton reads the source of these functions and needs plain annotations.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import NamedTuple

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher
from pinchpoint.systems.radiance.rendering.points_triton import bits, depth_of, number_of

_LANES = 512  # points per program
# Arguments whose values must not cause a recompilation.
_VARIABLE = [
    "rays",
    "samples",
    "each",
    "image0",
    "ray0",
    "width",
    "t_image",
    "t_ray",
    "t_sample",
    "n_image",
    "n_ray",
    "n_sample",
    "near",
    "far",
    "step",
    "last",
]


class Along(NamedTuple):
    """Positions of the points of a chunk.

    offsets, noise: (B, R, S) of all rays; first: the image and ray at which the chunk starts.
    """

    offsets: Tensor
    noise: Tensor | None
    first: tuple[int, int]
    each: int  # rays per image in the chunk
    near: float
    far: float
    step: float  # length of an interval
    last: float  # length of the last interval if it is endless, else negative

    @property
    def loud(self) -> Tensor:
        """The noise, or without noise any tensor: the kernels then do not read it."""
        return self.offsets if self.noise is None else self.noise

    @property
    def numbers(self) -> tuple[int, ...]:
        lengths = (bits(length) for length in (self.near, self.far, self.step, self.last))
        return (
            self.each,
            *self.first,
            self.offsets.shape[1],
            *self.offsets.stride(),
            *self.loud.stride(),
            *lengths,
        )


def composite(
    raw: Tensor, along: Along, rgb: Tensor, depth: Tensor, acc: Tensor, weights: Tensor | None, *, white: bool
) -> None:
    """Write the pixels of a chunk to rgb (B, R, 3), depth and acc (B, R), and to weights (N,) unless None.

    raw: (4, N).
    """
    rays, samples, lanes, rows = _shape(raw, along)
    _composite(
        triton.cdiv(rays, rows),
        (raw, along.offsets, along.loud, rgb, depth, acc, acc if weights is None else weights),
        (rays, samples, *along.numbers),
        along.noise is not None,
        white,
        weights is not None,
        lanes,
        rows,
    )


def uncomposite(
    raw: Tensor,
    along: Along,
    of: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    slopes: Tensor,
    weights: Tensor | None,
    *,
    white: bool,
) -> None:
    """Write the gradient of raw to `slopes`, (4, N).

    of: gradients of rgb (B, R, 3), depth and acc (B, R), and weights (N,), each contiguous or None.
    """
    rays, samples, lanes, rows = _shape(raw, along)
    _uncomposite(
        triton.cdiv(rays, rows),
        (
            raw,
            along.offsets,
            along.loud,
            *(raw if one is None else one for one in of),
            slopes,
            raw if weights is None else weights,
        ),
        (rays, samples, *along.numbers),
        along.noise is not None,
        white,
        *(one is not None for one in of),
        weights is not None,
        lanes,
        rows,
    )


def _shape(raw: Tensor, along: Along) -> tuple[int, int, int, int]:
    samples = along.offsets.shape[2]
    lanes = max(16, triton.next_power_of_2(samples))
    return raw.shape[1] // samples, samples, lanes, max(1, _LANES // lanes)


@triton.jit
def _opaque(optical_depth):
    """1 - exp(-optical_depth), accurate for small values too."""
    p = optical_depth
    series = p * (1 - p / 2 * (1 - p / 3 * (1 - p / 4 * (1 - p / 5 * (1 - p / 6 * (1 - p / 7))))))
    return tl.where(p < 0.25, series, 1 - tl.exp(-p))


@triton.jit
def _thick(raw, noise, point, there, from_noise, plane, NOISY: tl.constexpr):
    density = tl.load(raw + 3 * plane + point, mask=there, other=0.0)
    if NOISY:
        density += tl.load(noise + from_noise, mask=there, other=0.0).to(tl.float32)
    return tl.where(density < 0, 0.0, density)


@triton.jit
def _through(
    raw,
    offsets,
    noise,
    ray,
    number,
    there,
    samples,
    plane,
    image,
    across,
    t_image,
    t_ray,
    t_sample,
    n_image,
    n_ray,
    n_sample,
    near,
    far,
    step,
    last,
    NOISY: tl.constexpr,
):
    """Number, distance, interval length, density after relu, and transmittance before the point, for each
    point.
    """
    nothing = samples >> 31
    point = ray * samples + number
    begin = image * t_image + across * t_ray
    loud = image * n_image + across * n_ray
    depth = depth_of(
        tl.load(offsets + begin + number * t_sample, mask=there, other=0.0), number, nothing, near, step
    )
    after = there & (number + 1 < samples)
    ahead = tl.load(offsets + begin + (number + 1) * t_sample, mask=after, other=0.0)
    ahead = depth_of(ahead, number + 1, nothing, near, step)
    length = tl.where(after, ahead, number_of(far)) - depth
    length = tl.where(after, length, tl.where(number_of(last) < 0, length, number_of(last)))
    thick = _thick(raw, noise, point, there, loud + number * n_sample, plane, NOISY)
    # The previous point is loaded again: subtracting a point's own part from a running sum would cancel
    # digits.
    prior = there & (number > 0)
    behind = tl.load(offsets + begin + (number - 1) * t_sample, mask=prior, other=0.0)
    behind = depth_of(behind, number - 1, nothing, near, step)
    prior_optical_depth = _thick(
        raw, noise, point - 1, prior, loud + (number - 1) * n_sample, plane, NOISY
    ) * (depth - behind)
    before = tl.cumsum(tl.where(prior, prior_optical_depth, 0.0), axis=1)
    return point, depth, length, thick, tl.exp(-before)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@Launcher
@triton.jit(do_not_specialize=_VARIABLE)
def _composite(
    raw,
    offsets,
    noise,
    rgb,
    depths,
    acc,
    weights,
    rays,
    samples,
    each,
    image0,
    ray0,
    width,
    t_image,
    t_ray,
    t_sample,
    n_image,
    n_ray,
    n_sample,
    near,
    far,
    step,
    last,
    NOISY: tl.constexpr,
    WHITE: tl.constexpr,
    WEIGHTS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rays
    image = (row // each + image0).to(tl.int64)
    across = (row % each + ray0).to(tl.int64)
    row = row.to(tl.int64)
    number = tl.arange(0, LANES)[None, :]
    there = inside[:, None] & (number < samples)
    plane = rays.to(tl.int64) * samples
    point, depth, length, thick, transmittance = _through(
        raw,
        offsets,
        noise,
        row[:, None],
        number,
        there,
        samples,
        plane,
        image[:, None],
        across[:, None],
        t_image,
        t_ray,
        t_sample,
        n_image,
        n_ray,
        n_sample,
        near,
        far,
        step,
        last,
        NOISY,
    )
    share = tl.where(there, transmittance * _opaque(thick * length), 0.0)
    if WEIGHTS:
        tl.store(weights + point, share, mask=there)
    coverage = tl.sum(share, axis=1)
    pixel = image * width + across
    for channel in tl.static_range(3):
        colour = tl.load(raw + channel * plane + point, mask=there, other=0.0)
        light = tl.sum(tl.where(there, share * _sigmoid(colour), 0.0), axis=1)
        if WHITE:
            light += 1 - coverage
        tl.store(rgb + pixel * 3 + channel, light, mask=inside)
    tl.store(depths + pixel, tl.sum(tl.where(there, share * depth, 0.0), axis=1), mask=inside)
    tl.store(acc + pixel, coverage, mask=inside)


@Launcher
@triton.jit(do_not_specialize=_VARIABLE)
def _uncomposite(
    raw,
    offsets,
    noise,
    of_rgb,
    of_depth,
    of_acc,
    of_weights,
    slopes,
    weights,
    rays,
    samples,
    each,
    image0,
    ray0,
    width,
    t_image,
    t_ray,
    t_sample,
    n_image,
    n_ray,
    n_sample,
    near,
    far,
    step,
    last,
    NOISY: tl.constexpr,
    WHITE: tl.constexpr,
    RGB: tl.constexpr,
    DEPTH: tl.constexpr,
    ACC: tl.constexpr,
    MIXED: tl.constexpr,
    WEIGHTS: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rays
    image = (row // each + image0).to(tl.int64)
    across = (row % each + ray0).to(tl.int64)
    row = row.to(tl.int64)
    number = tl.arange(0, LANES)[None, :]
    there = inside[:, None] & (number < samples)
    plane = rays.to(tl.int64) * samples
    point, depth, length, thick, transmittance = _through(
        raw,
        offsets,
        noise,
        row[:, None],
        number,
        there,
        samples,
        plane,
        image[:, None],
        across[:, None],
        t_image,
        t_ray,
        t_sample,
        n_image,
        n_ray,
        n_sample,
        near,
        far,
        step,
        last,
        NOISY,
    )
    optical_depth = thick * length
    share = tl.where(there, transmittance * _opaque(optical_depth), 0.0)
    if WEIGHTS:
        tl.store(weights + point, share, mask=there)
    pixel = image * width + across
    # Change of a pixel per unit of a point's weight.
    worth = tl.zeros((ROWS, LANES), tl.float32)
    for channel in tl.static_range(3):
        to = slopes + channel * plane + point
        if RGB:
            of_pixel = tl.load(of_rgb + pixel * 3 + channel, mask=inside, other=0.0)[:, None]
            light = _sigmoid(tl.load(raw + channel * plane + point, mask=there, other=0.0))
            tl.store(to, of_pixel * share * light * (1 - light), mask=there)
            if WHITE:
                worth += of_pixel * (light - 1)
            else:
                worth += of_pixel * light
        else:
            tl.store(to, worth, mask=there)
    if DEPTH:
        worth += tl.load(of_depth + pixel, mask=inside, other=0.0)[:, None] * depth
    if ACC:
        worth += tl.load(of_acc + pixel, mask=inside, other=0.0)[:, None]
    if MIXED:
        worth += tl.load(of_weights + point, mask=there, other=0.0)
    part = tl.where(there, share * worth, 0.0)
    behind = tl.cumsum(part, axis=1, reverse=True) - part
    of_optical_depth = worth * transmittance * tl.exp(-optical_depth) - behind
    tl.store(slopes + 3 * plane + point, tl.where(thick > 0, of_optical_depth * length, 0.0), mask=there)
