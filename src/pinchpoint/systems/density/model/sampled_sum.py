"""Sums over the neighbours of each probe with torch's own kernels: the radial table is sampled like an image.

Letters as in `probe_network`. Channels come first and pairs last: neighbouring pairs read neighbouring knots
of one channel, which are in the L1 cache; both knots of a pair are read and interpolated in one pass; and the
following operations read contiguous memory. For use on a GPU with gradients disabled; on a CPU, reading whole
rows of the table is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import RadialTable


def sums_by_sampling(
    config: DensityConfig,
    fields: Tensor,
    neighbours: Tensor,
    harmonics: list[Tensor],
    table: RadialTable,
    soft: Tensor,
    probes: int,
) -> Tensor:
    """Return the sums of each probe, (P, L, C), with any strides.

    Arguments are those of `sums_over_neighbours`, with the table and soft: (N,) instead of `radial`.
    """
    tiles, slots = neighbours.shape
    near = fields.index_select(0, neighbours.reshape(-1))
    places = _places(table, soft).view(1, tiles * slots, probes, 2)
    columns = table.values.T.contiguous()
    sums: list[Tensor] = []
    first = start = 0
    for degree, (layers, width) in enumerate(table.shapes):
        size, many = 2 * degree + 1, layers * width
        own = near[:, start : start + size * many].view(tiles * slots, size, many)
        # Outside the image, its border is read: the last knot, which is zero.
        radial = functional.grid_sample(
            columns[None, first : first + many, None],
            places,
            mode="bilinear",
            padding_mode="border",
            align_corners=True,
        )[0]
        angles = harmonics[degree - 1].view(size, tiles * slots, probes) if degree else None
        sums.append(_sum_slots(radial, own, angles, tiles).view(layers, width, tiles * probes))
        del radial  # free the largest tensor before the next one is allocated
        first, start = first + many, start + size * many
    return torch.cat(sums, dim=1).permute(2, 0, 1)


def sampled_floats(config: DensityConfig) -> int:
    """Return the most channels per pair in memory at one time.

    These are the scalars, or one degree with its angular part.
    """
    return config.interactions * max(
        config.channels(degree) * (2 if degree else 1) for degree in range(config.lmax + 1)
    )


def _sum_slots(radial: Tensor, own: Tensor, angles: Tensor | None, tiles: int) -> Tensor:
    """Return the sums over slots, (L C_l, T, B).

    radial: (L C_l, T K, B), overwritten; own: (T K, d, L C_l); angles: (d, T K, B).
    """
    many, rows, probes = radial.shape
    slots = rows // tiles
    if angles is None:
        # One number per atom for all probes of its tile, so it weights a sum over slots.
        weights = own.view(tiles, slots, many).permute(2, 0, 1).unsqueeze(2)
        return (weights @ radial.view(many, tiles, slots, probes)).squeeze(2)
    angular = torch.empty_like(radial)
    torch.bmm(own.transpose(1, 2), angles.transpose(0, 1), out=angular.transpose(0, 1))
    return radial.mul_(angular).view(many, tiles, slots, probes).sum(2)


def _places(table: RadialTable, soft: Tensor) -> Tensor:
    """Return (N, 2), the position of each pair in the table, as in an image one line high.

    -1 is the first knot and 1 the last.
    """
    last = len(table.values) - 1
    # Divide before doubling: at and beyond the cutoff this is exactly 1, and the value read is exactly zero.
    along = ((soft - table.low) / table.step).clamp(0, last) / last * 2 - 1
    return torch.stack((along, torch.zeros_like(along)), dim=1)
