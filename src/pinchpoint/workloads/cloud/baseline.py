"""The sampling of an earlier trainer, written anew from its report: what ours is held against.

`loop` and `grouped` do the work the report describes and draw as they should; `grouped` with `shared` makes one permutation
for all cells of one count, as the report does, so that such cells draw alike. `prefix` and `Remembering` are its faults as
they were: permutations that are made and never used, and a cache that knows a scene by its size. Where the report leaves a
choice, the quicker one is taken. N points, C cells, M points drawn, wanted: (C,) how many of each cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pinchpoint.kit.segments import Segments

Draw = Callable[[Segments, Tensor], Tensor]


def loop(segments: Segments, wanted: Tensor, *, cells: int | None = None) -> Tensor:
    """(M,) points, one cell after another: three numbers read from the device for each. cells: the first so many alone."""
    counts, offsets, order = segments.counts, segments.offsets, segments.order
    drawn: list[Tensor] = []
    for cell in range(segments.cells if cells is None else cells):
        count = int(counts[cell].item())
        take = int(wanted[cell].item())
        start = int(offsets[cell].item())
        chosen = torch.randperm(count, device=order.device)[:take]
        drawn.append(order[start + chosen])
    return torch.cat(drawn)


def grouped(segments: Segments, wanted: Tensor, *, shared: bool = False) -> Tensor:
    """(M,) points: permutations by count, laid out cell by cell by a comprehension that reads every count.

    A point is taken where its place in the permutation is below what its cell wants. shared: one permutation a count;
    else one a cell, all of one count made together.
    """
    ranks = _permutations(segments.counts, shared=shared)
    taken = ranks < _spread(wanted, segments)
    return segments.order[torch.where(taken)[0]]


def prefix(segments: Segments, wanted: Tensor) -> Tensor:
    """(M,) points, the first of each cell: permutations are made as `grouped` makes them, and never used."""
    _permutations(segments.counts, shared=True)
    starts = _spread(segments.offsets[:-1], segments)
    within = torch.arange(segments.points, device=starts.device) - starts
    return segments.order[torch.where(within < _spread(wanted, segments))[0]]


@dataclass
class Remembering:
    """A sampler that keeps what it found out of a scene under (points, cells): another scene of that size gets it too."""

    draw: Draw
    held: dict[tuple[int, int], Segments] = field(default_factory=dict)

    def __call__(self, segments: Segments, wanted: Tensor) -> Tensor:
        known = self.held.setdefault((segments.points, segments.cells), segments)
        return self.draw(replace(segments, order=known.order), wanted)


def _permutations(counts: Tensor, *, shared: bool) -> Tensor:
    """(N,) a random place for each point of its cell, by cell."""
    device = counts.device
    if shared:
        perms = {int(count.item()): torch.randperm(int(count), device=device) for count in torch.unique(counts)}
        return torch.cat([perms[counts[cell].item()] for cell in range(len(counts))])
    found, cells = torch.unique(counts, return_counts=True)
    rows = {
        int(count.item()): iter(torch.rand(int(many), int(count), device=device).argsort(dim=1))
        for count, many in zip(found, cells, strict=True)
    }
    return torch.cat([next(rows[counts[cell].item()]) for cell in range(len(counts))])


def _spread(values: Tensor, segments: Segments) -> Tensor:
    """(C,) -> (N,): the value of each place's cell."""
    return values.repeat_interleave(segments.counts)
