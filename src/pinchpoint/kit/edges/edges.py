"""Edges of a bipartite graph, ordered by destination: row offsets and the source of every edge.

Destinations are not stored: the row of an edge is its destination. Sources take 4 bytes and offsets 8,
since the number of edges may exceed 32 bits while the number of points does not.
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
    """A graph in compressed sparse row format: row q has the edges offsets[q] to offsets[q + 1].

    offsets: (Q + 1,) int64; sources: (E,) int32. source_count: S, the number of sources, with or without
    edges. known_starts: the offsets on the host, if known; splitting into chunks then neither waits for the
    device nor checks anything.
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
                f"`offsets` has shape {tuple(self.offsets.shape)} and `sources` has shape "
                f"{tuple(self.sources.shape)}; both must have one axis, and `offsets` at least one entry.",
                hint="Give offsets (Q + 1,) and sources (E,).",
            )
        if self.offsets.dtype is not torch.int64 or self.sources.dtype is not torch.int32:
            raise BadInput(
                f"`offsets` is {self.offsets.dtype} and `sources` is {self.sources.dtype}; they must be "
                "int64 and int32.",
                hint="Convert them, or build the edges from any index with Edges.from_index.",
            )

    def __len__(self) -> int:
        """The number of edges, E."""
        return self.count

    def __bool__(self) -> bool:
        """True even for a graph without edges."""
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

        Also raises `BadInput` for sources out of range, for which our GPU kernels would read and write
        beyond the points.
        """
        if self.known_starts is not None:
            return self.known_starts
        starts = self.offsets.cpu().numpy()
        if self.count:
            low, high = torch.stack(torch.aminmax(self.sources)).tolist()
            if low < 0 or high >= self.source_count:
                raise BadInput(
                    f"The edges name sources from {low:,} to {high:,}, but there are {self.source_count:,}.",
                    hint=f"Number the sources from 0 to {self.source_count - 1:,}.",
                )
        if starts[0] != 0 or starts[-1] != self.count or bool((np.diff(starts) < 0).any()):
            raise BadInput(
                f"`offsets` does not divide {self.count:,} edges into rows: it must start at 0, never "
                f"decrease and end at {self.count:,}.",
                hint="Correct the offsets, or build the edges from any index with Edges.from_index.",
            )
        return starts

    @cached_property
    def plans(self) -> dict[tuple[Any, ...], Any]:
        """How transforms of this graph run, by what that depends on: plain values, a few and no tensors."""
        return {}

    def degrees(self) -> Tensor:
        """The number of edges of each row: (Q,) int64."""
        return self.offsets.diff()

    def destinations(self) -> Tensor:
        """(E,) int32: the row of every edge, computed on each call."""
        rows = torch.arange(self.queries, dtype=torch.int32, device=self.offsets.device)
        return rows.repeat_interleave(self.degrees(), output_size=self.count)

    def to(self, device: str | torch.device) -> Edges:
        return self.apply(lambda values: values.to(device))

    def apply(self, function: Callable[[Tensor], Tensor]) -> Edges:
        """The same edges with both tensors passed through a function that moves or pins them."""
        return Edges(function(self.offsets), function(self.sources), self.source_count, self.starts)

    def rows(self, first: int, last: int) -> Edges:
        """Rows first to last as a separate graph, with all sources of this one."""
        starts = self.starts[first : last + 1]
        offsets = torch.from_numpy(starts - starts[0]).to(self.offsets.device)
        return Edges(
            offsets, self.sources[int(starts[0]) : int(starts[-1])], self.source_count, starts - starts[0]
        )

    def transpose(self) -> Edges:
        """The reversed edges: rows are sources, and the edges of a row are sorted by destination."""
        order = torch.sort(self.sources, stable=True).indices
        counts = torch.bincount(self.sources, minlength=self.source_count)
        return Edges(offsets_of(counts), self.destinations()[order], self.queries)

    @staticmethod
    def from_index(index: Tensor, *, queries: int, sources: int) -> Edges:
        """Edges from a (2, E) index of (source, destination) in any order; each row keeps that order."""
        require_tensor(
            "edges",
            index,
            hint="Build the edges with radius_edges(x, y, radius), or give a (2, E) tensor of (source, "
            "destination).",
        )
        for name, number in (("queries", queries), ("sources", sources)):
            if (count := whole_number(number)) is None or count < 0:
                raise BadInput(
                    f"`{name}` is {number!r}, not a whole number of at least 0.",
                    hint=f"Give the number of {name}.",
                )
        if index.dim() != 2 or index.shape[0] != 2:
            raise BadInput(
                f"The index has shape {tuple(index.shape)}, not (2, E).",
                hint="Give (2, E): a row of sources and a row of destinations.",
            )
        if index.dtype is torch.bool or index.is_floating_point() or index.is_complex():
            raise BadInput(
                f"The index is {index.dtype}; it must hold integers.", hint="Convert it: index.long()."
            )
        if max(queries, sources) > INT32_MOST:
            raise BadInput(
                f"There are {max(queries, sources):,} points; points are numbered in 32 bits.",
                hint=f"Give at most {INT32_MOST:,} points.",
            )
        source, destination = index[0], index[1]
        if index.numel() and (
            int(index.min()) < 0 or int(source.max()) >= sources or int(destination.max()) >= queries
        ):
            raise _out_of_range(source, sources, destination, queries)
        order = torch.sort(destination, stable=True).indices
        counts = torch.bincount(destination, minlength=queries)
        return Edges(offsets_of(counts), source[order].to(torch.int32), sources)


def _out_of_range(source: Tensor, sources: int, destination: Tensor, queries: int) -> BadInput:
    for row, name, points in ((source, "source", sources), (destination, "destination", queries)):
        low, high = int(row.min()), int(row.max())
        if low < 0 or high >= points:
            return BadInput(
                f"The index names {name} {low if low < 0 else high:,}, but there are {points:,}.",
                hint="Number the points from 0, and put the sources (rows of y and f) in row 0 and the "
                "destinations (rows of x) in row 1.",
            )
    raise AssertionError("every number is in range")


def offsets_of(counts: Tensor) -> Tensor:
    """Offsets (Q + 1,) from row counts (Q,), summed in int64: exact for any number of edges."""
    offsets = torch.zeros(counts.shape[0] + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets
