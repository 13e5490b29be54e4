"""Sums over the neighbours of each probe with torch's kernels only: the radial table is sampled like an
image.

Letters as in `probe_network`. Channels come first and pairs last: neighbouring pairs read neighbouring knots
of one channel, which are in the nearest cache, both knots of a pair are read and mixed in one pass, and the
following operations read contiguous memory. For a GPU without gradients; on a CPU whole rows of the table are
faster.
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
    """Return (P, L, C), any strides.

    Arguments as for `sums_over_neighbours`, with the table and soft: (N,).
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
        # Outside the image its border is read: the last knot, which is zero.
        radial = functional.grid_sample(
            columns[None, first : first + many, None],
            places,
            mode="bilinear",
            padding_mode="border",
            align_corners=True,
        )[0]
        angles = harmonics[degree - 1].view(size, tiles * slots, probes) if degree else None
        sums.append(_summed(radial, own, angles, tiles).view(layers, width, tiles * probes))
        del radial  # before the next one is allocated: it is the largest tensor
        first, start = first + many, start + size * many
    return torch.cat(sums, dim=1).permute(2, 0, 1)


def sampled_floats(config: DensityConfig) -> int:
    """Return the channels of a pair in memory at one time: of the scalars, or of a degree with its angular
    part.
    """
    return config.interactions * max(
        config.channels(degree) * (2 if degree else 1) for degree in range(config.lmax + 1)
    )


def _summed(radial: Tensor, own: Tensor, angles: Tensor | None, tiles: int) -> Tensor:
    """Return (L C_l, T, B).

    radial: (L C_l, T K, B), overwritten; own: (T K, d, L C_l); angles: (d, T K, B).
    """
    many, rows, probes = radial.shape
    slots = rows // tiles
    if angles is None:
        # One number per atom for all probes of its tile: the weights of a sum over slots.
        weights = own.view(tiles, slots, many).permute(2, 0, 1).unsqueeze(2)
        return (weights @ radial.view(many, tiles, slots, probes)).squeeze(2)
    angular = torch.empty_like(radial)
    torch.bmm(own.transpose(1, 2), angles.transpose(0, 1), out=angular.transpose(0, 1))
    return radial.mul_(angular).view(many, tiles, slots, probes).sum(2)


def _places(table: RadialTable, soft: Tensor) -> Tensor:
    """Return (N, 2), the place of each pair in the table as in an image of one line: -1 is the first knot, 1
    the last.
    """
    last = len(table.values) - 1
    # Divided before it is doubled: at the cutoff and beyond this is exactly 1, and the value read is exactly
    # zero.
    along = ((soft - table.low) / table.step).clamp(0, last) / last * 2 - 1
    return torch.stack((along, torch.zeros_like(along)), dim=1)
