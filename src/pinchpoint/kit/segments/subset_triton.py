"""The k smallest keys of every cell on a GPU, in Triton. Imported only where a GPU and Triton are present.

A program processes several cells, each in a row of lanes. Keys are uniform, so the k-th smallest of n is
near k / n of their range: from there, all rows together move key by key to the limit that k keys do not
exceed, which takes a step or two on average. A cell longer than a row is processed by its program alone, one
tile at a time.

Where a program writes depends on the counts of all cells before its own. In one launch, the first program of
every group of cells writes the sum of its counts to a board, adds up the sums of the groups before its own,
and writes that start of its group beside it; every program adds the counts of the cells before its own in the
group. Each number on the board stands beside the number of the draw, so that one of another draw is never
taken. A program that does not find a number after some time adds up the counts itself, so that no order of
programs can make it wait for ever.
"""

# Triton reads these functions' source: only annotations that Triton knows are allowed.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

from functools import lru_cache
from itertools import count

import torch
import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.segments import hashing
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.triton_launch import Launcher

_KEYS = 256  # keys per warp
_TALL = 128  # keys of a long cell at a time: more would need registers that keep programs from running
_GROUP = 256  # cells with one sum on the board
_BOARD = tl.constexpr(512)  # groups
_LAST_DRAW = 2**31 - 1  # numbers of draws begin again after this one
_SPREAD, _FIRST, _SECOND, _THIRD = (
    tl.constexpr(factor) for factor in (hashing.SPREAD, hashing.FIRST, hashing.SECOND, hashing.THIRD)
)
_TRIES = tl.constexpr(1000)  # to find a sum: most of a millisecond
_S0, _S1, _S2, _S3 = (tl.constexpr(shift) for shift in hashing.SHIFTS)


