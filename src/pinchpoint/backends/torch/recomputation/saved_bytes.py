"""What recomputing modules would free at each moment of a fake run, from its blocks and module calls.

A call that is recomputed keeps its inputs and outputs. What autograd saves in it is gone from the end of the
call until the backward pass reaches it, when all of it is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pinchpoint.core.events import FREE_CACHE, Observation

Row = tuple[int, dict[str, int]]  # bytes alive at the most, and what each module would free of them


@dataclass
class SavedInCall:
    """One call of a module with gradients. Blocks are numbers of blocks of the observation."""

    start_event: int
    inputs: set[int]
    start_s: float
    saved: set[int] = field(default_factory=set)
    last_s: float = 0.0  # when something was saved for the last time
    end_event: int = 0
    outputs: set[int] = field(default_factory=set)


def bytes_over_time(
    observation: Observation, calls: Mapping[str, Sequence[SavedInCall]]
) -> tuple[list[Row], dict[str, int]]:
    """Stretches of the run with the same modules to free, and the most bytes that each module frees."""
    lives, alive = _lives(observation)
    spans: list[tuple[int, int, str, int]] = []  # from event, to event, module, bytes
    freed = dict.fromkeys(calls, 0)
    for name, each in calls.items():
        for call in each:
            new = _spans(observation, lives, call)
            spans += [(start, end, name, size) for start, end, size in new]
            freed[name] = max(freed[name], sum(size for _, _, size in new))
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
    observation: Observation, lives: dict[int, tuple[int, int]], call: SavedInCall
) -> list[tuple[int, int, int]]:
    backward = next(
        (at for at, phase in observation.marks if phase == "backward" and at >= call.end_event), None
    )
    own = [
        block
        for block in call.saved - call.outputs - call.inputs
        if block in lives and lives[block][0] >= call.start_event
    ]
    ends = [lives[block][1] for block in own if backward is not None and lives[block][1] >= backward]
    if not ends:
        return []
    again = min(ends)  # the backward pass has reached the call
    spans = [
        (call.end_event, again, sum(observation.blocks[b].bytes for b in own if lives[b][1] >= again)),
    ]
    for block in call.inputs & lives.keys():  # kept by torch.utils.checkpoint, and otherwise maybe not
        if call.end_event <= lives[block][1] < again:
            spans.append((lives[block][1], again, -observation.blocks[block].bytes))
    return spans


def _rows(spans: list[tuple[int, int, str, int]], alive: list[int]) -> list[Row]:
    changes: dict[int, list[tuple[str, int]]] = {0: [], len(alive): []}
    for start, end, name, size in spans:
        changes.setdefault(start, []).append((name, size))
        changes.setdefault(end, []).append((name, -size))
    moments = sorted(changes)
    cover: dict[str, int] = {}
    most: dict[tuple[tuple[str, int], ...], int] = {}
    for start, end in pairwise(moments):
        for name, size in changes[start]:
            cover[name] = cover.get(name, 0) + size
        key = tuple(sorted((name, size) for name, size in cover.items() if size))
        most[key] = max(most.get(key, 0), max(alive[start:end], default=0))
    return [(size, dict(key)) for key, size in most.items()]
