"""Neighbour search within a radius: by cells for free points, by index arithmetic for a lattice.

No neighbour is omitted, however many there are. `Edges` have a fixed order, by destination, then by source,
so that sums over them are the same every time. Two points are neighbours if their squared distance, summed
axis by axis in the points' dtype, is at most the square of the radius in that dtype.
The work is done in blocks of bounded memory. Letters: P points, T tokens of a lattice, Q queries, S sources,
d axes.
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

_CPU_BLOCK = 2**20  # pairs compared together: about 30 MB, close to the size of the caches
_GPU_BLOCK = 2**23  # larger, because each block waits once for the device
_SLACK = 1e-5  # share of a radius or spacing; far more than rounding can change a distance
_THIN = 16  # cells per radius along the last axis


def lattice_edges(points: Tensor, lattice: Lattice, radius: float) -> tuple[Edges, Edges]:
    """Edges between free points (P, d) and a lattice, in both directions, without a search.

    Returns the edges into the lattice's points (sources are `points`), then those into `points`.
    """
    return lattice_edges_multi(points, lattice, [radius])[0]


def lattice_edges_multi(
    points: Tensor, lattice: Lattice, radii: Sequence[float]
) -> list[tuple[Edges, Edges]]:
    """`lattice_edges` for each radius, in the given order, from one pass with the largest radius."""
    require_lattice(lattice)
    check_points(points, axes=len(lattice.shape))
    if not len(points):
        raise BadInput("There are no points to join to the lattice.", hint="Give at least one point.")
    if not radii:
        raise BadInput("The list of radii is empty.", hint="Give at least one radius.")
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
        squares, tokens = windows.measure(points[first : first + step])
        candidates = squares.view(-1), tokens.view(-1)
        for radius in falling:
            counts[radius].append((squares <= limits[radius]).sum(1))
            inside = (candidates[0] <= limits[radius]).nonzero().squeeze(1)
            # A smaller radius keeps a subset of the edges of a larger one, in the same order.
            candidates = (
                (candidates[0][inside] if radius > falling[-1] else candidates[0]),
                candidates[1][inside],
            )
            sources[radius].append(candidates[1])
    both = {}
    for radius in falling:
        into_points = Edges(
            offsets_of(torch.cat(counts.pop(radius))), torch.cat(sources.pop(radius)), lattice.count
        )
        both[radius] = _transpose(into_points), into_points
    return [both[radius] for radius in radii]


def radius_edges(x: Tensor, y: Tensor, radius: float) -> Edges:
    """Edges to every query from all sources within the radius. x: (Q, d) queries; y: (S, d) sources."""
    require_tensor("x", x)
    require_tensor("y", y)
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise BadInput(
            f"`x` has shape {tuple(x.shape)} and `y` has shape {tuple(y.shape)}, not (Q, d) and (S, d).",
            hint="Give both two axes, with the same number of coordinates.",
        )
    for points in (x, y):
        check_points(points, axes=x.shape[1])
    if x.dtype is not y.dtype or x.device != y.device:
        raise BadInput(
            f"The queries are {x.dtype} on {x.device}, but the sources are {y.dtype} on {y.device}.",
            hint="Give both the same dtype and device.",
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
    for first, last, total in _row_blocks(per_row, _block(x)):
        rows, runs = per_row[first:last], lengths[first:last].reshape(-1)
        starts = begins[first:last].reshape(-1) - (torch.cumsum(runs, 0) - runs)
        at = starts.repeat_interleave(runs, output_size=total) + torch.arange(total, device=x.device)
        squares = torch.zeros((), dtype=x.dtype, device=x.device)
        for here, there in zip(columns_x, columns_y, strict=True):
            gap = here[first:last].repeat_interleave(rows, output_size=total).sub_(there[at])
            squares = squares + gap.square_()
        inside = (squares <= limit).nonzero().squeeze(1)
        numbers = torch.arange(last - first, device=x.device).repeat_interleave(rows, output_size=total)[
            inside
        ]
        keys = _sort(numbers * len(y) + order[at[inside]])
        counts.append(torch.bincount(numbers, minlength=last - first))
        sources.append((keys % len(y)).to(torch.int32))
    return Edges(offsets_of(torch.cat(counts)), torch.cat(sources), len(y))


def check_points(points: Tensor, *, axes: int) -> None:
    """Raise `BadInput` unless points are (P, axes) finite float32 or float64 numbers, with P below 2**31."""
    require_tensor("points", points)
    if points.dim() != 2 or points.shape[1] != axes or not axes:
        raise BadInput(
            f"`points` has shape {tuple(points.shape)}, not (P, {axes or 'd'}).",
            hint="Give one row of coordinates per point.",
        )
    if points.dtype not in (torch.float32, torch.float64):
        raise BadInput(
            f"`points` is {points.dtype}, not float32 or float64.", hint="Convert it: points.float()."
        )
    if len(points) > INT32_MOST:
        raise BadInput(
            f"There are {len(points):,} points; points are numbered in 32 bits.",
            hint=f"Give at most {INT32_MOST:,} points.",
        )
    if not bool(torch.isfinite(points).all()):
        bad = int((~torch.isfinite(points)).any(1).sum())
        raise BadInput(
            f"{bad:,} of {len(points):,} points are not finite.",
            hint="Remove points with NaN or infinite coordinates first.",
        )


def check_radius(radius: float) -> None:
    if not isinstance(radius, Real):
        raise BadInput(
            f"The radius is {radius!r}, not a number.",
            hint="Give a number such as 0.1, or radius.item() of a tensor.",
        )
    if not (radius > 0 and math.isfinite(radius)):
        raise BadInput(
            f"The radius is {radius:g}; it must be finite and above zero.", hint="Give a positive radius."
        )


def squared_radius(radius: float, like: Tensor) -> Tensor:
    """The radius rounded to the points' dtype, then squared: a pair at exactly this distance is included."""
    return torch.tensor(radius, dtype=like.dtype, device=like.device).square()


