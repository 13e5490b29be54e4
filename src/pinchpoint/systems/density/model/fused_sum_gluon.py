"""The sums of `fused_sum` with polynomials, in Gluon. Imported only on machines with a GPU and Triton.

For a probe p, a neighbour k and a channel c of degree l, the sum over neighbours is
sum_k R_c(s_pk) sum_m Y_lm(u_pk) X_kmc, as in `fused_sum_triton`. A program of one warp accumulates 16
channels of one degree for the probes of one tile. What a slot needs is copied to shared memory while the slot
before it is computed, so that the program does not wait for memory: the coefficients of R, the fields X of
the atom, and of every probe the variable of the polynomials and Y. In Gluon, unlike in Triton's own language,
a kernel chooses how threads share a block: here 8 probes by 4 channels each, so that few loads serve many
products.
"""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon  # ty: ignore
from triton.experimental.gluon import language as gl  # ty: ignore
from triton.experimental.gluon.language.nvidia.ampere import async_copy  # ty: ignore

from pinchpoint.kit.triton_launch import Launcher
from pinchpoint.systems.density.model.radial import PAD, RadialPolynomials

_CHANNELS = gl.constexpr(PAD)  # per program
_PLAN = gl.constexpr(8)  # numbers that describe the channels of a program
_POWERS = gl.constexpr(16)  # of which a polynomial has one more than its degree
_OUTSIDE = gl.constexpr(2.0)  # the variable of the polynomials beyond the cutoff, as in `fused_sum_triton`


def write_sums(
    fields: Tensor,
    neighbours: Tensor,
    windows: Tensor,
    used: Tensor,
    geometry: Tensor,
    pieces: RadialPolynomials,
    plan: Tensor,
    out: Tensor,
) -> None:
    """Write the sums to out: (T, B, L * C).

    fields: (A, W), padded by `pad_groups`; neighbours: (T, K); plan: from `channel_plan`; the rest is from
    `write_geometry`.
    """
    table, (tiles, slots) = pieces.coefficients, neighbours.shape
    _sums(
        tiles * len(plan),
        (fields, neighbours, windows, used, geometry, table, plan, out),
        (
            tiles,
            slots,
            fields.stride(0) // PAD,
            table.stride(0) // PAD,
            out.shape[2],
            out.shape[2] // pieces.shapes[0][0],
        ),
        len(pieces.shapes) - 1,
        out.shape[1],
        pieces.degree,
        warps=1,
    )


@Launcher
@gluon.jit(do_not_specialize=["tiles", "slots", "field_stride", "table_stride", "row", "total"])
def _sums(
    fields,
    neighbours,
    windows,
    used,
    geometry,
    table,
    plan,
    out,
    tiles,
    slots,
    field_stride,
    table_stride,
    row,
    total,
    LMAX: gl.constexpr,
    PROBES: gl.constexpr,
    DEGREE: gl.constexpr,
):
    # Programs that run at the same time have the same channels, so that they run the same instructions.
    tile = (gl.program_id(0) % tiles).to(gl.int64)
    own = plan + gl.program_id(0) // tiles * _PLAN
    # In units of PAD columns, so that Triton knows that loads of four are aligned.
    field, column, padded = gl.load(own + 1), gl.load(own + 2), gl.load(own + 3) * _CHANNELS
    first, start, count, width = gl.load(own + 4), gl.load(own + 5), gl.load(own + 6), gl.load(own + 7)
    degree = gl.load(own)
    for kind in gl.static_range(LMAX + 1):
        if degree == kind:
            sums = _sum_over_slots(
                fields + field * _CHANNELS,
                neighbours + tile * slots,
                windows + tile * slots,
                geometry + tile * slots * ((LMAX + 1) * (LMAX + 1) * PROBES),
                table + column * _CHANNELS,
                gl.load(used + tile),
                field_stride * _CHANNELS,
                table_stride * _CHANNELS,
                padded,
                kind,
                LMAX,
                PROBES,
                DEGREE,
            )
            channel = first + gl.arange(0, _CHANNELS, gl.SliceLayout(0, _by_line()))
            probe = gl.arange(0, PROBES, gl.SliceLayout(1, _by_line()))
            to = out + tile * PROBES * row + channel // width * total + start + channel % width
            gl.store(to[None, :] + probe[:, None] * row, sums, mask=(channel < count)[None, :])


@gluon.constexpr_function
def _by_line():
    """The layout in which sums are stored: the channels of a probe are contiguous in memory."""
    return gl.BlockedLayout([1, 1], [2, 16], [1, 1], [1, 0])


@gluon.constexpr_function
def _least_power_of_2(number):
    return 1 << (number - 1).bit_length()


