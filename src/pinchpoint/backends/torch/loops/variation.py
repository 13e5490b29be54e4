"""`Variation`: whether the turns of a loop differ in size, as with random data, and what that means."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.files import shown_path

_OPERATIONS = 5_000  # observed in turns that are added because sizes differ
_TURNS = 64  # that are run at most because sizes differ
_RARELY = -2.326  # standard deviations that one normal variable in a hundred is below


@dataclass(frozen=True)
class Mark:
    """How many events, blocks, optimizer steps, and backward passes there were at some time."""

    events: int
    blocks: int
    trained: int
    backwards: int


class Variation:
    """Adds turns to a loop whose turns differ in size, and estimates how much larger others may be."""

    def __init__(self, loops: Any, site: str) -> None:
        self._loops, self._site = loops, site
        self._requests: list[float] = []  # bytes of the turns that train, once the requested steps were taken
        self._operations = 0  # observed when that began

    def adds_turn(self, marks: Sequence[Mark], count: int, length: int | None) -> bool:
        """Whether another turn is run. marks: before the last two turns, and now; count: turns so far.

        length: of the loop, if it is known. If not all turns are run, others may be larger than the largest
        one by three standard deviations of those that were, which is an estimate. Sizes that come from a law
        say nothing about other turns, and turns that repeat themselves are not random.
        """
        observer = self._loops.observer
        if len(marks) < 3 or observer.dynamic.laws:
            return False
        if not self._requests:
            self._operations = observer.operations
        pairs = list(itertools.pairwise(marks))[-1 if self._requests else 0 :]
        self._requests += [request for pair in pairs if (request := self._requested(*pair)) is not None]
        requests = self._requests
        if self._requested(*marks[1:]) is None or len(requests) < 2 or requests[-1] == requests[-2]:
            return False
        mean = statistics.mean(requests)
        self._loops.spreads[self._site] = _largest_deviation(requests) / mean
        if count == length:
            return False
        if count < _TURNS and observer.operations - self._operations < _OPERATIONS:
            return True
        if requests.count(max(requests)) == 1:
            self._loops.beyond = max(self._loops.beyond, 3 * statistics.stdev(requests) / mean)
            self._replace_note(
                f"sizes differ between turns of the loop at {shown_path(self._site)}: ",
                f"{count} turns were run, and the high end allows for larger ones",
            )
        return False

    def _replace_note(self, start: str, rest: str) -> None:
        """Add a note, instead of an earlier one of this loop, of which another turn was run since."""
        notes = self._loops.observer.ledger.observation.notes
        notes[:] = [*(note for note in notes if not note.startswith(start)), start + rest]

    def _requested(self, since: Mark, until: Mark) -> float | None:
        """Bytes that a backward pass between two times asked for on average; None without a training step.

        An evaluation in a turn has no backward pass, so that it is not mistaken for a larger turn.
        """
        passes = until.backwards - since.backwards
        if until.trained == since.trained or not passes:
            return None
        blocks = self._loops.observer.ledger.observation.blocks[since.blocks : until.blocks]
        size = sum(
            b.bytes for b in blocks if b.phase == "backward" and b.role not in ("workspace", "gradients")
        )
        return max(size, 1) / passes


def _largest_deviation(values: Sequence[float]) -> float:
    """The largest standard deviation that the values may come from, in 99 of 100 cases; infinite for two.

    The chi-squared distribution of their variance is that of Wilson and Hilferty, who underestimate its low
    quantiles for few values, which makes this larger.
    """
    free = len(values) - 1
    root = 1 - 2 / (9 * free) + _RARELY * math.sqrt(2 / (9 * free))
    return statistics.stdev(values) / root**1.5 if root > 0 else math.inf
