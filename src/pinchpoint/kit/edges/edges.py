"""Edges of a bipartite graph, ordered by destination: offsets of rows and the source of every edge.

Destinations are not stored: the row an edge lies in tells its own. Sources take 4 bytes, offsets 8,
since the number of edges may pass what 32 bits hold while the number of points does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.validation import require_tensor, whole_number

INT32_MOST = 2**31 - 1


@dataclass(frozen=True)
class Edges:
    """offsets: (Q + 1,) int64; sources: (E,) int32. Row q holds the edges offsets[q] to offsets[q + 1].

    source_count: S, the number of sources there are, with or without edges.
    known_starts: the offsets on the host, where they are known: cutting into chunks then waits for no device, and
    checks nothing.
    """

    offsets: Tensor
    sources: Tensor
    source_count: int
    known_starts: np.ndarray[Any, Any] | None = None

    def __post_init__(self) -> None:
        require_tensor("offsets", self.offsets)
        require_tensor("sources", self.sources)
        if self.offsets.dim() != 1 or self.sources.dim() != 1 or not len(self.offsets):
            raise BadInput(
                f"offsets of shape {tuple(self.offsets.shape)} and sources of shape {tuple(self.sources.shape)}",
                hint="give offsets (Q + 1,) and sources (E,)",
            )
        if self.offsets.dtype is not torch.int64 or self.sources.dtype is not torch.int32:
            raise BadInput(
                f"edges of {self.offsets.dtype} offsets and {self.sources.dtype} sources",
                hint="offsets are int64 and sources int32; Edges.of_index makes them from any index",
            )

    def __len__(self) -> int:
        """E: `count`."""
        return self.count

    def __bool__(self) -> bool:
        """A graph is one without edges too."""
        return True

    def __repr__(self) -> str:
        ends = f"{self.source_count:,} sources to {self.queries:,} destinations"
        return f"Edges({self.count:,} edges from {ends}, {self.sources.device})"

    @property
    def queries(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def count(self) -> int:
        return self.sources.shape[0]

    @cached_property
    def starts(self) -> np.ndarray[Any, Any]:
        """(Q + 1,) int64 on the host: the offsets, copied and checked at most once.

        Sources out of range are refused here too: our kernels on a GPU would read and write beyond the points.
        """
        if self.known_starts is not None:
            return self.known_starts
        starts = self.offsets.cpu().numpy()
        if self.count:
            low, high = torch.stack(torch.aminmax(self.sources)).tolist()
            if low < 0 or high >= self.source_count:
                raise BadInput(
                    f"edges from sources {low:,} to {high:,} where there are {self.source_count:,}",
                    hint=f"sources are numbered from 0 to {self.source_count - 1:,}",
                )
        if starts[0] != 0 or starts[-1] != self.count or bool((np.diff(starts) < 0).any()):
            raise BadInput(
                f"offsets of rows that do not share out {self.count:,} edges",
                hint="offsets begin at 0, never fall and end at the number of edges; Edges.of_index makes them from any index",
            )
        return starts

    def degrees(self) -> Tensor:
        """(Q,) int64."""
        return self.offsets.diff()

    def destinations(self) -> Tensor:
        """(E,) int32: the row of every edge, made anew."""
        rows = torch.arange(self.queries, dtype=torch.int32, device=self.offsets.device)
        return rows.repeat_interleave(self.degrees(), output_size=self.count)

    def to(self, device: str | torch.device) -> Edges:
        return self.mapped(lambda values: values.to(device))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Edges:
        """The same edges with both tensors changed: moved, or pinned."""
        return Edges(change(self.offsets), change(self.sources), self.source_count, self.starts)

    def rows(self, first: int, last: int) -> Edges:
        """Rows first to last as a graph of their own, with the sources of the whole."""
        starts = self.starts[first : last + 1]
        offsets = torch.from_numpy(starts - starts[0]).to(self.offsets.device)
        return Edges(
            offsets, self.sources[int(starts[0]) : int(starts[-1])], self.source_count, starts - starts[0]
        )

    def turned(self) -> Edges:
        """The same edges the other way: rows are sources, in the order of their destinations."""
        order = torch.sort(self.sources, stable=True).indices
        counts = torch.bincount(self.sources, minlength=self.source_count)
        return Edges(offsets_of(counts), self.destinations()[order], self.queries)

    @staticmethod
    def of_index(index: Tensor, *, queries: int, sources: int) -> Edges:
        """From a (2, E) index of (source, destination) in any order; edges of a row keep theirs."""
        require_tensor("edges", index)
        for name, number in (("queries", queries), ("sources", sources)):
            if (found := whole_number(number)) is None or found < 0:
                raise BadInput(f"{name} = {number!r}", hint=f"give the number of {name}, a whole one")
        if index.dim() != 2 or index.shape[0] != 2:
            raise BadInput(
                f"an index of shape {tuple(index.shape)}",
                hint="give (2, E): a row of sources and one of destinations",
            )
        if index.dtype is torch.bool or index.is_floating_point() or index.is_complex():
            raise BadInput(f"an index in {index.dtype}", hint="give whole numbers: index.long()")
        if max(queries, sources) > INT32_MOST:
            raise BadInput(
                f"{max(queries, sources):,} points",
                hint=f"points are numbered in 32 bits: at most {INT32_MOST:,}",
            )
        source, destination = index[0], index[1]
        if index.numel() and (
            int(index.min()) < 0 or int(source.max()) >= sources or int(destination.max()) >= queries
        ):
            raise BadInput(
                f"an index beyond {sources:,} sources and {queries:,} destinations",
                hint="row 0 numbers the sources (of y and f), row 1 the destinations (of x)",
            )
        order = torch.sort(destination, stable=True).indices
        counts = torch.bincount(destination, minlength=queries)
        return Edges(offsets_of(counts), source[order].to(torch.int32), sources)


def offsets_of(counts: Tensor) -> Tensor:
    """Row counts (Q,) to offsets (Q + 1,): summed in int64, exact for any number of edges."""
    offsets = torch.zeros(counts.shape[0] + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets
