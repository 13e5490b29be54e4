"""Random subsets of the points of every cell, in one pass over all cells.

Every point has a 32-bit key, a function of its number and of (seed, step, rank, view), and the subset of a
cell is the k points with the smallest keys. Keys are never equal. `exact` finds them with a Triton kernel on
a GPU and with numba on a CPU, `sort` with one sort in plain torch: all return the same indices, bit for bit,
on every device. Letters: N points, C cells, M points drawn.
"""

from __future__ import annotations

import math
from functools import cache
from numbers import Real
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels
from pinchpoint.kit.edges.edges import INT32_MOST
from pinchpoint.kit.numba_loops import numba_works
from pinchpoint.kit.segments import hashing
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.validation import whole_number

Method = Literal["exact", "nested", "bernoulli", "sort"]
_METHODS = get_args(Method)

_LONGEST = 16384  # largest number of points of a cell for which the Triton kernel is used
_BOARD_CELLS = 2**17  # of one draw whose sums fit on the Triton kernel's board


def draw_counts(
    segments: Segments,
    ratio: float | tuple[float, float],
    *,
    seed: int,
    step: int = 0,
    rank: int = 0,
    view: int = 0,
    least: int = 1,
    together: bool = False,
    first_cell: int = 0,
) -> Tensor:
    """Number of points to draw from each cell, (C,) int32: floor(n r + u), u uniform in [0, 1), mean n r.

    At least `least` points are drawn from a cell, or all if it has fewer. ratio: r for all cells, or (lo, hi)
    to draw r for each cell or, with `together`, once for all cells. first_cell: how many cells of the same
    draw come before these, if they are drawn in parts. The arithmetic uses integers, so that results are the
    same on every device.
    """
    require_segments(segments)
    low, high = _to_fixed_point(ratio)
    if (fewest := whole_number(least)) is None or fewest < 0:
        raise BadInput(
            f"`least` is {least!r}, not a whole number of at least 0.",
            hint="Give the fewest points to draw from a cell: 0, 1, 2 ...",
        )
    of_ratio = hashing.words(seed=seed, step=step, rank=rank, view=view, purpose=hashing.RATIOS)
    of = hashing.words(seed=seed, step=step, rank=rank, view=view, purpose=hashing.COUNTS)
    if together:
        low = high = _scale_key(low, high, hashing.key(0, of_ratio))
    if own_kernels(segments.offsets) and not first_cell:
        points = torch.empty(segments.cells, dtype=torch.int32, device=segments.offsets.device)
        if not is_fake(points):
            with on_device(points):
                _kernels().draw_counts(segments, low, high, of_ratio, of, fewest, points)
        return points
    lengths = segments.counts.long()
    cells = torch.arange(first_cell, first_cell + segments.cells, device=lengths.device)
    shares = _scale_key(low, high, hashing.keys(cells, of_ratio)) if low < high else low
    points = hashing.keys(cells, of).add_(lengths * shares).bitwise_right_shift_(32)
    return torch.minimum(points.clamp_(min=min(fewest, INT32_MOST)), lengths).to(torch.int32)


def sample_subset(
    segments: Segments,
    counts: Tensor | int | float,
    *,
    method: Method = "exact",
    seed: int,
    step: int = 0,
    rank: int = 0,
    view: int = 0,
    total: int | None = None,
) -> Tensor:
    """Draw points from every cell. Returns their numbers, (M,) int32: cell by cell, in the order of places.

    counts: (C,) integers, none above the size of its cell; or one number for all cells, in which case all
    points of smaller cells are drawn; or a ratio in 0..1 as a float, for `draw_counts`. total: the sum of the
    counts, if known: on a GPU the draw then does not wait for the device. A wrong total raises `BadInput` on
    a CPU; on a GPU, unused places are -1.

    `exact`, `sort`: k points of every cell; all subsets of k points are equally likely. `nested`: the same
    without `view`, so that of two draws with the same (seed, step, rank) the one with smaller counts is a
    subset of the other. `bernoulli`: takes a ratio and keeps each point with that probability, and one point
    of a cell if none was kept; its counts are correct only on average.
    """
    require_segments(segments)
    if method not in _METHODS:
        raise BadInput(f"The method {method!r} does not exist.", hint=f"Use one of: {', '.join(_METHODS)}.")
    if method == "nested":
        view = 0
    of = hashing.words(seed=seed, step=step, rank=rank, view=view)
    if method == "bernoulli":
        return _bernoulli(segments, counts, of, total)
    if _is_ratio(counts):
        counts = draw_counts(segments, float(counts), seed=seed, step=step, rank=rank, view=view)
    checked_counts = _check_counts(segments, counts)
    if total is not None and ((value := whole_number(total)) is None or not 0 <= value <= segments.points):
        raise BadInput(
            f"`total` is {total!r}, not a number from 0 to {segments.points:,}.",
            hint="Give the sum of the counts, or leave total out.",
        )
    if method == "sort":
        return _by_sort(segments, checked_counts, of, total)
    if _one_kernel(segments):
        return _by_kernel(segments, checked_counts, of, total)
    if _compiled_loop(segments):
        from pinchpoint.kit.segments import subset_cpu

        return _check_total(subset_cpu.draw(segments, checked_counts, of), total)
    return _by_sort(segments, checked_counts, of, total)


