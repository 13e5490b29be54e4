"""The operator network: from features at the points of a body to a field there, through tokens on a lattice.

Letters: P points, K features, T targets, L tokens, C channels, S scales (radii). Encoder and decoder are edge
transforms, one for each radius; scales are added with learned softmax weights for each channel. The kernels
read coordinates in units of half the box's longest side, so that they lie in [-1, 1].

`compat=True` follows GAOT-3D where this model differs:
| what | here | compat |
|---|---|---|
| rotary embedding | three axes of the patch | one axis over flattened patches |
| attention weights | an MLP of the offset y - x | cosine between absolute coordinates y and x |
| weights without attention | areas of the panels (`quadrature`) | mean over neighbours |
| statistics | by area, so that they are the same for a finer mesh | by number of points |
| the query in the decoder | reads its own features and surroundings | reads only decoded values |
| tokens | also bypass the transformer (residual) | pass only through it |
| initial weights | preserve signal strength; kernels see offsets in units of the radius | torch's defaults |
| neighbours | all | all, or the first `neighbour_cap` of a row |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges
from pinchpoint.kit.edges.transform import Memory
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.geometry import COLUMNS, turning_columns, turning_inputs
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.kernels import Chunk, MultiScale, Scaling, initialise, mlp_of
from pinchpoint.systems.operator.model.mirror import Mirror
from pinchpoint.systems.operator.model.transformer import PatchTransformer

_THIN = 1e-3  # of the box: least deviation of a body along an axis, for bodies without any width


class Operator(nn.Module):
    """points (P, 3), features (P, K), areas (P,) and their graph to (P, T)."""

    def __init__(self, config: OperatorConfig) -> None:
        super().__init__()
        self.config = config
        channels, wide = config.channels, 2 * config.channels
        inputs = input_count(config)
        self.scaling = Scaling(config)
        self.lift = mlp_of((inputs, wide, channels))
        self.encoder = MultiScale(config, weights=config.weights)
        # Tokens are evenly spaced, so that the mean over them is a quadrature.
        self.decoder = MultiScale(config, weights="attention" if config.weights == "attention" else "mean")
        geometry_columns = {"none": 0, "statistics": COLUMNS * len(config.radii), "pointnet": channels}[
            config.geometry
        ]
        self.pointnet = (
            MultiScale(config, weights="mean", kernel_only=True) if config.geometry == "pointnet" else None
        )
        self.combine = nn.Linear(channels + geometry_columns + 3, channels)
        self.transformer = PatchTransformer(config)
        self.project = mlp_of(
            (channels + (0 if config.compat else inputs), 2 * wide, 2 * wide, wide, config.out_features)
        )
        if not config.compat:
            initialise(self.lift)
            initialise(self.project)

    def forward(
        self,
        points: Tensor,
        features: Tensor,
        areas: Tensor,
        graph: Graph,
        *,
        memory: Memory = "flat",
        chunk: Chunk = "auto",
    ) -> Tensor:
        _check(self.config, points, features, areas, graph)
        body = self.body(points, features, areas)
        places = self.places(body, points)
        inputs = self.inputs(body, places, features, graph.point_statistics)
        tokens = self.encode(body, places, self.lift(inputs), areas, graph, memory=memory, chunk=chunk)
        return self.decode(body, tokens, places, inputs, graph.decoder, memory=memory, chunk=chunk)

    def body(self, points: Tensor, features: Tensor, areas: Tensor) -> Body:
        """What all points of a body share; with it, any points can be processed without the others."""
        mirror = Mirror(self.config, features)
        if self.config.compat:
            return Body(mirror, None)
        return Body(mirror, spread_of(mirror.places(self.scaling.places(points)), areas))

    def places(self, body: Body, points: Tensor) -> Tensor:
        """(P, 3) in the units of the network."""
        return body.mirror.places(self.scaling.places(points))

    def inputs(self, body: Body, places: Tensor, features: Tensor, surroundings: Sequence[Tensor]) -> Tensor:
        """(P, I): features, place, products of vectors, surroundings, and the place on the body.

        For any points of the body. surroundings: (P, 9) or (P, 21) each, the graph's `point_statistics`.
        """
        features = body.mirror.features(features)
        vectors = [features[:, at : at + 3] for at in self.config.vectors]
        around: Sequence[Tensor] = ()
        turns: list[Tensor] = []
        if surroundings:
            all_statistics = body.mirror.surroundings(torch.stack(tuple(surroundings), dim=1)).to(
                places.dtype
            )
            around = all_statistics[..., :COLUMNS].unbind(1)
            if self.config.turning:
                turns = turning_inputs(all_statistics[..., COLUMNS:], vectors[0], vectors[1:])
        products = [
            (one * other).sum(1, keepdim=True)
            for number, one in enumerate(vectors)
            for other in (*vectors[:number], *(statistics[:, 3:6] for statistics in around))
        ]
        on_body = [] if body.spread is None else on_body_of(places, *body.spread)
        return torch.cat(
            [self.scaling.features(features), places, *products, *around, *on_body, *turns], dim=1
        )

    def encode(
        self,
        body: Body,
        places: Tensor,
        lifted: Tensor,
        areas: Tensor,
        graph: Graph,
        *,
        memory: Memory,
        chunk: Chunk,
    ) -> Tensor:
        """(L, C) from all points of the body. lifted: (P, C), the result of `lift` for their inputs."""
        at_tokens = body.mirror.places(self.scaling.tokens)
        tokens = self.encoder(
            at_tokens,
            places,
            lifted,
            graph.encoder,
            areas=self.scaling.areas(areas),
            memory=memory,
            chunk=chunk,
        )
        beside = [at_tokens]
        if self.pointnet is not None:
            beside.append(self.pointnet(at_tokens, places, None, graph.encoder, memory=memory, chunk=chunk))
        elif self.config.geometry == "statistics":
            beside.extend(
                body.mirror.surroundings(values).to(tokens.dtype) for values in graph.token_statistics
            )
        tokens = self.combine(torch.cat([tokens, *beside], dim=1))
        output = body.mirror.tokens(self.transformer(body.mirror.tokens(tokens)))
        return output if self.config.compat else tokens + output

    def decode(
        self,
        body: Body,
        tokens: Tensor,
        places: Tensor,
        inputs: Tensor,
        edges: tuple[Edges, ...],
        *,
        memory: Memory,
        chunk: Chunk,
    ) -> Tensor:
        """(P, T) at any points of the body. edges: to these points, one for each radius."""
        values = self.decoder(
            places, body.mirror.places(self.scaling.tokens), tokens, edges, memory=memory, chunk=chunk
        )
        return self.scaling.targets(
            self.project(values if self.config.compat else torch.cat([values, inputs], dim=1))
        )


@dataclass(frozen=True)
class Body:
    """What all points of a body share. spread: its middle and deviation, each (3,); None with `compat`."""

    mirror: Mirror
    spread: tuple[Tensor, Tensor] | None


def spread_of(points: Tensor, areas: Tensor) -> tuple[Tensor, Tensor]:
    """Middle and standard deviation of a body, each (3,), weighted by area: the same for a finer mesh."""
    shares = (areas / areas.sum())[:, None]
    middle = (shares * points).sum(0)
    return middle, (shares * (points - middle).square()).sum(0).add(_THIN**2).sqrt()


def on_body_of(points: Tensor, middle: Tensor, spread: Tensor) -> list[Tensor]:
    """Three of (P, 3): the place in units of the body's deviation, the body's middle, and its log deviation.

    With them, a nose looks like a nose on a long body and on a short one.
    """
    return [(points - middle) / spread, middle.expand_as(points), spread.log().expand_as(points)]


def input_count(config: OperatorConfig) -> int:
    """The number of columns of `Operator.inputs`."""
    vectors, around = len(config.vectors), len(config.local_radii)
    products = vectors * (vectors - 1) // 2 + vectors * around
    turns = turning_columns(vectors - 1) * around if config.turning else 0
    return config.in_features + 3 + products + COLUMNS * around + (0 if config.compat else 9) + turns


def _check(config: OperatorConfig, points: Tensor, features: Tensor, areas: Tensor, graph: Graph) -> None:
    count = len(points)
    if features.shape != (count, config.in_features) or areas.shape != (count,):
        raise BadInput(
            f"`features` has shape {tuple(features.shape)} and `areas` has shape {tuple(areas.shape)}, but "
            f"there are {count:,} points.",
            hint=f"Give features ({count}, {config.in_features}) and areas ({count},).",
        )
    statistics_count = len(config.radii) if config.geometry == "statistics" else 0
    counts = len(graph.encoder), len(graph.decoder), len(graph.token_statistics), len(graph.point_statistics)
    if (
        counts != (len(config.radii), len(config.radii), statistics_count, len(config.local_radii))
        or graph.decoder[0].queries != count
    ):
        raise BadInput(
            "The graph belongs to other points or to another configuration.",
            hint="Build it with graph_of(points, config, areas=areas).",
        )
