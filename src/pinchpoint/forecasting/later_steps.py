"""The training steps after those that were observed, for the allocator: each repeats the last one.

A step leaves gaps between blocks into which the blocks of the next step may not fit, so that the memory that
is reserved can grow for some steps while the allocated memory stays the same. Pure arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from pinchpoint.core.events import FREE_CACHE, Observation
from pinchpoint.core.units import MIB
from pinchpoint.forecasting.allocator import Allocator, Block
from pinchpoint.forecasting.replay import apply_event

_MOST_STEPS = 8
_MOST_EVENTS = 300_000
_NONE = -2  # no block
_KEPT_BYTES = MIB  # what a step may keep for good (a loss in a list); one that keeps more is no steady step


def with_later_steps(observation: Observation, *, expandable: bool) -> Observation:
    """The observation and as many further steps as reserve more memory; itself if none does."""
    span = _last_step(observation)
    successors = None if span is None else _successors(observation, *span)
    if span is None or successors is None:
        return observation
    step, rest = observation.events[slice(*span)], observation.events[span[1] :]
    longer = replace(observation, blocks=list(observation.blocks), events=observation.events[: span[1]])
    allocator, live_blocks = Allocator(expandable=expandable), dict[int, Block]()
    for number in longer.events:
        apply_event(allocator, live_blocks, longer, number)
    latest = {number: number for number in live_blocks}  # block of the step -> its last repetition
    end, heirs = len(longer.events), latest
    for _ in range(_MOST_STEPS):
        before_bytes = allocator.peak_reserved_bytes
        for number in _repeat(longer, step, successors, latest):
            longer.events.append(number)
            apply_event(allocator, live_blocks, longer, number)
        if allocator.peak_reserved_bytes > before_bytes:
            end, heirs = len(longer.events), dict(latest)
        if len(longer.events) > _MOST_EVENTS:
            break
    if end == span[1]:
        return observation
    added = end - span[1]
    return replace(
        longer,
        # What follows the steps frees what the last of them left.
        events=[*longer.events[:end], *(heirs.pop(number, number) for number in rest)],
        searches=[(at + added * (at > span[1]), size) for at, size in observation.searches],
    )


def _repeat(
    observation: Observation, step: list[int], successors: dict[int, int], latest: dict[int, int]
) -> Iterator[int]:
    """The events of the step with new blocks, which are added to the observation."""
    repeated: dict[int, int] = {}
    for number in step:
        if number == FREE_CACHE:
            yield number
        elif number in repeated:
            yield repeated.pop(number)
        elif number in successors:  # an older block: free what the last repetition left in its place
            block = latest.pop(successors[number], None)
            if block is not None:
                yield block
        else:
            repeated[number] = len(observation.blocks)
            observation.blocks.append(observation.blocks[number])
            yield repeated[number]
    latest.update(repeated)


def _last_step(observation: Observation) -> tuple[int, int] | None:
    """Where the last step begins and ends, for the optimizer that steps most rarely but more than once."""
    ends = [ends for ends in observation.step_ends.values() if len(ends) > 1]
    if not ends:
        return None
    start, end = min(ends, key=len)[-2:]
    return start, end


def _successors(observation: Observation, start: int, end: int) -> dict[int, int] | None:
    """For each older block that the step frees, the block of the step that the next one will free.

    None if the step keeps more than it frees, so that the next one cannot be the same.
    """
    alive: set[int] = set()
    for number in observation.events[:start]:
        alive ^= {number}
    older = set(alive)
    freed: list[int] = []
    for number in observation.events[start:end]:
        if number in older and number != FREE_CACHE:
            freed.append(number)
        alive ^= {number}
    waiting: dict[object, list[int]] = defaultdict(list)
    for number in sorted(alive - older - {FREE_CACHE}):
        waiting[_kind(observation, number)].append(number)
    successors: dict[int, int] = {}
    for number in freed:
        same = waiting[_kind(observation, number)]
        successors[number] = same.pop(0) if same else _NONE
    kept_bytes = sum(observation.blocks[number].bytes for same in waiting.values() for number in same)
    return successors if kept_bytes <= _KEPT_BYTES else None


def _kind(observation: Observation, number: int) -> object:
    block = observation.blocks[number]
    return block.bytes, block.op, block.file, block.line
