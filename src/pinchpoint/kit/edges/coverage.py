"""Checks for points and tokens without edges, and the radius that covers all points.

A point without an edge receives no value from the tokens and passes none to them. `coverage` counts such
points in an existing graph; `require_radius` finds them beforehand, from the points and the lattice alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edges import Edges
from pinchpoint.kit.edges.lattice import Lattice, require_lattice
from pinchpoint.kit.edges.neighbours import check_points, check_radius, squared_radius

_MAX_LISTED = 5  # number of uncovered points to list by index
_BAR_WIDTH = 40


@dataclass(frozen=True)
class Degrees:
    """Edges per row: the median, the most, and how many rows have 0, 1, 2-3, 4-7, ... edges."""

    median: float
    most: int
    bins: tuple[tuple[int, int, int], ...]  # fewest and most edges of the bin, and its number of rows

    @staticmethod
    def of(degrees: Tensor) -> Degrees:
        """Count degrees: (N,) int64."""
        if not len(degrees):
            return Degrees(0.0, 0, ())
        ordered = degrees.sort().values
        middle = ordered[[(len(degrees) - 1) // 2, len(degrees) // 2, -1]].tolist()
        # Use integers, not logarithms: a degree of 2**k is then the first of its bin for every k.
        edges = torch.tensor([0, *(2**k for k in range(middle[2].bit_length()))], device=degrees.device)
        counts = (
            torch.searchsorted(ordered, torch.cat([edges, edges.new_tensor([middle[2] + 1])])).diff().tolist()
        )
        fewest = edges.tolist()
        most = [0, *(2 * low - 1 for low in fewest[1:])]
        return Degrees((middle[0] + middle[1]) / 2, middle[2], tuple(zip(fewest, most, counts, strict=True)))

    def lines(self) -> list[str]:
        """One line per bin, with a bar whose length shows its share."""
        total, widest = sum(rows for *_, rows in self.bins), max((rows for *_, rows in self.bins), default=0)
        lines = []
        for low, high, rows in self.bins:
            span = str(low) if low == high else f"{low}-{high}"
            bar = "#" * round(_BAR_WIDTH * rows / widest)
            lines.append(f"  {span:>13} {rows:>12,} {rows / total:>6.1%}  {bar}".rstrip())
        return lines


@dataclass(frozen=True)
class Coverage:
    """Counts that describe a graph between points and tokens."""

    points: int
    tokens: int
    edges: int
    uncovered: int
    uncovered_first: tuple[int, ...]  # the first few uncovered points
    empty_tokens: int
    of_points: Degrees
    of_tokens: Degrees

    @property
    def empty_share(self) -> float:
        return self.empty_tokens / self.tokens if self.tokens else 0.0

    @property
    def complete(self) -> bool:
        """Whether every token is connected to every point."""
        return self.tokens > 1 and self.edges == self.points * self.tokens

    def text(self) -> str:
        """A summary for a screen of 80 columns."""
        examples = f": {_list(self.uncovered_first, self.uncovered)}" if self.uncovered else ""
        return "\n".join(
            [
                f"{self.points:,} points, {self.tokens:,} tokens, {self.edges:,} edges",
                f"uncovered points {self.uncovered:,}{examples}",
                f"empty tokens     {self.empty_tokens:,} ({self.empty_share:.1%})",
                f"edges per point  median {self.of_points.median:g}, most {self.of_points.most:,}",
                *self.of_points.lines(),
                f"edges per token  median {self.of_tokens.median:g}, most {self.of_tokens.most:,}",
                *self.of_tokens.lines(),
            ]
        )

    def require_covered(self, points: Tensor | None = None, lattice: Lattice | None = None) -> None:
        """Raise `BadInput` if a point has no edge, or if every token is connected to every point.

        With points and lattice, the hint names a radius.
        """
        hint = "Raise the radius: least_radius(points, lattice) is the smallest that covers all points."
        lower = "Lower the radius: radius_for(points, lattice) suggests one."
        if points is not None and lattice is not None:
            hint, lower = (
                _hint(points, lattice),
                f"Lower the radius to about {radius_for(points, lattice):g}.",
            )
        if self.uncovered:
            raise BadInput(_describe_holes(self.uncovered, self.points, self.uncovered_first), hint=hint)
        if self.complete:
            raise BadInput(_describe_complete(self.points, self.tokens), hint=lower)


def coverage(into_tokens: Edges, into_points: Edges | None = None) -> Coverage:
    """Count uncovered points, empty tokens and degrees.

    into_tokens: rows are tokens, sources are points; into_points: the other way round. Without `into_points`,
    the degrees of the points are counted from `into_tokens`: for `lattice_edges` they are the same.
    """
    for edges in (into_tokens, into_points):
        if edges is not None and not isinstance(edges, Edges):
            raise BadInput(
                f"The edges are a {type(edges).__name__}, not Edges.",
                hint="Give Edges, as lattice_edges and Edges.from_index return them.",
            )
    if into_points is not None and (into_points.queries, into_points.source_count) != (
        into_tokens.source_count,
        into_tokens.queries,
    ):
        raise BadInput(
            f"`into_tokens` goes from {into_tokens.source_count:,} points to {into_tokens.queries:,} tokens, "
            f"but `into_points` goes from {into_points.source_count:,} tokens to "
            f"{into_points.queries:,} points.",
            hint="Give both directions of one graph, tokens first, as lattice_edges returns them.",
        )
    if into_points is None:
        degrees = torch.bincount(into_tokens.sources, minlength=into_tokens.source_count)
    else:
        degrees = into_points.degrees()
    of_tokens = into_tokens.degrees()
    bare = (degrees == 0).nonzero().squeeze(1)
    return Coverage(
        points=into_tokens.source_count,
        tokens=into_tokens.queries,
        edges=into_tokens.count,
        uncovered=len(bare),
        uncovered_first=tuple(bare[:_MAX_LISTED].tolist()),
        empty_tokens=int((of_tokens == 0).sum()),
        of_points=Degrees.of(degrees),
        of_tokens=Degrees.of(of_tokens),
    )


def least_radius(points: Tensor, lattice: Lattice) -> float:
    """The smallest radius, in the points' dtype, at which `lattice_edges` gives every point an edge.

    points: (P, d).
    """
    squared = _nearest(points, lattice).max()
    radius = squared.sqrt()
    # The square root is rounded: raise it until its square reaches the squared distance.
    while bool(radius.square() < squared) or bool(radius == 0):
        radius = torch.nextafter(radius, torch.full_like(radius, math.inf))
    return float(radius)


def radius_for(points: Tensor, lattice: Lattice, *, edges_per_point: float = 8.0) -> float:
    """A first choice of radius, which covers every point.

    A point well inside the lattice gets about `edges_per_point` edges.
    """
    require_lattice(lattice)
    steps = [step for step, size in zip(lattice.spacing, lattice.shape, strict=True) if size > 1]
    ball = math.pi ** (len(steps) / 2) / math.gamma(len(steps) / 2 + 1)  # volume of the unit ball
    suggestion = (edges_per_point * math.prod(steps) / ball) ** (1 / len(steps)) if steps else 0.0
    radius = max(least_radius(points, lattice), suggestion)
    digits = 2 - math.floor(math.log10(radius))
    return math.ceil(radius * 10.0**digits) / 10.0**digits if 0 <= digits < 300 else radius


def require_radius(points: Tensor, lattice: Lattice, radius: float) -> None:
    """Raise `BadInput`, before edges are built, if points have no edges or everything is connected."""
    check_radius(radius)
    uncovered = (_nearest(points, lattice) > squared_radius(radius, points)).nonzero().squeeze(1)
    if len(uncovered):
        holes = _describe_holes(len(uncovered), len(points), tuple(uncovered[:_MAX_LISTED].tolist()))
        raise BadInput(f"The radius is {radius:g}. {holes}", hint=_hint(points, lattice))
    ends = [(planes[0], planes[-1]) for planes in lattice.axes(dtype=points.dtype, device=points.device)]
    furthest = sum(
        torch.maximum((points[:, axis] - low).square(), (points[:, axis] - high).square())
        for axis, (low, high) in enumerate(ends)
    )
    if lattice.count > 1 and bool((furthest <= squared_radius(radius, points)).all()):
        raise BadInput(
            f"The radius is {radius:g}. {_describe_complete(len(points), lattice.count)}",
            hint=f"Lower the radius to about {radius_for(points, lattice):g}.",
        )


def _nearest(points: Tensor, lattice: Lattice) -> Tensor:
    """(P,) squared distances to the nearest token, summed axis by axis as they are for edges."""
    require_lattice(lattice)
    check_points(points, axes=len(lattice.shape))
    if not len(points):
        raise BadInput("There are no points to join to the lattice.", hint="Give at least one point.")
    squared = torch.zeros((), dtype=points.dtype, device=points.device)
    for axis, planes in enumerate(lattice.axes(dtype=points.dtype, device=points.device)):
        place = points[:, axis].detach().contiguous()
        above = torch.searchsorted(planes, place).clamp_max(len(planes) - 1)
        gaps = [(place - planes[at]).square() for at in (above, (above - 1).clamp_min(0))]
        squared = squared + torch.minimum(*gaps)
    return squared


def _hint(points: Tensor, lattice: Lattice) -> str:
    low, high = points.new_tensor(lattice.low), points.new_tensor(lattice.high)
    outside = int(((points < low) | (points > high)).any(1).sum())
    text = f"Raise the radius to {_round_up(least_radius(points, lattice))} for these points"
    if outside:
        return f"{text}, or widen the lattice: {outside:,} points lie outside it."
    any_point = f"{_round_up(lattice.half_diagonal)}, half the diagonal of a cell"
    return f"{text}; {any_point}, covers any point inside the lattice."


def _round_up(radius: float) -> str:
    """The radius as text, rounded up by more than rounding errors, so that it still covers all points."""
    radius *= 1 + 1e-6
    text = f"{radius:.4g}"
    return text if float(text) >= radius else f"{float(text) * (1 + 1e-3):.4g}"


def _describe_holes(uncovered: int, points: int, first: tuple[int, ...]) -> str:
    return f"{uncovered:,} of {points:,} points have no token ({_list(first, uncovered)})."


def _list(first: tuple[int, ...], count: int) -> str:
    return ", ".join(str(number) for number in first) + (", ..." if count > len(first) else "")


def _describe_complete(points: int, tokens: int) -> str:
    return f"Every token is connected to every point: {points:,} x {tokens:,} = {points * tokens:,} edges."
