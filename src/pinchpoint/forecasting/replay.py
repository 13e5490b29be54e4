"""From a fake run's events to the peak: replay through the allocator, then say what the peak is made of.

Pure arithmetic over an `Observation`; no framework.
"""

from __future__ import annotations

import linecache
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from pinchpoint.core.events import FREE_CACHE, BlockInfo, Observation
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import BREAKDOWN, Line
from pinchpoint.forecasting.allocator import Allocator, Block, OutOfMemory

Take = Literal["usual", "least", "most"]

_TOP_LINES = 20
_TOP_MODULES = 60
_TIMELINE_POINTS = 400


@dataclass(frozen=True)
class Replay:
    """Peaks of one replay and the blocks alive at the allocated peak, with their counted bytes."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    alive: dict[int, int]  # block number -> bytes as the allocator counts them
    peak_event: int
    timeline: tuple[tuple[int, int, str], ...]


def replay(seen: Observation, *, take: Take = "usual", expandable: bool = False) -> Replay:
    """Run the events through an unlimited allocator.

    take: of the workspaces whose size a library chooses at run time, the usual, the least or the most.
    """
    allocator = Allocator(expandable=expandable)
    held: dict[int, Block] = {}
    peak, peak_event = -1, 0
    steps: list[tuple[int, int]] = []
    for index, number in enumerate(seen.events):
        _apply(allocator, held, seen, number, take)
        steps.append((index, allocator.allocated_bytes))
        if allocator.allocated_bytes > peak:
            peak, peak_event = allocator.allocated_bytes, index
    return Replay(
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        _alive_at(seen, peak_event, take, expandable),
        peak_event,
        _thin(steps, seen, peak_event),
    )


def fits(seen: Observation, limit_bytes: int, *, take: Take = "usual", expandable: bool = False) -> bool:
    """Would the run get through with this many bytes for its allocator?"""
    allocator = Allocator(limit_bytes=limit_bytes, expandable=expandable)
    held: dict[int, Block] = {}
    try:
        for number in seen.events:
            _apply(allocator, held, seen, number, take)
    except OutOfMemory:
        return False
    return True


def _apply(allocator: Allocator, held: dict[int, Block], seen: Observation, number: int, take: Take) -> None:
    if number == FREE_CACHE:
        allocator.release_cached()
    elif number in held:
        allocator.free(held.pop(number))
    else:
        info = seen.blocks[number]
        held[number] = allocator.allocate(info.bytes if info.span is None else getattr(info.span, take))


def _alive_at(seen: Observation, peak_event: int, take: Take, expandable: bool) -> dict[int, int]:
    allocator = Allocator(expandable=expandable)
    held: dict[int, Block] = {}
    for number in seen.events[: peak_event + 1]:
        _apply(allocator, held, seen, number, take)
    return {number: block.size_bytes for number, block in held.items()}


def _thin(
    steps: list[tuple[int, int]], seen: Observation, peak_event: int
) -> tuple[tuple[int, int, str], ...]:
    """At most a few hundred points; of each stretch the highest is kept, so the peak is always there."""
    if not steps:
        return ()
    starts = [at for at, _ in seen.marks]
    stride = max(1, len(steps) // _TIMELINE_POINTS)
    kept = [max(steps[at : at + stride], key=lambda step: step[1]) for at in range(0, len(steps), stride)]
    return tuple(
        (index, size, seen.marks[max(bisect_right(starts, index) - 1, 0)][1]) for index, size in kept
    )


# -- what the peak is made of ----------------------------------------------------------------


def breakdown(seen: Observation, found: Replay) -> dict[str, int]:
    """Bytes at the peak by what they are for; sums to the allocated peak."""
    ends = _ends(seen)
    parts: dict[str, int] = dict.fromkeys(BREAKDOWN, 0)  # pyright: ignore[reportAssignmentType]
    for number, size in found.alive.items():
        parts[part_of(seen.blocks[number], ends.get(number))] += size
    return parts


def part_of(info: BlockInfo, end_phase: str | None) -> str:
    """The role it was given, else what its life tells. end_phase: where it was freed, None if never."""
    if info.span is not None:
        return "workspace"
    if info.role:
        return info.role
    if info.phase == "data":
        return "inputs"
    if info.phase == "optimizer":
        return "temporaries" if end_phase == "optimizer" else "optimizer"
    if info.phase == "backward":
        return "temporaries"
    # Made in forward: kept for the backward pass, or used up on the way.
    return "temporaries" if end_phase == "forward" else "activations"


def _ends(seen: Observation) -> dict[int, str]:
    """The phase in which each block was freed."""
    starts = [at for at, _ in seen.marks]
    ends: dict[int, str] = {}
    begun: set[int] = set()
    for index, number in enumerate(seen.events):
        if number in begun:
            # A block freed between two phases belongs to the one that goes on.
            ends[number] = seen.marks[max(bisect_right(starts, index) - 1, 0)][1]
        begun.add(number)
    return ends


def top_lines(seen: Observation, found: Replay) -> tuple[Line, ...]:
    """The source lines that hold most at the peak."""
    bytes_of: dict[tuple[str, int, str], int] = defaultdict(int)
    for number, size in found.alive.items():
        info = seen.blocks[number]
        if info.role != "workspace":
            bytes_of[info.file, info.line, info.phase] += size
    ranked = sorted(bytes_of.items(), key=lambda item: -item[1])[:_TOP_LINES]
    return tuple(
        Line(shown_path(file), line, size, phase, linecache.getline(file, line).strip())
        for (file, line, phase), size in ranked
    )


def module_shares(seen: Observation, found: Replay) -> tuple[dict[str, object], ...]:
    """Bytes at the peak by the module that made them."""
    bytes_of: dict[str, int] = defaultdict(int)
    for number, size in found.alive.items():
        bytes_of[seen.blocks[number].module] += size
    ranked = sorted(((name, size) for name, size in bytes_of.items() if name), key=lambda item: -item[1])
    return tuple({"name": name, "bytes": size} for name, size in ranked[:_TOP_MODULES])
