"""Runs of whole rows of a graph, few enough edges at one time, and sums along them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit.edges.edges import Edges

LOOKED_AT = 256  # chunks of a transform that are gone through where its peak is predicted


@dataclass(frozen=True)
class Rows:
    """Rows first to last of a graph, whose edges are begin to end; or a piece of one row that is too long."""

    edges: Edges
    first: int
    last: int
    begin: int
    end: int
    piece: bool = False

    @staticmethod
    def all_of(edges: Edges) -> Rows:
        return Rows(edges, 0, edges.queries, 0, edges.count)

    @property
    def count(self) -> int:
        """e, the edges of the run."""
        return self.end - self.begin

    def degrees(self) -> Tensor:
        """(q,) int64: the edges of each row that lie in this run."""
        if self.piece:
            return torch.full((1,), self.count, dtype=torch.int64, device=self.edges.offsets.device)
        return self.edges.offsets[self.first : self.last + 1].diff()

    def sources(self) -> Tensor:
        """(e,) int32."""
        return self.edges.sources[self.begin : self.end]

    def destinations(self) -> Tensor:
        """(e,) int64, numbered as in the whole graph."""
        return self.local() + self.first

    def local(self) -> Tensor:
        """(e,) int64: the row of every edge, from 0."""
        rows = torch.arange(self.last - self.first, device=self.edges.offsets.device)
        return rows.repeat_interleave(self.degrees(), output_size=self.count)

    def sum(self, values: Tensor) -> Tensor:
        """(e, C) to (q, C), each row summed in order: the same bits every time."""
        if values.shape[0] == 0:  # zeros, and still part of the graph that backward goes through
            return values.new_zeros(self.last - self.first, *values.shape[1:]).index_add(
                0, self.local(), values
            )
        return torch.segment_reduce(values, "sum", lengths=self.degrees(), axis=0, unsafe=True, initial=0)

    def largest(self, values: Tensor) -> Tensor:
        """(e, C) to (q, C), -inf for a row without edges."""
        if values.shape[0] == 0:
            return values.new_full((self.last - self.first, *values.shape[1:]), -torch.inf)
        return torch.segment_reduce(values, "max", lengths=self.degrees(), axis=0, unsafe=True)

    def softmax(self, scores: Tensor) -> Tensor:
        """(e, 1) to (e, 1): over the edges of each row, shifted by the row's largest."""
        local = self.local()
        shifted = torch.exp(scores - self.largest(scores.detach()).index_select(0, local))
        return shifted / self.sum(shifted).index_select(0, local)


def row_chunks(edges: Edges, chunk: int, *, cut: bool = False) -> Iterator[Rows]:
    """Runs of whole rows with at most `chunk` edges each.

    A row with more is a run of its own, or with `cut` several pieces, one after the other.
    """
    starts, first = edges.starts, 0
    while first < edges.queries:
        begin = int(starts[first])
        last = int(np.searchsorted(starts, begin + chunk, side="right")) - 1
        if last > first:
            last = min(last, edges.queries)
            yield Rows(edges, first, last, begin, int(starts[last]))
        else:
            last, end = first + 1, int(starts[first + 1])
            step = chunk if cut else end - begin
            for at in range(begin, end, step):
                yield Rows(edges, first, last, at, min(at + step, end), piece=cut)
        first = last


def looked_at(parts: list[Rows]) -> list[Rows]:
    """The chunks that tell what all of them take: with nothing to compute, a thousandth of a billion edges is enough.

    The longest, the one of the most rows and the last are among them; the others are spread over all. A few hundred are
    taken as they are, so that what an allocator makes of chunks of unequal length shows.
    """
    if len(parts) <= LOOKED_AT:
        return parts
    numbers = set(range(0, len(parts), -(-len(parts) // LOOKED_AT))) | {len(parts) - 1}
    numbers.add(max(range(len(parts)), key=lambda at: parts[at].count))
    numbers.add(max(range(len(parts)), key=lambda at: parts[at].last - parts[at].first))
    return [parts[at] for at in sorted(numbers)]