def _transpose(edges: Edges) -> Edges:
    """`edges.transpose()`, sorted block by block: temporary memory does not grow with the edges."""
    device = edges.sources.device
    offsets = offsets_of(torch.bincount(edges.sources, minlength=edges.source_count))
    free = offsets[:-1].clone()  # the next free position of each source
    numbers = torch.arange(edges.source_count + 1, dtype=torch.int32, device=device)
    sources = torch.empty_like(edges.sources)
    degrees, position = edges.degrees(), 0
    for first, last, total in _row_blocks(degrees, _block(edges.sources)):
        rows = torch.arange(first, last, dtype=torch.int32, device=device)
        keys, order = torch.sort(edges.sources[position : position + total], stable=True)
        starts = torch.searchsorted(keys, numbers)
        place = (free - starts[:-1]).index_select(0, keys) + torch.arange(total, device=device)
        sources[place] = rows.repeat_interleave(degrees[first:last], output_size=total)[order]
        free += starts.diff()
        position += total
    return Edges(offsets, sources, edges.queries)


@dataclass(frozen=True)
class _Windows:
    """For each point, the planes of every axis that can lie within the radius.

    There are `widths` of them per axis, all inside the lattice.
    """

    axes: list[Tensor]  # per axis, (planes - width + 1, width): the planes of a window, by its first plane
    widths: tuple[int, ...]
    low: Tensor  # (d,) float64: plane 0 is at the far end of the reach of a point here
    spacing: Tensor  # (d,) float64
    last: Tensor  # (d,) float64: the last plane at which a window may begin
    strides: Tensor  # (d,) int64: from plane to token index
    shifts: Tensor  # (K,) int32: token indices of a window, relative to its first token

    @staticmethod
    def of(points: Tensor, lattice: Lattice, radius: float) -> _Windows:
        device, axes = points.device, lattice.axes(dtype=points.dtype)
        reach, widths = [], []
        for planes, low, step, size in zip(axes, lattice.low, lattice.spacing, lattice.shape, strict=True):
            # Planes are rounded to the dtype, which far from the origin moves them by a fraction of their
            # spacing.
            rounding = float(
                (planes.double() - (low + step * torch.arange(size, dtype=torch.float64))).abs().max()
            )
            reach.append(radius * (1 + _SLACK) + step * _SLACK + rounding)
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

    def measure(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances (p, K) to the tokens of each point's window, and their indices (p, K) int32."""
        # Clamped before the conversion to integers: a far point could overflow them.
        first = (
            torch.ceil((points.double() - self.low) / self.spacing)
            .clamp_min(0)
            .minimum(self.last)
            .to(torch.int64)
        )
        squares = points.new_zeros(len(points), 1)
        for axis, planes in enumerate(self.axes):
            # Look planes up instead of computing them: at exactly the radius, rounding would decide.
            gap = (points[:, axis, None] - planes[first[:, axis]]).square_()
            squares = (squares[:, :, None] + gap[:, None, :]).flatten(1) if axis else gap
        return squares, (first * self.strides).sum(1, keepdim=True).to(torch.int32) + self.shifts


def _runs(x: Tensor, y: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sources in the order of their cells, and the runs of that order that contain each query's neighbours.

    Returns the order (S,), and the start and length of each run. Cells are as wide as the radius, but thin
    along the last axis, where the cells of one column follow each other: a column next to the query is one
    run, no longer than the height of the ball there.
    """
    dims = x.shape[1]
    low = torch.minimum(x.amin(0), y.amin(0)).double()
    extent = (torch.maximum(x.amax(0), y.amax(0)).double() - low).tolist()
    most = 2 ** (60 // dims) - 8  # cells per axis, so that the index of a cell stays below 2**63
    reach = radius * (1 + _SLACK)
    sizes = [max(reach, span / most) for span in extent[:-1]] + [max(radius / _THIN, extent[-1] / most)]
    # One more column on each side, so that the neighbours of the outermost columns have unique indices.
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


def _row_blocks(counts: Tensor, block: int) -> list[tuple[int, int, int]]:
    """Runs of rows with about `block` counts each, as (first, last, total); a row is never split."""
    ends = torch.cumsum(counts, 0)
    marks = torch.arange(1, int(ends[-1]) // block + 1, device=ends.device) * block
    # A run ends before the row that passes a mark, so that it holds at most a block and one row.
    rows = [0, *sorted({row for row in torch.searchsorted(ends, marks).tolist() if row}), len(counts)]
    totals = [0, *(ends[torch.tensor(rows[1:], device=ends.device) - 1].tolist())]
    return [(first, last, totals[at + 1] - totals[at]) for at, (first, last) in enumerate(pairwise(rows))]


def _sort(keys: Tensor) -> Tensor:
    """Sort the keys. On the CPU, NumPy takes a third of the time, because it does not track positions."""
    return torch.from_numpy(np.sort(keys.numpy())) if keys.device.type == "cpu" else torch.sort(keys).values