def sample_one(segments: Segments, *, seed: int, step: int = 0, rank: int = 0, view: int = 0) -> Tensor:
    """One point of every cell, (C,) int32: the one that `sample_subset` with count 1 draws.

    Never waits for the device.
    """
    require_segments(segments)
    if segments.empty:
        raise BadInput(
            "Some cells are empty, so no point can be drawn from them.",
            hint="Use sample_subset(segments, 1, ...), which skips empty cells.",
        )
    of = hashing.words(seed=seed, step=step, rank=rank, view=view)
    if _one_kernel(segments):
        points = torch.empty(segments.cells, dtype=torch.int32, device=segments.order.device)
        if not is_fake(points):
            with on_device(points):
                _kernels().draw_one(segments, of, points)
        return points
    if _compiled_loop(segments):
        from pinchpoint.kit.segments import subset_cpu

        return subset_cpu.draw_one(segments, of)
    # With the key in the high bits and the point's number in the low 31, the minimum belongs to the smallest
    # key.
    values = (hashing.keys(segments.order, of) << 31).bitwise_or_(segments.order)
    return _least(segments, values).bitwise_and_(INT32_MOST).to(torch.int32)


def _is_ratio(counts: object) -> TypeGuard[float]:
    """Whether a ratio is given, not one number or a tensor of numbers."""
    if isinstance(counts, Tensor | bool):
        return False
    return isinstance(counts, Real) and whole_number(counts) is None


def _one_kernel(segments: Segments) -> bool:
    """Whether the GPU kernel is used.

    One program processes a whole cell, so a sort is faster for long cells.
    """
    return segments.longest <= _LONGEST and own_kernels(segments.order)


@cache
def _kernels() -> Any:
    """The module of the kernels, which needs Triton. Importing it in each draw would take microseconds."""
    from pinchpoint.kit.segments import subset_triton

    return subset_triton


def _compiled_loop(segments: Segments) -> bool:
    """Whether the loop compiled by numba is used."""
    return segments.order.device.type == "cpu" and not is_fake(segments.order) and numba_works()


def _by_kernel(segments: Segments, counts: Tensor, of: tuple[int, int], total: int | None) -> Tensor:
    if total is None:
        total = int(counts.sum(dtype=torch.int32))
    points = counts.new_empty(total)
    # For so many cells, a running sum by torch takes little time beside the draw.
    needs_sums = segments.cells > _BOARD_CELLS
    if is_fake(points):
        if needs_sums:
            counts.cumsum(0, dtype=torch.int32)
        return points
    with on_device(points):
        # A recorded draw would find the sums of its first run on the board.
        needs_sums = needs_sums or torch.cuda.is_current_stream_capturing()
        sums = counts.cumsum(0, dtype=torch.int32) if needs_sums else None
        _kernels().draw(segments, counts.contiguous(), sums, of, points)
    return points


def _by_sort(segments: Segments, counts: Tensor, of: tuple[int, int], total: int | None) -> Tensor:
    """The points with the k smallest keys of each cell, found by one sort of all (cell, key)."""
    cells = segments.of_place
    values = hashing.keys_in(cells, segments.order, of)
    sorted_keys = torch.sort(values).values
    last = segments.offsets.narrow(0, 0, segments.cells) + (counts - 1)
    # For a count of 0, the limit is the last key of the previous cell, which is below all keys of this cell;
    # for the first cell it is -1.
    limits = sorted_keys.index_select(0, last.clamp(0, segments.points - 1)).masked_fill_(last < 0, -1)
    mask = values <= limits.index_select(0, cells)
    if total is None or not mask.is_cuda:
        return _check_total(segments.order[mask], total)
    # Each drawn point is written at its rank, from 1; all others are written at place 0, which is removed.
    to = mask.cumsum(0).mul_(mask)
    points = torch.full((total + 1,), -1, dtype=torch.int32, device=to.device)
    return points.scatter_(0, to.clamp_(max=total), segments.order).narrow(0, 1, total)


