"""`Variation`: whether the turns of a loop differ in size, as with random data, and what that means."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.files import shown_path

_OPERATIONS = 5_000  # observed in turns that are added because sizes differ
_TURNS = 64  # that are run at most because sizes differ


@dataclass(frozen=True)
class Mark:
    """How many events and blocks there were at some time."""

    events: int
    blocks: int


class Variation:
    """Adds turns to a loop whose turns differ in size, and estimates how much larger others may be."""

    def __init__(self, loops: Any, site: str) -> None:
        self._loops, self._site = loops, site
        self._requests: list[int] = []  # bytes of the turns, once the requested steps were taken
        self._operations = 0  # observed when that began

    def adds_turn(self, marks: Sequence[Mark], count: int) -> bool:
        """Whether another turn is run. marks: before the last two turns, and now; count: turns so far.

        If not all turns are run, others may be larger than the largest one by three standard deviations of
        those that were, which is an estimate. Sizes that come from a law say nothing about other turns.
        """
        observer = self._loops.observer
        if len(marks) < 3 or observer.dynamic.laws:
            return False
        if not self._requests:
            self._operations = observer.operations
            self._requests.append(self._requested(*marks[:2]))
        self._requests.append(self._requested(*marks[1:]))
        if len(set(self._requests)) == 1:
            return False
        mean = max(statistics.mean(self._requests), 1)
        self._loops.spread = (max(self._requests) - min(self._requests)) / mean
        if count < _TURNS and observer.operations - self._operations < _OPERATIONS:
            return True
        self._loops.beyond = max(self._loops.beyond, 3 * statistics.stdev(self._requests) / mean)
        observer.note(
            f"sizes differ between turns of the loop at {shown_path(self._site)}: {count} turns were run, "
            "and `high_bytes` allows for larger ones"
        )
        return False

    def _requested(self, since: Mark, until: Mark) -> int:
        """Bytes that the data and the forward passes between two times asked for."""
        blocks = self._loops.observer.ledger.observation.blocks[since.blocks : until.blocks]
        return sum(b.bytes for b in blocks if b.phase in ("data", "forward") and b.role != "workspace")
