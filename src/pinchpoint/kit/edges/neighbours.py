"""Who lies within a radius of whom: by cells for free points, by counting for a lattice.

No neighbour is left out, however many there are. `Edges` come in a fixed order, by destination, then
by source, so that what is summed along them is the same every time. A pair is near when its squared
distance, axis by axis in the points' own dtype, is at most the square of the radius in that dtype.
Work goes in blocks of bounded memory. Letters: P points, T tokens of a lattice, Q queries, S sources, d axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edges import INT32_MOST, Edges, offsets_of
from pinchpoint.kit.edges.lattice import Lattice, require_lattice
from pinchpoint.kit.validation import require_tensor

_CPU_BLOCK = 2**20  # pairs looked at together: 30 MB or so, near the caches
_GPU_BLOCK = 2**23  # larger, as each block waits once for the device
_SLACK = 1e-5  # of a radius or spacing: far above what rounding can move a pair
_THIN = 16  # slices of a radius along the last axis of the cells


def lattice_edges(points: Tensor, lattice: Lattice, radius: float) -> tuple[Edges, Edges]:
    """Edges between free points (P, d) and a lattice, both ways, with no search.

    First the edges into the lattice's points (sources are `points`), then those into `points`.
    """
    return lattice_edges_multi(points, lattice, [radius])[0]


def lattice_edges_multi(
    points: Tensor, lattice: Lattice, radii: Sequence[float]
) -> list[tuple[Edges, Edges]]:
    """`lattice_edges` at each radius, in the order given, from one count at the largest of them."""
    require_lattice(lattice)
    check_points(points, axes=len(lattice.shape))
    if not len(points):
        raise BadInput("no points to join to the lattice", hint="give at least one point")
    if not radii:
        raise BadInput("no radius", hint="give one radius or more")
    for radius in radii:
        check_radius(radius)
    points = points.detach()
    windows = _Windows.of(points, lattice, max(radii))
    falling = sorted(set(radii), reverse=True)
    limits = {radius: squared_radius(radius, points) for radius in falling}
    counts: dict[float, list[Tensor]] = {radius: [] for radius in falling}
    sources: dict[float, list[Tensor]] = {radius: [] for radius in falling}
    step = max(1, _block(points) // len(windows.shifts))
    for first in range(0, len(points), step):
        squares, tokens = windows.look(points[first : first + step])
        left = squares.view(-1), tokens.view(-1)
        for radius in falling:
            counts[radius].append((squares <= limits[radius]).sum(1))
            kept = (left[0] <= limits[radius]).nonzero().squeeze(1)
            # What a smaller radius keeps is among what the larger one kept, and in the same order.
            left = (left[0][kept] if radius > falling[-1] else left[0]), left[1][kept]
            sources[radius].append(left[1])
    both = {}
    for radius in falling:
        into_points = Edges(
            offsets_of(torch.cat(counts.pop(radius))), torch.cat(sources.pop(radius)), lattice.count
        )
        both[radius] = _turned(into_points), into_points
    return [both[radius] for radius in radii]


def radius_edges(x: Tensor, y: Tensor, radius: float) -> Edges:
    """For every query all sources within the radius. x: (Q, d), the destinations; y: (S, d)."""
    require_tensor("x", x)
    require_tensor("y", y)
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise BadInput(
            f"points of shapes {tuple(x.shape)} and {tuple(y.shape)}", hint="give (Q, d) and (S, d)"
        )
    for points in (x, y):
        check_points(points, axes=x.shape[1])
    if x.dtype is not y.dtype or x.device != y.device:
        raise BadInput(
            f"queries in {x.dtype} on {x.device}, sources in {y.dtype} on {y.device}",
            hint="give both one dtype and one device",
        )
    check_radius(radius)
    if not len(x) or not len(y):
        nothing = torch.zeros(len(x) + 1, dtype=torch.int64, device=x.device)
        return Edges(nothing, torch.zeros(0, dtype=torch.int32, device=x.device), len(y))
    x, y = x.detach(), y.detach()
    order, begins, lengths = _runs(x, y, radius)
    per_row, limit = lengths.sum(1), squared_radius(radius, x)
    columns_x, columns_y = x.unbind(1), [column.contiguous() for column in y[order].unbind(1)]
    counts, sources = [], []
    for first, last, total in _cuts(per_row, _block(x)):
        rows, runs = per_row[first:last], lengths[first:last].reshape(-1)
        starts = begins[first:last].reshape(-1) - (torch.cumsum(runs, 0) - runs)
        at = starts.repeat_interleave(runs, output_size=total) + torch.arange(total, device=x.device)
        squares = torch.zeros((), dtype=x.dtype, device=x.device)
        for here, there in zip(columns_x, columns_y, strict=True):
            gap = here[first:last].repeat_interleave(rows, output_size=total).sub_(there[at])
            squares = squares + gap.square_()
        kept = (squares <= limit).nonzero().squeeze(1)
        numbers = torch.arange(last - first, device=x.device).repeat_interleave(rows, output_size=total)[kept]
        keys = _sorted(numbers * len(y) + order[at[kept]])
        counts.append(torch.bincount(numbers, minlength=last - first))
        sources.append((keys % len(y)).to(torch.int32))
    return Edges(offsets_of(torch.cat(counts)), torch.cat(sources), len(y))


def check_points(points: Tensor, *, axes: int) -> None:
    """Refuse what is not (P, axes) finite coordinates in float32 or float64, few enough for 32 bits."""
    require_tensor("points", points)
    if points.dim() != 2 or points.shape[1] != axes or not axes:
        raise BadInput(
            f"points of shape {tuple(points.shape)}",
            hint=f"give (P, {axes or 'd'}): a row of coordinates a point",
        )
    if points.dtype not in (torch.float32, torch.float64):
        raise BadInput(f"points in {points.dtype}", hint="give float32 or float64: points.float()")
    if len(points) > INT32_MOST:
        raise BadInput(
            f"{len(points):,} points", hint=f"points are numbered in 32 bits: at most {INT32_MOST:,}"
        )
    if not bool(torch.isfinite(points).all()):
        bad = int((~torch.isfinite(points)).any(1).sum())
        raise BadInput(
            f"{bad:,} of {len(points):,} points are not finite",
            hint="remove points with NaN or infinite coordinates first",
        )


def check_radius(radius: float) -> None:
    if not isinstance(radius, Real):
        raise BadInput(f"a radius of {radius!r}", hint="give a number: 0.1, or radius.item() of a tensor")
    if not (radius > 0 and math.isfinite(radius)):
        raise BadInput(f"a radius of {radius:g}", hint="give a finite radius above zero")


def squared_radius(radius: float, like: Tensor) -> Tensor:
    """The radius, rounded to the points' dtype as their coordinates are, then squared: a pair at exactly it is near."""
    return torch.tensor(radius, dtype=like.dtype, device=like.device).square()


