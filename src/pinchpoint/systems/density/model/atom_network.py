"""The atom network: species and edges in, equivariant features of every atom out, one set for each interaction.

Letters: A atoms, E edges, d = 2 l + 1 components, U channels of an irrep, D components of all paths from one irrep. An irrep
is (l, parity). A convolution maps features up, couples them with the harmonics of each edge, weights every path by a function
of the distance, sums over edges and maps down; the result is turned into the self-connection by an angle of its own, and
gated. Only irreps that can reach a probe are made: the last interaction has none but (l, (-1)^l).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.harmonics import Exact, Harmonics, coupling, product_in_full
from pinchpoint.systems.density.model.radial import RadialNetworks, activate, soft_distance

Irrep = tuple[int, int]  # degree, parity
Widths = dict[Irrep, int]  # channels of each irrep, scalars first
Features = dict[Irrep, Tensor]  # irrep -> (A, U, d)
Path = tuple[Irrep, int, Irrep]  # from, degree of the harmonic, to

SIGMOID_GAIN = 1.8462756  # 1 / root of the mean square of the logistic function over a normal variable
ANGLE_GAIN = 0.1  # how far features turn the mixing angle
SCALAR: Irrep = (0, 1)


@dataclass(frozen=True)
class AtomGraph:
    """species: (A,) int64, index into config.species; source, destination: (E,) int64;
    vectors: (E, 3), position of the source (its image) less that of the destination, shorter than the cutoff and not zero."""

    species: Tensor
    source: Tensor
    destination: Tensor
    vectors: Tensor


class AtomNetwork(nn.Module):
    """graph -> for each interaction the features of every atom that the next one or the probes read."""

    def __init__(self, config: DensityConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.harmonics = Harmonics(config.lmax)
        self.layers = nn.ModuleList()
        widths: Widths = {SCALAR: len(config.species)}
        for made in live_irreps(config):
            after = {irrep: config.channels(irrep[0]) for irrep in made}
            self.layers.append(Convolution(config, widths, after, generator))
            widths = after

    def forward(self, graph: AtomGraph) -> list[Features]:
        vectors = graph.vectors.t().contiguous()
        squared, soft = soft_distance(vectors, self.config)
        harmonics = torch.cat([torch.ones_like(soft)[None], *self.harmonics(vectors / soft)]).t()
        one_hot = nn.functional.one_hot(graph.species, len(self.config.species)).to(vectors.dtype)
        # A one-hot's mean square is 1 / species; brought to 1, as that of every later feature.
        features: Features = {SCALAR: one_hot[:, :, None] * math.sqrt(len(self.config.species))}
        found = []
        for layer in self.layers:
            features = layer(features, graph, harmonics, squared, soft)
            found.append(features)
        return found


class Convolution(nn.Module):
    """One interaction: features of `before` -> features of `after`."""

    def __init__(
        self, config: DensityConfig, before: Widths, after: Widths, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.before, self.after = before, after
        self.paths = paths_between(before, after, config.lmax)
        self.radial = RadialNetworks(config, 1, sum(before[path[0]] for path in self.paths), generator)
        made = before_gate(after)
        middle = middle_widths(self.paths, before)
        self.up = nn.ParameterDict({name_of(i): _normal(generator, u, u) for i, u in before.items()})
        self.down = nn.ParameterDict({name_of(i): _normal(generator, middle[i], u) for i, u in made.items()})
        self.keep = nn.ParameterDict(
            {name_of(i): _normal(generator, before[i], u) for i, u in made.items() if i in before}
        )
        self.turn = nn.Parameter(_normal(generator, middle[SCALAR], 1)[:, 0])
        self.angle = nn.Parameter(torch.tensor(math.pi / 4))
        self.couplings = nn.ModuleDict()
        for irrep in before:
            own = [path for path in self.paths if path[0] == irrep]
            self.couplings[name_of(irrep)] = Exact(coupling_matrix(own, config.lmax))
            columns = [at for at, path in enumerate(own) for _ in range(2 * path[2][0] + 1)]
            self.register_buffer(f"columns_{name_of(irrep)}", torch.tensor(columns), persistent=False)

    def forward(
        self, features: Features, graph: AtomGraph, harmonics: Tensor, squared: Tensor, soft: Tensor
    ) -> Features:
        """harmonics: (E, (lmax + 1)^2); squared and soft: (E,)."""
        weights = self.radial(squared, soft)[0]
        arrived: dict[Path, Tensor] = {}
        start = 0
        for irrep, width in self.before.items():
            own = [path for path in self.paths if path[0] == irrep]
            stop = start + len(own) * width
            columns = self.get_buffer(f"columns_{name_of(irrep)}")
            # (E, U, D): each path's weight on all of its components.
            spread = (
                weights[:, start:stop].reshape(-1, len(own), width).index_select(1, columns).transpose(1, 2)
            )
            start = stop
            upper = map_channels(features[irrep], self.up[name_of(irrep)])
            edge = product_in_full(harmonics, self.couplings[name_of(irrep)](harmonics))
            edge = edge.view(len(harmonics), 2 * irrep[0] + 1, len(columns))
            messages = (upper.index_select(0, graph.source) @ edge) * spread
            total = sum_by_destination(messages, graph.destination, len(graph.species))
            total = total / math.sqrt(self.config.mean_neighbours)
            pieces = total.split([2 * path[2][0] + 1 for path in own], dim=2)
            arrived.update(zip(own, pieces, strict=True))
        return self._mix(features, arrived)

    def _mix(self, features: Features, arrived: dict[Path, Tensor]) -> Features:
        """Maps what arrived down, turns the self-connection into it, and gates."""
        middle = {i: torch.cat([v for p, v in arrived.items() if p[2] == i], dim=1) for i in self.after}
        angle = self.angle + ANGLE_GAIN * (middle[SCALAR][:, :, 0] @ self.turn)[:, None, None]
        made: Features = {}
        for irrep in self.after:
            name = name_of(irrep)
            made[irrep] = map_channels(middle[irrep], self.down[name])
            if name in self.keep:
                kept = map_channels(features[irrep], self.keep[name])
                made[irrep] = angle.cos() * kept + angle.sin() * made[irrep]
        return gate(made, self.after)


def gate(made: Features, after: Widths) -> Features:
    """Scalars through SiLU (odd ones through tanh); of the others each channel times the logistic of a scalar of its own."""
    own = after[SCALAR]
    gates = torch.sigmoid(made[SCALAR][:, own:]) * SIGMOID_GAIN
    found: Features = {}
    start = 0
    for irrep, width in after.items():
        if irrep == SCALAR:
            found[irrep] = activate(made[irrep][:, :own])
        elif irrep[0] == 0:
            found[irrep] = torch.tanh(made[irrep])
        else:
            found[irrep] = made[irrep] * gates[:, start : start + width]
            start += width
    return found


def sum_by_destination(messages: Tensor, destination: Tensor, count: int) -> Tensor:
    """messages: (E, ...), destination: (E,) -> (count, ...), the same bits every time."""
    total = messages.new_zeros(count, *messages.shape[1:])
    if not messages.is_cuda:
        return total.index_add(0, destination, messages)
    # On a GPU index_add adds in the order in which threads arrive; this sorts the edges first.
    return total.index_put((destination,), messages, accumulate=True)


def map_channels(values: Tensor, weights: Tensor) -> Tensor:
    """values: (A, U, d), weights: (U, V) -> (A, V, d)."""
    return (values.transpose(1, 2) @ weights).transpose(1, 2)


def name_of(irrep: Irrep) -> str:
    """`2o`, as e3nn writes it."""
    return f"{irrep[0]}{'e' if irrep[1] > 0 else 'o'}"


def before_gate(after: Widths) -> Widths:
    """Channels to be made before the gate: the scalars of each gated channel come last among the scalars."""
    gates = sum(width for irrep, width in after.items() if irrep[0])
    return {irrep: width + gates if irrep == SCALAR else width for irrep, width in after.items()}


def paths_between(before: Widths | list[Irrep], after: Widths | list[Irrep], lmax: int) -> list[Path]:
    """Every coupling of an irrep with a harmonic that ends in a wanted irrep, in a fixed order."""
    found: list[Path] = []
    for first, parity in before:
        for degree in range(lmax + 1):
            for third in range(abs(first - degree), first + degree + 1):
                goal = third, parity * (-1) ** degree
                if goal in after:
                    found.append(((first, parity), degree, goal))
    return found


def middle_widths(paths: list[Path], before: Widths) -> Widths:
    """Channels that arrive at each irrep."""
    found: Widths = {}
    for path in paths:
        found[path[2]] = found.get(path[2], 0) + before[path[0]]
    return found


def natural(lmax: int) -> list[Irrep]:
    """(l, (-1)^l): what couples with a harmonic to a scalar."""
    return [(degree, (-1) ** degree) for degree in range(lmax + 1)]


def reachable_irreps(config: DensityConfig) -> list[list[Irrep]]:
    """What each interaction of the original makes: all that couplings of its input can reach, up to lmax."""
    every = [
        (degree, parity)
        for degree in range(config.lmax + 1)
        for parity in ((-1) ** degree, -((-1) ** degree))
    ]
    found: list[list[Irrep]] = []
    before = [SCALAR]
    for _ in range(config.interactions):
        ends = {path[2] for path in paths_between(before, every, config.lmax)}
        before = [irrep for irrep in every if irrep in ends]
        found.append(before)
    return found


def live_irreps(config: DensityConfig) -> list[list[Irrep]]:
    """Of these, what can reach a probe's scalars."""
    found: list[list[Irrep]] = []
    wanted = set(natural(config.lmax))
    for made in reversed(reachable_irreps(config)):
        kept = [irrep for irrep in made if irrep in wanted]
        found.insert(0, kept)
        every = [(degree, parity) for degree in range(config.lmax + 1) for parity in (1, -1)]
        reads = {path[0] for path in paths_between(every, kept, config.lmax)}
        wanted = set(natural(config.lmax)) | reads
    return found


def coupling_matrix(paths: list[Path], lmax: int) -> np.ndarray:
    """((lmax + 1)^2, d * D): the harmonics of an edge times this couple an irrep along all paths that start from it.

    Scaled so that a path of unit mean squares gives unit mean squares.
    """
    size = 2 * paths[0][0][0] + 1
    total = sum(2 * path[2][0] + 1 for path in paths)
    found = np.zeros(((lmax + 1) ** 2, size, total))
    start = 0
    for (first, _), degree, (third, _) in paths:
        block = coupling(first, degree, third).transpose(1, 0, 2) * math.sqrt(2 * third + 1)
        found[degree**2 : (degree + 1) ** 2, :, start : start + 2 * third + 1] = block
        start += 2 * third + 1
    return found.reshape(len(found), -1)


def _normal(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)
