"""The k smallest keys of every cell on a CPU, compiled by numba. Imported only where numba is there.

Cells are shared out among plain threads, as many as torch uses.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.kit import hashing
from pinchpoint.kit.compiled import compiled
from pinchpoint.kit.segments import Segments

_FEW = 512  # points of a cell up to which going over all of them a few times is faster than choosing
_SHARE = 2**16  # points below which another thread costs more than it brings

_SPREAD, _FIRST, _SECOND, _THIRD = (
    np.uint32(factor) for factor in (hashing.SPREAD, hashing.FIRST, hashing.SECOND, hashing.THIRD)
)
_MOST = np.uint32(2**32 - 1)
_S0, _S1, _S2, _S3 = (np.uint32(shift) for shift in hashing.SHIFTS)


def draw(segments: Segments, counts: Tensor, of: tuple[int, int]) -> Tensor:
    """(M,) int32. counts: (C,) int32, each between 0 and its cell's points."""
    ends = np.cumsum(counts.numpy(), dtype=np.int64)
    out = torch.empty(int(ends[-1]), dtype=torch.int32)
    given = counts.contiguous().numpy(), ends, out.numpy(), segments.longest
    _in_parts(segments, lambda first, last: _draw_cells(*_points(segments, of), *given, first, last))
    return out


def draw_one(segments: Segments, of: tuple[int, int]) -> Tensor:
    """(C,) int32: the point of the smallest key of each cell, none of which is empty."""
    out = torch.empty(segments.cells, dtype=torch.int32)
    given = out.numpy(), segments.longest
    _in_parts(segments, lambda first, last: _draw_one(*_points(segments, of), *given, first, last))
    return out


def _points(segments: Segments, of: tuple[int, int]) -> tuple[Any, ...]:
    order, offsets = segments.order.contiguous().numpy(), segments.offsets.contiguous().numpy()
    return order, offsets, np.uint32(of[0]), np.uint32(of[1])


def _in_parts(segments: Segments, draw_cells: Callable[[int, int], None]) -> None:
    """Calls it for runs of cells that make up all of them."""
    threads = max(1, min(torch.get_num_threads(), segments.points // _SHARE))
    if threads == 1:
        return draw_cells(0, segments.cells)
    # More parts than threads: one that is held up by other programs then leaves its rest to the others.
    ends = np.linspace(0, segments.points, 4 * threads + 1)[1:-1]
    cuts = [0, *np.searchsorted(segments.offsets.numpy()[1:], ends).tolist(), segments.cells]
    with ThreadPoolExecutor(threads) as pool:
        for part in [pool.submit(draw_cells, first, last) for first, last in pairwise(cuts)]:
            part.result()


@compiled
def _fill_keys(order: Any, first: int, count: int, k0: Any, k1: Any, keys: Any) -> None:
    for j in range(count):
        x = np.uint32(np.uint32(order[first + j]) * _SPREAD + k0)
        x = np.uint32((x ^ (x >> _S0)) * _FIRST) ^ k1
        x = np.uint32((x ^ (x >> _S1)) * _SECOND)
        x = np.uint32((x ^ (x >> _S2)) * _THIRD)
        keys[j] = x ^ (x >> _S3)


@compiled
def _smallest(keys: Any, count: int, wanted: int) -> Any:
    """The `wanted`-th smallest of keys[:count], from 1: Hoare's choosing, which moves them. They are random by themselves."""
    low, high, at = 0, count - 1, wanted - 1
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


@compiled
def _limit(keys: Any, count: int, wanted: int) -> Any:
    """The `wanted`-th smallest of a few keys, or a number between it and the next; 0 < wanted < count.

    Keys are spread evenly, so that about `wanted` lie below wanted / count of their range: from there it is
    a step or two, and each looks at all keys in one run without branches.
    """
    limit = np.uint32((np.uint64(wanted) << np.uint64(32)) // np.uint64(count) - np.uint64(1))
    below = 0
    for j in range(count):
        below += keys[j] <= limit
    for _ in range(below, wanted):
        best = _MOST
        for j in range(count):
            key = keys[j] if keys[j] > limit else _MOST
            best = min(best, key)
        limit = best
    for _ in range(wanted, below):
        best = np.uint32(0)
        for j in range(count):
            key = keys[j] if keys[j] <= limit else np.uint32(0)
            best = max(best, key)
        limit = np.uint32(best - np.uint32(1))
    return limit


@compiled
def _draw_cells(
    order: Any, offsets: Any, k0: Any, k1: Any, counts: Any, ends: Any, out: Any, longest: int, first: int, last: int
) -> None:
    keys = np.empty(longest, np.uint32)
    moved = np.empty(longest if longest > _FEW else 0, np.uint32)
    for cell in range(first, last):
        begin, wanted, end = offsets[cell], counts[cell], ends[cell]
        count = offsets[cell + 1] - begin
        to = end - wanted
        limit = _MOST
        if 0 < wanted < count:
            _fill_keys(order, begin, count, k0, k1, keys)
            if count <= _FEW:
                limit = _limit(keys, count, wanted)
            else:
                moved[:count] = keys[:count]
                limit = _smallest(moved, count, wanted)
        for j in range(count):
            if to == end:
                break
            out[to] = order[begin + j]  # written over by the next where this one is not drawn
            to += keys[j] <= limit


@compiled
def _draw_one(order: Any, offsets: Any, k0: Any, k1: Any, out: Any, longest: int, first: int, last: int) -> None:
    keys = np.empty(longest, np.uint32)
    for cell in range(first, last):
        begin = offsets[cell]
        count = offsets[cell + 1] - begin
        _fill_keys(order, begin, count, k0, k1, keys)
        best = 0
        for j in range(1, count):
            best = j if keys[j] < keys[best] else best
        out[cell] = order[begin + best]
