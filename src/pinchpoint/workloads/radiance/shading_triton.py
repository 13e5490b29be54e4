"""From the layer of the view to pixels and back, for CUDA, in Triton. Imported only where there is a GPU and Triton.

Letters as in `shading`: r rays of a part (of all its images), S points of a ray, N = r S, C the layer of the view with the
density and zeros beside it, F its features. Everything is computed in float32, in the same order every time.
"""

# Triton reads these functions' source: annotations must be plain, so they are left to Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import NamedTuple

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.launching import Launcher
from pinchpoint.workloads.radiance.points_triton import bits, depth_of, number_of

_TILE = 4096  # numbers of a program at one time
_LANES = 512  # points of a program that composites
_RAYS = 2  # of a program that colours


class Along(NamedTuple):
    """Where the points of a part lie. offsets, noise: (B, R, S) of all rays; first: image and ray the part begins with."""

    offsets: Tensor
    noise: Tensor | None
    first: tuple[int, int]
    each: int  # rays of an image in the part
    near: float
    far: float
    step: float  # an interval
    last: float  # its length where it has no end, else below 0

    @property
    def loud(self) -> Tensor:
        """A tensor for the kernels where there is no noise: it is not read."""
        return self.offsets if self.noise is None else self.noise

    @property
    def numbers(self) -> tuple[int, ...]:
        lengths = (bits(length) for length in (self.near, self.far, self.step, self.last))
        return self.each, *self.first, self.offsets.shape[1], *self.offsets.stride(), *self.loud.stride(), *lengths


