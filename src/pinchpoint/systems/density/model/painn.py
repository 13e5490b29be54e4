"""PaiNN for densities, the peer model: scalar and vector features of atoms, and probes as nodes that only
receive.

Letters: A atoms, E edges, T tiles of B probes, K slots, F width. The model follows the published equations
(Schütt et al. 2021; probes as in Jørgensen and Bhowmik 2022): in each interaction a message weights features
of the neighbours by filters of the distance, and an update mixes scalars with the norms and products of
vectors. It has the methods of `DensityModel`, so both models use the same batches, loss, steps and
evaluation. The features of the atoms that probes read are computed once.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import PRIOR_KNOTS, prior_density

RADIAL = 20  # sines of the radial basis, as published
WIDTH = 128  # as published
_NEAR = 1e-6  # squared distance below which a direction is undefined


class Filters(nn.Module):
    """Filters (..., outputs) of distances (...,): sines over the distance, a linear map, and a cutoff."""

    def __init__(self, outputs: int, cutoff_a: float) -> None:
        super().__init__()
        self.cutoff_a = cutoff_a
        self.map = nn.Linear(RADIAL, outputs)
        self.register_buffer("waves", torch.arange(1, RADIAL + 1) * (math.pi / cutoff_a), persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        sines = torch.sin(distance[..., None] * self.get_buffer("waves")) / distance[..., None]
        inside = 0.5 * (torch.cos(distance.clamp(max=self.cutoff_a) * (math.pi / self.cutoff_a)) + 1)
        return self.map(sines) * inside[..., None]


class Update(nn.Module):
    """Update that mixes the scalars (..., F) and vectors (..., 3, F) of each node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * width, bias=False)
        self.net = two_layers(2 * width, width, 3 * width)

    def forward(self, scalars: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.both(vectors).chunk(2, dim=-1)
        norm = (right.square().sum(-2) + 1e-8).sqrt()
        own, across, scale = self.net(torch.cat([scalars, norm], dim=-1)).chunk(3, dim=-1)
        return scalars + own + across * (left * right).sum(-2), vectors + scale[..., None, :] * left


class PaiNN(nn.Module):
    """Densities at probes. `config` gives species, cutoff, interactions, outputs and prior; `width` is F."""

    def __init__(self, config: DensityConfig, *, width: int = WIDTH, seed: int = 0) -> None:
        super().__init__()
        if width < 1:
            raise BadInput(f"A width of {width} is not possible.", hint="Give a width of at least 1.")
        self.config, self.width = config, width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = range(config.interactions)
            self.embedding = nn.Embedding(len(config.species), width)
            self.atom_nets = nn.ModuleList(two_layers(width, width, 3 * width) for _ in layers)
            self.atom_filters = nn.ModuleList(Filters(3 * width, config.cutoff_a) for _ in layers)
            self.atom_updates = nn.ModuleList(Update(width) for _ in layers)
            self.probe_nets = nn.ModuleList(two_layers(width, width, 3 * width) for _ in layers)
            self.probe_filters = nn.ModuleList(Filters(3 * width, config.cutoff_a) for _ in layers)
            self.probe_updates = nn.ModuleList(Update(width) for _ in layers)
            self.read = two_layers(width, width, config.outputs)
        if config.prior:
            self.register_buffer("prior", torch.zeros(len(config.species), PRIOR_KNOTS))

    def set_prior(self, tables: Tensor) -> None:
        """Set the tables (species, knots), as in `DensityModel.set_prior`."""
        self.get_buffer("prior").copy_(tables)

    def fields(self, atoms: AtomGraph) -> Tensor:
        """Return (A, 6 F interactions), the features of each atom that probes read.

        Layer i of the probes reads the atoms after layer i.
        """
        scalars = self.embedding(atoms.species)
        vectors = scalars.new_zeros(len(scalars), 3, self.width)
        # Vectors point from the source to the destination, as from an atom to a probe.
        distance, direction = apart(-atoms.vectors)
        read = []
        for net, filters, update, probe_net in zip(
            self.atom_nets, self.atom_filters, self.atom_updates, self.probe_nets, strict=True
        ):
            weights = (net(scalars)[atoms.source] * filters(distance)).chunk(3, dim=-1)
            along = vectors[atoms.source] * weights[1][:, None] + direction[..., None] * weights[2][:, None]
            scalars = scalars.index_add(0, atoms.destination, weights[0])
            vectors = vectors.index_add(0, atoms.destination, along)
            scalars, vectors = update(scalars, vectors)
            read += [probe_net(scalars), vectors.flatten(1)]
        return torch.cat(read, dim=1)

    def forward(self, fields: Tensor, species: Tensor, neighbours: Tensor, vectors: Tensor) -> Tensor:
        """Return the densities (T, B, outputs).

        fields: (A, W); neighbours: (T, K); vectors: (T, B, K, 3), from atom to probe.
        """
        tiles, probes = vectors.shape[:2]
        distance, direction = apart(vectors)
        scalars, states = (
            vectors.new_zeros(tiles, probes, self.width),
            vectors.new_zeros(tiles, probes, 3, self.width),
        )
        empty = vectors.new_zeros(1, 1, self.width), vectors.new_zeros(1, 1, 3, self.width)
        gathered = fields[neighbours].split([3 * self.width] * (2 * self.config.interactions), dim=-1)
        for at, (filters, update) in enumerate(zip(self.probe_filters, self.probe_updates, strict=True)):
            # (T, B, K, F) each.
            one, other, third = (filters(distance) * gathered[2 * at][:, None]).chunk(3, dim=-1)
            atoms = gathered[2 * at + 1].unflatten(-1, (3, self.width))  # (T, K, 3, F)
            scalars = scalars + one.sum(2)
            states = (
                states
                + torch.einsum("tbkf,tkcf->tbcf", other, atoms)
                + torch.einsum("tbkf,tbkc->tbcf", third, direction)
            )
            scalars, states = update(scalars, states)
            empty = update(*empty)
        # The output of a probe without neighbours is subtracted: where there are no atoms there are no
        # electrons.
        out = self.read(scalars) - self.read(empty[0])
        if self.config.prior:
            squared = vectors.square().sum(-1).transpose(1, 2)
            first = prior_density(
                self.get_buffer("prior"), species, neighbours, squared, self.config.cutoff_a
            )
            out = torch.cat([out[..., :1] + first[..., None], out[..., 1:]], dim=2)
        return out


def apart(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lengths (...,) and directions (..., 3) of vectors (..., 3)."""
    distance = (vectors.square().sum(-1) + _NEAR).sqrt()
    return distance, vectors / distance[..., None]


def two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def width_for(config: DensityConfig, parameters: int) -> int:
    """Return the width whose parameter count is nearest."""
    widths = (4, 8, 12)
    # The count is a quadratic polynomial of the width, so three widths determine it.
    curve = np.polynomial.Polynomial.fit(
        widths, [parameter_count(PaiNN(config, width=width)) for width in widths], 2
    )
    return min(range(1, 1025), key=lambda width: abs(float(curve(width)) - parameters))
