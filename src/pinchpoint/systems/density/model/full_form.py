"""FullForm: the density computed with all couplings of every pair, as a reference for the scalar form.

This is the method of the ChargE3Net-style density report. Letters: A atoms, E pairs of a probe and an atom
within the cutoff, P probes, M floats of all couplings of a pair. The form uses the weights of the model
wherever they affect the density. Everything else (odd scalars, gates, probe features of every degree and
parity) has random weights from a seed: it takes memory and time, but does not change the density. If both
forms agree for any seed, the scalar form leaves nothing out. The couplings come from e3nn, which must be
installed (the extra `density-reference`); the rest is plain torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import Missing
from pinchpoint.systems.density.model.atom_network import (
    ANGLE_GAIN,
    SCALAR,
    AtomGraph,
    Convolution,
    Features,
    Irrep,
    Path,
    Widths,
    before_gate,
    gate,
    map_channels,
    middle_widths,
    name_of,
    natural,
    paths_between,
    reachable_irreps,
)
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.harmonics import Harmonics
from pinchpoint.systems.density.model.model import DensityModel, prior_density
from pinchpoint.systems.density.model.probe_network import Probes
from pinchpoint.systems.density.model.radial import hidden_layer, soft_distance


@dataclass(frozen=True)
class Live:
    """The weights of one interaction that can affect the density.

    A matrix may have fewer columns than that of the full form.
    """

    inner: Tensor  # (H, G) of the radial network
    outer: dict[Path, Tensor]  # (H, U)
    up: dict[Irrep, Tensor]
    down: dict[Irrep, Tensor]  # (sum of U, V)
    turn: Tensor
    angle: Tensor
    keep: dict[Irrep, Tensor] = field(default_factory=dict)


class FullForm(nn.Module):
    """The density computed with all couplings.

    Has the same methods as DensityModel; `fields` returns all features of the atoms. The device and dtype are
    those of the model when the form is created.
    """

    def __init__(self, model: DensityModel, *, seed: int = 0) -> None:
        super().__init__()
        self.model = model
        self.config = config = model.config
        generator = torch.Generator().manual_seed(seed)
        self.harmonics = Harmonics(config.lmax)
        self.widths = [
            {irrep: config.channels(irrep[0]) for irrep in irreps} for irreps in reachable_irreps(config)
        ]
        first: Widths = {SCALAR: len(config.species)}
        dtype = model.probes.down.dtype
        self.atoms, self.probes = nn.ModuleList(), nn.ModuleList()
        for at, after in enumerate(self.widths):
            before = self.widths[at - 1] if at else first
            layer = model.atoms.layers[at]
            assert isinstance(layer, Convolution)
            self.atoms.append(AllPaths(config, before, before, after, layer.after, generator, dtype))
            self.probes.append(
                AllPaths(
                    config, after, before if at else {}, after, {SCALAR: after[SCALAR]}, generator, dtype
                )
            )
        self.to(model.probes.down.device, model.probes.down.dtype)

    def fields(self, atoms: AtomGraph) -> Tensor:
        """Return (A, W), the features of the atoms after each interaction, concatenated."""
        harmonics, squared, soft = self._geometry(atoms.vectors)
        one_hot = nn.functional.one_hot(atoms.species, len(self.config.species)).to(soft.dtype)
        features: Features = {SCALAR: one_hot[:, :, None] * math.sqrt(len(self.config.species))}
        layers_features = []
        for at, (layer, live) in enumerate(zip(self.atoms, self.model.atoms.layers, strict=True)):
            assert isinstance(layer, AllPaths) and isinstance(live, Convolution)
            edges = Pairs(atoms.source, atoms.destination, len(atoms.species), harmonics, squared, soft)
            features = layer(features, features, edges, of_atoms(live))
            layers_features += [features[irrep].flatten(1) for irrep in self.widths[at]]
        return torch.cat(layers_features, dim=1)

    def forward(self, fields: Tensor, species: Tensor, neighbours: Tensor, vectors: Tensor) -> Tensor:
        """Return the densities. Shapes are those of DensityModel.forward.

        Works on a list of pairs, which leaves out the slots beyond the cutoff.
        """
        tiles, probes = vectors.shape[:2]
        squared = vectors.square().sum(-1)
        tile, probe, slot = torch.nonzero(squared < self.config.cutoff_a**2, as_tuple=True)
        states = self.states(
            fields, neighbours[tile, slot], tile * probes + probe, vectors[tile, probe, slot], tiles * probes
        )
        prior = None
        if self.config.prior:
            near = squared.transpose(1, 2)
            prior = prior_density(self.model.prior, species, neighbours, near, self.config.cutoff_a)
            prior = prior.reshape(-1)
        out = self.model.outputs_of([state[SCALAR][:, :, 0] for state in states], prior)
        return out.view(tiles, probes, self.config.outputs)

    def states(
        self, fields: Tensor, source: Tensor, destination: Tensor, vectors: Tensor, probes: int
    ) -> list[Features]:
        """Return the features (P, U, d) of all irreps of the probes, after each interaction.

        source, destination: (E,) atom and probe of each pair; vectors: (E, 3).
        """
        pairs = Pairs(source, destination, probes, *self._geometry(vectors))
        sizes = [sum((2 * irrep[0] + 1) * width for irrep, width in widths.items()) for widths in self.widths]
        states: list[Features] = []
        state: Features = {}
        for at, (layer, flat) in enumerate(zip(self.probes, fields.split(sizes, dim=1), strict=True)):
            assert isinstance(layer, AllPaths)
            state = layer(_unflatten(flat, self.widths[at]), state, pairs, of_probes(self.model.probes, at))
            states.append(state)
        return states

    def _geometry(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the harmonics (E, (lmax + 1)^2), r^2 (E,), and the soft distance (E,) of vectors (E, 3)."""
        flat = vectors.t().contiguous()
        squared, soft = soft_distance(flat, self.config)
        return (
            torch.cat([torch.ones_like(soft)[None], *self.harmonics(flat / soft)]).t().contiguous(),
            squared,
            soft,
        )


