"""The Triton kernels of `fused_sum` for CUDA. Imported only on machines with a GPU and Triton.

For a probe p, a neighbour k and a channel c of degree l, the sum over neighbours is
sum_k R_c(s_pk) sum_m Y_lm(u_pk) X_kmc, where s is the soft distance, u the vector divided by it, and X the
fields of the atom. One kernel writes the place of s in the table of R, and Y, for every pair. The other
accumulates the sums of some channels for the probes of one tile. With `RadialPolynomials`, all probes of
the tile use the same few coefficients of R, so that R is a product of matrices: powers times coefficients,
computed by tensor cores in parts (`tensor_cores`). With a `RadialSpline`, each probe has four rows of
coefficients; those of the channels of a program are few enough for the L1 cache.
"""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from functools import lru_cache

import torch
import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import (
    BLOCK,
    PAD,
    POWERS,
    RadialPieces,
    RadialPolynomials,
    pad_count,
)
from pinchpoint.systems.density.model.tensor_cores_triton import times_parts

_PAIRS = 256  # per program that computes harmonics
_TOGETHER = 64  # tiles whose channels are summed before those of the next ones
_LANES = 16  # channels per warp of a program that sums
_PAD = tl.constexpr(PAD)
_OUTSIDE = tl.constexpr(2.0)  # the variable of the polynomials beyond the cutoff; inside, it is at most 1


