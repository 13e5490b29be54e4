"""The atom network: computes equivariant features of every atom from species and edges.

Letters: A atoms, E edges, d = 2 l + 1 components, U channels of an irrep, D components of all paths from one
irrep. An irrep is (l, parity). Each interaction is a convolution that returns one set of features. It maps
the features up, couples them with the harmonics of each edge, weights every path by a function of the
distance, sums over edges, and maps down. The result is mixed with the self-connection by a learned angle, and
gated. Only irreps that can reach a probe are computed: the last interaction has only (l, (-1)^l).
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

SIGMOID_GAIN = 1.8462756  # 1 / root mean square of the logistic function of a standard normal variable
ANGLE_GAIN = 0.1  # how strongly features change the mixing angle
SCALAR: Irrep = (0, 1)


@dataclass(frozen=True)
class AtomGraph:
    """Atoms and edges.

    species: (A,) int64, index into config.species; source, destination: (E,) int64; vectors: (E, 3), from the
    destination to the source (or its periodic image), nonzero and shorter than the cutoff.
    """

    species: Tensor
    source: Tensor
    destination: Tensor
    vectors: Tensor


class AtomNetwork(nn.Module):
    """Computes, for each interaction, the atom features that the next interaction or the probes read."""

    def __init__(self, config: DensityConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.harmonics = Harmonics(config.lmax)
        self.layers = nn.ModuleList()
        widths: Widths = {SCALAR: len(config.species)}
        for irreps in live_irreps(config):
            after = {irrep: config.channels(irrep[0]) for irrep in irreps}
            self.layers.append(Convolution(config, widths, after, generator))
            widths = after

    def forward(self, graph: AtomGraph) -> list[Features]:
        offsets = None
        if graph.vectors.is_cuda and len(graph.vectors) and not torch.is_grad_enabled():
            graph, offsets = by_destination(graph)
        vectors = graph.vectors.t().contiguous()
        squared, soft = soft_distance(vectors, self.config)
        harmonics = torch.cat([torch.ones_like(soft)[None], *self.harmonics(vectors / soft)]).t()
        # torch's own one_hot waits for the device.
        kinds = torch.arange(len(self.config.species), device=vectors.device)
        one_hot = (graph.species[:, None] == kinds).to(vectors.dtype)
        # The mean square of a one-hot vector is 1 / species. It is scaled to 1, as for all later features.
        features: Features = {SCALAR: one_hot[:, :, None] * math.sqrt(len(self.config.species))}
        layers_features = []
        for layer in self.layers:
            features = layer(features, graph, harmonics, squared, soft, offsets)
            layers_features.append(features)
        return layers_features


class Convolution(nn.Module):
    """One interaction, from features with irreps `before` to features with irreps `after`."""

    def __init__(
        self, config: DensityConfig, before: Widths, after: Widths, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.config = config
        self.before, self.after = before, after
        self.paths = paths_between(before, after, config.lmax)
        self.radial = RadialNetworks(config, 1, sum(before[path[0]] for path in self.paths), generator)
        gated = before_gate(after)
        middle = middle_widths(self.paths, before)
        self.up = nn.ParameterDict({name_of(i): _normal(generator, u, u) for i, u in before.items()})
        self.down = nn.ParameterDict({name_of(i): _normal(generator, middle[i], u) for i, u in gated.items()})
        self.keep = nn.ParameterDict(
            {name_of(i): _normal(generator, before[i], u) for i, u in gated.items() if i in before}
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
        self,
        features: Features,
        graph: AtomGraph,
        harmonics: Tensor,
        squared: Tensor,
        soft: Tensor,
        offsets: Tensor | None,
    ) -> Features:
        """Return the features after this interaction.

        harmonics: (E, (lmax + 1)^2); squared, soft: (E,); offsets: from `by_destination`.
        """
        weights = self.radial(squared, soft)[0] / math.sqrt(self.config.mean_neighbours)
        messages_by_path: dict[Path, Tensor] = {}
        start = 0
        for irrep, width in self.before.items():
            own = [path for path in self.paths if path[0] == irrep]
            stop = start + len(own) * width
            columns = self.get_buffer(f"columns_{name_of(irrep)}")
            # (E, U, D): the weight of each path, repeated for all of its components.
            path_weights = (
                weights[:, start:stop].reshape(-1, len(own), width).index_select(1, columns).transpose(1, 2)
            )
            start = stop
            upper = map_channels(features[irrep], self.up[name_of(irrep)])
            edge = product_in_full(harmonics, self.couplings[name_of(irrep)](harmonics))
            edge = edge.view(len(harmonics), 2 * irrep[0] + 1, len(columns))
            messages = (upper.index_select(0, graph.source) @ edge) * path_weights
            total = sum_by_destination(messages, graph.destination, len(graph.species), offsets)
            pieces = total.split([2 * path[2][0] + 1 for path in own], dim=2)
            messages_by_path.update(zip(own, pieces, strict=True))
        return self._mix(features, messages_by_path)

    def _mix(self, features: Features, messages_by_path: dict[Path, Tensor]) -> Features:
        """Map the messages down, mix them with the self-connection, and gate."""
        middle = {
            i: torch.cat([v for p, v in messages_by_path.items() if p[2] == i], dim=1) for i in self.after
        }
        angle = self.angle + ANGLE_GAIN * (middle[SCALAR][:, :, 0] @ self.turn)[:, None, None]
        sine, cosine = angle.sin(), angle.cos()
        mixed: Features = {}
        for irrep in self.after:
            name = name_of(irrep)
            mixed[irrep] = map_channels(middle[irrep], self.down[name])
            if name in self.keep:
                self_part = map_channels(features[irrep], self.keep[name])
                mixed[irrep] = cosine * self_part + sine * mixed[irrep]
        return gate(mixed, self.after)


def gate(mixed: Features, after: Widths) -> Features:
    """Apply the nonlinearity of each irrep.

    Even scalars go through SiLU and odd scalars through tanh. Every other channel is multiplied by the
    logistic function of its own gate scalar.
    """
    own = after[SCALAR]
    gates = torch.sigmoid(mixed[SCALAR][:, own:]) * SIGMOID_GAIN
    features: Features = {}
    start = 0
    for irrep, width in after.items():
        if irrep == SCALAR:
            features[irrep] = activate(mixed[irrep][:, :own])
        elif irrep[0] == 0:
            features[irrep] = torch.tanh(mixed[irrep])
        else:
            features[irrep] = mixed[irrep] * gates[:, start : start + width]
            start += width
    return features


def by_destination(graph: AtomGraph) -> tuple[AtomGraph, Tensor]:
    """Return the graph with its edges sorted by destination, and where those of each atom begin: (A + 1,)."""
    destination, order = graph.destination.sort(stable=True)
    atoms = torch.arange(len(graph.species) + 1, device=destination.device)
    edges = graph.source[order], destination, graph.vectors[order]
    return AtomGraph(graph.species, *edges), torch.searchsorted(destination, atoms)


def sum_by_destination(messages: Tensor, destination: Tensor, count: int, offsets: Tensor | None) -> Tensor:
    """Sum messages (E, ...) by destination (E,) to (count, ...). With offsets, it is deterministic."""
    if offsets is not None:
        return torch.segment_reduce(messages, "sum", offsets=offsets, axis=0, unsafe=True)
    # On a GPU, this adds in the order in which threads finish, as do the gradients of `index_select`.
    return messages.new_zeros(count, *messages.shape[1:]).index_add(0, destination, messages)


def map_channels(values: Tensor, weights: Tensor) -> Tensor:
    """Map the channels of values (A, U, d) by weights (U, V) to (A, V, d)."""
    return (values.transpose(1, 2) @ weights).transpose(1, 2)


def name_of(irrep: Irrep) -> str:
    """Return the irrep's name as in e3nn, such as `2o`."""
    return f"{irrep[0]}{'e' if irrep[1] > 0 else 'o'}"


