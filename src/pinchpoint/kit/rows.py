"""Runs of whole rows of a graph, few enough edges at one time, and sums along them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.kit.edges import Edges


@dataclass(frozen=True)
class Rows:
    """Rows first to last of a graph, whose edges are begin to end."""

    edges: Edges
    first: int
    last: int
    begin: int
    end: int

    @staticmethod
    def all_of(edges: Edges) -> Rows:
        return Rows(edges, 0, edges.queries, 0, edges.count)

    def degrees(self) -> Tensor:
        """(q,) int64."""
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
        return rows.repeat_interleave(self.degrees(), output_size=self.end - self.begin)

    def sum(self, values: Tensor) -> Tensor:
        """(e, C) to (q, C), each row summed in order: the same bits every time."""
        if values.shape[0] == 0:
            return values.new_zeros(self.last - self.first, *values.shape[1:])
        return torch.segment_reduce(values, "sum", lengths=self.degrees(), axis=0, unsafe=True, initial=0)

    def softmax(self, scores: Tensor) -> Tensor:
        """(e, 1) to (e, 1): over the edges of each row, shifted by the row's largest."""
        local = self.local()
        largest = torch.segment_reduce(scores.detach(), "max", lengths=self.degrees(), axis=0, unsafe=True)
        shifted = torch.exp(scores - largest.index_select(0, local))
        return shifted / self.sum(shifted).index_select(0, local)


def row_chunks(edges: Edges, chunk: int) -> Iterator[Rows]:
    """Runs of whole rows with at most `chunk` edges each; a row with more is a run of its own."""
    offsets = edges.offsets.tolist()
    first = 0
    for row in range(1, edges.queries + 1):
        if offsets[row] - offsets[first] > chunk and row - 1 > first:
            yield Rows(edges, first, row - 1, offsets[first], offsets[row - 1])
            first = row - 1
    if edges.queries:
        yield Rows(edges, first, edges.queries, offsets[first], offsets[edges.queries])