def _check_total(points: Tensor, total: int | None) -> Tensor:
    if total is not None and len(points) != total:
        raise BadInput(
            f"`total` is {total:,}, but the counts sum to {len(points):,}.",
            hint="Give the sum of the counts as total.",
        )
    return points


def _least(segments: Segments, values: Tensor) -> Tensor:
    """(C,) int64: the minimum of each cell. values: (N,) int64 by place."""
    least = torch.full((segments.cells,), 2**63 - 1, dtype=torch.int64, device=values.device)
    return least.scatter_reduce_(0, segments.of_place.long(), values, "amin")


def _bernoulli(segments: Segments, ratio: object, of: tuple[int, int], total: int | None) -> Tensor:
    if total is not None:
        raise BadInput(
            'method="bernoulli" draws a random number of points, so `total` cannot be given.',
            hint='Leave total out, or use method="exact".',
        )
    if not _is_ratio(ratio):
        raise BadInput(
            f'method="bernoulli" needs a ratio, but `counts` is {ratio!r}.',
            hint="Give a ratio in 0..1 as a float, such as 0.5.",
        )
    keys = hashing.keys(segments.order, of)
    mask = keys < _to_fixed_point(ratio)[1]
    # If any point of a cell is kept, the one with the smallest key is kept; adding it changes only cells
    # without kept points.
    mask |= keys == _least(segments, keys).index_select(0, segments.of_place)
    return segments.order[mask]


def _scale_key(low: int, high: int, key: Any) -> Any:
    """Map keys to the range between two numbers up to 2**32.

    Uses half of the bits of a key, so that products stay below 2**63.
    """
    return low + ((key >> 1) * (high - low) >> 31)


def _to_fixed_point(ratio: Any) -> tuple[int, int]:
    """A ratio, or a range of ratios, as two integers in [0, 2**32]."""
    pair = ratio if isinstance(ratio, tuple | list) else (ratio, ratio)
    fine = len(pair) == 2 and all(
        isinstance(end, Real) and not isinstance(end, bool) and math.isfinite(end) for end in pair
    )
    if not fine or not 0 <= pair[0] <= pair[1] <= 1:
        raise BadInput(
            f"The ratio is {ratio!r}; it must lie in 0..1.",
            hint="Give a ratio in 0..1, or a range (lo, hi) of ratios with lo <= hi.",
        )
    low, high = (round(float(end) * hashing.ONE) for end in pair)
    return low, high


def _check_counts(segments: Segments, counts: object) -> Tensor:
    """The counts, (C,) int32 on the segments' device.

    On a GPU their values are not checked, because that would wait for the device.
    """
    if isinstance(counts, Tensor):
        if counts.shape != (segments.cells,) or counts.dtype is torch.bool or counts.is_floating_point():
            raise BadInput(
                f"`counts` has shape {tuple(counts.shape)} and dtype {counts.dtype}, but there are "
                f"{segments.cells:,} cells.",
                hint=f"Give ({segments.cells},) integers, or a ratio as a float.",
            )
        device = segments.offsets.device
        if counts.device != device:
            raise BadInput(
                f"`counts` is on {counts.device}, but the cells are on {device}.",
                hint=f"Move it: counts.to({str(device)!r}).",
            )
        if not counts.is_cuda and device.type == "cpu" and not is_fake(counts):
            # Use NumPy, because torch would wake its threads for each step.
            values, lengths = counts.numpy(), np.diff(segments.offsets.numpy())
            if ((values < 0) | (values > lengths)).any():
                raise BadInput(
                    "Some counts are below 0 or above the number of points of their cell.",
                    hint="Clamp them to 0 .. segments.counts.",
                )
        return counts if counts.dtype is torch.int32 else counts.to(torch.int32)
    same = whole_number(counts)
    if same is None or same < 0:
        raise BadInput(
            f"`counts` is {counts!r}; it must be a tensor, a whole number of at least 0, or a ratio.",
            hint="Give counts (C,), one whole number for all cells, or a ratio as a float.",
        )
    return segments.counts.clamp(max=min(same, INT32_MOST))


def require_segments(segments: object) -> None:
    if not isinstance(segments, Segments):
        raise BadInput(
            f"`segments` is a {type(segments).__name__}, not Segments.",
            hint="Create one with Segments.from_ids, from_coords or from_offsets.",
        )