class _Board:
    """Sums and starts of groups of cells on one device, each with the number of the draw it belongs to."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(2 * _BOARD.value, dtype=torch.int64, device=device)
        self._draws = count()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # draws on other streams find zeros, too

    def next_draw(self) -> int:
        """The number of a new draw, from 1. The board is empty before numbers begin again."""
        number = next(self._draws) % _LAST_DRAW + 1
        if number == _LAST_DRAW:
            self.sums.zero_()
        return number


# For all draws of the process, because a new board would have to be cleared, which is another launch.
_boards: dict[torch.device, _Board] = {}


def draw(segments: Segments, counts: Tensor, sums: Tensor | None, of: tuple[int, int], out: Tensor) -> None:
    """Write the drawn points to `out`, (M,) int32, with -1 where nothing is drawn.

    counts: (C,) int32. sums: (C,) int32, their running sum; without it, the sums of groups of cells are
    passed on through the board.
    """
    rows, wide, warps = _tile(segments.points, segments.cells, segments.longest)
    cells = segments.cells
    group = number = 0
    if sums is None:
        assert cells <= _GROUP * _BOARD.value, "the board is too small"
        if (board := _boards.get(counts.device)) is None:
            board = _boards[counts.device] = _Board(counts.device)
        group, sums, number = _GROUP, board.sums, board.next_draw()
    _draw(
        -(-cells // rows),
        (segments.order, segments.offsets, counts, sums, out),
        (cells, out.shape[0], *_signed(of), number),
        rows,
        wide,
        max(_TALL, wide),
        2 if wide > 128 else 0,
        group,
        warps=warps,
    )


def draw_one(segments: Segments, of: tuple[int, int], out: Tensor) -> None:
    """Write the point with the smallest key of each cell to `out`, (C,) int32."""
    rows, wide, warps = _tile(segments.points, segments.cells, segments.longest)
    rows *= 2  # a cell needs few registers: more cells fit in a program
    _draw_one(
        -(-segments.cells // rows),
        (segments.order, segments.offsets, out),
        (segments.cells, *_signed(of)),
        rows,
        wide,
        warps=warps,
    )


def draw_counts(
    segments: Segments,
    low: int,
    high: int,
    of_ratio: tuple[int, int],
    of: tuple[int, int],
    least: int,
    out: Tensor,
) -> None:
    """Write the counts to `out`, (C,) int32. low, high: the ends of the ratio, times 2**32."""
    block = 256
    # The ends are passed as halves of 32 bits, so that their size does not change their argument type.
    ratio = low >> 16, low & 0xFFFF, (high - low) >> 16, (high - low) & 0xFFFF
    _draw_counts(
        -(-segments.cells // block),
        (segments.offsets, out),
        (segments.cells, min(least, 2**31 - 1), *ratio, *_signed(of_ratio), *_signed(of)),
        low < high,
        block,
    )


@lru_cache(maxsize=64)
def _tile(points: int, cells: int, longest: int) -> tuple[int, int, int]:
    """Cells per program, lanes per cell (so that most cells fit and few lanes stay empty), and warps.

    One warp is used if possible: a sum over a row then needs no synchronisation of warps.
    """
    mean = points // cells + 1
    wide = max(16, min(triton.next_power_of_2(min(longest, 5 * mean // 2)), 1024))
    return max(1, _KEYS // wide), wide, max(1, wide // _KEYS)


def _signed(of: tuple[int, int]) -> tuple[int, int]:
    return hashing.signed(of[0]), hashing.signed(of[1])


@triton.jit
def _keys(point, k0, k1):
    x = point.to(tl.uint32) * _SPREAD + k0.to(tl.uint32)
    x = ((x ^ (x >> _S0)) * _FIRST) ^ k1.to(tl.uint32)
    x = (x ^ (x >> _S1)) * _SECOND
    x = (x ^ (x >> _S2)) * _THIRD
    return x ^ (x >> _S3)


@triton.jit
def _guess(rank, length):
    """The key that about `rank` of `length` keys do not exceed, because keys are uniform.

    Computed in float32, because it is only a starting point.
    """
    share = rank.to(tl.float32) / tl.maximum(length, 1).to(tl.float32)
    begin = tl.minimum(share * 4294967296.0, 4294967040.0).to(tl.uint32)
    return tl.where(rank < length, begin, 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def _jump(limit, missing, length):
    """The limit moved by the average distance of `missing` keys."""
    there = limit.to(tl.int64) + missing.to(tl.int64) * (4294967296 // tl.maximum(length, 1).to(tl.int64))
    return tl.minimum(tl.maximum(there, 0), 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def _next(key, inside, limit, up):
    """A value whose minimum is that of the next key above the limit, or of the next one below it."""
    above = tl.where(key > limit, key, 0xFFFFFFFF)
    below = tl.where(key <= limit, 0xFFFFFFFF - key, 0xFFFFFFFF)
    return tl.where(inside, tl.where(up, above, below), 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def _step(limit, least, missing):
    """The limit with one more key below it if keys are missing, or one less if there are too many."""
    next_limit = tl.where(missing > 0, least, 0xFFFFFFFF - least - 1).to(tl.uint32)
    return tl.where(missing == 0, limit, next_limit)


# The kernels are not specialised on a draw's numbers: each new seed or size would compile them again.
@Launcher
@triton.jit(do_not_specialize=["cells", "total", "k0", "k1", "number"])
def _draw(
    order,
    offsets,
    counts,
    sums,
    out,
    cells,
    total,
    k0,
    k1,
    number,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    TALL: tl.constexpr,
    JUMPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """sums: the board of a draw with this number, or without GROUP the running sum of the counts, (C,)."""
    first_cell = tl.program_id(0) * ROWS
    if GROUP > 0:
        if first_cell % GROUP == 0:
            _write_start(counts, sums, first_cell, cells, number, GROUP)
        in_group = _sum_in_group(counts, first_cell, GROUP)
    cell = first_cell + tl.arange(0, ROWS)
    there = cell < cells
    begin = tl.load(offsets + cell, mask=there, other=0)
    length = tl.load(offsets + cell + 1, mask=there, other=0) - begin
    quota = tl.load(counts + cell, mask=there, other=0)
    longest = tl.max(length, axis=0)

    rank = tl.where(length <= WIDE, tl.minimum(quota, length), 0)
    rank = tl.maximum(rank, 0)
    lane = tl.arange(0, WIDE)
    inside = (lane[None, :] < length[:, None]) & (rank > 0)[:, None]
    point = tl.load(order + begin[:, None] + lane[None, :], mask=inside, other=0)
    key = _keys(point, k0, k1)
    limit = _guess(rank, length)
    missing = rank - tl.sum((inside & (key <= limit[:, None])).to(tl.int32), axis=1)
    for _ in tl.static_range(JUMPS):
        limit = _jump(limit, missing, length)
        missing = rank - tl.sum((inside & (key <= limit[:, None])).to(tl.int32), axis=1)
    steps = tl.max(tl.abs(missing), axis=0)
    while steps > 0:
        least = tl.min(_next(key, inside, limit[:, None], (missing > 0)[:, None]), axis=1)
        limit = _step(limit, least, missing)
        missing -= (missing > 0).to(tl.int32) - (missing < 0).to(tl.int32)
        steps -= 1
    if GROUP > 0:
        begins_at = in_group + _start(counts, sums, first_cell // GROUP, number, GROUP)  # pyright: ignore[reportPossiblyUnboundVariable]
    else:
        begins_at = tl.load(sums + first_cell) - tl.load(counts + first_cell)
    ends = begins_at + tl.cumsum(quota, axis=0)
    start = ends - quota
    is_drawn = inside & (key <= limit[:, None])
    to = start[:, None] + tl.cumsum(is_drawn.to(tl.int32), axis=1) - 1
    tl.store(out + to, point, mask=is_drawn & (to >= 0) & (to < total))
    # Counts above the size of a cell, and a total above the sum: nothing is drawn there.
    short = tl.where(length <= WIDE, quota - rank, 0)
    for past in range(0, tl.max(short, axis=0), WIDE):
        beyond = past + lane
        _clear(out, (start + rank)[:, None] + beyond[None, :], beyond[None, :] < short[:, None], total)
    if first_cell + ROWS >= cells:
        for past in range(begins_at + tl.sum(quota, axis=0), total, WIDE):
            _clear(out, past + lane, lane >= 0, total)

    if longest > WIDE:
        for row in range(ROWS):
            at = first_cell + row
            if at < cells:
                first = tl.load(offsets + at)
                count = tl.load(offsets + at + 1) - first
                if count > WIDE:
                    long_quota = tl.load(counts + at)
                    _draw_long(
                        order + first,
                        out,
                        count,
                        long_quota,
                        tl.sum(tl.where(cell == at, start, 0), axis=0),
                        total,
                        k0,
                        k1,
                        TALL,
                    )


@triton.jit
def _write_start(counts, board, first_cell, cells, number, GROUP: tl.constexpr):
    """Write the sum of a group's counts to the board, and then the sum of all counts before the group."""
    group = first_cell // GROUP
    lane = tl.arange(0, GROUP)
    whole = tl.sum(tl.load(counts + first_cell + lane, mask=first_cell + lane < cells, other=0), axis=0)
    tl.atomic_xchg(board + group, _word(whole, number), sem="relaxed")
    start = tl.zeros((), tl.int32)
    for first in range(0, group, GROUP):
        asked = first + lane < group
        words = tl.load(board + first + lane, mask=asked, other=0, volatile=True)
        late = tl.max((asked & ((words >> 32) != number)).to(tl.int32), axis=0)
        tries = 0
        while (late > 0) & (tries < _TRIES):
            words = tl.load(board + first + lane, mask=asked, other=0, volatile=True)
            late = tl.max((asked & ((words >> 32) != number)).to(tl.int32), axis=0)
            tries += 1
        if late > 0:
            start += _sum_of_groups(counts, first, tl.minimum(first + GROUP, group), GROUP)
        else:
            start += tl.sum(words.to(tl.int32), axis=0)
    tl.atomic_xchg(board + _BOARD + group, _word(start, number), sem="relaxed")