def colour(seen: Tensor, tints: Tensor, weight: Tensor, bias: Tensor, raw: Tensor, *, features: int, write: bool) -> None:
    """seen: (N, C) before tints, (r, C); weight: (3, F) -> raw: (4, N), colour and density; write: relu back into seen."""
    rays, wide = tints.shape
    samples = seen.shape[0] // rays
    lanes = triton.next_power_of_2(features)
    _colour(
        triton.cdiv(rays, _RAYS), (seen, tints, weight, bias, raw), (rays, samples), features, wide, lanes,
        max(1, _TILE // lanes), _RAYS, write,
    )  # fmt: skip


def uncolour(
    slopes: Tensor, seen: Tensor, weight: Tensor, of_seen: Tensor, of_tints: Tensor, sums: Tensor, mixed: Tensor | None,
    of_mixed: Tensor | None, along: Along, *, features: int,
) -> None:  # fmt: skip
    """slopes: (4, N) of raw; seen: (N, C) after relu -> of_seen: (N, C) before it, of_tints: (r, C).

    sums: (programs, 3, F + 1), to which are added gradients of the colour's weights and, in the last column, of its bias.
    mixed: (N,) and of_mixed: (B, R, F), weights of the points and the gradient of composited features, or None.
    """
    rays, wide = of_tints.shape
    samples, programs = seen.shape[0] // rays, sums.shape[0]
    lanes = triton.next_power_of_2(features)
    _uncolour(
        programs,
        (
            slopes, seen, weight, of_seen, of_tints, sums, slopes if mixed is None else mixed,
            slopes if of_mixed is None else of_mixed,
        ),
        (rays, samples, triton.cdiv(rays, programs), along.each, *along.first, along.offsets.shape[1]),
        features, wide, lanes, triton.next_power_of_2(wide - features), max(1, _TILE // lanes // 2), of_mixed is not None,
    )  # fmt: skip


def composite(raw: Tensor, along: Along, rgb: Tensor, depth: Tensor, acc: Tensor, weights: Tensor | None, *, white: bool) -> None:
    """raw: (4, N) -> the part's pixels of rgb (B, R, 3), depth, acc (B, R); weights (N,) where they are wanted."""
    rays, samples, lanes, rows = _shape(raw, along)
    _composite(
        triton.cdiv(rays, rows),
        (raw, along.offsets, along.loud, rgb, depth, acc, acc if weights is None else weights),
        (rays, samples, *along.numbers), along.noise is not None, white, weights is not None, lanes, rows,
    )  # fmt: skip


def uncomposite(
    raw: Tensor, along: Along, of: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None], slopes: Tensor,
    weights: Tensor | None, *, white: bool,
) -> None:  # fmt: skip
    """of: gradients of rgb (B, R, 3), depth, acc (B, R), weights (N,), in one piece each or None -> slopes (4, N) of raw."""
    rays, samples, lanes, rows = _shape(raw, along)
    _uncomposite(
        triton.cdiv(rays, rows),
        (
            raw, along.offsets, along.loud, *(raw if one is None else one for one in of), slopes,
            raw if weights is None else weights,
        ),
        (rays, samples, *along.numbers), along.noise is not None, white, *(one is not None for one in of), weights is not None,
        lanes, rows,
    )  # fmt: skip


def _shape(raw: Tensor, along: Along) -> tuple[int, int, int, int]:
    samples = along.offsets.shape[2]
    lanes = max(16, triton.next_power_of_2(samples))
    return raw.shape[1] // samples, samples, lanes, max(1, _LANES // lanes)


@Launcher
@triton.jit(do_not_specialize=["rays", "samples"])
def _colour(
    seen, tints, weight, bias, raw, rays, samples,
    F: tl.constexpr, C: tl.constexpr, LANES: tl.constexpr, TALL: tl.constexpr, RAYS: tl.constexpr, WRITE: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, LANES)
    inside = lane < F
    red = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    green = tl.load(weight + F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    blue = tl.load(weight + 2 * F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    plane = rays.to(tl.int64) * samples
    first = tl.program_id(0).to(tl.int64) * RAYS
    for ray in range(first, tl.minimum(first + RAYS, rays)):
        tint = tl.load(tints + ray * C + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
        of_density = tl.load(tints + ray * C + F).to(tl.float32)
        for tile in range(0, samples, TALL):
            sample = tile + tl.arange(0, TALL)
            there = sample < samples
            point = ray * samples + sample
            wanted = there[:, None] & inside[None, :]
            at = seen + point[:, None] * C + lane[None, :]
            value = tl.load(at, mask=wanted, other=0.0).to(tl.float32) + tint
            # Not a maximum, which would hide what is no number.
            value = tl.where(value < 0, 0.0, value).to(seen.dtype.element_ty)
            if WRITE:
                tl.store(at, value, mask=wanted)
            value = value.to(tl.float32)
            density = tl.load(seen + point * C + F, mask=there, other=0.0).to(tl.float32) + of_density
            tl.store(raw + point, tl.sum(value * red, axis=1) + tl.load(bias).to(tl.float32), mask=there)
            tl.store(raw + plane + point, tl.sum(value * green, axis=1) + tl.load(bias + 1).to(tl.float32), mask=there)
            tl.store(raw + 2 * plane + point, tl.sum(value * blue, axis=1) + tl.load(bias + 2).to(tl.float32), mask=there)
            tl.store(raw + 3 * plane + point, density, mask=there)


@Launcher
@triton.jit(do_not_specialize=["rays", "samples", "turns", "each", "image0", "ray0", "width"])
def _uncolour(
    slopes, seen, weight, of_seen, of_tints, sums, mixed, of_mixed, rays, samples, turns, each, image0, ray0, width,
    F: tl.constexpr, C: tl.constexpr, LANES: tl.constexpr, REST: tl.constexpr, TALL: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, LANES)
    rest = tl.arange(0, REST)
    inside = lane < F
    red = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    green = tl.load(weight + F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    blue = tl.load(weight + 2 * F + lane, mask=inside, other=0.0).to(tl.float32)[None, :]
    plane = rays.to(tl.int64) * samples
    # Sums are kept for every lane of a tile and put together last.
    of_red = tl.zeros((TALL, LANES), tl.float32)
    of_green = tl.zeros((TALL, LANES), tl.float32)
    of_blue = tl.zeros((TALL, LANES), tl.float32)
    reds = tl.zeros((TALL,), tl.float32)
    greens = tl.zeros((TALL,), tl.float32)
    blues = tl.zeros((TALL,), tl.float32)
    first = tl.program_id(0).to(tl.int64) * turns
    for ray in range(first, tl.minimum(first + turns, rays)):
        of_tint = tl.zeros((TALL, LANES), tl.float32)
        of_density = tl.zeros((TALL,), tl.float32)
        pixel = (ray // each + image0) * width + ray % each + ray0
        for tile in range(0, samples, TALL):
            sample = tile + tl.arange(0, TALL)
            there = sample < samples
            point = ray * samples + sample
            wanted = there[:, None] & inside[None, :]
            r = tl.load(slopes + point, mask=there, other=0.0)
            g = tl.load(slopes + plane + point, mask=there, other=0.0)
            b = tl.load(slopes + 2 * plane + point, mask=there, other=0.0)
            d = tl.load(slopes + 3 * plane + point, mask=there, other=0.0)
            value = tl.load(seen + point[:, None] * C + lane[None, :], mask=wanted, other=0.0).to(tl.float32)
            slope = r[:, None] * red + g[:, None] * green + b[:, None] * blue
            if MIXED:
                share = tl.load(mixed + point, mask=there, other=0.0)
                of_feature = tl.load(of_mixed + pixel * F + lane, mask=inside, other=0.0).to(tl.float32)
                slope += share[:, None] * of_feature[None, :]
            slope = tl.where((value <= 0) | ~wanted, 0.0, slope)
            tl.store(of_seen + point[:, None] * C + lane[None, :], slope, mask=wanted)
            beside = tl.where((rest == 0)[None, :], d[:, None], 0.0)
            tl.store(of_seen + point[:, None] * C + F + rest[None, :], beside, mask=there[:, None] & (rest < C - F)[None, :])
            of_tint += slope
            of_density += d
            of_red += r[:, None] * value
            of_green += g[:, None] * value
            of_blue += b[:, None] * value
            reds += r
            greens += g
            blues += b
        tl.store(of_tints + ray * C + lane, tl.sum(of_tint, axis=0), mask=inside)
        tl.store(of_tints + ray * C + F + rest, tl.where(rest == 0, tl.sum(of_density), 0.0), mask=rest < C - F)
    row = sums + tl.program_id(0) * 3 * (F + 1)
    _add(row, tl.sum(of_red, axis=0), tl.sum(reds), lane, F)
    _add(row + F + 1, tl.sum(of_green, axis=0), tl.sum(greens), lane, F)
    _add(row + 2 * (F + 1), tl.sum(of_blue, axis=0), tl.sum(blues), lane, F)


@triton.jit
def _add(to, many, one, lane, F: tl.constexpr):
    tl.store(to + lane, tl.load(to + lane, mask=lane < F, other=0.0) + many, mask=lane < F)
    tl.store(to + F, tl.load(to + F) + one)


@triton.jit
def _opaque(passed):
    """1 - exp(-passed), also where that is next to nothing."""
    p = passed
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
    raw, offsets, noise, ray, number, there, samples, plane, image, across, t_image, t_ray, t_sample, n_image, n_ray, n_sample,
    near, far, step, last, NOISY: tl.constexpr,
):  # fmt: skip
    """Of each point: its number, distance, length of its interval, density after relu, and what light passes before it."""
    nothing = samples >> 31
    point = ray * samples + number
    begin = image * t_image + across * t_ray
    loud = image * n_image + across * n_ray
    depth = depth_of(tl.load(offsets + begin + number * t_sample, mask=there, other=0.0), number, nothing, near, step)
    after = there & (number + 1 < samples)
    ahead = tl.load(offsets + begin + (number + 1) * t_sample, mask=after, other=0.0)
    ahead = depth_of(ahead, number + 1, nothing, near, step)
    length = tl.where(after, ahead, number_of(far)) - depth
    length = tl.where(after, length, tl.where(number_of(last) < 0, length, number_of(last)))
    thick = _thick(raw, noise, point, there, loud + number * n_sample, plane, NOISY)
    # The point before is read again: a running sum less its own part would lose what is small beside a large one.
    prior = there & (number > 0)
    behind = tl.load(offsets + begin + (number - 1) * t_sample, mask=prior, other=0.0)
    behind = depth_of(behind, number - 1, nothing, near, step)
    lost = _thick(raw, noise, point - 1, prior, loud + (number - 1) * n_sample, plane, NOISY) * (depth - behind)
    before = tl.cumsum(tl.where(prior, lost, 0.0), axis=1)
    return point, depth, length, thick, tl.exp(-before)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@Launcher
@triton.jit(
    do_not_specialize=[
        "rays", "samples", "each", "image0", "ray0", "width", "t_image", "t_ray", "t_sample", "n_image", "n_ray", "n_sample",
        "near", "far", "step", "last",
    ]
)  # fmt: skip
def _composite(
    raw, offsets, noise, rgb, depths, acc, weights,
    rays, samples, each, image0, ray0, width, t_image, t_ray, t_sample, n_image, n_ray, n_sample,
    near, far, step, last, NOISY: tl.constexpr, WHITE: tl.constexpr,
    WEIGHTS: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rays
    image = (row // each + image0).to(tl.int64)
    across = (row % each + ray0).to(tl.int64)
    row = row.to(tl.int64)
    number = tl.arange(0, LANES)[None, :]
    there = inside[:, None] & (number < samples)
    plane = rays.to(tl.int64) * samples
    point, depth, length, thick, left = _through(
        raw, offsets, noise, row[:, None], number, there, samples, plane, image[:, None], across[:, None],
        t_image, t_ray, t_sample, n_image, n_ray, n_sample, near, far, step, last, NOISY,
    )  # fmt: skip
    share = tl.where(there, left * _opaque(thick * length), 0.0)
    if WEIGHTS:
        tl.store(weights + point, share, mask=there)
    covered = tl.sum(share, axis=1)
    pixel = image * width + across
    for channel in tl.static_range(3):
        seen = tl.load(raw + channel * plane + point, mask=there, other=0.0)
        light = tl.sum(tl.where(there, share * _sigmoid(seen), 0.0), axis=1)
        if WHITE:
            light += 1 - covered
        tl.store(rgb + pixel * 3 + channel, light, mask=inside)
    tl.store(depths + pixel, tl.sum(tl.where(there, share * depth, 0.0), axis=1), mask=inside)
    tl.store(acc + pixel, covered, mask=inside)


@Launcher
@triton.jit(
    do_not_specialize=[
        "rays", "samples", "each", "image0", "ray0", "width", "t_image", "t_ray", "t_sample", "n_image", "n_ray", "n_sample",
        "near", "far", "step", "last",
    ]
)  # fmt: skip
def _uncomposite(
    raw, offsets, noise, of_rgb, of_depth, of_acc, of_weights, slopes, weights,
    rays, samples, each, image0, ray0, width, t_image, t_ray, t_sample, n_image, n_ray, n_sample,
    near, far, step, last, NOISY: tl.constexpr, WHITE: tl.constexpr,
    RGB: tl.constexpr, DEPTH: tl.constexpr, ACC: tl.constexpr, MIXED: tl.constexpr, WEIGHTS: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rays
    image = (row // each + image0).to(tl.int64)
    across = (row % each + ray0).to(tl.int64)
    row = row.to(tl.int64)
    number = tl.arange(0, LANES)[None, :]
    there = inside[:, None] & (number < samples)
    plane = rays.to(tl.int64) * samples
    point, depth, length, thick, left = _through(
        raw, offsets, noise, row[:, None], number, there, samples, plane, image[:, None], across[:, None],
        t_image, t_ray, t_sample, n_image, n_ray, n_sample, near, far, step, last, NOISY,
    )  # fmt: skip
    passed = thick * length
    share = tl.where(there, left * _opaque(passed), 0.0)
    if WEIGHTS:
        tl.store(weights + point, share, mask=there)
    pixel = image * width + across
    # What a pixel would change by with one point's weight.
    worth = tl.zeros((ROWS, LANES), tl.float32)
    for channel in tl.static_range(3):
        to = slopes + channel * plane + point
        if RGB:
            given = tl.load(of_rgb + pixel * 3 + channel, mask=inside, other=0.0)[:, None]
            light = _sigmoid(tl.load(raw + channel * plane + point, mask=there, other=0.0))
            tl.store(to, given * share * light * (1 - light), mask=there)
            if WHITE:
                worth += given * (light - 1)
            else:
                worth += given * light
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
    of_passed = worth * left * tl.exp(-passed) - behind
    tl.store(slopes + 3 * plane + point, tl.where(thick > 0, of_passed * length, 0.0), mask=there)
