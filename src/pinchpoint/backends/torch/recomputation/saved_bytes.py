"""What recomputing modules would free at each moment of a fake run, from its blocks and module calls.

A call that is recomputed keeps its inputs and outputs. What autograd saves in it is gone from the end of the
call until the backward pass reaches it, when all of it is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pinchpoint.backends.torch.recomputation.operation_times import START, Moment
from pinchpoint.core.events import FREE_CACHE, Observation

Way = tuple[str, bool]  # the name of a module to recompute, and whether results of products are kept
Row = tuple[int, dict[Way, int]]  # bytes alive at the most, and what each way would free of them


@dataclass
class SavedInCall:
    """One call of a module with gradients. Blocks are numbers of blocks of the observation."""

    start_event: int
    inputs: set[int]
    start: Moment
    saved: set[int] = field(default_factory=set)
    last: Moment = START  # when something was saved for the last time
    end_event: int = 0
    end: Moment = START
    outputs: set[int] = field(default_factory=set)
    products: set[int] = field(default_factory=set)  # results of products in the call


def bytes_over_time(
    observation: Observation, calls: Mapping[Way, Sequence[SavedInCall]]
) -> tuple[list[Row], dict[Way, int]]:
    """Stretches of the run with the same ways to free something, and the most bytes that each way frees."""
    lives, alive = _lives(observation)
    spans: list[tuple[int, int, Way, int]] = []  # from event, to event, way, bytes
    freed = dict.fromkeys(calls, 0)
    for way, each in calls.items():
        for call in each:
            kept = call.inputs | call.products if way[1] else call.inputs
            new = _spans(observation, lives, call, kept)
            spans += [(start, end, way, size) for start, end, size in new]
            freed[way] = max(freed[way], sum(size for _, _, size in new))
    return _rows(spans, alive), freed


def _lives(observation: Observation) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """When each block is allocated and freed, and the bytes alive after each event."""
    lives: dict[int, tuple[int, int]] = {}
    alive: list[int] = []
    size = 0
    for event, block in enumerate(observation.events):
        if block != FREE_CACHE:
            is_new = block not in lives
            size += observation.blocks[block].bytes if is_new else -observation.blocks[block].bytes
            lives[block] = (event, len(observation.events)) if is_new else (lives[block][0], event)
        alive.append(size)
    return lives, alive


def _spans(
    observation: Observation, lives: dict[int, tuple[int, int]], call: SavedInCall, kept: set[int]
) -> list[tuple[int, int, int]]:
    backward = next(
        (at for at, phase in observation.marks if phase == "backward" and at >= call.end_event), None
    )
    own = [
        block
        for block in call.saved - call.outputs - kept
        if block in lives and lives[block][0] >= call.start_event
    ]
    ends = [lives[block][1] for block in own if backward is not None and lives[block][1] >= backward]
    if not ends:
        return []
    again = min(ends)  # the backward pass has reached the call
    spans = [
        (call.end_event, again, sum(observation.blocks[b].bytes for b in own if lives[b][1] >= again)),
    ]
    for block in kept & lives.keys():  # by torch.utils.checkpoint, and otherwise maybe not so long
        if lives[block][1] < again:
            spans.append((max(lives[block][1], call.start_event), again, -observation.blocks[block].bytes))
    return spans


def _rows(spans: list[tuple[int, int, Way, int]], alive: list[int]) -> list[Row]:
    changes: dict[int, list[tuple[Way, int]]] = {0: [], len(alive): []}
    for start, end, way, size in spans:
        changes.setdefault(start, []).append((way, size))
        changes.setdefault(end, []).append((way, -size))
    moments = sorted(changes)
    cover: dict[Way, int] = {}
    most: dict[tuple[tuple[Way, int], ...], int] = {}
    for start, end in pairwise(moments):
        for way, size in changes[start]:
            cover[way] = cover.get(way, 0) + size
        key = tuple(sorted((way, size) for way, size in cover.items() if size))
        most[key] = max(most.get(key, 0), max(alive[start:end], default=0))
    return [(size, dict(key)) for key, size in most.items()]