@triton.jit
def _start(counts, board, group, number, GROUP: tl.constexpr):
    """The sum of all counts before a group, from the board."""
    word = tl.load(board + _BOARD + group, volatile=True)
    tries = 0
    while ((word >> 32) != number) & (tries < _TRIES):
        word = tl.load(board + _BOARD + group, volatile=True)
        tries += 1
    start = word.to(tl.int32)
    if (word >> 32) != number:
        start = _sum_of_groups(counts, 0, group, GROUP)
    return start


@triton.jit
def _word(total, number):
    """A number on the board: the total in the low half, below the number of the draw."""
    return (number.to(tl.int64) << 32) | (total.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _sum_in_group(counts, first_cell, GROUP: tl.constexpr):
    """The sum of the counts of the cells before this one in its group."""
    cell = first_cell // GROUP * GROUP + tl.arange(0, GROUP)
    return tl.sum(tl.load(counts + cell, mask=cell < first_cell, other=0), axis=0)


@triton.jit
def _sum_of_groups(counts, first, last, GROUP: tl.constexpr):
    """The sum of the counts of whole groups, from the first to before the last."""
    lane = tl.arange(0, 32)  # few, because this is rare, and its registers would slow down every draw
    sums = tl.zeros((32,), tl.int32)
    for cell in range(first * GROUP, last * GROUP, 32):
        sums += tl.load(counts + cell + lane)
    return tl.sum(sums, axis=0)


@triton.jit
def _draw_long(order, out, count, quota, to, total, k0, k1, TALL: tl.constexpr):
    """Draw from one cell, one tile at a time, starting at its first point."""
    tall = tl.arange(0, TALL)
    rank = tl.maximum(tl.minimum(quota, count), 0)
    limit = _guess(rank, count)
    missing = rank - _up_to(order, count, limit, k0, k1, TALL)
    for _ in range(3):
        limit = _jump(limit, missing, count)
        missing = rank - _up_to(order, count, limit, k0, k1, TALL)
    while missing != 0:
        least = tl.full((TALL,), 0xFFFFFFFF, tl.uint32)
        for tile in range(0, count, TALL):
            inside = tile + tall < count
            key = _keys(tl.load(order + tile + tall, mask=inside, other=0), k0, k1)
            least = tl.minimum(least, _next(key, inside, limit, missing > 0))
        limit = _step(limit, tl.min(least, axis=0), missing)
        missing -= (missing > 0).to(tl.int32) - (missing < 0).to(tl.int32)
    for tile in range(0, count, TALL):
        inside = (tile + tall < count) & (rank > 0)
        point = tl.load(order + tile + tall, mask=inside, other=0)
        is_drawn = (inside & (_keys(point, k0, k1) <= limit)).to(tl.int32)
        at = to + tl.cumsum(is_drawn, axis=0) - 1
        tl.store(out + at, point, mask=(is_drawn > 0) & (at >= 0) & (at < total))
        to += tl.sum(is_drawn, axis=0)
    for tile in range(rank, quota, TALL):
        _clear(out, to + tile - rank + tall, tile + tall < quota, total)


@triton.jit
def _clear(out, to, mask, total):
    tl.store(out + to, -1, mask=mask & (to >= 0) & (to < total))


@triton.jit
def _up_to(order, count, limit, k0, k1, TALL: tl.constexpr):
    """The number of a cell's keys that are not above the limit."""
    tall = tl.arange(0, TALL)
    counts = tl.zeros((TALL,), tl.int32)
    for tile in range(0, count, TALL):
        inside = tile + tall < count
        key = _keys(tl.load(order + tile + tall, mask=inside, other=0), k0, k1)
        counts += (inside & (key <= limit)).to(tl.int32)
    return tl.sum(counts, axis=0)


@Launcher
@triton.jit(do_not_specialize=["cells", "k0", "k1"])
def _draw_one(order, offsets, out, cells, k0, k1, ROWS: tl.constexpr, WIDE: tl.constexpr):
    cell = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = cell < cells
    begin = tl.load(offsets + cell, mask=there, other=0)
    length = tl.load(offsets + cell + 1, mask=there, other=0) - begin
    best = tl.full((ROWS,), 0x7FFFFFFFFFFFFFFF, tl.int64)
    for tile in range(0, tl.max(length, axis=0), WIDE):
        lane = tile + tl.arange(0, WIDE)
        inside = lane[None, :] < length[:, None]
        point = tl.load(order + begin[:, None] + lane[None, :], mask=inside, other=0)
        # With the key in the high bits and the point's number in the low 31, the minimum belongs to the
        # smallest key.
        both = (_keys(point, k0, k1).to(tl.int64) << 31) | point
        best = tl.minimum(best, tl.min(tl.where(inside, both, 0x7FFFFFFFFFFFFFFF), axis=1))
    tl.store(out + cell, (best & 0x7FFFFFFF).to(tl.int32), mask=there)


@Launcher
@triton.jit(
    do_not_specialize=["cells", "least", "low_a", "low_b", "span_a", "span_b", "r0", "r1", "k0", "k1"]
)
def _draw_counts(
    offsets,
    out,
    cells,
    least,
    low_a,
    low_b,
    span_a,
    span_b,
    r0,
    r1,
    k0,
    k1,
    RANGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = cell < cells
    length = tl.load(offsets + cell + 1, mask=there, other=0) - tl.load(offsets + cell, mask=there, other=0)
    share = (tl.zeros((BLOCK,), tl.int64) + low_a) * 65536 + low_b
    if RANGE:
        span = (tl.zeros((BLOCK,), tl.int64) + span_a) * 65536 + span_b
        share += ((_keys(cell, r0, r1) >> 1).to(tl.int64) * span) >> 31
    number = (_keys(cell, k0, k1).to(tl.int64) + length.to(tl.int64) * share) >> 32
    count = tl.minimum(tl.maximum(number, least), length.to(tl.int64))
    tl.store(out + cell, count.to(tl.int32), mask=there)