def _turned(edges: Edges) -> Edges:
    """What `edges.turned()` gives, sorted block by block and put in place: temporary memory does not grow with edges."""
    device = edges.sources.device
    offsets = offsets_of(torch.bincount(edges.sources, minlength=edges.source_count))
    free = offsets[:-1].clone()  # where the next edge of each source goes
    numbers = torch.arange(edges.source_count + 1, dtype=torch.int32, device=device)
    turned = torch.empty_like(edges.sources)
    degrees, done = edges.degrees(), 0
    for first, last, total in _cuts(degrees, _block(edges.sources)):
        rows = torch.arange(first, last, dtype=torch.int32, device=device)
        keys, order = torch.sort(edges.sources[done : done + total], stable=True)
        starts = torch.searchsorted(keys, numbers)
        place = (free - starts[:-1]).index_select(0, keys) + torch.arange(total, device=device)
        turned[place] = rows.repeat_interleave(degrees[first:last], output_size=total)[order]
        free += starts.diff()
        done += total
    return Edges(offsets, turned, edges.queries)


@dataclass(frozen=True)
class _Windows:
    """For each point the planes of every axis that can lie within the radius: `widths` of them, all inside the lattice."""

    axes: list[Tensor]  # of each axis (planes - width + 1, width): the planes of a window, by its first
    widths: tuple[int, ...]
    low: Tensor  # (d,) float64: a point here has plane 0 at the end of its reach
    spacing: Tensor  # (d,) float64
    last: Tensor  # (d,) float64: the last plane a window may begin at
    strides: Tensor  # (d,) int64: from plane to token number
    shifts: Tensor  # (K,) int32: token numbers of a window, less that of its first

    @staticmethod
    def of(points: Tensor, lattice: Lattice, radius: float) -> _Windows:
        device, axes = points.device, lattice.axes(dtype=points.dtype)
        reach, widths = [], []
        for planes, low, step, size in zip(axes, lattice.low, lattice.spacing, lattice.shape, strict=True):
            # Planes are rounded to the dtype: far from the origin that moves them by a part of their spacing.
            moved = float(
                (planes.double() - (low + step * torch.arange(size, dtype=torch.float64))).abs().max()
            )
            reach.append(radius * (1 + _SLACK) + step * _SLACK + moved)
            widths.append(min(int(2 * reach[-1] / step) + 1, size) if size > 1 else 1)
        strides = [math.prod(lattice.shape[axis + 1 :]) for axis in range(len(axes))]
        shifts = torch.zeros(1, dtype=torch.int32)
        for width, stride in zip(widths, strides, strict=True):
            shifts = (shifts[:, None] + torch.arange(width, dtype=torch.int32) * stride).reshape(-1)
        doubles = {"dtype": torch.float64, "device": device}
        return _Windows(
            axes=[planes.to(device).unfold(0, width, 1) for planes, width in zip(axes, widths, strict=True)],
            widths=tuple(widths),
            low=torch.tensor([low + far for low, far in zip(lattice.low, reach, strict=True)], **doubles),
            spacing=torch.tensor([step or 1.0 for step in lattice.spacing], **doubles),
            last=torch.tensor(
                [size - width for size, width in zip(lattice.shape, widths, strict=True)], **doubles
            ),
            strides=torch.tensor(strides, device=device),
            shifts=shifts.to(device),
        )

    def look(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances (p, K) to the tokens of each point's window, and their numbers (p, K) int32."""
        # Clamped before they are whole numbers: a point may be further away than those can count.
        first = (
            torch.ceil((points.double() - self.low) / self.spacing)
            .clamp_min(0)
            .minimum(self.last)
            .to(torch.int64)
        )
        squares = points.new_zeros(len(points), 1)
        for axis, planes in enumerate(self.axes):
            # Planes are looked up, not multiplied out: at the very edge of the radius a rounding would decide.
            gap = (points[:, axis, None] - planes[first[:, axis]]).square_()
            squares = (squares[:, :, None] + gap[:, None, :]).flatten(1) if axis else gap
        return squares, (first * self.strides).sum(1, keepdim=True).to(torch.int32) + self.shifts


def _runs(x: Tensor, y: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sources in the order of their cells (S,), and runs of that order (Q, R) that hold each query's neighbours.

    Cells are as wide as the radius, but thin along the last axis, where cells of one column follow each
    other: a column beside the query is one run, no longer than the ball is high there.
    """
    dims = x.shape[1]
    low = torch.minimum(x.amin(0), y.amin(0)).double()
    extent = (torch.maximum(x.amax(0), y.amax(0)).double() - low).tolist()
    most = 2 ** (60 // dims) - 8  # cells along an axis, for the number of a cell to stay below 2**63
    reach = radius * (1 + _SLACK)
    sizes = [max(reach, span / most) for span in extent[:-1]] + [max(radius / _THIN, extent[-1] / most)]
    # One column more at either side, so that those beside the outermost have numbers of their own.
    planes = [int(span / size) + 4 for span, size in zip(extent, sizes, strict=True)]
    strides = [math.prod(planes[axis + 1 :]) for axis in range(dims)]
    width, stride = low.new_tensor(sizes), torch.tensor(strides, device=x.device)
    cells = torch.floor((y.double() - low) / width).to(torch.int64)
    keys, order = torch.sort(((cells + 1) * stride).sum(1))
    place = (x.double() - low) / width
    corner = torch.floor(place)
    column, within, height = (
        ((corner.to(torch.int64) + 1) * stride)[:, :-1].sum(1),
        place - corner,
        place[:, -1],
    )
    lows, highs = [], []
    for shift in product((-1, 0, 1), repeat=dims - 1):
        room = torch.full_like(height, reach**2)
        for axis, way in enumerate(shift):
            if way:
                room -= ((1 - within[:, axis] if way > 0 else within[:, axis]) * sizes[axis]).square()
        half = room.clamp_min(0).sqrt() / sizes[-1] + _SLACK
        here = column + sum(way * step for way, step in zip(shift, strides, strict=False))
        lows.append(here + (torch.floor(height - half).clamp_min(-1) + 1).to(torch.int64) * strides[-1])
        top = here + (torch.floor(height + half).clamp_max(planes[-1] - 2) + 1).to(torch.int64) * strides[-1]
        highs.append(torch.where(room < 0, lows[-1] - 1, top))
    begins = torch.searchsorted(keys, torch.stack(lows, dim=1))
    return (
        order,
        begins,
        torch.searchsorted(keys, torch.stack(highs, dim=1), right=True).sub_(begins).clamp_min_(0),
    )


def _block(like: Tensor) -> int:
    return _CPU_BLOCK if like.device.type == "cpu" else _GPU_BLOCK


def _cuts(counts: Tensor, block: int) -> list[tuple[int, int, int]]:
    """Runs of rows, first, last and total of their counts, about a block each; a row is never cut."""
    ends = torch.cumsum(counts, 0)
    marks = torch.arange(1, int(ends[-1]) // block + 1, device=ends.device) * block
    # A mark is passed by the row before it, so that a run is no more than a block and one row.
    rows = [0, *sorted({row for row in torch.searchsorted(ends, marks).tolist() if row}), len(counts)]
    totals = [0, *(ends[torch.tensor(rows[1:], device=ends.device) - 1].tolist())]
    return [(first, last, totals[at + 1] - totals[at]) for at, (first, last) in enumerate(pairwise(rows))]


def _sorted(keys: Tensor) -> Tensor:
    """Keys in order. On the CPU by numpy, which need not carry their places along: a third of the time."""
    return torch.from_numpy(np.sort(keys.numpy())) if keys.device.type == "cpu" else torch.sort(keys).values
