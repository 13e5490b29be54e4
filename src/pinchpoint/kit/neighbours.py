"""Who lies within a radius of whom: by a grid of cells for free points, by counting for a lattice.

No neighbour is left out, however many there are. Both give `Edges` in a fixed order: by
destination, then by source, so that what is summed along them is the same every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges import Edges, offsets_of

_PAIRS = 4_000_000  # candidate pairs looked at together: 100 MB or so


@dataclass(frozen=True)
class Lattice:
    """A regular grid of points: `shape` counts along each axis from `low` to `high`, both ends included."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def axes(self, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> list[Tensor]:
        """The coordinates along each axis."""
        return [
            torch.linspace(low, high, count, dtype=dtype, device=device)
            for low, high, count in zip(self.low, self.high, self.shape, strict=True)
        ]

    def points(self, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Tensor:
        """(T, d), the last axis running fastest."""
        axes = self.axes(dtype=dtype, device=device)
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(self.shape))

    @property
    def count(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def spacing(self) -> tuple[float, ...]:
        return tuple((high - low) / max(size - 1, 1) for low, high, size in zip(self.low, self.high, self.shape, strict=True))


def radius_edges(x: Tensor, y: Tensor, radius: float) -> Edges:
    """For every query all sources within the radius. x: (Q, d), the destinations; y: (S, d)."""
    _check(x, y, radius)
    low = torch.minimum(x.min(0).values, y.min(0).values) if len(x) and len(y) else x.new_zeros(x.shape[1])
    cell_y, cell_x = (torch.floor((points - low) / radius).to(torch.int64) for points in (y, x))
    span = torch.maximum(cell_y.max(0).values, cell_x.max(0).values) + 3 if len(x) and len(y) else cell_x.new_ones(x.shape[1])
    keys_y, order = torch.sort(_key(cell_y + 1, span), stable=True)
    pairs = [_candidates(_key(cell_x + 1 + x.new_tensor(shift).to(torch.int64), span), keys_y) for shift in _shifts(x.shape[1])]
    starts = torch.stack([begin for begin, _ in pairs], dim=1)  # (Q, 3**d)
    counts = torch.stack([length for _, length in pairs], dim=1)
    found: list[tuple[Tensor, Tensor]] = []
    for first, last in _blocks(counts.sum(1)):
        rows, at = _spread(starts[first:last], counts[first:last])
        rows, sources = rows + first, order[at]
        near = (x[rows] - y[sources]).square().sum(1) <= radius**2
        found.append((rows[near], sources[near]))
    return _ordered(found, queries=len(x), sources=len(y), like=x)


def lattice_edges(points: Tensor, lattice: Lattice, radius: float) -> tuple[Edges, Edges]:
    """Edges between free points (P, d) and a lattice, both ways, with no search.

    First the edges into the lattice's points (sources are `points`), then those into `points`.
    """
    _check(points, points.new_tensor([lattice.low]), radius)
    axes = lattice.axes(dtype=points.dtype, device=points.device)
    spacing = points.new_tensor(lattice.spacing).clamp_min(torch.finfo(points.dtype).tiny)
    low = points.new_tensor(lattice.low)
    shape = torch.tensor(lattice.shape, device=points.device)
    reach = [min(int(radius / step) + 1 if step else 0, size) for step, size in zip(lattice.spacing, lattice.shape, strict=True)]
    nearest = torch.round((points - low) / spacing).to(torch.int64)
    shifts = torch.tensor(list(product(*(range(-r, r + 1) for r in reach))), device=points.device)
    found: list[tuple[Tensor, Tensor]] = []
    step = max(1, _PAIRS // max(len(shifts), 1))
    for first in range(0, len(points), step):
        cells = nearest[first : first + step, None, :] + shifts  # (p, K, d)
        inside = ((cells >= 0) & (cells < shape)).all(-1)
        # Coordinates are looked up, not multiplied out: at the very edge of the radius a rounding would decide.
        there = torch.stack([axes[d][cells[..., d].clamp(0, lattice.shape[d] - 1)] for d in range(len(axes))], dim=-1)
        near = inside & ((points[first : first + step, None, :] - there).square().sum(-1) <= radius**2)
        rows, kept = near.nonzero(as_tuple=True)
        found.append((rows + first, _flat(cells[rows, kept], lattice.shape)))
    to_points = _ordered(found, queries=len(points), sources=lattice.count, like=points)
    return to_points.turned(), to_points


def _check(x: Tensor, y: Tensor, radius: float) -> None:
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[1]:
        raise BadInput(f"points of shapes {tuple(x.shape)} and {tuple(y.shape)}", mend="give (Q, d) and (S, d)")
    if not radius > 0:
        raise BadInput(f"a radius of {radius:g}", mend="give a radius above zero")
    for points in (x, y):
        if not bool(torch.isfinite(points).all()):
            raise BadInput("points that are not finite", mend="remove NaN and infinite coordinates first")


def _key(cells: Tensor, span: Tensor) -> Tensor:
    """One number for each cell. cells: (N, d), all at least 0 and below span."""
    key = cells[:, 0]
    for axis in range(1, cells.shape[1]):
        key = key * (span[axis] + 1) + cells[:, axis]
    return key


def _shifts(dims: int) -> list[tuple[int, ...]]:
    return list(product((-1, 0, 1), repeat=dims))


def _candidates(keys: Tensor, sorted_keys: Tensor) -> tuple[Tensor, Tensor]:
    """Where each key's run begins among the sorted ones, and how long it is."""
    begin = torch.searchsorted(sorted_keys, keys)
    return begin, torch.searchsorted(sorted_keys, keys, right=True) - begin


def _blocks(counts: Tensor) -> list[tuple[int, int]]:
    """Runs of rows whose candidates are few enough to look at together; a row is never cut."""
    ends = torch.cumsum(counts, 0).tolist()
    blocks, first, base = [], 0, 0
    for row, end in enumerate(ends):
        if end - base > _PAIRS and row > first:
            blocks.append((first, row))
            first, base = row, ends[row - 1]
    return [*blocks, (first, len(ends))] if ends else []


def _spread(starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """All (row, position) pairs of runs. starts, counts: (q, K)."""
    flat = counts.reshape(-1)
    total = int(flat.sum())
    run = torch.arange(flat.shape[0], device=flat.device).repeat_interleave(flat, output_size=total)
    within = torch.arange(total, device=flat.device) - (torch.cumsum(flat, 0) - flat)[run]
    return run // counts.shape[1], starts.reshape(-1)[run] + within


def _ordered(found: list[tuple[Tensor, Tensor]], *, queries: int, sources: int, like: Tensor) -> Edges:
    """Pairs whose rows ascend, as edges in order of row and source."""
    empty = torch.zeros(0, dtype=torch.int64, device=like.device)
    rows = torch.cat([empty, *(pair[0] for pair in found)])
    ends = torch.cat([empty, *(pair[1] for pair in found)])
    order = torch.argsort(rows * max(sources, 1) + ends)
    return Edges(offsets_of(torch.bincount(rows, minlength=queries)), ends[order].to(torch.int32), sources)


def _flat(cells: Tensor, shape: tuple[int, ...]) -> Tensor:
    number = cells[:, 0]
    for axis in range(1, len(shape)):
        number = number * shape[axis] + cells[:, axis]
    return number
