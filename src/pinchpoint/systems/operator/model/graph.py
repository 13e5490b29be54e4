"""The graph of a body: edges between its points and the tokens, and statistics of their surroundings.

P points, L tokens. It is computed once per body, with a pair of edges for every radius. Points outside the
box or without a token raise `BadInput`: the operator could not predict anything there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, GraphCache, Lattice, lattice_edges_multi, require_radius
from pinchpoint.kit.edges.edges import offsets_of
from pinchpoint.systems.operator.data.sample import move
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.geometry import departure, readable, statistics
from pinchpoint.systems.operator.model.surroundings import own_statistics


@dataclass(frozen=True)
class Graph:
    """What an `Operator` needs to know about a body's points besides their features."""

    encoder: tuple[Edges, ...]  # one for each radius; rows are tokens, sources are points
    decoder: tuple[Edges, ...]  # rows are points, sources are tokens
    # (L, 9) for each radius, as `readable` returns them, if the geometry embedding is `statistics`.
    token_statistics: tuple[Tensor, ...] = ()
    # (P, 9) for each local radius, as `departure` returns them; (P, 21) with `turning`.
    point_statistics: tuple[Tensor, ...] = ()

    @property
    def edges(self) -> int:
        """The number of edges of all transforms together."""
        return sum(edges.count for edges in (*self.encoder, *self.decoder))

    def to(self, device: str | torch.device) -> Graph:
        return self.apply(lambda values: move(values, device))

    def apply(self, function: Callable[[Tensor], Tensor]) -> Graph:
        """The same graph with `function`, which moves or pins a tensor, applied to all tensors."""
        return Graph(
            tuple(edges.apply(function) for edges in self.encoder),
            tuple(edges.apply(function) for edges in self.decoder),
            tuple(function(values) for values in self.token_statistics),
            tuple(function(values) for values in self.point_statistics),
        )


def lattice_of(config: OperatorConfig) -> Lattice:
    return Lattice(config.lattice, config.low, config.high)


def graph_of(
    points: Tensor,
    config: OperatorConfig,
    *,
    areas: Tensor | None = None,
    features: Tensor | None = None,
    cache: GraphCache | None = None,
) -> Graph:
    """The graph of points (P, 3).

    areas: (P,), needed for statistics, which are then the same for a finer mesh of a body. features: (P, K),
    whose normals are needed with `turning`. cache: a cache of edges on disk.
    """
    lattice = lattice_of(config)
    _check_points(points, config)
    needs_areas = config.geometry == "statistics" or config.local_radii
    if needs_areas and not config.compat and areas is None:
        raise BadInput(
            "The statistics of a surface need its areas, which are missing.",
            hint="Call graph_of(points, config, areas=areas), with areas of shape (P,).",
        )
    if config.turning and features is None:
        raise BadInput(
            "turning=True needs the features, which contain the normals; they are missing.",
            hint="Call graph_of(points, config, areas=areas, features=features), with features (P, K).",
        )
    require_radius(points, lattice, max(config.radii))
    pairs = (cache.lattice_edges if cache is not None else lattice_edges_multi)(points, lattice, config.radii)
    if config.neighbour_cap is not None:
        pairs = [(cap_edges(a, config.neighbour_cap), cap_edges(b, config.neighbour_cap)) for a, b in pairs]
    weights = None if config.compat else areas
    tokens = lattice.points(dtype=points.dtype, device=points.device)
    return Graph(
        encoder=tuple(into_tokens for into_tokens, _ in pairs),
        decoder=tuple(into_points for _, into_points in pairs),
        token_statistics=tuple(
            readable(
                statistics(
                    tokens,
                    points,
                    into_tokens,
                    radius=radius,
                    weights=ball_shares(weights, radius, config.measure),
                )
            )
            for radius, (into_tokens, _) in zip(config.radii, pairs, strict=True)
        )
        if config.geometry == "statistics"
        else (),
        point_statistics=tuple(
            departure(
                own_statistics(
                    points,
                    radius=radius,
                    weights=ball_shares(weights, radius, config.measure),
                    normals=normals_of(features, config),
                )
            )
            for radius in config.local_radii
        ),
    )


def normals_of(features: Tensor | None, config: OperatorConfig) -> Tensor | None:
    """The normals (P, 3) in features (P, K), or None without `turning`."""
    return (
        features[:, config.vectors[0] : config.vectors[0] + 3]
        if config.turning and features is not None
        else None
    )


def ball_shares(areas: Tensor | None, radius: float, measure: int) -> Tensor | None:
    """Areas in units of the line, disc or ball of that radius: a plane through a ball's middle has one.

    measure: 1 for lengths, 2 for areas, 3 for volumes.
    """
    within = {1: 2 * radius, 2: math.pi * radius**2, 3: 4 / 3 * math.pi * radius**3}[measure]
    return None if areas is None else areas / within


def cap_edges(edges: Edges, most: int) -> Edges:
    """The first `most` edges of every row; the others are dropped, as in GAOT-3D, where this is a flaw."""
    degrees = edges.degrees()
    within = torch.arange(edges.count, device=degrees.device) - edges.offsets[:-1].repeat_interleave(degrees)
    return Edges(offsets_of(degrees.clamp_max(most)), edges.sources[within < most], edges.source_count)


def _check_points(points: Tensor, config: OperatorConfig) -> None:
    if points.dim() != 2 or points.shape[1] != 3 or not len(points):
        raise BadInput(
            f"`points` has shape {tuple(points.shape)}, not (P, 3) with at least one point.",
            hint="Give one row of three coordinates per point.",
        )
    low, high = points.new_tensor(config.low), points.new_tensor(config.high)
    outside = int(((points < low) | (points > high)).any(1).sum())
    if outside:
        least, most = points.min(0).values.tolist(), points.max(0).values.tolist()
        raise BadInput(
            f"{outside:,} of {len(points):,} points lie outside the box from {config.low} to {config.high}.",
            hint=f"Move the body (now from {_show(least)} to {_show(most)}), or train with a larger box.",
        )


def _show(values: list[float]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"
