"""L-BFGS on the simulated device: a few of its iterations run, and its history is filled to its final size.

One step of L-BFGS makes up to `max_iter` iterations, each with one or more calls of the closure, and keeps
two vectors of all gradients per iteration, at most `history_size` times. The values that decide about its
iterations are unknown, so they are answered here: no iteration converges, every one is kept, and the line
search of the last one that runs looks once more between two points. Convergence leaves fewer vectors, which
is the low end of the interval.
"""

from __future__ import annotations

import linecache
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.fake.progress import Progress
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import Span

_FIRST = 2  # iterations of the first step before the history is filled: the second begins it
_NO_LIMIT = -1.0  # of changes and gradients that count as converged
_LEAST = 512  # bytes of a block that may not exist
_FILE = sys.modules[torch.optim.LBFGS.__module__].__file__
# Parts of the lines that ask -> the answer. All other lines ask whether the iterations have converged.
_ANSWERS = {"ys > 1e-10": True, "abs(gtd_new) <= -c2": True, "d2_square >= 0": True}
_BRACKETS, _NARROWS = "f_new > (f + c1", "* d_norm <"  # lines of the line search


def install(patches: Patches, observer: Observer, progress: Progress) -> None:
    original: Callable[..., Any] = torch.optim.LBFGS.step
    histories: weakref.WeakKeyDictionary[torch.optim.Optimizer, _History] = weakref.WeakKeyDictionary()

    def step(self: torch.optim.LBFGS, closure: Callable[[], Any]) -> Any:
        group = self.param_groups[0]
        if observer.dynamic.calibrating or not any(map(observer.on_device, group["params"])):
            return original(self, closure)
        iterations: int = group["max_iter"]
        # Without a line search, the closure is called again only between two iterations.
        later = min(iterations, 1 if group["line_search_fn"] else 2)
        if self in histories:
            histories[self].expect(progress.loops.outermost(), progress.loops.turns())
            histories[self].fill(1)
            return _run(original, observer, self, closure, later, search=True)
        first = min(iterations, _FIRST)
        loss = _run(original, observer, self, closure, first, search=iterations <= _FIRST)
        histories[self] = history = _History(observer, self)
        history.expect(progress.loops.outermost(), progress.loops.turns())
        weakref.finalize(self, history.free)
        if iterations > _FIRST:
            history.fill(1)
            _run(original, observer, self, closure, later, search=True)
        return loss

    patches.set(torch.optim.LBFGS, "step", step)


class _History:
    """Vectors of the iterations that do not run."""

    def __init__(self, observer: Observer, optimizer: torch.optim.LBFGS) -> None:
        group = optimizer.param_groups[0]
        self._ledger = observer.ledger
        self._state = optimizer.state[group["params"][0]]
        self._bytes = sum(p.numel() * p.element_size() for p in group["params"])
        self._most: int = group["history_size"]
        self._iterations: int = group["max_iter"]  # of a step
        self._turns: dict[int | None, float] = {}  # number of a loop -> how many steps it takes
        self._blocks: list[int] = []

    def expect(self, loop: int | None, turns: int | None) -> None:
        """Let the history be as long as the loops allow that took steps so far. turns: None if unknown."""
        self._turns[loop] = max(self._turns.get(loop, 0), math.inf if turns is None else turns)

    def free(self) -> None:
        """Free the vectors: the optimizer does not exist any more."""
        while self._blocks:
            self._ledger.free_temporary(self._blocks.pop())

    def fill(self, count: int) -> None:
        """Let the history be full after `count` further iterations."""
        size = int(min(self._most, self._iterations * sum(self._turns.values()) - 1))
        vectors = 2 * max(size - len(self._state.get("old_dirs") or ()) - count, 0)
        site = self._ledger.site()
        span = Span(self._bytes, min(_LEAST, self._bytes), self._bytes)
        while len(self._blocks) > vectors:
            self._ledger.free_temporary(self._blocks.pop())
        while len(self._blocks) < vectors:
            self._blocks.append(
                self._ledger.add_permanent(
                    self._bytes, phase="optimizer", site=site, op="lbfgs", role="optimizer", span=span
                )
            )


def _run(
    original: Callable[..., Any],
    observer: Observer,
    optimizer: torch.optim.LBFGS,
    closure: Callable[[], Any],
    count: int,
    *,
    search: bool,
) -> Any:
    """Run torch's own step with `count` iterations. search: whether the line search takes another look."""
    group, decisions = optimizer.param_groups[0], observer.dynamic.decisions
    asked: set[str] = set()

    def answer(site: str) -> bool | None:
        file, _, line = site.rpartition(":")
        if file != _FILE:
            return None
        text = linecache.getline(file, int(line))
        if _BRACKETS in text or _NARROWS in text:
            is_first = text not in asked
            asked.add(text)
            return search and is_first if _BRACKETS in text else not is_first
        return next((yes for part, yes in _ANSWERS.items() if part in text), False)

    before = {key: group[key] for key in ("max_iter", "tolerance_change", "tolerance_grad")}
    group.update(max_iter=count, tolerance_change=_NO_LIMIT, tolerance_grad=_NO_LIMIT)
    answers_before, decisions.answers = decisions.answers, answer
    try:
        loss = original(optimizer, closure)
        state = optimizer.state[group["params"][0]]
        for vector in (*(state.get("old_dirs") or ()), *(state.get("old_stps") or ())):
            observer.ledger.set_role(vector, "optimizer")
        return loss
    finally:
        decisions.answers = answers_before
        group.update(before)
