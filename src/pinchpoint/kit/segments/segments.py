"""Points grouped by cell: the order of the points, cell after cell, and the offset of each cell.

Segments are built on the device of the ids or coordinates and belong to the caller: nothing is cached
between two clouds. Building waits for the device once, so that a draw does not have to. Letters: N points, C
cells. A place is a position in the order of cells; a point is an index in the caller's order.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.kit.edges.edges import INT32_MOST
from pinchpoint.kit.numba_loops import numba_works
from pinchpoint.kit.segments.cell_size import CellSize, cell_edges, show_cell
from pinchpoint.kit.validation import require_tensor

_INT64_MOST = 2**63 - 1
_MIN_COMPILED = 2**17  # points from which the compiled sort is faster: torch sorts fewer in milliseconds
_MIN_LOAD = 2**23  # points from which it is worth loading the compiler, which takes most of a second
_FLOAT_MOST = 2**53  # integers up to here are exact in float64


@dataclass(frozen=True)
class Segments:
    """Points grouped by cell.

    order: (N,) int32, the point at each place, sorted within a cell; offsets: (C + 1,) int32, non-decreasing.
    of_place: (N,) int32, the cell of each place; ids: (C,) int64, the ids of the cells in ascending order, or
    None for 0 .. C - 1; longest: the most points of a cell; empty: whether a cell has no points. Both are
    known on the host.
    """

    order: Tensor
    offsets: Tensor
    of_place: Tensor
    ids: Tensor | None
    longest: int
    empty: bool

    def __repr__(self) -> str:
        content = f"{self.points:,} points in {self.cells:,} cells, at most {self.longest:,} in one"
        return f"Segments({content}, {self.order.device})"

    @cached_property
    def points(self) -> int:
        """The number of points, N."""
        return self.order.shape[0]

    @cached_property
    def cells(self) -> int:
        """The number of cells, C."""
        return self.offsets.shape[0] - 1

    @property
    def counts(self) -> Tensor:
        """(C,) int32: the number of points of each cell."""
        return self.offsets.diff()

    def of_point(self) -> Tensor:
        """(N,) int32: the cell of each point."""
        cells = torch.empty_like(self.of_place)
        return cells.scatter_(0, self.order.long(), self.of_place)

    def to(self, device: str | torch.device) -> Segments:
        ids = None if self.ids is None else self.ids.to(device)
        tensors = self.order.to(device), self.offsets.to(device), self.of_place.to(device)
        return replace(self, order=tensors[0], offsets=tensors[1], of_place=tensors[2], ids=ids)

    @staticmethod
    def from_ids(ids: Tensor) -> Segments:
        """Group by id. ids: (N,) integers of any size in any order; points with equal ids form one cell."""
        ids = _require_integers("ids", ids)
        _require_count(ids.shape[0])
        return _group(ids, [])[0]

    @staticmethod
    def from_coords(xyz: Tensor, cell: CellSize, batch: Tensor | None = None) -> Segments:
        """Group by the cells of a grid through the origin with edges of length `cell`.

        xyz: (N, 3); cell: one edge, or one each for x, y and z; batch: (N,), the cloud of each point. A
        point's cell is the floor of its coordinates divided by `cell` in float64, the same on every device.
        """
        require_tensor("xyz", xyz)
        if xyz.dim() != 2 or xyz.shape[1] != 3 or not xyz.is_floating_point():
            raise BadInput(
                f"`xyz` has shape {tuple(xyz.shape)} and dtype {xyz.dtype}.",
                hint="Give xyz (N, 3) in float32 or float64.",
            )
        edges = cell_edges(cell)
        _require_count(xyz.shape[0])
        corner = torch.floor(xyz.detach().double() / edge_lengths(cell, xyz.device))
        columns = [corner[:, axis] for axis in range(3)]
        if batch is not None:
            batch = _require_integers("batch", batch)
            if batch.shape[0] != xyz.shape[0]:
                raise BadInput(
                    f"`batch` has {batch.shape[0]:,} entries, but there are {xyz.shape[0]:,} points.",
                    hint="Give one batch number for each point.",
                )
            columns.insert(0, batch.double())
        ids, bounds = _pack(columns)
        segments, bounds_on_host = _group(ids, bounds)
        require_numbered(bounds_on_host, edges)
        return segments

    @staticmethod
    def from_offsets(offsets: Tensor, order: Tensor | None = None) -> Segments:
        """Group by known offsets.

        offsets: (C + 1,) from 0 to N, non-decreasing; order: (N,), each point once, or None if the points are
        already sorted by cell.
        """
        offsets = _require_integers("offsets", offsets)
        if offsets.shape[0] < 2:
            raise BadInput(
                f"`offsets` has {offsets.shape[0]} entries, which describe no cell.",
                hint="Give C + 1 offsets for C cells, from 0 to the number of points.",
            )
        lengths = offsets.diff()
        ends = torch.stack([offsets[0], offsets[-1], *torch.aminmax(lengths)]).tolist()
        first, points, shortest, longest = (int(value) for value in ends)
        if first != 0 or shortest < 0:
            raise BadInput(
                "`offsets` must not decrease." if first == 0 else f"`offsets` starts at {first:,}, not at 0.",
                hint="Give offsets that start at 0, never decrease and end at the number of points; "
                "Segments.from_ids takes ids in any order.",
            )
        _require_count(points)
        if order is None:
            order = torch.arange(points, dtype=torch.int32, device=offsets.device)
        else:
            order = _require_integers("order", order)
            _require_order(order, points)
        cells = torch.arange(offsets.shape[0] - 1, dtype=torch.int32, device=offsets.device)
        of_place = cells.repeat_interleave(lengths, output_size=points)
        return Segments(
            order.to(torch.int32), offsets.to(torch.int32), of_place, None, longest, empty=shortest == 0
        )


def edge_lengths(cell: CellSize, device: torch.device) -> Tensor:
    """Return the edges of a cell as float64 (1,), or (3,) if they differ, without waiting for the device.

    Coordinates are divided by a tensor, because a GPU multiplies by the inverse of a Python number, which
    moves points on a border to other cells.
    """
    edges = cell_edges(cell)
    lengths = edges[:1] if len(set(edges)) == 1 else edges
    return torch.cat([torch.full((1,), length, dtype=torch.float64, device=device) for length in lengths])


def _group(ids: Tensor, scalars: list[Tensor]) -> tuple[Segments, list[float]]:
    """The cells of ids, and the values of the scalar tensors `scalars`, read in the same synchronisation."""
    points, device = ids.shape[0], ids.device
    ordered, order = _sort(ids)
    begins = torch.ones(points, dtype=torch.bool, device=device)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    of_place = begins.cumsum(0, dtype=torch.int32).sub_(1)
    # The first place of each cell is written at the cell's number, all other places one past the end. The
    # entries after the last cell are N, so that lengths are known before the number of cells is.
    starts = torch.full((points + 2,), points, dtype=torch.int32, device=device)
    to = torch.where(begins, of_place, points + 1).long()
    starts.scatter_(0, to, torch.arange(points, dtype=torch.int32, device=device))
    longest = starts[: points + 1].diff().max()
    values = torch.stack([number.double() for number in (of_place[-1], longest, *scalars)]).tolist()
    offsets = starts[: int(values[0]) + 2].clone()
    names = ordered.index_select(0, offsets[:-1]).long()
    return Segments(order.to(torch.int32), offsets, of_place, names, int(values[1]), empty=False), values[2:]


def _sort(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The ids in ascending order, and the points in that order."""
    least = _MIN_COMPILED if "numba" in sys.modules else _MIN_LOAD  # the order is the same either way
    if ids.device.type == "cpu" and ids.shape[0] >= least and not is_fake(ids) and numba_works():
        from pinchpoint.kit.segments import sort_cpu

        if (order := sort_cpu.order_of(ids)) is not None:
            return ids.index_select(0, order), order
    ordered, order = torch.sort(ids, stable=True)
    return ordered, order


