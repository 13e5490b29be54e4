"""A model of PyTorch's CUDA caching allocator: what it reserves for a sequence of allocations and frees.

It is pure arithmetic and needs neither a framework nor a device. It models the native backend of torch,
whose rules and constants are the same from 2.6 to 2.15 (c10/cuda/CUDACachingAllocator.cpp): rounding to
512 B, a small and a large pool for every stream, best fit, splitting, merging, and, at a limit, releasing
free segments before giving up. `allocated` counts blocks as torch does: a block that is too small to be
split is counted completely.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, field

from pinchpoint.core.events import PRIVATE_POOL
from pinchpoint.core.units import MIB

ROUND_BYTES = 512
SMALL_LIMIT_BYTES = MIB  # requests up to this size are served from the small pool
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_LIMIT_BYTES = 10 * MIB  # requests below this size share 20 MiB segments
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_ROUND_BYTES = 2 * MIB


_Pool = tuple[bool, int]  # whether it is for small blocks, and its stream


class OutOfMemory(Exception):
    """The next segment would exceed the limit, even after every free segment is released."""


@dataclass(eq=False)
class Block:
    """A part of a segment. The blocks of one segment are linked in address order."""

    address: int
    size_bytes: int
    small: bool
    stream: int = 0
    is_counted: bool = True  # in `allocated_bytes`
    free: bool = False
    before: Block | None = None
    after: Block | None = None


@dataclass
class Allocator:
    """Replays requests. `allocated_bytes` and `reserved_bytes` follow torch's counters of these names."""

    limit_bytes: int | None = None
    expandable: bool = False  # PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    _free: dict[_Pool, list[tuple[int, int, Block]]] = field(default_factory=lambda: defaultdict(list))
    _next_address: int = 0
    _tails: dict[_Pool, Block | None] = field(default_factory=lambda: defaultdict(lambda: None))

    def allocate(self, request_bytes: int, stream: int = 0, *, is_counted: bool = True) -> Block:
        """Allocate for a stream, which uses no block that was allocated for another one.

        is_counted: whether the bytes are allocated for torch's counters, or only not free.
        """
        if request_bytes == 0:  # an empty tensor
            return Block(0, 0, small=True)
        size = round_up(max(request_bytes, 1), ROUND_BYTES)
        small = size <= SMALL_LIMIT_BYTES
        pool = small, stream
        block = self._best_fit(size, pool)
        if block is None:
            block = self._grow(size, pool) if self.expandable else self._new_segment(size, pool)
        self._split(block, size)
        block.is_counted = is_counted
        self.allocated_bytes += block.size_bytes if is_counted else 0
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        if block.size_bytes == 0:
            return
        self.allocated_bytes -= block.size_bytes if block.is_counted else 0
        block.free = True
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self._forget(neighbour)
                self._merge(block, neighbour)
        insort(self._free[block.small, block.stream], (block.size_bytes, block.address, block))

    def release_cached(self) -> int:
        """Release every segment that is completely free, as `empty_cache` and a failing allocation do.

        The pool of CUDA graphs keeps its segments.
        """
        released_bytes = 0
        for pool, blocks in self._free.items():
            if pool[1] == PRIVATE_POOL:
                continue
            whole = [entry for entry in blocks if entry[2].before is None and entry[2].after is None]
            for entry in whole:
                blocks.remove(entry)
                released_bytes += entry[0]
                if self._tails[pool] is entry[2]:
                    self._tails[pool] = None
        self.reserved_bytes -= released_bytes
        return released_bytes

    def _best_fit(self, size: int, pool: _Pool) -> Block | None:
        blocks = self._free[pool]
        at = bisect_left(blocks, (size,))
        if at == len(blocks):
            return None
        block = blocks.pop(at)[2]
        block.free = False
        return block

    def _new_segment(self, size: int, pool: _Pool) -> Block:
        size = self._reserve(segment_size(size))
        # The driver assigns descending addresses, so that among equal blocks the one of the newest segment is
        # used first. The gap keeps segments from merging.
        self._next_address -= size + LARGE_ROUND_BYTES
        return Block(self._next_address, size, *pool)

    def _grow(self, size: int, pool: _Pool) -> Block:
        """Expandable segments: map only the pages that are missing after the last block of the segment."""
        small, stream = pool
        page = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
        tail = self._tails[pool]
        spare = tail.size_bytes if tail is not None and tail.free else 0
        growth = self._reserve(round_up(size - spare, page))
        if tail is not None and tail.free:
            self._forget(tail)
            tail.size_bytes += growth
            tail.free = False
            return tail
        start = (2 * stream + (not small)) << 50  # of the addresses of this pool's segment
        address = (tail.address + tail.size_bytes) if tail is not None else start
        block = Block(address, growth, small, stream, before=tail)
        if tail is not None:
            tail.after = block
        self._tails[pool] = block
        return block

    def _reserve(self, size: int) -> int:
        if self.limit_bytes is not None and self.reserved_bytes + size > self.limit_bytes:
            self.release_cached()
            if self.reserved_bytes + size > self.limit_bytes:
                raise OutOfMemory(
                    f"{self.reserved_bytes + size:,} B reserved would exceed {self.limit_bytes:,} B."
                )
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return size

    def _split(self, block: Block, size: int) -> None:
        remaining = block.size_bytes - size
        # A large block keeps a remainder of up to 1 MiB, which counts as allocated, as in torch.
        if remaining < ROUND_BYTES or (
            not block.small and not self.expandable and remaining <= SMALL_LIMIT_BYTES
        ):
            return
        pool = block.small, block.stream
        rest = Block(block.address + size, remaining, *pool, free=True, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        if self._tails[pool] is block:
            self._tails[pool] = rest
        block.after = rest
        block.size_bytes = size
        insort(self._free[pool], (rest.size_bytes, rest.address, rest))

    def _forget(self, block: Block) -> None:
        blocks = self._free[block.small, block.stream]
        at = bisect_left(blocks, (block.size_bytes, block.address))
        assert blocks[at][2] is block
        blocks.pop(at)

    def _merge(self, block: Block, neighbour: Block) -> None:
        if neighbour is block.before:
            block.address = neighbour.address
            block.before = neighbour.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = neighbour.after
            if block.after is not None:
                block.after.before = block
        if self._tails[block.small, block.stream] is neighbour:
            self._tails[block.small, block.stream] = block
        block.size_bytes += neighbour.size_bytes


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def segment_size(size: int) -> int:
    """The bytes that are requested from the driver when no cached block fits."""
    if size <= SMALL_LIMIT_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < LARGE_LIMIT_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(size, LARGE_ROUND_BYTES)
