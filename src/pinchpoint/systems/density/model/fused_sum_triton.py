"""The Triton kernels of `fused_sum` for CUDA. Imported only on machines with a GPU and Triton.

For a probe p, a neighbour k and a channel c of degree l, the sum over neighbours is
sum_k R_c(s_pk) sum_m Y_lm(u_pk) X_kmc, where s is the soft distance, u the vector divided by it, and X the
fields of the atom. One kernel writes the place of s in the table of R, and Y, for every pair. The other
accumulates the sums of some channels for the probes of one tile. With `RadialPolynomials`, all probes of
the tile use the same few coefficients of R; for large tiles, see `fused_sum_gluon`. With a `RadialSpline`,
each probe has four rows of coefficients; those of the channels of a program are few enough for the L1 cache.
"""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import PAD, RadialPieces, RadialPolynomials, pad_count

_PAIRS = 256  # per program that computes harmonics
_CHANNELS = 64  # at most, per program that sums
_LANES = 16  # channels per warp of a program that sums
_PAD = tl.constexpr(PAD)
_OUTSIDE = tl.constexpr(2.0)  # the variable of the polynomials beyond the cutoff; inside, it is at most 1


def write_geometry(
    config: DensityConfig,
    vectors: Tensor,
    factors: Tensor,
    pieces: RadialPieces,
    windows: Tensor,
    used: Tensor,
    geometry: Tensor,
) -> None:
    """Write the place of each pair in the table of radial functions, and its harmonics.

    vectors: (T, B, K, 3); factors: from `polar_factors`; windows: (T, K) int32, written only for polynomials;
    used: (T,) int32, zeros, in which the slots are counted up to the last one with a probe within the cutoff;
    geometry: (T, K, sum of d, B): the harmonics, and in place of the one of degree 0, which is always 1, the
    variable of the polynomials, or the row of the splines and the fraction of the way to the next one, -1
    beyond the cutoff.
    """
    tiles, probes, slots, _ = vectors.shape
    groups = max(1, _PAIRS // probes)
    _geometry(
        -(-tiles * slots // groups),
        (vectors, factors, windows, used, geometry),
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
            len(pieces.coefficients) // (pieces.degree + 1) - 1
            if isinstance(pieces, RadialPolynomials)
            else 0,
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
    used: Tensor,
    geometry: Tensor,
    pieces: RadialPieces,
    out: Tensor,
) -> None:
    """Write the sums to out: (T, B, L * C).

    fields: (A, W), padded by `pad_groups` like the coefficients; neighbours: (T, K); the rest is from
    `write_geometry`.
    """
    table = pieces.coefficients
    (tiles, slots), probes, total = neighbours.shape, out.shape[1], out.shape[2] // pieces.shapes[0][0]
    field = column = start = 0
    for degree, (layers, width) in enumerate(pieces.shapes):
        size, count = 2 * degree + 1, layers * width
        padded = pad_count(count)
        block = _block(padded)
        _sums(
            tiles * -(-count // block),
            (fields, neighbours, windows, used, geometry, table, out),
            (
                tiles,
                slots,
                len(table) - 4,
                fields.stride(0) // PAD,
                table.stride(0) // PAD,
                field // PAD,
                column // PAD,
                padded // PAD,
                start,
                count,
                width,
                total,
            ),
            degree,
            len(pieces.shapes) - 1,
            probes,
            block,
            pieces.degree if isinstance(pieces, RadialPolynomials) else 0,
            warps=block // _LANES,
        )
        field, column, start = field + size * padded, column + padded, start + width


def _block(channels: int) -> int:
    """Return the channels per program: the most of which few are unused."""
    sizes = [size for size in (64, 32) if size <= _CHANNELS and -channels % size * 16 <= channels]
    return sizes[0] if sizes else _LANES


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
    used,
    geometry,
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
    is_used = (tl.max(tl.where(outside, 0, 1), axis=1) > 0) & (group < groups)
    tl.atomic_max(used + group // slots, (group % slots + 1).to(tl.int32), mask=is_used, sem="relaxed")
    own = geometry + group[:, None] * ((LMAX + 1) * (LMAX + 1) * PROBES) + probe
    tl.store(own, place, mask=there)
    x, y, z = x / soft, y / soft, z / soft
    squared = x * x + y * y + z * z
    for degree in tl.static_range(1, LMAX + 1):
        # Zero beyond the cutoff. Of the angle about the axis y, times |(x, z)|^order.
        cosine = tl.where(outside, 0.0, 1.0)
        sine = tl.zeros((GROUPS, PROBES), tl.float32)
        to = own + (degree * degree + degree) * PROBES
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
            tl.store(to + order * PROBES, polar * cosine, mask=there)
            if order:
                tl.store(to - order * PROBES, polar * sine, mask=there)
            cosine, sine = z * cosine - x * sine, x * cosine + z * sine


@Launcher
@triton.jit(
    do_not_specialize=[
        "tiles",
        "slots",
        "last",
        "field_stride",
        "table_stride",
        "field",
        "column",
        "padded",
        "start",
        "count",
        "width",
        "total",
    ]
)
def _sums(
    fields,
    neighbours,
    windows,
    used,
    geometry,
    table,
    out,
    tiles,
    slots,
    last,
    field_stride,
    table_stride,
    field,
    column,
    padded,
    start,
    count,
    width,
    total,
    KIND: tl.constexpr,
    LMAX: tl.constexpr,
    PROBES: tl.constexpr,
    BLOCK: tl.constexpr,
    DEGREE: tl.constexpr,
):
    SIZE: tl.constexpr = 2 * KIND + 1
    LINES: tl.constexpr = (LMAX + 1) * (LMAX + 1) * PROBES
    tile = (tl.program_id(0) % tiles).to(tl.int64)
    probe = tl.arange(0, PROBES)
    channel = tl.program_id(0) // tiles * BLOCK + tl.arange(0, BLOCK)
    # Passed in units of PAD columns, so that Triton knows that loads of four are aligned.
    field_stride, table_stride, field, column, padded = (
        field_stride * _PAD,
        table_stride * _PAD,
        field * _PAD,
        column * _PAD,
        padded * _PAD,
    )
    there = channel < padded
    # Zeros, and never read from memory: without a load of this shape, Triton gives a thread one channel of
    # many probes instead of four channels of fewer, which takes four times as many loads.
    nothing = table + probe[:, None] * table_stride + channel[None, :]
    sums_here = tl.load(nothing, mask=(slots < 0) & there[None, :], other=0.0)
    # Of each slot, the first values are loaded one slot ahead, so that their latency is hidden.
    own_geometry = geometry + tile * slots * LINES + probe
    next_place = tl.load(own_geometry)
    next_atom = tl.load(neighbours + tile * slots)
    next_window = tl.load(windows + tile * slots) if DEGREE else 0
    for slot in range(tl.load(used + tile)):
        place, atom, window = next_place, next_atom, next_window
        ahead = tl.minimum(slot + 1, slots - 1).to(tl.int64)  # the last slot again after the last
        next_place = tl.load(own_geometry + ahead * LINES)
        next_atom = tl.load(neighbours + tile * slots + ahead)
        if DEGREE:
            next_window = tl.load(windows + tile * slots + ahead)
            own = table + (window * (DEGREE + 1) + DEGREE) * table_stride + column + channel
            radial = tl.zeros((PROBES, BLOCK), tl.float32) + tl.load(own, mask=there, other=0.0)[None, :]
            for _ in tl.static_range(DEGREE):
                own -= table_stride
                radial = radial * place[:, None] + tl.load(own, mask=there, other=0.0)[None, :]
            if SIZE == 1:  # otherwise the harmonics are zero beyond the cutoff
                radial *= tl.where(place == _OUTSIDE, 0.0, 1.0)[:, None]
        else:
            row = tl.minimum(
                tl.maximum(place.to(tl.int32), 0), last
            )  # inside the table, also if not a number
            right = place - row
            left = 1 - right
            share = tl.where(place < 0, 0.0, 1 / 6)  # -1: beyond the cutoff
            lowest, highest = share * left * left * left, share * right * right * right
            lower = share * (4 - 3 * right * right * (1 + left))
            higher = share * (4 - 3 * left * left * (1 + right))
            rows = table + row[:, None] * table_stride + column + channel[None, :]
            radial = lowest[:, None] * tl.load(rows, mask=there[None, :], other=0.0)
            radial += lower[:, None] * tl.load(rows + table_stride, mask=there[None, :], other=0.0)
            radial += higher[:, None] * tl.load(rows + 2 * table_stride, mask=there[None, :], other=0.0)
            radial += highest[:, None] * tl.load(rows + 3 * table_stride, mask=there[None, :], other=0.0)
        own = fields + atom * field_stride + field + channel
        if SIZE == 1:
            sums_here += radial * tl.load(own, mask=there, other=0.0)[None, :]
        else:
            angular = tl.zeros((PROBES, BLOCK), tl.float32)
            component = own_geometry + tl.cast(slot, tl.int64) * LINES + KIND * KIND * PROBES
            for part in tl.static_range(SIZE):
                harmonic = tl.load(component + part * PROBES)
                angular += harmonic[:, None] * tl.load(own + part * padded, mask=there, other=0.0)[None, :]
            sums_here += radial * angular
    layer = channel // width
    to = out + (tile * PROBES + probe[:, None]) * (count // width * total)
    place_of_channel = (layer * total + start + channel % width)[None, :]
    tl.store(to + place_of_channel, sums_here, mask=(channel < count)[None, :])