def before_gate(after: Widths) -> Widths:
    """Return the channels before the gate. The scalars that gate other channels are the last scalars."""
    gates = sum(width for irrep, width in after.items() if irrep[0])
    return {irrep: width + gates if irrep == SCALAR else width for irrep, width in after.items()}


def paths_between(before: Widths | list[Irrep], after: Widths | list[Irrep], lmax: int) -> list[Path]:
    """Return all couplings of an irrep in `before` with a harmonic to one in `after`, in a fixed order."""
    paths: list[Path] = []
    for first, parity in before:
        for degree in range(lmax + 1):
            for third in range(abs(first - degree), first + degree + 1):
                goal = third, parity * (-1) ** degree
                if goal in after:
                    paths.append(((first, parity), degree, goal))
    return paths


def middle_widths(paths: list[Path], before: Widths) -> Widths:
    """Return the number of channels that the paths bring to each irrep."""
    widths: Widths = {}
    for path in paths:
        widths[path[2]] = widths.get(path[2], 0) + before[path[0]]
    return widths


def natural(lmax: int) -> list[Irrep]:
    """Return the irreps (l, (-1)^l), the only ones that couple with a harmonic to a scalar."""
    return [(degree, (-1) ** degree) for degree in range(lmax + 1)]


def reachable_irreps(config: DensityConfig) -> list[list[Irrep]]:
    """Return the irreps of each interaction of the full form: all that couplings can reach, up to lmax."""
    every = [
        (degree, parity)
        for degree in range(config.lmax + 1)
        for parity in ((-1) ** degree, -((-1) ** degree))
    ]
    layers: list[list[Irrep]] = []
    before = [SCALAR]
    for _ in range(config.interactions):
        ends = {path[2] for path in paths_between(before, every, config.lmax)}
        before = [irrep for irrep in every if irrep in ends]
        layers.append(before)
    return layers


def live_irreps(config: DensityConfig) -> list[list[Irrep]]:
    """Return the irreps of `reachable_irreps` that can contribute to a scalar of a probe."""
    layers: list[list[Irrep]] = []
    targets = set(natural(config.lmax))
    for irreps in reversed(reachable_irreps(config)):
        live = [irrep for irrep in irreps if irrep in targets]
        layers.insert(0, live)
        every = [(degree, parity) for degree in range(config.lmax + 1) for parity in (1, -1)]
        reads = {path[0] for path in paths_between(every, live, config.lmax)}
        targets = set(natural(config.lmax)) | reads
    return layers


def coupling_matrix(paths: list[Path], lmax: int) -> np.ndarray:
    """Return the matrix ((lmax + 1)^2, d * D) that couples one irrep along all of its paths.

    Multiply the harmonics of an edge by it. It is scaled so that inputs with unit mean square give outputs
    with unit mean square.
    """
    size = 2 * paths[0][0][0] + 1
    total = sum(2 * path[2][0] + 1 for path in paths)
    matrix = np.zeros(((lmax + 1) ** 2, size, total))
    start = 0
    for (first, _), degree, (third, _) in paths:
        block = coupling(first, degree, third).transpose(1, 0, 2) * math.sqrt(2 * third + 1)
        matrix[degree**2 : (degree + 1) ** 2, :, start : start + 2 * third + 1] = block
        start += 2 * third + 1
    return matrix.reshape(len(matrix), -1)


def _normal(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(rows)