@dataclass(frozen=True)
class Pairs:
    """Pairs of a source and a destination, with their geometry.

    source, destination, squared, soft: (E,); count: number of destinations; harmonics: (E, (lmax + 1)^2).
    """

    source: Tensor
    destination: Tensor
    count: int
    harmonics: Tensor
    squared: Tensor
    soft: Tensor


class AllPaths(nn.Module):
    """One interaction with all couplings. Live weights are passed in; dead weights belong to this module."""

    def __init__(
        self,
        config: DensityConfig,
        before: Widths,
        state: Widths,
        after: Widths,
        live: Widths,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.config, self.before, self.after, self.live = config, before, after, live
        self.paths = paths_between(before, after, config.lmax)
        self.product = _product(self.paths, before, config.lmax, dtype)
        gated, middle = before_gate(after), middle_widths(self.paths, before)
        own = before_gate(live)

        def dead(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(
                torch.randn(rows, columns, generator=generator) / math.sqrt(rows), requires_grad=False
            )

        live_sources = {path[0] for path in self.paths if path[2] in live}
        self.up = nn.ParameterDict(
            {name_of(i): dead(u, u) for i, u in before.items() if i not in live_sources}
        )
        dead_paths = [path for path in self.paths if path[2] not in live]
        self.outer = nn.ParameterDict(
            {_name(path): dead(config.hidden, before[path[0]]) for path in dead_paths}
        )
        self.down = nn.ParameterDict(
            {name_of(i): dead(middle[i], u - own.get(i, 0)) for i, u in gated.items()}
        )
        self.keep = nn.ParameterDict(
            {name_of(i): dead(state[i], u - own.get(i, 0)) for i, u in gated.items() if i in state}
        )
        self.register_buffer("scalars", torch.tensor(scalar_columns(after, live)), persistent=False)

    def forward(self, features: Features, state: Features, pairs: Pairs, live: Live) -> Features:
        """Return the new features of the destinations.

        features: those of the sources; state: those of the destinations, empty in the first interaction of
        the probes.
        """
        outer = torch.cat(
            [live.outer[path] if path in live.outer else self.outer[_name(path)] for path in self.paths],
            dim=1,
        )
        hidden = hidden_layer(live.inner[None], pairs.squared, pairs.soft, self.config)[0]
        upper = [
            map_channels(features[i], live.up[i] if i in live.up else self.up[name_of(i)]).flatten(1)
            for i in self.before
        ]
        messages = self.product(
            torch.cat(upper, dim=1).index_select(0, pairs.source), pairs.harmonics, hidden.t() @ outer
        )
        total = messages.new_zeros(pairs.count, messages.shape[1]).index_add_(0, pairs.destination, messages)
        total = total / math.sqrt(self.config.mean_neighbours)
        arrived = _unflatten_paths(total, self.paths, self.before)
        middle = {i: torch.cat([v for p, v in arrived if p[2] == i], dim=1) for i in self.after}
        angle = live.angle + ANGLE_GAIN * (middle[SCALAR][:, :, 0] @ live.turn)[:, None, None]
        mixed: Features = {}
        for irrep in self.after:
            mixed[irrep] = map_channels(middle[irrep], self._whole(irrep, live.down, self.down))
            if name_of(irrep) in self.keep and irrep in state:
                self_part = map_channels(state[irrep], self._whole(irrep, live.keep, self.keep))
                mixed[irrep] = angle.cos() * self_part + angle.sin() * mixed[irrep]
            elif irrep == SCALAR:
                mixed[irrep] = angle.sin() * mixed[irrep]
        return gate(mixed, self.after)

    def _whole(self, irrep: Irrep, live: dict[Irrep, Tensor], dead: nn.ParameterDict) -> Tensor:
        """Return the live and dead columns side by side, in the order of the full form."""
        if irrep not in live:
            return dead[name_of(irrep)]
        both = torch.cat([live[irrep], dead[name_of(irrep)]], dim=1)
        return both[:, self.get_buffer("scalars")] if irrep == SCALAR else both


def scalar_columns(after: Widths, live: Widths) -> list[int]:
    """Return where each scalar of the full form is when the live columns come first.

    The order is own scalars, then gates.
    """
    total = before_gate(live)[SCALAR]
    columns, at, more = list(range(after[SCALAR])), live[SCALAR], total
    for irrep, width in after.items():
        if irrep[0] and irrep in live:
            columns += range(at, at + width)
            at += width
        elif irrep[0]:
            columns += range(more, more + width)
            more += width
    return columns


def of_atoms(layer: Convolution) -> Live:
    """Return the live weights of an interaction of the atoms."""
    outer, start = {}, 0
    for path in layer.paths:
        outer[path] = layer.radial.outer[0, :, start : start + layer.before[path[0]]]
        start += layer.before[path[0]]
    return Live(
        layer.radial.inner[0],
        outer,
        up={irrep: layer.up[name_of(irrep)] for irrep in layer.before},
        down={irrep: layer.down[name_of(irrep)] for irrep in layer.after},
        turn=layer.turn,
        angle=layer.angle,
        keep={irrep: layer.keep[name_of(irrep)] for irrep in layer.after if name_of(irrep) in layer.keep},
    )


def of_probes(probes: Probes, at: int) -> Live:
    """Return the live weights of interaction `at` of the probes."""
    irreps = natural(probes.config.lmax)
    outer = probes.radial.outer[at].split(probes.widths, dim=1)
    return Live(
        probes.radial.inner[at],
        outer={(irrep, irrep[0], SCALAR): part for irrep, part in zip(irreps, outer, strict=True)},
        up={irrep: up[at] for irrep, up in zip(irreps, probes.up, strict=True)},
        down={SCALAR: probes.down[at]},
        turn=probes.turn[at],
        angle=probes.angle[at],
        keep={SCALAR: probes.keep[at - 1]} if at else {},
    )


def _product(paths: list[Path], before: Widths, lmax: int, dtype: torch.dtype) -> nn.Module:
    """Return e3nn's tensor product of features and harmonics, with a weight for each channel of each path."""
    try:
        from e3nn import o3
    except ModuleNotFoundError as error:
        raise Missing(
            "The forms `full` and `original` need e3nn, which is not installed.",
            hint='Install it: pip install "pinchpoint[density-reference]". Or use the scalar form.',
        ) from error
    order = list(before)
    usual = torch.get_default_dtype()
    # e3nn computes its couplings in the default dtype and casts them later: in a float64 model they would be
    # accurate to only seven digits.
    torch.set_default_dtype(dtype)
    try:
        return o3.TensorProduct(
            o3.Irreps([(width, irrep) for irrep, width in before.items()]),
            o3.Irreps([(1, irrep) for irrep in natural(lmax)]),
            o3.Irreps([(before[path[0]], path[2]) for path in paths]),
            [(order.index(path[0]), path[1], at, "uvu", True) for at, path in enumerate(paths)],
            irrep_normalization="component",
            path_normalization="none",
            internal_weights=False,
            shared_weights=False,
        )
    finally:
        torch.set_default_dtype(usual)


def _name(path: Path) -> str:
    return f"{name_of(path[0])}_{path[1]}_{name_of(path[2])}"


def _unflatten(flat: Tensor, widths: Widths) -> Features:
    sizes = [(2 * irrep[0] + 1) * width for irrep, width in widths.items()]
    parts = flat.split(sizes, dim=1)
    return {
        i: part.reshape(len(flat), u, 2 * i[0] + 1)
        for (i, u), part in zip(widths.items(), parts, strict=True)
    }


def _unflatten_paths(flat: Tensor, paths: list[Path], before: Widths) -> list[tuple[Path, Tensor]]:
    sizes = [(2 * path[2][0] + 1) * before[path[0]] for path in paths]
    parts = flat.split(sizes, dim=1)
    return [
        (p, part.reshape(len(flat), before[p[0]], 2 * p[2][0] + 1))
        for p, part in zip(paths, parts, strict=True)
    ]