def write_geometry(
    config: DensityConfig,
    vectors: Tensor,
    factors: Tensor,
    pieces: RadialPieces,
    windows: Tensor,
    places: Tensor,
    harmonics: Tensor,
) -> None:
    """Write the place of each pair in the table of radial functions, and its harmonics.

    vectors: (T, B, K, 3); factors: from `polar_factors`; windows: (T, K) int32, written only for polynomials;
    places: (N,), the variable of the polynomials, or the row of the splines and the fraction of the way to
    the next one, -1 beyond the cutoff; harmonics: (sum of d, N), where N counts pairs by tile, slot and
    probe.
    """
    tiles, probes, slots, _ = vectors.shape
    groups = max(1, _PAIRS // probes)
    _geometry(
        triton.cdiv(tiles * slots, groups),
        (vectors, factors, windows, places, harmonics),
        (
            tiles * slots,
            slots,
            *vectors.stride(),
            config.softening_a**2,
            config.cutoff_a**2,
            pieces.low,
            1 / pieces.step,
            pieces.step,
            1 / pieces.half if isinstance(pieces, RadialPolynomials) else 0.0,
            pieces.coefficients.shape[1] - 1 if isinstance(pieces, RadialPolynomials) else 0,
        ),
        config.lmax,
        factors.shape[0],
        groups,
        probes,
        isinstance(pieces, RadialPolynomials),
        vectors.stride() == (slots * probes, 1, probes, tiles * slots * probes),
    )


def write_sums(
    fields: Tensor,
    neighbours: Tensor,
    windows: Tensor,
    places: Tensor,
    harmonics: Tensor,
    pieces: RadialPieces,
    out: Tensor,
) -> None:
    """Write the sums to out: (T, B, L * C).

    fields: (A, W), padded by `pad_groups` like the coefficients; neighbours: (T, K); the rest is from
    `write_geometry`.
    """
    neighbours, table = neighbours.contiguous(), pieces.coefficients
    (tiles, slots), probes = neighbours.shape, out.shape[1]
    is_split = isinstance(pieces, RadialPolynomials)
    for low, high, blocks in _launches(pieces.shapes, out.device):
        _sums(
            tiles * len(blocks),
            (fields, neighbours, windows, harmonics, places, table, out, blocks),
            (
                tiles,
                slots,
                len(blocks),
                0 if is_split else len(table) - 4,
                fields.stride(0) // PAD,
                table.stride(1 if is_split else 0) // PAD,
                table.stride(0) // PAD,
                out.shape[2],
                out.shape[2] // pieces.shapes[0][0],
            ),
            low,
            high,
            probes,
            BLOCK,
            POWERS if is_split else 0,
            _TOGETHER,
            warps=BLOCK // _LANES,
        )


@lru_cache(maxsize=16)
def _launches(
    shapes: tuple[tuple[int, int], ...], device: torch.device
) -> tuple[tuple[int, int, Tensor], ...]:
    """Return the lowest and the highest degree of each launch, and rows of int32 for its blocks of channels,
    which `_sums` reads first.
    """
    launches, field, column, start = [], 0, 0, 0
    for degree, (layers, width) in enumerate(shapes):
        count = layers * width
        padded = pad_count(count)
        group = (field // PAD, column // PAD, padded // PAD, start, count, width)
        rows = [(degree, block, *group) for block in range(-(-count // BLOCK))]
        launches.append((degree, degree, torch.tensor(rows, dtype=torch.int32, device=device)))
        field, column, start = field + (2 * degree + 1) * padded, column + padded, start + width
    return tuple(launches)


@Launcher
@triton.jit(
    do_not_specialize=[
        "groups",
        "slots",
        "tile_stride",
        "probe_stride",
        "slot_stride",
        "axis_stride",
        "softening_squared",
        "cutoff_squared",
        "low",
        "per_step",
        "step",
        "per_half",
        "last",
    ]
)
def _geometry(
    vectors,
    factors,
    windows,
    places,
    harmonics,
    groups,
    slots,
    tile_stride,
    probe_stride,
    slot_stride,
    axis_stride,
    softening_squared,
    cutoff_squared,
    low,
    per_step,
    step,
    per_half,
    last,
    LMAX: tl.constexpr,
    DEGREES: tl.constexpr,
    GROUPS: tl.constexpr,
    PROBES: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    IS_CONTIGUOUS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    probe = tl.arange(0, PROBES)[None, :]
    there = (group < groups)[:, None]
    pair = group[:, None] * PROBES + probe
    pairs = tl.cast(groups, tl.int64) * PROBES
    if IS_CONTIGUOUS:  # by coordinate, tile, slot and probe
        vector = vectors + pair
        axis_stride = pairs
    else:
        vector = vectors + (group // slots * tile_stride + group % slots * slot_stride)[:, None]
        vector += probe * probe_stride
    x = tl.load(vector, mask=there, other=0.0)
    y = tl.load(vector + axis_stride, mask=there, other=0.0)
    z = tl.load(vector + 2 * axis_stride, mask=there, other=0.0)
    squared = x * x + y * y + z * z
    soft = tl.sqrt(squared + softening_squared)
    outside = squared >= cutoff_squared
    if IS_SPLIT:
        # The window whose centre is the nearest to the middle of the distances of this tile.
        middle = 0.5 * (tl.min(soft, axis=1) + tl.max(soft, axis=1))
        window = tl.minimum(tl.maximum(((middle - low) * per_step + 0.5).to(tl.int32), 0), last)
        tl.store(windows + group, window, mask=group < groups)
        place = (soft - (low + window.to(tl.float32) * step)[:, None]) * per_half
        # Polynomials are wrong outside their window: NaN if the tile is larger than they were made for.
        place = tl.where(tl.abs(place) <= 1.01, place, float("nan"))
        place = tl.where(outside, _OUTSIDE, place)
    else:
        place = tl.where(outside, -1.0, (soft - low) * per_step)
    tl.store(places + pair, place, mask=there)
    x, y, z = x / soft, y / soft, z / soft
    squared = x * x + y * y + z * z
    for degree in tl.static_range(1, LMAX + 1):
        # Zero beyond the cutoff. Of the angle about the axis y, times |(x, z)|^order.
        cosine = tl.where(outside, 0.0, 1.0)
        sine = tl.zeros((GROUPS, PROBES), tl.float32)
        to = harmonics + (degree * degree + degree - 1) * pairs + pair
        for order in tl.static_range(degree + 1):
            # A polynomial in y^2 and |u|^2, by Horner's rule, times y if its degree is odd.
            factor = factors + (degree * DEGREES + order) * DEGREES
            polar = tl.full((GROUPS, PROBES), 0.0, tl.float32) + tl.load(factor)
            power = squared
            for term in tl.static_range(1, (degree - order) // 2 + 1):
                polar = polar * y * y + tl.load(factor + term) * power
                power *= squared
            if (degree - order) % 2 == 1:
                polar *= y
            tl.store(to + order * pairs, polar * cosine, mask=there)
            if order:
                tl.store(to - order * pairs, polar * sine, mask=there)
            cosine, sine = z * cosine - x * sine, x * cosine + z * sine


@Launcher
@triton.jit(
    do_not_specialize=[
        "tiles",
        "slots",
        "blocks",
        "last",
        "field_stride",
        "table_stride",
        "second",
        "row",
        "total",
    ]
)
def _sums(
    fields,
    neighbours,
    windows,
    harmonics,
    places,
    table,
    out,
    plan,
    tiles,
    slots,
    blocks,
    last,
    field_stride,
    table_stride,
    second,
    row,
    total,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    PROBES: tl.constexpr,
    BLOCK: tl.constexpr,
    POWERS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    # Some tiles are finished before the next ones are begun, so that their harmonics stay in the L2 cache.
    first = tl.program_id(0) // (TOGETHER * blocks) * TOGETHER
    together = tl.minimum(tiles - first, TOGETHER)
    within = tl.program_id(0) - first * blocks
    tile = (first + within % together).to(tl.int64)
    own = plan + within // together * 8
    kind, channel = tl.load(own), tl.load(own + 1) * BLOCK + tl.arange(0, BLOCK)
    # In units of PAD columns and of blocks, so that Triton knows that loads of four are aligned.
    field, column, padded = tl.load(own + 2) * _PAD, tl.load(own + 3) * _PAD, tl.load(own + 4) * _PAD
    start, count, width = tl.load(own + 5), tl.load(own + 6), tl.load(own + 7)
    pairs = tl.cast(tiles, tl.int64) * slots * PROBES
    to = out + tile * PROBES * row + channel // width * total + start + channel % width
    for degree in tl.static_range(LOW, HIGH + 1):
        if (LOW == HIGH) or kind == degree:
            _sum_over_slots(
                fields + field + channel,
                neighbours + tile * slots,
                windows + tile * slots,
                harmonics + (degree * degree - 1 if degree else 0) * pairs + tile * slots * PROBES,
                places + tile * slots * PROBES,
                table + (column + channel) * max(1, POWERS),
                to,
                channel < count,
                slots,
                pairs,
                last,
                field_stride * _PAD,
                table_stride * _PAD,
                second * _PAD,
                padded,
                row,
                2 * degree + 1,
                PROBES,
                BLOCK,
                POWERS,
            )


@triton.jit
def _sum_over_slots(
    fields,
    neighbours,
    windows,
    harmonics,
    places,
    table,
    out,
    is_channel,
    slots,
    pairs,
    last,
    field_stride,
    table_stride,
    second,
    padded,
    row,
    SIZE: tl.constexpr,
    PROBES: tl.constexpr,
    BLOCK: tl.constexpr,
    POWERS: tl.constexpr,
):
    """Of one block of channels of one tile. Pointers to fields, table and out are those of the channels."""
    probe = tl.arange(0, PROBES)
    # Of each slot, the first values are loaded one slot ahead, so that their latency is hidden. Loads are not
    # masked: after the last channel follow those of the next group, or zeros.
    next_place = tl.load(places + probe)
    next_atom = tl.load(neighbours)
    if POWERS:
        sums_here = tl.zeros((PROBES, BLOCK), tl.float32)
        table = table[None, :] + tl.arange(0, POWERS)[:, None]
        window = table + tl.load(windows) * table_stride
        next_high, next_low = tl.load(window), tl.load(window + second)
        next_window = tl.load(windows + tl.minimum(1, slots - 1))
    else:
        # Zeros, and never read from memory: without a load of this shape, Triton gives a thread one channel
        # of many probes instead of four channels of fewer, which takes four times as many loads.
        sums_here = tl.load(table[None, :] + probe[:, None] * table_stride, mask=slots < 0, other=0.0)
        next_high, next_low, next_window = 0.0, 0.0, 0
    for slot in tl.range(0, slots, num_stages=1):
        place, atom = next_place, next_atom
        ahead = tl.minimum(slot + 1, slots - 1)  # the last slot again after the last
        next_place = tl.load(places + ahead * PROBES + probe)
        next_atom = tl.load(neighbours + ahead)
        high, low = next_high, next_low
        if POWERS:
            window = table + next_window * table_stride
            next_high, next_low = tl.load(window), tl.load(window + second)
            next_window = tl.load(windows + tl.minimum(slot + 2, slots - 1))
        own = fields + atom * field_stride
        if SIZE == 1:
            angular = tl.load(own)[None, :]
            if POWERS:  # the variable is at most 1 within the cutoff
                angular = tl.where(place == _OUTSIDE, 0.0, 1.0)[:, None] * angular
        else:  # the harmonics are zero beyond the cutoff
            angular = tl.zeros((PROBES, BLOCK), tl.float32)
            component = harmonics + slot * PROBES + probe
            for part in tl.static_range(SIZE):
                harmonic = tl.load(component)
                component += pairs
                angular += harmonic[:, None] * tl.load(own + part * padded)[None, :]
        if POWERS:
            radial = times_parts(_powers(place, POWERS), high, low, tl.zeros((PROBES, BLOCK), tl.float32))
        else:
            interval = tl.minimum(
                tl.maximum(place.to(tl.int32), 0), last
            )  # inside the table, also if not a number
            right = place - interval
            left = 1 - right
            share = tl.where(place < 0, 0.0, 1 / 6)  # -1: beyond the cutoff
            lowest, highest = share * left * left * left, share * right * right * right
            lower = share * (4 - 3 * right * right * (1 + left))
            higher = share * (4 - 3 * left * left * (1 + right))
            rows = table[None, :] + interval[:, None] * table_stride
            radial = lowest[:, None] * tl.load(rows)
            radial += lower[:, None] * tl.load(rows + table_stride)
            radial += higher[:, None] * tl.load(rows + 2 * table_stride)
            radial += highest[:, None] * tl.load(rows + 3 * table_stride)
        sums_here += radial * angular
    tl.store(out[None, :] + probe[:, None] * row, sums_here, mask=is_channel[None, :])


@triton.jit
def _powers(x, POWERS: tl.constexpr):
    """Return the powers 0, 1, ... of x (N,) as (N, POWERS)."""
    power = tl.arange(0, POWERS)[None, :]
    value = tl.full((x.shape[0], POWERS), 1.0, tl.float32)
    factor = x[:, None]
    for bit in tl.static_range(4):
        value *= tl.where(power & 2**bit != 0, factor, 1.0)
        factor *= factor
    return value
