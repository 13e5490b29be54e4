"""Points on a curved sheet, the lattice around it, and a graph between them with an exact number of edges.

Letters: P points, M columns of cells, K = 32 edges per point, E edges, L tokens. The sheet is a height over
the plane, like a car's body seen from above. The plane is divided into M columns of lattice cells with
equally many points; every point is connected to the 4 x 4 x 2 tokens around its column's part of the sheet.
The last point gets the remaining edges, so that E can be any number.

The counts of every row follow from P on the host: there is no search, nothing is read back from the device,
and the graph of 100 million edges is built on the device in a second, block by block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, Lattice
from pinchpoint.kit.edges.edges import INT32_MOST

LATTICE = Lattice((32, 32, 16), (-1.0, -1.0, -0.5), (1.0, 1.0, 0.5))
ACROSS = (-1, 0, 1, 2)  # tokens of a point along x and y, from its cell's lower corner
UP = (0, 1)
K = len(ACROSS) ** 2 * len(UP)
# Edges numbered together (3 MB beside the graph itself), and the most blocks.
_BLOCK, _BLOCKS = 1 << 18, 512
# Powers of 1/g with g**3 = g + 1: two strides that fill a square evenly with any number of points.
_STRIDES = (0.7548776662466927, 0.5698402909980532)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sheet:
    """P points of the sheet, for `edges` edges in each direction."""

    edges: int

    def __post_init__(self) -> None:
        if self.edges < 1:
            raise BadInput(
                f"The size is {self.edges} edges; it must be at least 1.", hint="Give a size of at least 1."
            )
        if self.count > INT32_MOST:
            raise BadInput(
                f"The size is {self.edges:,} edges; points are numbered in 32 bits.",
                hint=f"Give at most {K * INT32_MOST:,} edges.",
            )

    @property
    def count(self) -> int:
        """P."""
        return -(-self.edges // K)

    @property
    def starts(self) -> Array:
        """(M + 1,) the first point of every column; their sizes differ by at most one."""
        columns = len(_columns())
        return np.arange(columns + 1, dtype=np.int64) * self.count // columns

    def points(self, *, seed: int, device: str) -> Tensor:
        """(P, 3) on the sheet, in the order of their columns."""
        columns = torch.from_numpy(_columns()).to(device)
        corner = columns.index_select(0, self.column_of_point(device)).double()
        # In float64: at point 1e8 a float32 product would lose all fractional digits.
        index = torch.arange(1, self.count + 1, dtype=torch.float64, device=device)[:, None]
        within = torch.frac(
            index * torch.tensor(_STRIDES, dtype=torch.float64, device=device)
            + 0.618033988749895 * seed % 1.0
        )
        low, step = (
            torch.tensor(pair[:2], dtype=torch.float64, device=device)
            for pair in (LATTICE.low, LATTICE.spacing)
        )
        plane = low + (corner + within) * step
        height = 0.35 * torch.cos(1.4 * plane[:, :1]) * torch.cos(1.1 * plane[:, 1:]) - 0.1
        return torch.cat([plane, height], dim=1).float()

    def column_of_point(self, device: str) -> Tensor:
        """(P,) int64."""
        counts = torch.from_numpy(np.diff(self.starts)).to(device)
        return torch.arange(len(counts), device=device).repeat_interleave(counts, output_size=self.count)

    def into_points(self, device: str) -> Edges:
        """The decoder's edges: rows are points, sources are tokens."""
        tokens = torch.from_numpy(_tokens()).to(device)
        sources = tokens.index_select(0, self.column_of_point(device)).reshape(-1)[: self.edges]
        starts = np.minimum(np.arange(self.count + 1, dtype=np.int64) * K, self.edges)
        return Edges(torch.from_numpy(starts).to(device), sources, LATTICE.count, starts)

    def into_tokens(self, device: str) -> Edges:
        """The encoder's edges: rows are tokens, sources are points; the same edges reversed.

        The points of a column have consecutive numbers, so a token's row is one run for each column around
        it.
        """
        tokens = _tokens().reshape(-1)  # (M * K,)
        order = np.argsort(tokens, kind="stable")
        column, place = order // K, order % K
        lengths = np.diff(self.starts)[column]
        last_edges = self.edges - (self.count - 1) * K  # edges of the last point
        lengths -= (column == len(_columns()) - 1) & (place >= last_edges)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        first = self.starts[column]
        sources = torch.empty(self.edges, dtype=torch.int32, device=device)
        block = max(_BLOCK, -(-self.edges // _BLOCKS))
        for at in range(0, self.edges, block):
            stop = min(at + block, self.edges)
            runs = slice(
                int(np.searchsorted(ends, at, side="right")), int(np.searchsorted(begins, stop, side="left"))
            )
            repeats = np.minimum(ends[runs], stop) - np.maximum(begins[runs], at)
            shift = torch.from_numpy((first[runs] + at - begins[runs]).astype(np.int32)).to(device)
            sources[at:stop] = torch.arange(stop - at, dtype=torch.int32, device=device)
            sources[at:stop] += shift.repeat_interleave(
                torch.from_numpy(repeats).to(device), output_size=stop - at
            )
        starts = np.zeros(LATTICE.count + 1, dtype=np.int64)
        np.cumsum(np.bincount(tokens, minlength=LATTICE.count), out=starts[1:])
        starts = np.concatenate([[0], ends])[starts]  # from runs of a row to edges
        return Edges(torch.from_numpy(starts).to(device), sources, self.count, starts)


def reach() -> float:
    """A bound on the length of an edge: the farthest of the 4 x 4 x 2 tokens, and the rise in half a cell."""
    x, y, z = LATTICE.spacing
    return math.hypot(2 * x, 2 * y, z + 0.5 * (x + y) * 0.5)


def _columns() -> Array:
    """(M, 2) int64: the lower corner of every cell of the plane with tokens on all sides."""
    x, y, _ = LATTICE.shape
    low, high = -min(ACROSS), max(ACROSS)
    both = np.meshgrid(np.arange(low, x - high), np.arange(low, y - high), indexing="ij")
    return np.stack(both, axis=-1).reshape(-1, 2)


def _tokens() -> Array:
    """(M, K) int32: the tokens around every column's part of the sheet."""
    columns = _columns()
    low, step = np.array(LATTICE.low), np.array(LATTICE.spacing)
    middle = low[:2] + (columns + 0.5) * step[:2]
    height = 0.35 * np.cos(1.4 * middle[:, 0]) * np.cos(1.1 * middle[:, 1]) - 0.1
    level = np.floor((height - low[2]) / step[2]).astype(np.int64)
    i = columns[:, 0, None, None, None] + np.array(ACROSS)[:, None, None]
    j = columns[:, 1, None, None, None] + np.array(ACROSS)[:, None]
    k = level[:, None, None, None] + np.array(UP)
    _, y, z = LATTICE.shape
    return ((i * y + j) * z + k).reshape(len(columns), K).astype(np.int32)
