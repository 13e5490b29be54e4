"""Sums over the neighbours of each probe by our own kernels, and which tiles they can be used for.

Letters as in `probe_network`. No channel of a pair is stored: a Triton program accumulates the sums of some
channels for the probes of one tile and loops over the slots. Of a pair, only its place in the table of radial
functions and its harmonics are in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import RadialPieces, pad_groups, padded_columns
from pinchpoint.systems.density.model.sampled_sum import sampled_floats

MOST_PROBES = 64  # per tile: a program accumulates the sums of all of them


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

    With our kernels, these are the vector, its place in the table, the harmonics of all degrees, what the
    superposed atoms need, and a few for the states of the probe.
    Without them, also the monomials of the last two degrees, and the channels of the pair.
    """
    lmax = config.lmax
    harmonics = (lmax + 1) ** 2 - 1
    if own_kernel and is_fused(fields, probes):
        return harmonics + 10 + (12 if config.prior else 0)
    last, before = (lmax + 1) * (lmax + 2) // 2, lmax * (lmax + 1) // 2
    geometry = harmonics + 2 * last + before + 28
    return geometry + sampled_floats(config) if is_sampled(fields) else None


def fused_sums(
    config: DensityConfig,
    fields: Tensor,
    neighbours: Tensor,
    vectors: Tensor,
    pieces: RadialPieces,
    factors: Tensor,
    columns: Tensor,
) -> Tensor:
    """Return the sums of each probe, (P, L, C).

    factors: from `polar_factors`; columns: from `field_columns`; the rest as in the model.
    """
    tiles, probes, slots, _ = vectors.shape
    pairs = tiles * probes * slots
    out = fields.new_empty(tiles * probes, config.interactions, config.aggregates)
    windows = vectors.new_empty(tiles, slots, dtype=torch.int32)
    places = vectors.new_empty(pairs)
    harmonics = vectors.new_empty((config.lmax + 1) ** 2 - 1, pairs)
    padded_fields = pad_groups(fields, columns)
    if not is_fake(fields) and tiles:
        from pinchpoint.systems.density.model import fused_sum_triton

        with on_device(fields):
            fused_sum_triton.write_geometry(config, vectors, factors, pieces, windows, places, harmonics)
            fused_sum_triton.write_sums(
                padded_fields,
                neighbours,
                windows,
                places,
                harmonics,
                pieces,
                out.view(tiles, probes, -1),
            )
    return out


def field_columns(pieces: RadialPieces) -> Tensor:
    """Return the columns that `pad_groups` reads, for the fields of atoms."""
    sizes = [
        layers * width for degree, (layers, width) in enumerate(pieces.shapes) for _ in range(2 * degree + 1)
    ]
    return padded_columns(sizes, pieces.coefficients.device)
