"""The probe network, which has only scalars: sums of every probe over its neighbours, and the read-out.

Letters: A atoms, T tiles, B probes per tile, K neighbour slots per tile, N = T * K * B pairs in that order, P
= T * B probes, L interactions, C_l channels of degree l, C their sum, d = 2 l + 1. The state of a probe
enters an interaction only through the self-connection, which keeps irreps separate, and the read-out is a
scalar. So only couplings to a scalar matter: the product of a neighbour's features with the harmonics of the
same degree. They do not depend on the state, so those of all interactions are summed in one pass over the
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pinchpoint.systems.density.model.atom_network import ANGLE_GAIN, Features, map_channels
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import RadialNetworks, activate


class Probes(nn.Module):
    """Everything that is computed for a probe except the sums over its neighbours."""

    def __init__(self, config: DensityConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        layers, width, scalars = config.interactions, config.aggregates, config.channels(0)

        def normal(*shape: int, fan: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) / math.sqrt(fan))

        self.up = nn.ParameterList(
            normal(layers, config.channels(degree), config.channels(degree), fan=config.channels(degree))
            for degree in range(config.lmax + 1)
        )
        self.radial = RadialNetworks(config, layers, width, generator)
        self.down = normal(layers, width, scalars, fan=width)
        self.turn = normal(layers, width, fan=width)
        self.angle = nn.Parameter(torch.full((layers,), math.pi / 4))
        # One fewer, because there is no state before the first interaction.
        self.keep = normal(layers - 1, scalars, scalars, fan=scalars)
        self.readout = normal(scalars, config.outputs, fan=scalars)
        self.head_in = normal(layers * scalars, config.head, fan=layers * scalars)
        self.head_bias = nn.Parameter(torch.zeros(config.head))
        self.head_out = normal(config.head, config.outputs, fan=config.head)

    @property
    def widths(self) -> list[int]:
        """C_l for each degree."""
        return [self.config.channels(degree) for degree in range(self.config.lmax + 1)]

    def fields(self, features: list[Features]) -> Tensor:
        """Return the fields (A, W) of the features of each interaction.

        Columns are ordered by degree, component, interaction, channel. They include the factors of the
        coupling and the sum, so that the pairs need not be multiplied by them.
        """
        fields = []
        for degree, up in enumerate(self.up):
            irrep = degree, (-1) ** degree
            scale = 1 / math.sqrt((2 * degree + 1) * self.config.mean_neighbours)
            mapped = [map_channels(layer[irrep], up[at]) for at, layer in enumerate(features)]
            # (A, L, C_l, d) -> (A, d, L, C_l)
            fields.append(torch.stack(mapped, dim=1).permute(0, 3, 1, 2).flatten(1) * scale)
        return torch.cat(fields, dim=1)

    def states(self, sums: Tensor) -> list[Tensor]:
        """Return the state (P, C_0) after each interaction. sums: (P, L, C)."""
        sums = sums.transpose(0, 1)
        mapped = sums @ self.down
        angle = self.angle[:, None] + ANGLE_GAIN * (sums @ self.turn[:, :, None])[:, :, 0]
        rotated = angle.sin()[:, :, None] * mapped
        cosine = angle.cos()[:, :, None]
        states = [activate(rotated[0])]
        for at in range(1, self.config.interactions):
            states.append(activate(cosine[at] * (states[-1] @ self.keep[at - 1]) + rotated[at]))
        return states

    def read(self, states: list[Tensor]) -> Tensor:
        """Return the outputs (P, outputs) for the states (P, C_0) of all interactions.

        Invariant under rotations, because only scalars are read. Zero where the states are zero: the density
        vanishes far from all atoms.
        """
        inner = torch.cat(states, dim=1) @ self.head_in
        # Both have one shape: the vector and scalar code of an activation may differ in the last bit.
        hidden = activate(inner + self.head_bias) - activate(torch.zeros_like(inner) + self.head_bias)
        return states[-1] @ self.readout + hidden @ self.head_out


def sums_over_neighbours(
    config: DensityConfig,
    fields: Tensor,
    neighbours: Tensor,
    harmonics: list[Tensor],
    radial: Iterable[Tensor],
    probes: int,
) -> Tensor:
    """Return the sums of each probe, (P, L, C).

    fields: (A, W); neighbours: (T, K); harmonics: (d, N) for degrees 1 and up; radial: (N, L, C_l) for each
    degree, with any strides, overwritten if gradients are disabled.
    """
    tiles, slots = neighbours.shape
    layers = config.interactions
    near = fields.index_select(0, neighbours.reshape(-1))
    sums = []
    start = 0
    for degree, values in enumerate(radial):
        size, width = 2 * degree + 1, config.channels(degree)
        stop = start + size * layers * width
        own = near[:, start:stop].view(tiles * slots, size, layers * width)
        start = stop
        if degree:
            # (T K, B, d) x (T K, d, L C_l): the harmonics are read in place, component by component.
            angular = harmonics[degree - 1].view(size, tiles * slots, probes).permute(1, 2, 0) @ own
        else:
            angular = own
        angular = angular.view(tiles, slots, probes if degree else 1, layers, width)
        values = values.unflatten(0, (tiles, slots, probes))
        product = values * angular if torch.is_grad_enabled() else values.mul_(angular)
        sums.append(product.sum(1))
    return torch.cat(sums, dim=3).view(tiles * probes, layers, config.aggregates)
