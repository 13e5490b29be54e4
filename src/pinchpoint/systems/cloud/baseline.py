"""Baseline: the sampler of the point-cloud report, rewritten from its description.

Letters: N points, C cells, M drawn points; wanted: (C,), points to draw per cell. `loop` and `grouped` draw
from cells as the report describes, and draw correctly; `grouped` with `shared` makes one permutation for all
cells of the same count, as the report does, so such cells draw the same places. `GridSampler` is the whole
sampler: it takes a dictionary of cells, computes their counts (at every draw, or from a cache), and also
returns ratios. `prefix` and the cache
reproduce two faults: permutations that are never used, and scenes identified by their size alone. Where the
report leaves a choice, the faster one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.kit.segments.segments import Segments

Grid = dict[int, Tensor]  # cell -> its points
Draw = Callable[[Segments, Tensor], Tensor]


def loop(segments: Segments, wanted: Tensor) -> Tensor:
    """Return (M,) points, one cell after another, reading three numbers per cell from the device."""
    counts, offsets, order = segments.counts, segments.offsets, segments.order
    if is_fake(order):  # reading cell by cell takes minutes there, and the blocks that stay are these
        return torch.cat([order.new_empty(take) for take in wanted.tolist()])
    drawn: list[Tensor] = []
    for cell in range(segments.cells):
        count = int(counts[cell].item())
        take = int(wanted[cell].item())
        start = int(offsets[cell].item())
        drawn.append(order[start + torch.randperm(count, device=order.device)[:take]])
    return torch.cat(drawn)


def grouped(segments: Segments, wanted: Tensor, *, shared: bool = False) -> Tensor:
    """(M,) points: permutations by count, laid out cell by cell by a comprehension that reads every count.

    A point is taken where its place in the permutation is below what its cell wants. shared: one permutation
    a count; else one a cell, all of one count made together.
    """
    taken = _permutations(segments, shared=shared) < _spread(wanted, segments)
    return segments.order[torch.where(taken)[0]]


def prefix(segments: Segments, wanted: Tensor) -> Tensor:
    """(M,) points, the first of each cell: permutations are made as `grouped` makes them, and never used."""
    _permutations(segments, shared=True)
    starts = _spread(segments.offsets[:-1], segments)
    within = torch.arange(segments.points, device=starts.device) - starts
    return segments.order[torch.where(within < _spread(wanted, segments))[0]]


def grid_of(segments: Segments) -> Grid:
    """Return the cells as the dictionary that the point-cloud report uses."""
    return dict(enumerate(segments.order.long().split(segments.counts.tolist())))


@dataclass
class GridSampler:
    """held: what was found out of a scene, under (points, cells): another scene of that size gets it too."""

    held: dict[tuple[int, int], Segments] = field(default_factory=dict)

    def by_loop(self, grid: Grid, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Points and the share taken of each cell; the cells' counts are found out at every draw."""
        segments = _metadata(grid)
        return loop(segments, wanted), wanted / segments.counts

    def by_count(self, grid: Grid, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Points and for each the share taken of its cell; counts from the cache."""
        segments = self.remembered(grid)
        ranks, wants = _permutations(segments, shared=True), _spread(wanted, segments)
        chosen = torch.where(ranks < wants)[0]
        return segments.order[chosen], wants[chosen] / _spread(segments.counts, segments)[chosen]

    def remembered(self, grid: Grid) -> Segments:
        key = sum(len(points) for points in grid.values()), len(grid)
        if key not in self.held:
            self.held[key] = _metadata(grid)
        return self.held[key]


def _metadata(grid: Grid) -> Segments:
    counts = torch.tensor([len(points) for points in grid.values()])
    order = torch.cat(list(grid.values()))
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(order.device)
    of_place = torch.arange(len(grid)).repeat_interleave(counts).to(order.device)
    return Segments(order, offsets, of_place, None, int(counts.max()), empty=bool(counts.min() == 0))


def _permutations(segments: Segments, *, shared: bool) -> Tensor:
    """(N,) a random place for each point of its cell, by cell."""
    counts, device = segments.counts, segments.order.device
    rows: dict[int, Iterator[Tensor]] = {}
    for count, many in zip(*torch.unique(counts, return_counts=True), strict=True):
        n = int(count.item())
        if shared:
            rows[n] = repeat(torch.randperm(n, device=device))
        else:
            rows[n] = iter(torch.rand(int(many), n, device=device).argsort(dim=1))
    if is_fake(counts):  # as in the loop
        return torch.empty(segments.points, dtype=torch.int64, device=device)
    return torch.cat([next(rows[int(counts[cell].item())]) for cell in range(segments.cells)])


def _spread(values: Tensor, segments: Segments) -> Tensor:
    """(C,) -> (N,): the value of each place's cell."""
    return values.repeat_interleave(segments.counts, output_size=segments.points)
