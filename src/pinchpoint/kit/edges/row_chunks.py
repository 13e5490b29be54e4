"""Chunks of whole rows of a graph with a limited number of edges, and reductions over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit.edges.edges import Edges

TRACED_CHUNKS = 256  # number of chunks that run when the peak of a transform is predicted


@dataclass(frozen=True)
class Rows:
    """Rows first to last of a graph, with edges begin to end; or a piece of one row that is too long."""

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
        """The number of edges, e."""
        return self.end - self.begin

    @property
    def continues(self) -> bool:
        """Whether this is a later piece of a row."""
        return self.piece and self.begin > int(self.edges.starts[self.first])

    def degrees(self) -> Tensor:
        """(q,) int64: the number of edges of each row in this chunk."""
        if self.piece:
            return torch.full((1,), self.count, dtype=torch.int64, device=self.edges.offsets.device)
        return self.edges.offsets[self.first : self.last + 1].diff()

    def sources(self) -> Tensor:
        """The source of every edge: (e,) int32."""
        return self.edges.sources[self.begin : self.end]

    def destinations(self) -> Tensor:
        """The row of every edge, numbered as in the whole graph: (e,) int64."""
        return self.local() + self.first

    def local(self) -> Tensor:
        """The row of every edge, numbered from 0 within the chunk: (e,) int64."""
        rows = torch.arange(self.last - self.first, device=self.edges.offsets.device)
        return rows.repeat_interleave(self.degrees(), output_size=self.count)

    def sum(self, values: Tensor) -> Tensor:
        """Sum (e, C) over each row to (q, C), in order: bit for bit the same every time."""
        if values.shape[0] == 0:  # return zeros that are still part of autograd's graph
            return values.new_zeros(self.last - self.first, *values.shape[1:]).index_add(
                0, self.local(), values
            )
        return torch.segment_reduce(values, "sum", lengths=self.degrees(), axis=0, unsafe=True, initial=0)

    def largest(self, values: Tensor) -> Tensor:
        """(e, C) to (q, C): the largest of each row, -inf for a row without edges."""
        if values.shape[0] == 0:
            return values.new_full((self.last - self.first, *values.shape[1:]), -torch.inf)
        return torch.segment_reduce(values, "max", lengths=self.degrees(), axis=0, unsafe=True)

    def maximum(self, values: Tensor) -> Tensor:
        """(e, C) to (q, C): the largest of each row, 0 for a row without edges.

        Values that are equally large share the gradient.
        """
        if values.shape[0] == 0:
            return self.sum(values)
        fixed, local = values.detach(), self.local()
        largest = torch.where(self.degrees()[:, None] > 0, self.largest(fixed), 0)
        if not values.requires_grad:
            return largest
        # torch shares a positive gradient among equal values, but gives each of them all of a negative one.
        holds = fixed == largest.index_select(0, local)
        ties = self.sum(holds.to(torch.float32)).clamp_min_(1).to(values.dtype)
        shares = self.sum(torch.where(holds & fixed.isfinite(), values - fixed, 0)) / ties
        return largest + shares

    def softmax(self, scores: Tensor) -> Tensor:
        """(e, 1) to (e, 1): the softmax over the edges of each row, shifted by the row's largest score."""
        local = self.local()
        powers = torch.exp(scores - self.largest(scores.detach()).index_select(0, local))
        return powers / self.sum(powers).index_select(0, local)


def row_chunks(edges: Edges, chunk: int, *, split_rows: bool = False) -> Iterator[Rows]:
    """Split a graph into chunks of whole rows with at most `chunk` edges each.

    A longer row is a chunk of its own, or, with `split_rows`, several pieces one after the other.
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
            step = chunk if split_rows else end - begin
            for at in range(begin, end, step):
                yield Rows(edges, first, last, at, min(at + step, end), piece=split_rows)
        first = last


def chunks_to_trace(parts: list[Rows]) -> list[Rows]:
    """A subset of chunks that is enough to predict the peak: about a thousandth of a billion edges.

    It includes the longest chunk, the one with the most rows and the last; the others are spread evenly. If
    there are only a few hundred chunks, all are used, because their unequal lengths affect the allocator.
    """
    if len(parts) <= TRACED_CHUNKS:
        return parts
    numbers = set(range(0, len(parts), -(-len(parts) // TRACED_CHUNKS))) | {len(parts) - 1}
    numbers.add(max(range(len(parts)), key=lambda at: parts[at].count))
    numbers.add(max(range(len(parts)), key=lambda at: parts[at].last - parts[at].first))
    return [parts[at] for at in sorted(numbers)]
