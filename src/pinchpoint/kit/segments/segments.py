"""Points grouped by cell: the order of the points, cell after cell, and where each cell begins.

Built on the device the ids or coordinates lie on and owned by the caller: nothing is remembered between two
clouds. Building waits for the device once, so that a draw need not.
Letters: N points, C cells. A place is a position in the order of cells; a point is one in the caller's own.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.kit.edges.edges import INT32_MOST
from pinchpoint.kit.numba_loops import numba_works
from pinchpoint.kit.validation import require_tensor

_INT64_MOST = 2**63 - 1
_MANY = 2**17  # points from which a compiled order is quicker: torch sorts fewer in milliseconds
_VERY_MANY = 2**23  # from which it is worth loading a compiler for, which takes most of a second
_FLOAT_MOST = 2**53  # whole numbers up to here are exact in float64


@dataclass(frozen=True)
class Segments:
    """order: (N,) int32, the point at each place, in a cell by number; offsets: (C + 1,) int32, never falling.

    of_place: (N,) int32, the cell of each place; ids: (C,) int64, the cells' own names in rising order, or None for
    0 .. C - 1; longest: the most points of a cell; empty: are there cells without any? Both are known on the host.
    """

    order: Tensor
    offsets: Tensor
    of_place: Tensor
    ids: Tensor | None
    longest: int
    empty: bool

    def __repr__(self) -> str:
        held = f"{self.points:,} points in {self.cells:,} cells, at most {self.longest:,} in one"
        return f"Segments({held}, {self.order.device})"

    @property
    def points(self) -> int:
        """N."""
        return self.order.shape[0]

    @property
    def cells(self) -> int:
        """C."""
        return self.offsets.shape[0] - 1

    @property
    def counts(self) -> Tensor:
        """(C,) int32: the points of each cell."""
        return self.offsets.diff()

    def of_point(self) -> Tensor:
        """(N,) int32: the cell of each point."""
        cells = torch.empty_like(self.of_place)
        return cells.scatter_(0, self.order.long(), self.of_place)

    def to(self, device: str | torch.device) -> Segments:
        ids = None if self.ids is None else self.ids.to(device)
        moved = self.order.to(device), self.offsets.to(device), self.of_place.to(device)
        return replace(self, order=moved[0], offsets=moved[1], of_place=moved[2], ids=ids)

    @staticmethod
    def from_ids(ids: Tensor) -> Segments:
        """ids: (N,) whole numbers of any size and in any order; equal ids are one cell."""
        ids = _whole("ids", ids)
        _require_count(ids.shape[0])
        return _grouped(ids, [])[0]

    @staticmethod
    def from_coords(xyz: Tensor, cell: float, batch: Tensor | None = None) -> Segments:
        """Cells of a grid through the origin with edges of length `cell`. xyz: (N, 3); batch: (N,), the cloud of each point.

        A point's cell is the floor of its coordinates over `cell` in float64, the same on every device.
        """
        require_tensor("xyz", xyz)
        if xyz.dim() != 2 or xyz.shape[1] != 3 or not xyz.is_floating_point():
            raise BadInput(
                f"coordinates of shape {tuple(xyz.shape)} in {xyz.dtype}",
                hint="give xyz (N, 3) in float32 or float64",
            )
        if isinstance(cell, bool) or not isinstance(cell, Real) or not math.isfinite(cell) or not cell > 0:
            raise BadInput(
                f"cells of size {cell!r}", hint="give a cell size above 0, in the units of the coordinates"
            )
        _require_count(xyz.shape[0])
        # A tensor, since a GPU multiplies by the inverse of a plain number: points on a border would change cells.
        size = torch.full((1,), float(cell), dtype=torch.float64, device=xyz.device)
        corner = torch.floor(xyz.detach().double() / size)
        columns = [corner[:, axis] for axis in range(3)]
        if batch is not None:
            batch = _whole("batch", batch)
            if batch.shape[0] != xyz.shape[0]:
                raise BadInput(
                    f"{batch.shape[0]:,} batch numbers for {xyz.shape[0]:,} points",
                    hint="give one for each point",
                )
            columns.insert(0, batch.double())
        ids, bounds = _packed(columns)
        segments, known = _grouped(ids, bounds)
        _require_numbered(known, float(cell))
        return segments

    @staticmethod
    def from_offsets(offsets: Tensor, order: Tensor | None = None) -> Segments:
        """offsets: (C + 1,) from 0 to N, never falling; order: (N,), each point once. None: the points lie cell by cell."""
        offsets = _whole("offsets", offsets)
        if offsets.shape[0] < 2:
            raise BadInput(
                f"{offsets.shape[0]} offsets",
                hint="give C + 1 offsets for C cells, from 0 to the number of points",
            )
        lengths = offsets.diff()
        ends = torch.stack([offsets[0], offsets[-1], *torch.aminmax(lengths)]).tolist()
        first, points, shortest, longest = (int(value) for value in ends)
        if first != 0 or shortest < 0:
            raise BadInput(
                "offsets that fall" if first == 0 else f"offsets that begin at {first:,}",
                hint="offsets begin at 0, never fall and end at the number of points; Segments.from_ids takes ids in any order",
            )
        _require_count(points)
        if order is None:
            order = torch.arange(points, dtype=torch.int32, device=offsets.device)
        else:
            order = _whole("order", order)
            _require_order(order, points)
        cells = torch.arange(offsets.shape[0] - 1, dtype=torch.int32, device=offsets.device)
        of_place = cells.repeat_interleave(lengths, output_size=points)
        return Segments(
            order.to(torch.int32), offsets.to(torch.int32), of_place, None, longest, empty=shortest == 0
        )


def _grouped(ids: Tensor, asked: list[Tensor]) -> tuple[Segments, list[float]]:
    """The cells of ids; and what the tensors of one number in `asked` hold, read in the one wait there is."""
    points, device = ids.shape[0], ids.device
    ordered, order = _sorted(ids)
    begins = torch.ones(points, dtype=torch.bool, device=device)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    of_place = begins.cumsum(0, dtype=torch.int32).sub_(1)
    # The place a cell begins at is written under its number, all other places under one past the end. What follows the
    # last cell is N: so the lengths are known before the number of cells is.
    starts = torch.full((points + 2,), points, dtype=torch.int32, device=device)
    to = torch.where(begins, of_place, points + 1).long()
    starts.scatter_(0, to, torch.arange(points, dtype=torch.int32, device=device))
    longest = starts[: points + 1].diff().max()
    read = torch.stack([number.double() for number in (of_place[-1], longest, *asked)]).tolist()
    offsets = starts[: int(read[0]) + 2].clone()
    names = ordered.index_select(0, offsets[:-1]).long()
    return Segments(order.to(torch.int32), offsets, of_place, names, int(read[1]), empty=False), read[2:]


def _sorted(ids: Tensor) -> tuple[Tensor, Tensor]:
    """ids in rising order, and the points in that order."""
    least = _MANY if "numba" in sys.modules else _VERY_MANY  # the order is the same either way
    if ids.device.type == "cpu" and ids.shape[0] >= least and not is_fake(ids) and numba_works():
        from pinchpoint.kit.segments import sort_cpu

        if (order := sort_cpu.order_of(ids)) is not None:
            return ids.index_select(0, order), order
    ordered, order = torch.sort(ids, stable=True)
    return ordered, order


def _packed(columns: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Whole numbers in float64, a column for each axis, as one int64 rising with the first, then the second ...

    And the least and greatest of each column, which the host has not seen yet: `_require_numbered` does.
    """
    packed = torch.zeros_like(columns[0], dtype=torch.int64)
    bounds = [torch.aminmax(column) for column in columns]
    for column, (low, high) in zip(columns, bounds, strict=True):
        packed.mul_((high - low + 1).long()).add_((column - low).long())
    return packed, [bound for pair in bounds for bound in pair]


