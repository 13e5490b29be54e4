"""`Conditions`: conditions that had one answer only while a loop trained, and turns with the other answer.

A first run records the answers. A later run gets the conditions to try: where a loop that trains would
end, it gets a turn in which one of them is answered the other way, once, and a turn after that, because what
was changed may show later. Conditions on counters and on device values are tried in other ways (see
`counters` and `decisions`). Lines that draw random numbers get a turn with the largest ones in the same way,
all of a loop together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from pinchpoint.backends.torch.loops.marking.changes import ALLOCATES

_WAITED = 2  # turns of a loop in which a condition that is to be tried is not asked
Span = tuple[int, int, int, int]  # first line and column of a condition, and the last ones
Part = tuple[Span, tuple[str, ...], bool]  # the names that it reads, and whether they may change


@dataclass
class _Asked:
    span: Span
    ranks: tuple[int | None, int | None]  # what the side does that is not run, if the answer is True or False
    arguments: tuple[str, ...]  # if these alone decide: arguments of the function
    parts: tuple[Part, ...]  # that `and` and `or` join
    answers: set[bool] = field(default_factory=set)
    values: set[Any] = field(default_factory=set)  # of the arguments
    loops: set[str] = field(default_factory=set)  # that trained when it was asked

    @property
    def rank(self) -> int | None:
        return self.ranks[0 if True in self.answers else 1]


class Conditions:
    """All marked conditions of a script."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops
        self._asked: dict[str, _Asked] = {}
        self._queue: list[str] = []  # conditions to try
        self._armed: str | None = None  # the condition that is answered the other way next
        self._loop = ""  # that has a turn for it
        self._has_fired = False
        self._waited = 0
        self._left: dict[
            str, set[str]
        ] = {}  # condition -> loops that gave it a turn in which it was not asked
        self._tried: list[str] = []
        self.ended: set[str] = set()  # loops that were ended

    def start(self, tried: Iterable[str]) -> None:
        """Try these conditions in this run."""
        self._queue = list(tried)

    def ask(
        self,
        test: Any,
        span: Span,
        ranks: tuple[int | None, int | None],
        arguments: tuple[str, ...],
        parts: tuple[Part, ...],
    ) -> bool:
        """The answer of a condition, for the script."""
        answer = bool(test)
        loops = self._loops
        is_decided = isinstance(test, torch.Tensor)  # by the data, or both ways: see `decisions`
        if is_decided or not loops.progress.trains or loops.observer.dynamic.calibrating:
            return answer
        frame = sys._getframe(1)
        site = f"{frame.f_code.co_filename}:{span[0]}:{span[1]}"
        asked = self._asked.get(site)
        if asked is None:
            asked = self._asked[site] = _Asked(span, ranks, arguments, parts)
        if site == self._armed and not self._has_fired and len(asked.answers | {answer}) == 1:
            self._has_fired = True
            self._tried.append(site)
            return not answer
        if len(asked.answers) < 2:
            asked.loops |= {loop.site for loop in self.running() if loop.is_training}
            asked.answers.add(answer)
            if arguments and len(asked.values) < 2:
                values = [frame.f_locals.get(name) for name in arguments]
                asked.values.add(tuple(one if isinstance(one, (int, float, str)) else None for one in values))
        return answer

    def forces_draws(self) -> bool:
        """Whether the largest numbers are drawn in this turn."""
        if self._armed is None or self._armed in self._asked or not self._loops.draws.knows(self._armed):
            return False
        if not self._has_fired:
            self._has_fired = True
            self._tried.append(self._armed)
        return True

    def running(self) -> list[Any]:
        """The loops that run now, also those over batches."""
        return [*self._loops.running_loops(), *self._loops.increments.passes()]

    def want_turn(self, loop: str) -> bool:
        """Whether the loop at a line, which would end, goes on to try a condition."""
        self.ended.add(loop)
        is_wanted = self._wants_turn(loop)
        if is_wanted:
            self._loops.went_on()
        return is_wanted

    def _wants_turn(self, loop: str) -> bool:
        if self._armed is not None:
            running = {one.site for one in self.running()}
            if self._loop != loop and self._loop in running:
                return False
            if self._has_fired:
                self._armed = None
                return True  # what the other answer changed may show in the turn after it
            self._waited += 1
            if self._waited < _WAITED and self._loop == loop:
                return True
            self._left.setdefault(self._armed, set()).add(self._loop)
            self._queue.append(self._armed)
            self._armed = None
        for site in self._queue:
            if loop in self._loops_of(site) - self._left.get(site, set()):
                self._queue.remove(site)
                self._armed, self._loop, self._has_fired, self._waited = site, loop, False, 0
                return True
        return False

    def _loops_of(self, site: str) -> set[str]:
        """The loops that may ask a condition which had one answer only, or draw a larger number."""
        asked = self._asked.get(site)
        if asked is None:
            return self._loops.draws.loops_of(site)
        return asked.loops if len(asked.answers) < 2 else set()

    def results(self) -> dict[str, Any]:
        """Plain values for the process that compares the runs."""
        sites = [site for site in self._asked if self._is_open(site)]
        sites.sort(key=lambda site: self._asked[site].rank or 0)
        needed = [site for site in sites if self._asked[site].rank == ALLOCATES]
        draws = self._loops.draws
        missed = [site for site in [*self._queue, self._armed] if site in needed or draws.knows(site)]
        missed = [site for site in missed if site not in self._tried]
        drawn = draws.open_sites(self.ended)
        return {"sites": sites, "needed": needed, "tried": self._tried, "missed": missed, "draws": drawn}

    def _is_open(self, site: str) -> bool:
        """Whether a condition had one answer only, and may have another one in a turn that was not run."""
        asked = self._asked[site]
        if len(asked.answers) != 1 or asked.rank is None or not asked.loops & self.ended:
            return False
        if asked.arguments and len(asked.values) < 2:
            return False
        file = site.rsplit(":", 2)[0]
        decisions = self._loops.observer.dynamic.decisions
        lines = {f"{file}:{line}" for line in range(asked.span[0], asked.span[2] + 1)}
        if lines & (decisions.sites.keys() | decisions.unexplored.keys()):
            return False
        counted = {place for count in self._loops.counts.values() for place in count.places()}
        counted |= self._loops.increments.places()
        places = [(line, column) for name, line, column in counted if name == file]
        followed = [part for part in asked.parts if any(part[0][:2] <= at < part[0][2:] for at in places)]
        known = {name for _, names, _ in followed for name in names}
        others = [names for _, names, changes in asked.parts if changes]
        return not followed or any(not known.issuperset(names) for names in others)
