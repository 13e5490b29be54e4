"""Baseline: the sampler of the point-cloud report, rewritten from its description.

Letters: N points, C cells, M drawn points. `draws_per_cell` is (C,), the number of points to draw from each
cell. `loop` and `grouped` draw from cells as the report describes, and draw correctly. With `shared`,
`grouped` uses one permutation for all cells with the same count, as the report does, so such cells draw the
same places. `GridSampler` is the whole sampler: it takes a dictionary of cells, computes their counts at
every draw or reads them from a cache, and also returns ratios. `prefix` and the cache reproduce two faults
of the report's sampler: permutations that are never used, and scenes identified by their size alone. Where
the report leaves a choice, this module uses the faster one.
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


def loop(segments: Segments, draws_per_cell: Tensor) -> Tensor:
    """Return (M,) points, one cell after another, reading three numbers per cell from the device."""
    counts, offsets, order = segments.counts, segments.offsets, segments.order
    if is_fake(order):  # reading cell by cell takes minutes on fake tensors; only these blocks stay allocated
        return torch.cat([order.new_empty(count) for count in draws_per_cell.tolist()])
    points: list[Tensor] = []
    for cell in range(segments.cells):
        count = int(counts[cell].item())
        draws = int(draws_per_cell[cell].item())
        start = int(offsets[cell].item())
        points.append(order[start + torch.randperm(count, device=order.device)[:draws]])
    return torch.cat(points)


def grouped(segments: Segments, draws_per_cell: Tensor, *, shared: bool = False) -> Tensor:
    """Return (M,) points, drawn with permutations that are generated together for all cells of one count.

    Each point has a random rank within its cell and is drawn if its rank is below the number of draws of
    that cell. The ranks are concatenated cell by cell, which reads every count from the device. shared: use
    one permutation for all cells with the same count, instead of one per cell.
    """
    is_drawn = _ranks_in_cell(segments, shared=shared) < _to_points(draws_per_cell, segments)
    return segments.order[torch.where(is_drawn)[0]]


def prefix(segments: Segments, draws_per_cell: Tensor) -> Tensor:
    """Return (M,) points, always the first of each cell.

    Reproduces a fault: the permutations are generated as in `grouped`, but never used.
    """
    _ranks_in_cell(segments, shared=True)
    starts = _to_points(segments.offsets[:-1], segments)
    within = torch.arange(segments.points, device=starts.device) - starts
    return segments.order[torch.where(within < _to_points(draws_per_cell, segments))[0]]


def grid_of(segments: Segments) -> Grid:
    """Return the cells as the dictionary that the point-cloud report uses."""
    return dict(enumerate(segments.order.long().split(segments.counts.tolist())))


@dataclass
class GridSampler:
    """The sampler of the point-cloud report.

    cache: the cells of each scene, with (number of points, number of cells) as the key. Two scenes of the
    same size therefore share an entry, which is a fault of the report's sampler.
    """

    cache: dict[tuple[int, int], Segments] = field(default_factory=dict)

    def by_loop(self, grid: Grid, draws_per_cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the drawn points (M,) and the ratio drawn from each cell (C,); recounts the cells."""
        segments = _segments_of(grid)
        return loop(segments, draws_per_cell), draws_per_cell / segments.counts

    def by_count(self, grid: Grid, draws_per_cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the drawn points (M,) and the ratio drawn from the cell of each (M,); uses the cache."""
        segments = self.cached_segments(grid)
        ranks, draws = _ranks_in_cell(segments, shared=True), _to_points(draws_per_cell, segments)
        places = torch.where(ranks < draws)[0]
        return segments.order[places], draws[places] / _to_points(segments.counts, segments)[places]

    def cached_segments(self, grid: Grid) -> Segments:
        """Return the cells of the first scene with the size of this grid."""
        key = sum(len(points) for points in grid.values()), len(grid)
        if key not in self.cache:
            self.cache[key] = _segments_of(grid)
        return self.cache[key]


def _segments_of(grid: Grid) -> Segments:
    counts = torch.tensor([len(points) for points in grid.values()])
    order = torch.cat(list(grid.values()))
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(order.device)
    of_place = torch.arange(len(grid)).repeat_interleave(counts).to(order.device)
    return Segments(order, offsets, of_place, None, int(counts.max()), empty=bool(counts.min() == 0))


def _ranks_in_cell(segments: Segments, *, shared: bool) -> Tensor:
    """Return (N,) the random rank of each point within its cell, ordered by cell."""
    counts, device = segments.counts, segments.order.device
    permutations: dict[int, Iterator[Tensor]] = {}
    for count, cells in zip(*torch.unique(counts, return_counts=True), strict=True):
        n = int(count.item())
        if shared:
            permutations[n] = repeat(torch.randperm(n, device=device))
        else:
            permutations[n] = iter(torch.rand(int(cells), n, device=device).argsort(dim=1))
    if is_fake(counts):  # for the same reason as in `loop`
        return torch.empty(segments.points, dtype=torch.int64, device=device)
    return torch.cat([next(permutations[int(counts[cell].item())]) for cell in range(segments.cells)])


def _to_points(values: Tensor, segments: Segments) -> Tensor:
    """Repeat the value of each cell (C,) for all of its points (N,)."""
    return values.repeat_interleave(segments.counts, output_size=segments.points)
