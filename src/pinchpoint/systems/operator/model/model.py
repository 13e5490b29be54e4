"""Operator: from what is known at the points of a body to a field there, through tokens on a lattice.

Letters: P points, K features, T targets, L tokens, C channels, S scales (radii). Encoder and decoder are edge
transforms, one for each radius; scales are added with softmax weights learned for each channel. Coordinates
reach the kernels in units of the box's longest half, so that they lie in [-1, 1].

`compat=True` takes the choices of the original where ours differ:
| what | here | compat |
|---|---|---|
| rotary embedding | three axes of the patch | one axis over flattened patches |
| attention weights | an MLP of the offset y - x | cosine between absolute coordinates y and x |
| weights without attention | areas of the panels (`quadrature`) | mean over neighbours |
| statistics | by area, so that a finer mesh looks the same | by number of points |
| the query in the decoder | reads its own features and surroundings | reads decoded values alone |
| tokens | pass beside the transformer as well | pass through it alone |
| first weights | keep signals' strength; kernels see offsets in units of the radius | as torch makes them |
| neighbours | all | all, or the first `neighbour_cap` of a row where that is given |
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
from pinchpoint.systems.operator.model.geometry import COLUMNS, turned, turned_columns
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.kernels import Chunk, MultiScale, Scaling, begin, mlp_of
from pinchpoint.systems.operator.model.mirror import Mirror
from pinchpoint.systems.operator.model.transformer import PatchTransformer

_THIN = 1e-3  # of the box: a body without any width along an axis has still a spread


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
        # Tokens are spread evenly, so that the mean over them is their quadrature.
        self.decoder = MultiScale(config, weights="attention" if config.weights == "attention" else "mean")
        described = {"none": 0, "statistics": COLUMNS * len(config.radii), "pointnet": channels}[
            config.geometry
        ]
        self.pointnet = (
            MultiScale(config, weights="mean", kernel_only=True) if config.geometry == "pointnet" else None
        )
        self.combine = nn.Linear(channels + described + 3, channels)
        self.transformer = PatchTransformer(config)
        self.project = mlp_of(
            (channels + (0 if config.compat else inputs), 2 * wide, 2 * wide, wide, config.out_features)
        )
        if not config.compat:
            begin(self.lift)
            begin(self.project)

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
        """What all points of a body share; from then on any of them can be read without the others."""
        mirror = Mirror(self.config, features)
        if self.config.compat:
            return Body(mirror, None)
        return Body(mirror, spread_of(mirror.places(self.scaling.places(points)), areas))

    def places(self, body: Body, points: Tensor) -> Tensor:
        """(P, 3) in the units the network reads."""
        return body.mirror.places(self.scaling.places(points))

    def inputs(self, body: Body, places: Tensor, features: Tensor, surroundings: Sequence[Tensor]) -> Tensor:
        """(P, I): features, place, products of vectors, the surroundings of every point, and its place on the body.

        Of any points of the body. surroundings: (P, 9) or (P, 21) each, the graph's `point_statistics`.
        """
        features = body.mirror.features(features)
        vectors = [features[:, at : at + 3] for at in self.config.vectors]
        around: Sequence[Tensor] = ()
        turns: list[Tensor] = []
        if surroundings:
            found = body.mirror.surroundings(torch.stack(tuple(surroundings), dim=1)).to(places.dtype)
            around = found[..., :COLUMNS].unbind(1)
            turns = turned(found[..., COLUMNS:], vectors[0], vectors[1:]) if self.config.turning else []
        products = [
            (one * other).sum(1, keepdim=True)
            for number, one in enumerate(vectors)
            for other in (*vectors[:number], *(found[:, 3:6] for found in around))
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
        """(L, C) from all points of the body. lifted: (P, C), what `lift` makes of their inputs."""
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
                body.mirror.surroundings(found).to(tokens.dtype) for found in graph.token_statistics
            )
        tokens = self.combine(torch.cat([tokens, *beside], dim=1))
        processed = body.mirror.tokens(self.transformer(body.mirror.tokens(tokens)))
        return processed if self.config.compat else tokens + processed

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
        """(P, T) at any points of the body. edges: into these points, one for each radius."""
        decoded = self.decoder(
            places, body.mirror.places(self.scaling.tokens), tokens, edges, memory=memory, chunk=chunk
        )
        return self.scaling.targets(
            self.project(decoded if self.config.compat else torch.cat([decoded, inputs], dim=1))
        )


@dataclass(frozen=True)
class Body:
    """What all points of a body share. spread: its middle and spread, each (3,); None where the network reads no such thing."""

    mirror: Mirror
    spread: tuple[Tensor, Tensor] | None


def spread_of(points: Tensor, areas: Tensor) -> tuple[Tensor, Tensor]:
    """Middle and spread of a body, each (3,). By area, so that a finer mesh of the body gives the same."""
    shares = (areas / areas.sum())[:, None]
    middle = (shares * points).sum(0)
    return middle, (shares * (points - middle).square()).sum(0).add(_THIN**2).sqrt()


def on_body_of(points: Tensor, middle: Tensor, spread: Tensor) -> list[Tensor]:
    """Three of (P, 3): a point's place in units of the body's own spread, the body's middle, and the logarithm of its spread.

    A nose is a nose on a long body and on a short one.
    """
    return [(points - middle) / spread, middle.expand_as(points), spread.log().expand_as(points)]


def input_count(config: OperatorConfig) -> int:
    """Columns that `Operator.inputs` gives."""
    vectors, around = len(config.vectors), len(config.local_radii)
    products = vectors * (vectors - 1) // 2 + vectors * around
    turns = turned_columns(vectors - 1) * around if config.turning else 0
    return config.in_features + 3 + products + COLUMNS * around + (0 if config.compat else 9) + turns


def _check(config: OperatorConfig, points: Tensor, features: Tensor, areas: Tensor, graph: Graph) -> None:
    count = len(points)
    if features.shape != (count, config.in_features) or areas.shape != (count,):
        raise BadInput(
            f"features of shape {tuple(features.shape)} and areas of {tuple(areas.shape)} for {count:,} points",
            hint=f"this operator reads features ({count}, {config.in_features}) and areas ({count},)",
        )
    described = len(config.radii) if config.geometry == "statistics" else 0
    made = len(graph.encoder), len(graph.decoder), len(graph.token_statistics), len(graph.point_statistics)
    if (
        made != (len(config.radii), len(config.radii), described, len(config.local_radii))
        or graph.decoder[0].queries != count
    ):
        raise BadInput(
            "a graph of other points or another configuration",
            hint="make it with graph_of(points, config, areas=areas)",
        )