@gluon.jit
def _sum_over_slots(
    fields,
    neighbours,
    windows,
    geometry,
    table,
    used,
    field_stride,
    table_stride,
    padded,
    KIND: gl.constexpr,
    LMAX: gl.constexpr,
    PROBES: gl.constexpr,
    DEGREE: gl.constexpr,
):
    """Return the sums (PROBES, 16). Pointers to fields and table are those of the first channel."""
    SIZE: gl.constexpr = 2 * KIND + 1
    LINES: gl.constexpr = SIZE + 1 if KIND else 1  # of the geometry: the variable, and harmonics
    both: gl.constexpr = gl.BlockedLayout([4, 4], [8, 4], [1, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    # Twice: of the slot that is computed, and of the next one.
    radials = gl.allocate_shared_memory(gl.float32, [2, _POWERS, _CHANNELS], shared)
    atoms = gl.allocate_shared_memory(gl.float32, [2, _least_power_of_2(SIZE), _CHANNELS], shared)
    pairs = gl.allocate_shared_memory(gl.float32, [2, _least_power_of_2(LINES), PROBES], shared)
    last = gl.maximum(used - 1, 0)
    ahead = gl.minimum(1, last)
    window, atom = gl.load(windows), gl.load(neighbours)
    next_window, next_atom = gl.load(windows + ahead), gl.load(neighbours + ahead)
    _copy(
        radials.index(0),
        atoms.index(0),
        pairs.index(0),
        table + window * ((DEGREE + 1) * table_stride),
        fields + atom * field_stride,
        geometry,
        table_stride,
        padded,
        KIND,
        PROBES,
        DEGREE,
    )
    sums = gl.zeros([PROBES, _CHANNELS], gl.float32, both)
    for slot in range(used):
        here = slot % 2
        window, atom = next_window, next_atom
        ahead = gl.minimum(slot + 1, last)  # the last slot again after the last
        later = gl.minimum(slot + 2, last)
        next_window, next_atom = gl.load(windows + later), gl.load(neighbours + later)
        async_copy.wait_group(0)
        gl.thread_barrier()
        _copy(
            radials.index(1 - here),
            atoms.index(1 - here),
            pairs.index(1 - here),
            table + window * ((DEGREE + 1) * table_stride),
            fields + atom * field_stride,
            geometry + ahead.to(gl.int64) * ((LMAX + 1) * (LMAX + 1) * PROBES),
            table_stride,
            padded,
            KIND,
            PROBES,
            DEGREE,
        )
        powers, components, lines = radials.index(here), atoms.index(here), pairs.index(here).permute((1, 0))
        place = lines.slice(0, 1, dim=1).load(both)
        radial = powers.slice(DEGREE, 1).load(both) * place + powers.slice(DEGREE - 1, 1).load(both)
        for step in gl.static_range(2, DEGREE + 1):
            radial = radial * place + powers.slice(DEGREE - step, 1).load(both)
        if KIND == 0:
            radial *= gl.where(place == _OUTSIDE, 0.0, 1.0)
            sums += radial * components.slice(0, 1).load(both)
        else:  # the harmonics are zero beyond the cutoff
            angular = lines.slice(1, 1, dim=1).load(both) * components.slice(0, 1).load(both)
            for part in gl.static_range(1, SIZE):
                angular += lines.slice(1 + part, 1, dim=1).load(both) * components.slice(part, 1).load(both)
            sums += radial * angular
    async_copy.wait_group(0)
    return gl.convert_layout(sums, _by_line())


@gluon.jit
def _copy(
    radials,
    atoms,
    pairs,
    table,
    fields,
    geometry,
    table_stride,
    padded,
    KIND: gl.constexpr,
    PROBES: gl.constexpr,
    DEGREE: gl.constexpr,
):
    """Begin to copy what one slot needs."""
    SIZE: gl.constexpr = 2 * KIND + 1
    by_channel: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [1, 1], [1, 0])
    by_probe: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [1, 1], [1, 0])
    channel = gl.arange(0, _CHANNELS, gl.SliceLayout(0, by_channel))[None, :]
    power = gl.arange(0, _POWERS, gl.SliceLayout(1, by_channel))[:, None]
    async_copy.async_copy_global_to_shared(
        radials, table + (power * table_stride + channel), mask=power <= DEGREE
    )
    part = gl.arange(0, _least_power_of_2(SIZE), gl.SliceLayout(1, by_channel))[:, None]
    async_copy.async_copy_global_to_shared(atoms, fields + (part * padded + channel), mask=part < SIZE)
    # The variable of the polynomials is the first line of the geometry, where the harmonic of degree 0 is 1.
    LINES: gl.constexpr = SIZE + 1 if KIND else 1
    probe = gl.arange(0, PROBES, gl.SliceLayout(0, by_probe))[None, :]
    line = gl.arange(0, _least_power_of_2(LINES), gl.SliceLayout(1, by_probe))[:, None]
    row = gl.where(line == 0, 0, line + (KIND * KIND - 1))
    async_copy.async_copy_global_to_shared(pairs, geometry + (row * PROBES + probe), mask=line < LINES)
    async_copy.commit_group()
