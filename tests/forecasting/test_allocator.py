"""The allocator model, compared with sequences computed by hand and with a slow, independent allocator."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pinchpoint.core.events import PRIVATE_POOL
from pinchpoint.forecasting.allocator import Allocator, OutOfMemory, segment_size

MIB = 2**20


def test_requests_are_rounded_up_to_512_bytes_and_empty_ones_take_nothing() -> None:
    allocator = Allocator()
    for request, counted in ((0, 0), (1, 512), (512, 512), (513, 1024), (1000, 1024)):
        assert allocator.allocate(request).size_bytes == counted
    assert allocator.allocated_bytes == 512 + 512 + 1024 + 1024
    empty = allocator.allocate(0)
    allocator.free(empty)
    assert allocator.allocated_bytes == 512 + 512 + 1024 + 1024


@pytest.mark.parametrize("expandable", [False, True])
def test_a_stream_does_not_use_blocks_that_another_one_has_freed(expandable: bool) -> None:
    allocator = Allocator(expandable=expandable)
    allocator.free(allocator.allocate(40 * MIB, stream=1))
    reserved = allocator.reserved_bytes
    other = allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 2 * reserved
    allocator.free(other)
    allocator.allocate(40 * MIB, stream=1)
    assert allocator.reserved_bytes == 2 * reserved


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_a_segment_has_the_size_that_torch_requests_from_the_driver(size: int, segment: int) -> None:
    assert segment_size(size) == segment
    allocator = Allocator()
    allocator.allocate(size)
    assert allocator.reserved_bytes == segment


def test_small_requests_share_a_segment_of_the_small_pool() -> None:
    allocator = Allocator()
    for _ in range(4):
        allocator.allocate(512 * 1024)  # four halves of a MiB fill one small segment
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (2 * MIB, 2 * MIB)
    allocator.allocate(1)
    assert allocator.reserved_bytes == 4 * MIB
    allocator.allocate(2 * MIB)  # a large request does not use the half-empty small segment
    assert allocator.reserved_bytes == 24 * MIB


def test_a_large_block_keeps_a_remainder_of_up_to_one_mib_and_counts_it() -> None:
    allocator = Allocator()
    entries = allocator.allocate(19 * MIB)  # its segment is 20 MiB: 1 MiB is left, not more
    assert (entries.size_bytes, allocator.reserved_bytes) == (20 * MIB, 20 * MIB)
    split = Allocator()
    block = split.allocate(9 * MIB)
    assert (block.size_bytes, split.reserved_bytes) == (9 * MIB, 20 * MIB)
    assert split.allocate(11 * MIB - 512).size_bytes == 11 * MIB  # the rest, whole
    assert split.reserved_bytes == 20 * MIB


def test_a_small_block_is_split_down_to_512_bytes() -> None:
    allocator = Allocator()
    assert allocator.allocate(MIB - 512).size_bytes == MIB - 512
    assert allocator.allocate(MIB).size_bytes == MIB
    assert allocator.allocate(512).size_bytes == 512
    assert allocator.reserved_bytes == 2 * MIB


def test_the_smallest_free_block_that_fits_is_used() -> None:
    allocator = Allocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(29 * MIB).address == small.address
    assert allocator.allocate(29 * MIB).address == large.address
    assert allocator.reserved_bytes == 70 * MIB


def test_neighbours_merge_when_they_are_free_and_only_then() -> None:
    allocator = Allocator()
    first, second, third = (allocator.allocate(6 * MIB) for _ in range(3))  # 18 of a segment of 20 MiB
    assert allocator.reserved_bytes == 20 * MIB
    allocator.free(first)
    allocator.free(third)
    allocator.allocate(9 * MIB)  # 6 + 8 MiB are free, but apart
    assert allocator.reserved_bytes == 40 * MIB
    allocator.free(second)
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_segments_do_not_merge_with_each_other() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(12 * MIB) for _ in range(2)]
    for block in blocks:
        allocator.free(block)
    allocator.allocate(24 * MIB)
    assert allocator.reserved_bytes == 48 * MIB


def test_at_a_limit_free_segments_are_released_before_giving_up() -> None:
    allocator = Allocator(limit_bytes=60 * MIB)
    first = allocator.allocate(40 * MIB)
    allocator.free(first)
    allocator.allocate(50 * MIB)  # 40 + 50 would exceed 60: the free 40 go back first
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (50 * MIB, 50 * MIB)
    with pytest.raises(OutOfMemory, match="would exceed"):
        allocator.allocate(20 * MIB)
    assert allocator.allocated_bytes == 50 * MIB


def test_a_segment_in_use_is_never_released() -> None:
    allocator = Allocator(limit_bytes=40 * MIB)
    blocks = allocator.allocate(2 * MIB)
    allocator.free(allocator.allocate(15 * MIB))  # the same segment's rest
    assert allocator.release_cached() == 0
    allocator.free(blocks)
    assert allocator.release_cached() == 20 * MIB
    assert allocator.reserved_bytes == 0


def test_the_pool_of_cuda_graphs_keeps_its_segments_and_lends_them_to_nobody() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(20 * MIB, PRIVATE_POOL))
    allocator.free(allocator.allocate(20 * MIB))
    assert allocator.reserved_bytes == 40 * MIB
    assert allocator.release_cached() == 20 * MIB
    allocator.allocate(20 * MIB, PRIVATE_POOL)
    assert allocator.reserved_bytes == 20 * MIB


def test_exactly_the_limit_still_fits() -> None:
    Allocator(limit_bytes=20 * MIB).allocate(5 * MIB)
    with pytest.raises(OutOfMemory):
        Allocator(limit_bytes=20 * MIB - 1).allocate(5 * MIB)


def test_expandable_segments_grow_by_what_is_missing() -> None:
    allocator = Allocator(expandable=True)
    first = allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 40 * MIB  # pages of 20 MiB
    allocator.free(first)
    allocator.allocate(50 * MIB)  # 40 MiB exist already
    assert allocator.reserved_bytes == 60 * MIB
    allocator.allocate(5 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (55 * MIB, 60 * MIB)


def test_expandable_segments_split_blocks_that_other_segments_keep_whole() -> None:
    assert Allocator(expandable=True).allocate(19 * MIB + MIB // 2).size_bytes == 19 * MIB + MIB // 2


@dataclass
class SlowAllocator:
    """Segments are lists of [bytes, number or None]; every query searches all of them."""

    segments: list[tuple[bool, list[list[int | None]]]] = field(default_factory=list)
    number: int = 0

    def allocate(self, request: int) -> int:
        size = max(512, (request + 511) // 512 * 512)
        small = size <= MIB
        self.number += 1
        candidates = [
            (piece[0], where, at)
            for where, (is_small, pieces) in enumerate(self.segments)
            for at, piece in enumerate(pieces)
            if is_small == small and piece[1] is None and (piece[0] or 0) >= size
        ]
        if not candidates:
            grown = (
                2 * MIB
                if small
                else 20 * MIB
                if size < 10 * MIB
                else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            )
            self.segments.append((small, [[grown, None]]))
            candidates = [(grown, len(self.segments) - 1, 0)]
        have, where, at = min(candidates)
        pieces = self.segments[where][1]
        rest = (have or 0) - size
        if rest >= 512 and (small or rest > MIB):
            pieces[at : at + 1] = [[size, self.number], [rest, None]]
        else:
            pieces[at][1] = self.number
        return self.number

    def free(self, number: int) -> None:
        for _, pieces in self.segments:
            for piece in pieces:
                if piece[1] == number:
                    piece[1] = None
            at = 0
            while at + 1 < len(pieces):
                if pieces[at][1] is None and pieces[at + 1][1] is None:
                    pieces[at : at + 2] = [[(pieces[at][0] or 0) + (pieces[at + 1][0] or 0), None]]
                else:
                    at += 1

    def empty_cache(self) -> None:
        # Emptied, but not removed, because the order of segments is the order of their addresses.
        for _, pieces in self.segments:
            if len(pieces) == 1 and pieces[0][1] is None:
                pieces.clear()

    def allocated(self) -> int:
        return sum(piece[0] or 0 for _, pieces in self.segments for piece in pieces if piece[1] is not None)

    def reserved(self) -> int:
        return sum(piece[0] or 0 for _, pieces in self.segments for piece in pieces)


@pytest.mark.parametrize("seed", range(12))
def test_random_sequences_match_a_slow_allocator(seed: int) -> None:
    draw = random.Random(seed)
    fast, slow = Allocator(), SlowAllocator()
    blocks: list[tuple[object, int]] = []
    for _ in range(250):
        kind = draw.random()
        if kind < 0.03:
            fast.release_cached()
            slow.empty_cache()
        elif blocks and kind < 0.45:
            block, number = blocks.pop(draw.randrange(len(blocks)))
            fast.free(block)  # type: ignore[arg-type]
            slow.free(number)
        else:
            request = int(2 ** draw.uniform(0, 26))
            blocks.append((fast.allocate(request), slow.allocate(request)))
        assert (fast.allocated_bytes, fast.reserved_bytes) == (slow.allocated(), slow.reserved())
    for block, number in blocks:
        fast.free(block)  # type: ignore[arg-type]
        slow.free(number)
    slow.empty_cache()
    fast.release_cached()
    assert (fast.allocated_bytes, fast.reserved_bytes, slow.reserved()) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(6))
def test_expandable_segments_without_frees_reserve_at_most_one_page_per_pool_too_much(seed: int) -> None:
    """Without frees there are no holes: reserved is allocated, rounded up to a page per pool."""
    draw = random.Random(seed)
    allocator = Allocator(expandable=True)
    for _ in range(60):
        allocator.allocate(int(2 ** draw.uniform(0, 24)))
        assert 0 <= allocator.reserved_bytes - allocator.allocated_bytes < 22 * MIB
