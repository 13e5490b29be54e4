"""Random subsets of the points of every cell, in one pass over all cells.

A draw is defined once: every point has a 32-bit key, a function of its number and of (seed, step, rank, view), and the
subset of a cell is the k points with the smallest keys. Keys are never equal. `exact` finds them by a Triton kernel on a
GPU and by numba on a CPU, `sort` by one sort in plain torch: all give the same indices, bit for bit, on every device.
Letters: N points, C cells, M points drawn.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, get_args

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

_LONGEST = 16384  # points of a cell


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
) -> Tensor:
    """How many points of each cell to draw, (C,) int32: floor(n r + u) with u uniform in [0, 1), so n r on average.

    At least `least` are drawn of a cell, or all it has. ratio: r for all cells, or (lo, hi): r is drawn for each cell,
    or with `together` once for all. In whole numbers throughout: the same on every device.
    """
    require_segments(segments)
    low, high = _fixed(ratio)
    if (fewest := whole_number(least)) is None or fewest < 0:
        raise BadInput(f"least = {least!r}", hint="give the fewest points to draw of a cell: 0, 1, 2 ...")
    of_ratio = hashing.words(seed=seed, step=step, rank=rank, view=view, purpose=hashing.RATIOS)
    of = hashing.words(seed=seed, step=step, rank=rank, view=view, purpose=hashing.COUNTS)
    if together:
        low = high = _between(low, high, hashing.key(0, of_ratio))
    if own_kernels(segments.offsets):
        drawn = torch.empty(segments.cells, dtype=torch.int32, device=segments.offsets.device)
        if not is_fake(drawn):
            from pinchpoint.kit.segments import subset_triton

            with on_device(drawn):
                subset_triton.draw_counts(segments, low, high, of_ratio, of, fewest, drawn)
        return drawn
    lengths = segments.counts.long()
    cells = torch.arange(segments.cells, device=lengths.device)
    shares = _between(low, high, hashing.keys(cells, of_ratio)) if low < high else low
    drawn = hashing.keys(cells, of).add_(lengths * shares).bitwise_right_shift_(32)
    return torch.minimum(drawn.clamp_(min=min(fewest, INT32_MOST)), lengths).to(torch.int32)


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
    """Numbers of the points drawn, (M,) int32: cell by cell, in a cell in the order of places.

    counts: (C,) whole numbers, none above its cell's; or one number for all cells, of which a smaller cell gives all it
    has; or a ratio in 0..1 as a float, for `draw_counts`. total: the sum of the counts, where it is known: on a GPU the
    draw then waits for nothing (a total that is not the sum is refused on a CPU; on a GPU places left over hold -1).

    `exact`, `sort`: k points of every cell, each subset of k as likely as any other. `nested`: the same with `view` left
    out, so that of two draws with the same (seed, step, rank) the one with smaller counts lies inside the other.
    `bernoulli`: takes a ratio and keeps each point with that probability, and one of a cell where none was kept: its
    counts are right on average only.
    """
    require_segments(segments)
    if method not in get_args(Method):
        raise BadInput(f"method = {method!r}", hint=f"give one of {', '.join(get_args(Method))}")
    if method == "nested":
        view = 0
    of = hashing.words(seed=seed, step=step, rank=rank, view=view)
    if method == "bernoulli":
        return _bernoulli(segments, counts, of, total)
    if isinstance(counts, Real) and not isinstance(counts, bool) and whole_number(counts) is None:
        counts = draw_counts(segments, float(counts), seed=seed, step=step, rank=rank, view=view)
    wanted = _checked_counts(segments, counts)
    if total is not None and ((known := whole_number(total)) is None or not 0 <= known <= segments.points):
        raise BadInput(f"total = {total!r}", hint="give the sum of the counts, or leave total out")
    if method == "sort":
        return _by_sort(segments, wanted, of, total)
    if _one_kernel(segments):
        return _by_kernel(segments, wanted, of, total)
    if _compiled_loop(segments):
        from pinchpoint.kit.segments import subset_cpu

        return _of_total(subset_cpu.draw(segments, wanted, of), total)
    return _by_sort(segments, wanted, of, total)


def sample_one(segments: Segments, *, seed: int, step: int = 0, rank: int = 0, view: int = 0) -> Tensor:
    """One point of every cell, (C,) int32: the first that `sample_subset` draws. Never waits for the device."""
    require_segments(segments)
    if segments.empty:
        raise BadInput(
            "cells without points have none to draw",
            hint="draw with sample_subset(segments, 1, ...): they give nothing",
        )
    of = hashing.words(seed=seed, step=step, rank=rank, view=view)
    if _one_kernel(segments):
        drawn = torch.empty(segments.cells, dtype=torch.int32, device=segments.order.device)
        if not is_fake(drawn):
            from pinchpoint.kit.segments import subset_triton

            with on_device(drawn):
                subset_triton.draw_one(segments, of, drawn)
        return drawn
    if _compiled_loop(segments):
        from pinchpoint.kit.segments import subset_cpu

        return subset_cpu.draw_one(segments, of)
    # A key above its point's number, which takes 31 bits: the least of both together is the least key's.
    values = (hashing.keys(segments.order, of) << 31).bitwise_or_(segments.order)
    return _least(segments, values).bitwise_and_(INT32_MOST).to(torch.int32)


def _one_kernel(segments: Segments) -> bool:
    """Does our kernel for GPUs draw? One program takes a whole cell, so that sorting all points is faster for a long one."""
    return segments.longest <= _LONGEST and own_kernels(segments.order)


def _compiled_loop(segments: Segments) -> bool:
    """Does numba draw?"""
    return segments.order.device.type == "cpu" and not is_fake(segments.order) and numba_works()


def _by_kernel(segments: Segments, counts: Tensor, of: tuple[int, int], total: int | None) -> Tensor:
    ends = counts.cumsum(0, dtype=torch.int32)
    drawn = torch.empty(int(ends[-1]) if total is None else total, dtype=torch.int32, device=counts.device)
    if not is_fake(drawn):
        from pinchpoint.kit.segments import subset_triton

        with on_device(drawn):
            subset_triton.draw(segments, counts, ends, of, drawn)
    return drawn


def _by_sort(segments: Segments, counts: Tensor, of: tuple[int, int], total: int | None) -> Tensor:
    """The k smallest keys of each cell: those up to the k-th, which one sort of all (cell, key) finds."""
    cells = segments.of_place
    values = hashing.keys_in(cells, segments.order, of)
    ordered = torch.sort(values).values
    last = segments.offsets.narrow(0, 0, segments.cells) + (counts - 1)
    # Where none is wanted the last is that of the cell before, which is less than all of this one; before the first is none.
    limits = ordered.index_select(0, last.clamp(0, segments.points - 1)).masked_fill_(last < 0, -1)
    chosen = values <= limits.index_select(0, cells)
    if total is None or not chosen.is_cuda:
        return _of_total(segments.order[chosen], total)
    # Each goes to its number among the chosen, from 1; what is not chosen goes to place 0, which is cut off.
    to = chosen.cumsum(0).mul_(chosen)
    drawn = torch.full((total + 1,), -1, dtype=torch.int32, device=to.device)
    return drawn.scatter_(0, to.clamp_(max=total), segments.order).narrow(0, 1, total)


def _of_total(drawn: Tensor, total: int | None) -> Tensor:
    if total is not None and len(drawn) != total:
        raise BadInput(
            f"total = {total:,} where the counts sum to {len(drawn):,}",
            hint="give the sum of the counts as total",
        )
    return drawn


def _least(segments: Segments, values: Tensor) -> Tensor:
    """(C,) int64: the least of each cell, of (N,) int64 by place."""
    least = torch.full((segments.cells,), 2**63 - 1, dtype=torch.int64, device=values.device)
    return least.scatter_reduce_(0, segments.of_place.long(), values, "amin")


def _bernoulli(segments: Segments, ratio: object, of: tuple[int, int], total: int | None) -> Tensor:
    if total is not None:
        raise BadInput(
            "bernoulli draws a number of points that is not known before",
            hint='leave total out, or use method="exact"',
        )
    if not isinstance(ratio, Real) or whole_number(ratio) is not None or isinstance(ratio, bool):
        raise BadInput(
            f"bernoulli with counts = {ratio!r}", hint="give a ratio in 0..1 as a float, such as 0.5"
        )
    keys = hashing.keys(segments.order, of)
    chosen = keys < _fixed(ratio)[1]
    # Where any point of a cell is kept, the one with the smallest key is: the others' smallest are added.
    chosen |= keys == _least(segments, keys).index_select(0, segments.of_place)
    return segments.order[chosen]


def _between(low: int, high: int, key: Any) -> Any:
    """Where a key, or a tensor of them, lies between two numbers up to 2**32. Half of a key: products stay below 2**63."""
    return low + ((key >> 1) * (high - low) >> 31)


def _fixed(ratio: Any) -> tuple[int, int]:
    """A ratio or a range of them as two whole numbers in [0, 2**32]."""
    pair = ratio if isinstance(ratio, tuple | list) else (ratio, ratio)
    fine = len(pair) == 2 and all(
        isinstance(end, Real) and not isinstance(end, bool) and math.isfinite(end) for end in pair
    )
    if not fine or not 0 <= pair[0] <= pair[1] <= 1:
        raise BadInput(
            f"ratio = {ratio!r}", hint="give a ratio in 0..1, or a range (lo, hi) of such with lo <= hi"
        )
    low, high = (round(float(end) * hashing.ONE) for end in pair)
    return low, high


def _checked_counts(segments: Segments, counts: object) -> Tensor:
    """(C,) int32 on the segments' device. On a GPU the numbers themselves are not looked at, which would wait."""
    if isinstance(counts, Tensor):
        if counts.shape != (segments.cells,) or counts.dtype is torch.bool or counts.is_floating_point():
            raise BadInput(
                f"counts of shape {tuple(counts.shape)} in {counts.dtype} for {segments.cells:,} cells",
                hint=f"give ({segments.cells},) whole numbers, or a ratio as a float",
            )
        device = segments.offsets.device
        if counts.device != device:
            raise BadInput(
                f"counts on {counts.device}, cells on {device}", hint=f"counts.to({str(device)!r})"
            )
        if device.type == "cpu" and not is_fake(counts):
            held, lengths = (
                counts.numpy(),
                np.diff(segments.offsets.numpy()),
            )  # torch would wake its threads for each step
            if ((held < 0) | (held > lengths)).any():
                raise BadInput(
                    "counts below 0 or above the points of their cell",
                    hint="clamp them to 0 .. segments.counts",
                )
        return counts.to(torch.int32)
    same = whole_number(counts)
    if same is None or same < 0:
        raise BadInput(
            f"counts = {counts!r}",
            hint="give counts (C,), one whole number for all cells, or a ratio as a float",
        )
    return segments.counts.clamp(max=min(same, INT32_MOST))


def require_segments(segments: object) -> None:
    if not isinstance(segments, Segments):
        raise BadInput(
            f"cells as a {type(segments).__name__}",
            hint="make them with Segments.from_ids, from_coords or from_offsets",
        )
