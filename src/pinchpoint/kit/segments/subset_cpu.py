"""The k smallest keys of every cell on a CPU, compiled by numba. Imported only if numba is installed.

Cells are distributed over as many plain threads as torch uses. Places are unsigned: an index that may be
negative would be checked in every iteration, and the compiler would not vectorise the loops below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit.numba_loops import compile_loop
from pinchpoint.kit.segments import hashing
from pinchpoint.kit.segments.segments import Segments

_FEW = 512  # largest number of points for which a few passes over all of them are faster than quickselect
_BLOCK = 4096  # points whose keys are computed in one run; they stay in the fastest cache
_SHARE = 2**16  # points per thread below which another thread costs more than it saves

_SPREAD, _FIRST, _SECOND, _THIRD = (
    np.uint32(factor) for factor in (hashing.SPREAD, hashing.FIRST, hashing.SECOND, hashing.THIRD)
)
_ONE, _MOST = np.uint32(1), np.uint32(2**32 - 1)
_S0, _S1, _S2, _S3 = (np.uint32(shift) for shift in hashing.SHIFTS)


def draw(segments: Segments, counts: Tensor, of: tuple[int, int]) -> Tensor:
    """The points drawn, (M,) int32. counts: (C,) int32, each between 0 and the size of its cell."""
    cell_counts = counts.contiguous().numpy()
    ends = _sums(cell_counts)
    out = torch.empty(int(ends[-1]), dtype=torch.int32)
    arguments = cell_counts, ends, out.numpy(), segments.longest
    _in_parts(segments, lambda first, last: _draw_cells(*_points(segments, of), *arguments, first, last))
    return out


def draw_one(segments: Segments, of: tuple[int, int]) -> Tensor:
    """(C,) int32: the point with the smallest key of each cell, none of which is empty."""
    out = torch.empty(segments.cells, dtype=torch.int32)
    arguments = out.numpy(), segments.longest
    _in_parts(segments, lambda first, last: _draw_one(*_points(segments, of), *arguments, first, last))
    return out


def _points(segments: Segments, of: tuple[int, int]) -> tuple[Any, ...]:
    order, offsets = segments.order.contiguous().numpy(), segments.offsets.contiguous().numpy()
    return order, offsets, np.uint32(of[0]), np.uint32(of[1])


def _in_parts(segments: Segments, draw_cells: Callable[[int, int], None]) -> None:
    """Call `draw_cells` for runs of cells that together cover all cells."""
    threads = max(1, min(torch.get_num_threads(), segments.points // _SHARE))
    if threads == 1:
        return draw_cells(0, segments.cells)
    # More parts than threads: if other programs slow one thread down, the others take over its parts.
    ends = np.linspace(0, segments.points, 4 * threads + 1)[1:-1]
    cuts = [0, *np.searchsorted(segments.offsets.numpy()[1:], ends).tolist(), segments.cells]
    parts = deque(pairwise(cuts))

    def work() -> None:
        while True:
            try:
                first, last = parts.popleft()
            except IndexError:  # another thread took the last part
                return
            draw_cells(first, last)

    # This thread works too, and each thread starts once: submitting each part separately would cost up to a
    # tenth of the draw.
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()


@compile_loop
def _sums(counts: Any) -> Any:
    """The running sum of counts. NumPy's takes five times as long, and torch's wakes its threads."""
    ends = np.empty(len(counts), np.int64)
    total = 0
    for at in range(len(counts)):
        total += counts[at]
        ends[at] = total
    return ends


@compile_loop
def _fill_keys(order: Any, first: Any, count: int, k0: Any, k1: Any, keys: Any) -> None:
    for j in range(count):
        x = np.uint32(np.uint32(order[first + np.uint64(j)]) * _SPREAD + k0)
        x = np.uint32((x ^ (x >> _S0)) * _FIRST) ^ k1
        x = np.uint32((x ^ (x >> _S1)) * _SECOND)
        x = np.uint32((x ^ (x >> _S2)) * _THIRD)
        keys[j] = x ^ (x >> _S3)


@compile_loop
def _smallest(keys: Any, count: int, rank: int) -> Any:
    """The `rank`-th smallest (from 1) of keys[:count], by quickselect, which reorders them.

    The keys are already random, so the pivot need not be.
    """
    low, high, at = 0, count - 1, rank - 1
    while low < high:
        pivot = keys[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while keys[left] < pivot:
                left += 1
            while keys[right] > pivot:
                right -= 1
            if left <= right:
                keys[left], keys[right] = keys[right], keys[left]
                left += 1
                right -= 1
        if at <= right:
            high = right
        elif at >= left:
            low = left
        else:
            break
    return keys[at]


@compile_loop
def _limit(keys: Any, at: Any, count: int, rank: int) -> Any:
    """The `rank`-th smallest of the `count` keys from `at` on, or a number between it and the next.

    0 < rank < count. Keys are uniform, so that about `rank` of them lie below rank / count of their
    range: from there it takes a step or two, and each step visits all keys in one run without branches.
    """
    limit = np.uint32((np.uint64(rank) << np.uint64(32)) // np.uint64(count) - np.uint64(1))
    below = np.int32(0)
    for j in range(count):
        below = np.int32(below + np.int32(keys[at + np.uint64(j)] <= limit))
    # The distance of a key above the limit, minus one; with all bits inverted, its distance below. Keys on
    # the other side wrap around and are far away, so the nearest key is a plain minimum.
    side = np.uint32(0) if below < rank else _MOST
    for _ in range(abs(rank - below)):
        nearest = _MOST
        for j in range(count):
            nearest = min(nearest, np.uint32(keys[at + np.uint64(j)] - limit - _ONE) ^ side)
        limit = np.uint32(limit + nearest + _ONE) if side == 0 else np.uint32(limit - nearest - _ONE)
    return limit


@compile_loop
def _fill_block(order: Any, offsets: Any, cell: int, last: int, k0: Any, k1: Any, keys: Any) -> int:
    """Compute the keys of one cell, or of those from `cell` on that fit a block; return their end."""
    end = cell + 1
    while end < last and offsets[end + 1] - offsets[cell] <= _BLOCK:
        end += 1
    _fill_keys(order, np.uint64(offsets[cell]), offsets[end] - offsets[cell], k0, k1, keys)
    return end


@compile_loop
def _draw_cells(
    order: Any,
    offsets: Any,
    k0: Any,
    k1: Any,
    counts: Any,
    ends: Any,
    out: Any,
    longest: int,
    first: int,
    last: int,
) -> None:
    keys = np.empty(max(longest, _BLOCK), np.uint32)
    scratch = np.empty(longest if longest > _FEW else 0, np.uint32)
    position = first
    while position < last:
        block_end = _fill_block(order, offsets, position, last, k0, k1, keys)
        origin = np.uint64(offsets[position])
        for cell in range(position, block_end):
            at, count, quota = (
                np.uint64(offsets[cell]) - origin,
                offsets[cell + 1] - offsets[cell],
                counts[cell],
            )
            if quota == 0:
                continue
            limit = _MOST
            if quota < count:
                if count <= _FEW:
                    limit = _limit(keys, at, count, quota)
                else:
                    scratch[:count] = keys[np.int64(at) : np.int64(at) + count]
                    limit = _smallest(scratch, count, quota)
            _write(
                order,
                origin + at,
                keys,
                at,
                count,
                limit,
                out,
                ends[cell] - quota,
                ends[cell],
                ends[last - 1],
            )
        position = block_end


@compile_loop
def _write(
    order: Any,
    begin: Any,
    keys: Any,
    at: Any,
    count: int,
    limit: Any,
    out: Any,
    first: int,
    end: int,
    part_end: int,
) -> None:
    """Write the points of one cell whose keys are not above the limit to out[first:end]."""
    to = np.uint64(first)
    if end < part_end:
        # A point that is not drawn is overwritten by the next drawn point; after the last one, by the first
        # of the next cell.
        for j in range(count):
            out[to] = order[begin + np.uint64(j)]
            to += np.uint64(keys[at + np.uint64(j)] <= limit)
        return
    for j in range(count):
        if keys[at + np.uint64(j)] <= limit:
            out[to] = order[begin + np.uint64(j)]
            to += np.uint64(1)


@compile_loop
def _draw_one(
    order: Any, offsets: Any, k0: Any, k1: Any, out: Any, longest: int, first: int, last: int
) -> None:
    keys = np.empty(max(longest, _BLOCK), np.uint32)
    position = first
    while position < last:
        block_end = _fill_block(order, offsets, position, last, k0, k1, keys)
        origin = np.uint64(offsets[position])
        for cell in range(position, block_end):
            at, count = np.uint64(offsets[cell]) - origin, offsets[cell + 1] - offsets[cell]
            least = _MOST
            for j in range(count):
                least = min(least, keys[at + np.uint64(j)])
            place = np.uint64(0)
            while keys[at + place] != least:
                place += np.uint64(1)
            out[cell] = order[origin + at + place]
        position = block_end
