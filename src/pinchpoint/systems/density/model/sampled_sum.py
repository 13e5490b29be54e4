"""What each probe sums over its neighbours, by torch's kernels alone: the table of radial functions is sampled like an image.

Letters as in `scalar`. Channels come first and pairs last: neighbouring pairs read neighbouring knots of one channel, which lie
in the nearest cache, both knots of a pair are read and mixed in one pass, and what follows reads long runs. For a GPU without
gradients; on a CPU whole rows of the table are quicker.
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
    """(P, L, C), any strides. Arguments as for `sums_over_neighbours`, with the table and soft: (N,) for its radial values."""
    tiles, slots = neighbours.shape
    near = fields.index_select(0, neighbours.reshape(-1))
    places = _places(table, soft).view(1, tiles * slots, probes, 2)
    columns = table.values.T.contiguous()
    found: list[Tensor] = []
    first = start = 0
    for degree, (layers, width) in enumerate(table.shapes):
        size, many = 2 * degree + 1, layers * width
        own = near[:, start : start + size * many].view(tiles * slots, size, many)
        # Outside the image is its border: the last knot, which is zero.
        radial = functional.grid_sample(
            columns[None, first : first + many, None],
            places,
            mode="bilinear",
            padding_mode="border",
            align_corners=True,
        )[0]
        angles = harmonics[degree - 1].view(size, tiles * slots, probes) if degree else None
        found.append(_summed(radial, own, angles, tiles).view(layers, width, tiles * probes))
        del radial  # before the next is made: it is the largest there is
        first, start = first + many, start + size * many
    return torch.cat(found, dim=1).permute(2, 0, 1)


def sampled_floats(config: DensityConfig) -> int:
    """Channels of a pair that are held at one time: those of the scalars, or those of another degree and their angular part."""
    return config.interactions * max(
        config.channels(degree) * (2 if degree else 1) for degree in range(config.lmax + 1)
    )


def _summed(radial: Tensor, own: Tensor, angles: Tensor | None, tiles: int) -> Tensor:
    """radial: (L C_l, T K, B), written over; own: (T K, d, L C_l); angles: (d, T K, B) -> (L C_l, T, B)."""
    many, rows, probes = radial.shape
    slots = rows // tiles
    if angles is None:
        # One number an atom for all probes of its tile: the weights of a sum over slots.
        weights = own.view(tiles, slots, many).permute(2, 0, 1).unsqueeze(2)
        return (weights @ radial.view(many, tiles, slots, probes)).squeeze(2)
    angular = torch.empty_like(radial)
    torch.bmm(own.transpose(1, 2), angles.transpose(0, 1), out=angular.transpose(0, 1))
    return radial.mul_(angular).view(many, tiles, slots, probes).sum(2)


def _places(table: RadialTable, soft: Tensor) -> Tensor:
    """soft: (N,) -> (N, 2), where a pair lies in the table as in an image of one line: -1 is the first knot, 1 the last."""
    last = len(table.values) - 1
    # Divided before it is doubled: at the cutoff and beyond this is 1 exactly, and what is read there exactly zero.
    along = ((soft - table.low) / table.step).clamp(0, last) / last * 2 - 1
    return torch.stack((along, torch.zeros_like(along)), dim=1)
