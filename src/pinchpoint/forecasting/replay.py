"""Replay of a fake run through the allocator model: its peaks, and what the peak consists of.

Pure arithmetic on an `Observation`, without a framework.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from pinchpoint.core.events import FREE_CACHE, BlockInfo, Observation
from pinchpoint.core.records import BREAKDOWN
from pinchpoint.forecasting.allocator import Allocator, Block, OutOfMemory

Take = Literal["usual", "least", "most"]

_TIMELINE_POINTS = 400


@dataclass(frozen=True)
class Replay:
    """The peaks of one replay, and the blocks that are alive at the allocated peak."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    alive: dict[int, int]  # block number -> bytes, as the allocator counts them
    peak_event: int
    timeline: tuple[tuple[int, int, str], ...]


def replay(observation: Observation, *, take: Take = "usual", expandable: bool = False) -> Replay:
    """Run the events through an allocator without a limit.

    take: the size to assume for workspaces that a library chooses at run time: usual, least or most.
    """
    allocator = Allocator(expandable=expandable)
    live_blocks: dict[int, Block] = {}
    peak, peak_event = -1, 0
    steps: list[tuple[int, int]] = []
    for index, number in enumerate(observation.events):
        apply_event(allocator, live_blocks, observation, number, take)
        steps.append((index, allocator.allocated_bytes))
        if allocator.allocated_bytes > peak:
            peak, peak_event = allocator.allocated_bytes, index
    return Replay(
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        _alive_at(observation, peak_event, take, expandable),
        peak_event,
        _thin(steps, observation, peak_event),
    )


def peak_reserved_bytes(observation: Observation, *, take: Take = "usual", expandable: bool = False) -> int:
    """What an allocator without a limit reserves at most."""
    allocator = Allocator(expandable=expandable)
    live_blocks: dict[int, Block] = {}
    for number in observation.events:
        apply_event(allocator, live_blocks, observation, number, take)
    return allocator.peak_reserved_bytes


def fits(
    observation: Observation, limit_bytes: int, *, take: Take = "usual", expandable: bool = False
) -> bool:
    """Whether the run completes with this many bytes for its allocator."""
    allocator = Allocator(limit_bytes=limit_bytes, expandable=expandable)
    live_blocks: dict[int, Block] = {}
    try:
        for number in observation.events:
            apply_event(allocator, live_blocks, observation, number, take)
    except OutOfMemory:
        return False
    return True


def peaks_with_searches(
    observation: Observation, room_bytes: int, *, expandable: bool = False
) -> tuple[int, int]:
    """Peaks of allocated and reserved if a library searches for its fastest kernels where it would.

    A search takes no more than `room_bytes` leave, and torch empties its cache afterwards.
    """
    allocator = Allocator(expandable=expandable)
    live_blocks: dict[int, Block] = {}
    searches: dict[int, list[int]] = {}
    for at, size in observation.searches:
        searches.setdefault(at, []).append(size)
    for index, number in enumerate((*observation.events, None)):
        for size in searches.get(index, ()):
            if (size := min(size, room_bytes - allocator.allocated_bytes)) > 0:
                allocator.free(allocator.allocate(size))
                allocator.release_cached()
        if number is not None:
            apply_event(allocator, live_blocks, observation, number)
    return allocator.peak_allocated_bytes, allocator.peak_reserved_bytes


def apply_event(
    allocator: Allocator,
    live_blocks: dict[int, Block],
    observation: Observation,
    number: int,
    take: Take = "usual",
) -> None:
    """Allocate a block the first time, free it the second time."""
    if number == FREE_CACHE:
        allocator.release_cached()
    elif number in live_blocks:
        allocator.free(live_blocks.pop(number))
    else:
        info = observation.blocks[number]
        if info.held_bytes:
            live_blocks[number] = allocator.allocate(info.held_bytes, info.stream, is_counted=False)
            return
        live_blocks[number] = allocator.allocate(
            info.bytes if info.span is None else getattr(info.span, take), info.stream
        )


def _alive_at(observation: Observation, peak_event: int, take: Take, expandable: bool) -> dict[int, int]:
    allocator = Allocator(expandable=expandable)
    live_blocks: dict[int, Block] = {}
    for number in observation.events[: peak_event + 1]:
        apply_event(allocator, live_blocks, observation, number, take)
    return {number: block.size_bytes for number, block in live_blocks.items() if block.is_counted}


def _thin(
    steps: list[tuple[int, int]], observation: Observation, peak_event: int
) -> tuple[tuple[int, int, str], ...]:
    """Reduce the timeline to a few hundred points: the highest of each stretch, so that the peak is kept."""
    if not steps:
        return ()
    starts = [at for at, _ in observation.marks]
    stride = max(1, len(steps) // _TIMELINE_POINTS)
    highest = [max(steps[at : at + stride], key=lambda step: step[1]) for at in range(0, len(steps), stride)]
    return tuple(
        (index, size, observation.marks[max(bisect_right(starts, index) - 1, 0)][1])
        for index, size in highest
    )


def breakdown(observation: Observation, result: Replay) -> dict[str, int]:
    """Bytes at the peak by purpose; they add up to the allocated peak."""
    ends = _ends(observation)
    parts: dict[str, int] = dict.fromkeys(BREAKDOWN, 0)  # pyright: ignore[reportAssignmentType]
    for number, size in result.alive.items():
        parts[part_of(observation.blocks[number], ends.get(number))] += size
    return parts


def part_of(info: BlockInfo, end_phase: str | None) -> str:
    """The role of a block, or the one its lifetime implies. end_phase: where it was freed, None if never."""
    if info.span is not None and info.role != "optimizer":  # the history of L-BFGS may be shorter
        return "workspace"
    if info.role:
        return info.role
    if info.phase == "data":
        return "inputs"
    if info.phase == "optimizer":
        return "temporaries" if end_phase == "optimizer" else "optimizer"
    if info.phase == "backward":
        return "temporaries"
    # Allocated in the forward pass: either stored for the backward pass or temporary.
    return "temporaries" if end_phase == "forward" else "activations"


def _ends(observation: Observation) -> dict[int, str]:
    """The phase in which each block was freed."""
    starts = [at for at, _ in observation.marks]
    ends: dict[int, str] = {}
    allocated_blocks: set[int] = set()
    for index, number in enumerate(observation.events):
        if number in allocated_blocks:
            # A block that is freed between two phases belongs to the one that continues.
            ends[number] = observation.marks[max(bisect_right(starts, index) - 1, 0)][1]
        allocated_blocks.add(number)
    return ends
