"""L-BFGS on the simulated device: a few of its iterations run, and its history is filled to its final size.

One step of L-BFGS makes up to `max_iter` iterations, each with one or more calls of the closure, and keeps
two vectors of all gradients per iteration, at most `history_size` times. The values that decide about its
iterations are unknown, so they are answered here: no iteration converges, every one is kept, and the line
search of the last one that runs looks once more between two points. Convergence leaves fewer vectors, which
is the low end of the interval.
"""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.fake.progress import Progress
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import Span

_FIRST = 2  # iterations of the first step before the history is filled; the second one begins the history
_NO_LIMIT = -1.0  # of changes and gradients that count as converged
_LEAST = 512  # bytes of a block that may not exist
_FILE = sys.modules[torch.optim.LBFGS.__module__].__file__
# Parts of the lines that ask -> the answer. All other lines ask whether the iterations have converged.
_ANSWERS = {"ys > 1e-10": True, "abs(gtd_new) <= -c2": True, "d2_square >= 0": True}
_BRACKETS, _NARROWS = "f_new > (f + c1", "* d_norm <"  # lines of the line search


def install(patches: Patches, observer: Observer, progress: Progress) -> None:
    original: Callable[..., Any] = torch.optim.LBFGS.step
    filled: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def step(self: torch.optim.LBFGS, closure: Callable[[], Any]) -> Any:
        group = self.param_groups[0]
        if observer.dynamic.calibrating or not any(map(observer.on_device, group["params"])):
            return original(self, closure)
        iterations: int = group["max_iter"]
        is_filled = self in filled
        count = 1 if is_filled else min(iterations, _FIRST)
        loss = _run(original, observer, self, closure, count, search=is_filled or iterations <= _FIRST)
        if not is_filled:
            filled.add(self)
            _fill(observer, self, iterations, progress.loops.turns())
            if iterations > _FIRST:
                _run(original, observer, self, closure, 1, search=True)
        return loss

    patches.set(torch.optim.LBFGS, "step", step)


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
        return original(optimizer, closure)
    finally:
        decisions.answers = answers_before
        group.update(before)


def _fill(observer: Observer, optimizer: torch.optim.LBFGS, iterations: int, turns: int | None) -> None:
    """Add the vectors of the iterations that do not run. turns: of the loop around the step, if known."""
    group = optimizer.param_groups[0]
    kept: int = group["history_size"]
    if turns is not None:
        kept = min(kept, iterations * turns - 1)
    history = optimizer.state[group["params"][0]].get("old_dirs") or ()
    flat_bytes = sum(p.numel() * p.element_size() for p in group["params"])
    ledger = observer.ledger
    site = ledger.site()
    later = 1 if turns == 1 else 2  # further iterations that run, in this step and in the next
    for _ in range(kept - len(history) - later):
        for _ in range(2):
            ledger.add_permanent(
                flat_bytes,
                phase="optimizer",
                site=site,
                op="lbfgs",
                role="optimizer",
                span=Span(flat_bytes, min(_LEAST, flat_bytes), flat_bytes),
            )
