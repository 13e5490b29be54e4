"""Sums over the neighbours of each probe by our own kernels, and which tiles they can be used for.

Letters as in `probe_network`. No channel of a pair is stored: a Triton program accumulates the sums of some
channels for the probes of one tile and loops over the slots. Of a pair, only its place in the table of radial
functions and its harmonics are in memory.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import (
    PAD,
    RadialPieces,
    RadialPolynomials,
    pad_count,
    pad_groups,
    padded_columns,
)
from pinchpoint.systems.density.model.sampled_sum import sampled_floats

MOST_PROBES = 64  # per tile: a program accumulates the sums of all of them
_LEAST_PROBES = 32  # per tile for the kernel in Gluon: with fewer, its threads would compute the same
_POWERS = 16  # of a polynomial at most, for the kernel in Gluon
_TESTED_TRITON = "3.6."  # for the kernel in Gluon


def is_fused(fields: Tensor, probes: int) -> bool:
    """Return whether the sums are computed by one kernel per degree.

    This needs float32 on a GPU, disabled gradients, and tiles of 2^n probes, at most `MOST_PROBES`.
    """
    is_plain = fields.dtype is torch.float32 and not torch.is_grad_enabled()
    return is_plain and own_kernels(fields) and probes.bit_count() == 1 and probes <= MOST_PROBES


def is_sampled(fields: Tensor) -> bool:
    """Return whether sums that are not fused sample the table: on a GPU with gradients disabled."""
    return fields.is_cuda and not torch.is_grad_enabled()


def pair_floats(config: DensityConfig, fields: Tensor, probes: int, *, own_kernel: bool) -> int | None:
    """Return the floats per pair at the peak, or None where whole rows of the table are read.

    With our kernels, these are the vector, its place in the table, the harmonics of all degrees, and what the
    superposed atoms need. Without them, also the monomials of the last two degrees, and the channels of the
    pair. For what does not grow with the pairs, see `probe_floats`.
    """
    lmax = config.lmax
    harmonics = (lmax + 1) ** 2 - 1
    if own_kernel and is_fused(fields, probes):
        return harmonics + 5 + (12 if config.prior else 0)
    last, before = (lmax + 1) * (lmax + 2) // 2, lmax * (lmax + 1) // 2
    geometry = harmonics + 2 * last + before + 28
    return geometry + sampled_floats(config) if is_sampled(fields) else None


def probe_floats(config: DensityConfig) -> int:
    """Return the floats per probe at the peak besides its pairs, with our kernels.

    These are its sums, their products with matrices, its states and hidden units, and its outputs. A model
    with a local network computes them with plain torch, which keeps more of them at once.
    """
    scalars = config.channels(0)
    if config.local:
        states = config.interactions * (config.aggregates + 5 * scalars)
        return states + 6 * config.head + 5 * config.local + 8 * config.outputs
    of_interaction = config.aggregates + (scalars + 4) + scalars  # one column for the angle, and padding
    return config.interactions * of_interaction + scalars + config.head + config.outputs


def fused_sums(
    config: DensityConfig,
    fields: Tensor,
    neighbours: Tensor,
    vectors: Tensor,
    pieces: RadialPieces,
    factors: Tensor,
    columns: Tensor,
    plan: Tensor,
) -> Tensor:
    """Return the sums of each probe, (P, L, C).

    factors: from `polar_factors`; columns: from `field_columns`; plan: from `channel_plan`; the rest as in
    the model.
    """
    tiles, probes, slots, _ = vectors.shape
    out = fields.new_empty(tiles * probes, config.interactions, config.aggregates)
    windows = vectors.new_empty(tiles, slots, dtype=torch.int32)
    used = vectors.new_zeros(tiles, dtype=torch.int32)
    geometry = vectors.new_empty(tiles, slots, (config.lmax + 1) ** 2, probes)
    padded_fields = pad_groups(fields, columns)
    neighbours = neighbours.contiguous()
    if not is_fake(fields) and tiles:
        from pinchpoint.systems.density.model import fused_sum_triton

        out_of_tiles = out.view(tiles, probes, -1)
        with on_device(fields):
            fused_sum_triton.write_geometry(config, vectors, factors, pieces, windows, used, geometry)
            if isinstance(pieces, RadialPolynomials) and _is_copied_ahead(fields, pieces, probes):
                from pinchpoint.systems.density.model import fused_sum_gluon

                fused_sum_gluon.write_sums(
                    padded_fields, neighbours, windows, used, geometry, pieces, plan, out_of_tiles
                )
            else:
                fused_sum_triton.write_sums(
                    padded_fields, neighbours, windows, used, geometry, pieces, out_of_tiles
                )
    return out


def _is_copied_ahead(fields: Tensor, pieces: RadialPolynomials, probes: int) -> bool:
    """Return whether the kernel in Gluon is used: on GPUs that copy to shared memory in the background."""
    return (
        probes >= _LEAST_PROBES
        and pieces.degree < _POWERS
        and has_gluon()
        and torch.cuda.get_device_capability(fields.device) >= (8, 0)
    )


@cache
def has_gluon() -> bool:
    """Return whether the installed Triton has the Gluon that `fused_sum_gluon` is written for.

    Gluon is experimental and its names change. The layouts of the kernel are those of NVIDIA's warps.
    """
    return torch.version.hip is None and import_module("triton").__version__.startswith(_TESTED_TRITON)


def field_columns(pieces: RadialPieces) -> Tensor:
    """Return the columns that `pad_groups` reads, for the fields of atoms."""
    sizes = [
        layers * width for degree, (layers, width) in enumerate(pieces.shapes) for _ in range(2 * degree + 1)
    ]
    return padded_columns(sizes, pieces.coefficients.device)


def channel_plan(pieces: RadialPieces) -> Tensor:
    """Return what describes each block of 16 channels to `fused_sum_gluon`, (blocks, 8) int32.

    These are the degree; in units of PAD, its first column in the fields and in the coefficients, and the
    columns of each component; the first channel; the place of the degree in a row of sums; channels; and
    channels per interaction. High degrees, which take the longest, come first.
    """
    rows, field, column, start = [], 0, 0, 0
    for degree, (layers, width) in enumerate(pieces.shapes):
        count = layers * width
        blocks = pad_count(count) // PAD
        rows += [
            (degree, field + block, column + block, blocks, block * PAD, start, count, width)
            for block in range(blocks)
        ]
        field, column, start = field + (2 * degree + 1) * blocks, column + blocks, start + width
    return torch.tensor(rows[::-1], dtype=torch.int32, device=pieces.coefficients.device)
