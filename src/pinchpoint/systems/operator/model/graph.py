"""Graph: who reads whom in an operator, and what each place's surroundings look like; made once a body.

P points, L tokens. One pair of edges for every radius. Points outside the box or without a token
are refused: nothing could be said there.
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
from pinchpoint.systems.operator.data.sample import moved
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.geometry import departure, readable, statistics
from pinchpoint.systems.operator.model.surroundings import own_statistics


@dataclass(frozen=True)
class Graph:
    """What an `Operator` needs to know of a body's points beside what they carry."""

    encoder: tuple[Edges, ...]  # one for each radius, rows are tokens, sources are points
    decoder: tuple[Edges, ...]  # rows are points, sources are tokens
    token_statistics: tuple[
        Tensor, ...
    ] = ()  # (L, 9) for each radius, `readable`; where the geometry embedding is `statistics`
    # (P, 9) for each local radius, as `departure` gives them; (P, 21) where the configuration asks for `turning`
    point_statistics: tuple[Tensor, ...] = ()

    @property
    def edges(self) -> int:
        """Of all transforms together."""
        return sum(edges.count for edges in (*self.encoder, *self.decoder))

    def to(self, device: str | torch.device) -> Graph:
        return self.mapped(lambda values: moved(values, device))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Graph:
        """The same graph with all tensors changed: moved, or pinned."""
        return Graph(
            tuple(edges.mapped(change) for edges in self.encoder),
            tuple(edges.mapped(change) for edges in self.decoder),
            tuple(change(values) for values in self.token_statistics),
            tuple(change(values) for values in self.point_statistics),
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

    areas: (P,), wanted where statistics are: by them a finer mesh of a body looks the same. features: (P, K), wanted for
    their normals where the configuration asks for `turning`. cache: where edges are kept.
    """
    lattice = lattice_of(config)
    _check_points(points, config)
    described = config.geometry == "statistics" or config.local_radii
    if described and not config.compat and areas is None:
        raise BadInput(
            "statistics of a surface without its areas",
            hint="graph_of(points, config, areas=areas), areas of shape (P,)",
        )
    if config.turning and features is None:
        raise BadInput(
            "turning=True without the features, which hold the normals",
            hint="graph_of(points, config, areas=areas, features=features), features of shape (P, K)",
        )
    require_radius(points, lattice, max(config.radii))
    pairs = (cache.lattice_edges if cache is not None else lattice_edges_multi)(points, lattice, config.radii)
    if config.neighbour_cap is not None:
        pairs = [(capped(a, config.neighbour_cap), capped(b, config.neighbour_cap)) for a, b in pairs]
    weights = None if config.compat else areas
    tokens = lattice.points(dtype=points.dtype, device=points.device)
    return Graph(
        encoder=tuple(into_tokens for into_tokens, _ in pairs),
        decoder=tuple(into_points for _, into_points in pairs),
        token_statistics=tuple(
            readable(
                statistics(tokens, points, into_tokens, radius=radius, weights=disc_shares(weights, radius))
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
                    weights=disc_shares(weights, radius),
                    normals=normals_of(features, config),
                )
            )
            for radius in config.local_radii
        ),
    )


def normals_of(features: Tensor | None, config: OperatorConfig) -> Tensor | None:
    """(P, 3) of features (P, K), where the configuration asks for them."""
    return (
        features[:, config.vectors[0] : config.vectors[0] + 3]
        if config.turning and features is not None
        else None
    )


def disc_shares(areas: Tensor | None, radius: float) -> Tensor | None:
    """Areas in units of a disc of that radius: a flat surface through the middle of a ball adds up to one."""
    return None if areas is None else areas / (math.pi * radius**2)


def capped(edges: Edges, most: int) -> Edges:
    """The first `most` edges of every row; the others are dropped, which is a fault of the original."""
    degrees = edges.degrees()
    within = torch.arange(edges.count, device=degrees.device) - edges.offsets[:-1].repeat_interleave(degrees)
    return Edges(offsets_of(degrees.clamp_max(most)), edges.sources[within < most], edges.source_count)


def _check_points(points: Tensor, config: OperatorConfig) -> None:
    if points.dim() != 2 or points.shape[1] != 3 or not len(points):
        raise BadInput(f"points of shape {tuple(points.shape)}", hint="give (P, 3) with at least one point")
    low, high = points.new_tensor(config.low), points.new_tensor(config.high)
    outside = int(((points < low) | (points > high)).any(1).sum())
    if outside:
        reached = points.min(0).values.tolist(), points.max(0).values.tolist()
        raise BadInput(
            f"{outside:,} of {len(points):,} points lie outside the box from {config.low} to {config.high}",
            hint=f"these points reach from {_show(reached[0])} to {_show(reached[1])}: move the body, or train with such a box",
        )


def _show(values: list[float]) -> str:
    return "(" + ", ".join(f"{value:.4g}" for value in values) + ")"
