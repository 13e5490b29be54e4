"""Sums over the neighbours of each probe, computed directly from the radial table.

Letters as in `probe_network`. On a GPU, no channel of a pair is stored: a Triton program accumulates the sums
of some channels for the probes of one tile and loops over the slots. For each pair it reads two rows of the
table (from the caches), and the fields of one atom once for all probes of the tile. Where that kernel cannot
run, plain torch is used instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.probe_network import sums_over_neighbours
from pinchpoint.systems.density.model.radial import RadialTable
from pinchpoint.systems.density.model.sampled_sum import sampled_floats, sums_by_sampling

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

    These are the vector, the harmonics of all degrees, the monomials of the last two degrees, and the
    channels of the pair where they are stored.
    """
    lmax = config.lmax
    harmonics, last, before = (lmax + 1) ** 2 - 1, (lmax + 1) * (lmax + 2) // 2, lmax * (lmax + 1) // 2
    geometry = harmonics + 2 * last + before + 28
    if own_kernel and is_fused(fields, probes):
        return geometry
    return geometry + sampled_floats(config) if is_sampled(fields) else None


def sums_from_table(
    config: DensityConfig,
    fields: Tensor,
    neighbours: Tensor,
    harmonics: list[Tensor],
    table: RadialTable,
    soft: Tensor,
    probes: int,
    *,
    own_kernel: bool = True,
) -> Tensor:
    """Return the sums of each probe, (P, L, C).

    soft: (N,); the other arguments are those of `sums_over_neighbours`. own_kernel: use Triton where
    possible.
    """
    if not (own_kernel and is_fused(fields, probes)):
        if is_sampled(fields):
            return sums_by_sampling(config, fields, neighbours, harmonics, table, soft, probes)
        return sums_over_neighbours(config, fields, neighbours, harmonics, table.read(soft), probes)
    tiles = len(neighbours)
    out = fields.new_empty(tiles * probes, config.interactions, config.aggregates)
    row, right = table.place(soft)
    if not is_fake(fields) and tiles:
        from pinchpoint.systems.density.model import fused_sum_triton

        with on_device(fields):
            fused_sum_triton.sums(
                fields, neighbours, harmonics, row, right, table, out.view(tiles, probes, -1)
            )
    return out