def _require_numbered(bounds: list[float], cell: float) -> None:
    """Refuses cells that one int64 did not number. bounds: the least and greatest of each axis."""
    if not all(math.isfinite(bound) for bound in bounds):
        raise BadInput(
            "coordinates that are NaN or infinite", hint="drop those points first: xyz[xyz.isfinite().all(1)]"
        )
    spans = [int(high) - int(low) + 1 for low, high in zip(bounds[0::2], bounds[1::2], strict=True)]
    if max(abs(bound) for bound in bounds) > _FLOAT_MOST:
        least = cell * max(abs(bound) for bound in bounds[-6:]) / _FLOAT_MOST
        raise BadInput(
            f"cells of {cell:g} cannot be told apart that far from 0",
            hint=f"give cells of at least {least * 2:.3g}",
        )
    if math.prod(spans) > _INT64_MOST:
        grid = " x ".join(f"{span:,}" for span in spans[-3:])
        least = cell * (math.prod(spans) / _INT64_MOST) ** (1 / 3)
        raise BadInput(
            f"cells of {cell:g} make a grid of {grid}: more than 64 bits number",
            hint=f"give cells of at least {least * 1.1:.3g}",
        )


def _whole(name: str, values: Tensor) -> Tensor:
    """One row of whole numbers, of a kind that torch computes with."""
    require_tensor(name, values)
    if values.dim() != 1 or values.dtype is torch.bool or values.is_floating_point() or values.is_complex():
        raise BadInput(
            f"{name} of shape {tuple(values.shape)} in {values.dtype}",
            hint=f"give {name} as one row of whole numbers",
        )
    if values.dtype is torch.uint64:
        raise BadInput(
            f"{name} in torch.uint64, which torch cannot sort",
            hint=f"give {name} below 2**63 as int64: {name}.long()",
        )
    return values.long() if values.dtype in (torch.uint16, torch.uint32) else values


def _require_count(points: int) -> None:
    if not points:
        raise BadInput("a cloud without points", hint="give at least one point")
    if points > INT32_MOST:
        raise BadInput(f"{points:,} points", hint=f"points are numbered in 32 bits: at most {INT32_MOST:,}")


def _require_order(order: Tensor, points: int) -> None:
    if order.shape[0] != points:
        raise BadInput(
            f"an order of {order.shape[0]:,} points where offsets end at {points:,}",
            hint="give each point once",
        )
    seen = torch.zeros(points, dtype=torch.bool, device=order.device).index_fill_(
        0, order.long().clamp(0, points - 1), True
    )
    if not bool((seen & (order >= 0) & (order < points)).all()):
        raise BadInput(
            "an order that leaves points out", hint=f"give each number from 0 to {points - 1:,} once"
        )