def _pack(columns: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Combine integers in float64, one column per axis, to one int64 that sorts by the first column first.

    Also returns the minimum and maximum of each column, which `require_numbered` checks later, on the host.
    """
    numbers = torch.zeros_like(columns[0], dtype=torch.int64)
    bounds = [torch.aminmax(column) for column in columns]
    for column, (low, high) in zip(columns, bounds, strict=True):
        numbers.mul_((high - low + 1).long()).add_((column - low).long())
    return numbers, [bound for pair in bounds for bound in pair]


def require_numbered(bounds: list[float], cell: CellSize) -> None:
    """Raise `BadInput` if one int64 cannot number the cells. bounds: the minimum and maximum of each axis."""
    if not all(math.isfinite(bound) for bound in bounds):
        raise BadInput(
            "`xyz` contains NaN or infinite coordinates.",
            hint="Remove those points first: xyz[xyz.isfinite().all(1)].",
        )
    spans = [int(high) - int(low) + 1 for low, high in zip(bounds[0::2], bounds[1::2], strict=True)]
    if max(abs(bound) for bound in bounds) > _FLOAT_MOST:
        factor = max(abs(bound) for bound in bounds[-6:]) / _FLOAT_MOST
        raise BadInput(
            f"Cells of size {show_cell(cell)} cannot be distinguished in float64 this far from 0.",
            hint=f"Give a cell size of at least {show_cell(cell, 2 * factor)}.",
        )
    if math.prod(spans) > _INT64_MOST:
        grid = " x ".join(f"{span:,}" for span in spans[-3:])
        factor = (math.prod(spans) / _INT64_MOST) ** (1 / 3)
        raise BadInput(
            f"Cells of size {show_cell(cell)} make a grid of {grid}, which is more than 64 bits can number.",
            hint=f"Give a cell size of at least {show_cell(cell, 1.1 * factor)}.",
        )


def _require_integers(name: str, values: Tensor) -> Tensor:
    """Check that the values are integers on one axis, in a dtype that torch can sort."""
    require_tensor(name, values)
    if values.dim() != 1 or values.dtype is torch.bool or values.is_floating_point() or values.is_complex():
        raise BadInput(
            f"`{name}` has shape {tuple(values.shape)} and dtype {values.dtype}, not one row of integers.",
            hint=f"Give {name} as one row of integers.",
        )
    if values.dtype is torch.uint64:
        raise BadInput(
            f"`{name}` is torch.uint64, which torch cannot sort.",
            hint=f"Give {name} below 2**63 as int64: {name}.long().",
        )
    return values.long() if values.dtype in (torch.uint16, torch.uint32) else values


def _require_count(points: int) -> None:
    if not points:
        raise BadInput("The cloud has no points.", hint="Give at least one point.")
    if points > INT32_MOST:
        raise BadInput(
            f"There are {points:,} points; points are numbered in 32 bits.",
            hint=f"Give at most {INT32_MOST:,} points.",
        )


def _require_order(order: Tensor, points: int) -> None:
    if order.shape[0] != points:
        raise BadInput(
            f"`order` has {order.shape[0]:,} points, but `offsets` ends at {points:,}.",
            hint="Give each point once.",
        )
    is_listed = torch.zeros(points, dtype=torch.bool, device=order.device).index_fill_(
        0, order.long().clamp(0, points - 1), True
    )
    if not bool((is_listed & (order >= 0) & (order < points)).all()):
        raise BadInput("`order` has missing points.", hint=f"Give each number from 0 to {points - 1:,} once.")
