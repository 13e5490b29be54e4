"""`Decisions`: which way a branch goes that depends on an unknown device value.

A run answers every such question in the likely way and records where it was asked. Other runs answer some
lines the other way; comparing their peaks shows whether the branch matters. A line that gets the same answer
over and over without an optimizer step may be a loop that runs until a value converges: after `patience`
answers it gets the other one, and the line is recorded as cut short. A line outside a `while` loop is not
recorded, because it gets the same answers whatever the patience is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pinchpoint.backends.torch.loops.marking.syntax import parse
from pinchpoint.backends.torch.packages import solvers

_BOUNDED_PATIENCE = 4096  # answers to a line outside a `while` loop, which most likely ends by itself
# Files that ask on behalf of their caller; torch's begin with an underscore, JAX's are all of them.
_OURS = str(Path(__file__).parents[2])
_TENSORS = "/torch/_", "/torch/utils/_", "/site-packages/jax/"
_TORCH = "-packages/torch/"
_COLLECTIVES = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/c10d_logger.py",
    "/torch/distributed/_functional_collectives.py",
    "/torch/distributed/nn/functional.py",
    "/torch/autograd/function.py",
    "/torch/_library/",
    "/torch/_ops.py",
    "/typing_extensions.py",  # the wrapper of a function that is deprecated
)
_CALLERS = 30  # frames in which the nearest loop is looked for
_PACKAGES = r"(?:site|dist)-packages/"

_LONG_RUNS = 4  # of a known loop, every so many runs have several turns
Peaks = Callable[[list[int]], tuple[list[int], list[int]]]


@dataclass
class Decisions:
    """flipped: lines that get the unlikely answer. patience: turns of a `while` loop before it is ended."""

    flipped: frozenset[str] = frozenset()
    patience: int = 4
    sites: dict[str, int] = field(default_factory=dict)  # lines that asked, with the number of questions
    cut: set[str] = field(default_factory=set)  # lines whose loop was ended by `patience`
    unexplored: dict[str, None] = field(default_factory=dict)  # lines of which only the likely way was run
    answers: Callable[[str], bool | None] | None = None  # line -> a fixed answer, which is not recorded
    _streaks: dict[str, tuple[bool, int, int]] = field(default_factory=dict)
    _turns: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # line -> (turn, number of events)

    def decide(self, likely: bool, steps: int, *, is_late: bool = False, events: int = 0) -> bool:
        """The answer to a question about an unknown value, asked by the line that runs now.

        steps: optimizer steps so far; a loop that trains is not cut short. is_late: whether the training
        steps are done, so that the other way of a package's line is not worth a run: it is kept in
        `unexplored`. events: allocations and frees so far.
        """
        site, in_while = asking_line()
        explore = not is_late or not _is_of_package(site)
        if self.answers is not None and (fixed := self.answers(site)) is not None:
            return fixed
        known = solvers.known_answer(*site.rsplit(":", 1))
        passing = _passing_answer(*site.rsplit(":", 1)) if known is None else known
        if passing is not None:
            return passing
        if _only_chooses(*site.rsplit(":", 1)):
            return likely
        if solvers.is_known_loop(*site.rsplit(":", 1)):
            return self._run_loop(site, explore=explore, events=events)
        if explore:
            self.sites[site] = self.sites.get(site, 0) + 1
        elif site not in self.sites:
            self.unexplored[site] = None
        answer = likely != (site in self.flipped)
        previous, streak, since = self._streaks.get(site, (answer, 0, steps))
        streak = streak + 1 if previous == answer and since == steps else 1
        if in_while:
            self._turns.setdefault(site, []).append((streak, events))
        if streak > (self.patience if in_while else _BOUNDED_PATIENCE):
            if explore and in_while:
                self.cut.add(site)
            answer, streak = not answer, 1
        self._streaks[site] = answer, streak, steps
        return answer

    def _run_loop(self, site: str, *, explore: bool, events: int) -> bool:
        """Whether a loop that usually has some turns has another one: now and then `patience` of them."""
        _, turn, runs = self._streaks.get(site, (False, 0, 0))
        turn += 1
        if explore and turn > self.patience:
            self.cut.add(site)
        self._turns.setdefault(site, []).append((turn, events))
        goes_on = turn <= (self.patience if runs % _LONG_RUNS == 0 else 1)
        self._streaks[site] = (True, turn, runs) if goes_on else (False, 0, runs + 1)
        return goes_on

    def results(self, peaks: Peaks | None = None) -> dict[str, Any]:
        """Plain values for the process that compares the runs.

        peaks: the most bytes before each number of events since the one before, and those alive then. With
        it, a loop whose last turns take and keep the same memory does not count as cut short.
        """
        cut = [site for site in self.cut if peaks is None or not self._is_steady(site, peaks)]
        return {"sites": sorted(self.sites), "cut": sorted(cut)}

    def _is_steady(self, site: str, peaks: Peaks) -> bool:
        turns = self._turns.get(site, [])
        highest, kept = peaks([events for _, events in turns])
        last = [at for at, (turn, _) in enumerate(turns) if turn > self.patience]
        return bool(last) and all(highest[at] <= highest[at - 1] and kept[at] <= kept[at - 1] for at in last)


def asking_line() -> tuple[str, bool]:
    """`file:line` of the innermost frame that asks for itself, and whether a `while` loop repeats it.

    The loop may be in a caller: an adaptive solver repeats a function that decides about its step. The
    nearest loop counts, so layers that a `for` loop calls inside a `while` loop are not repeated by it.
    """
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and _asks_for_caller(frame.f_code.co_filename):
        frame = frame.f_back
    site = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    for _ in range(_CALLERS):
        loop = _nearest_loop(frame.f_code.co_filename, frame.f_lineno)
        if loop is not None or frame.f_back is None:
            return site, loop == "while"
        frame = frame.f_back
    return site, False


def asked_by_package() -> bool:
    """Whether the line that asks for a value now is one of an installed package."""
    return _is_of_package(asking_line()[0])


def exchanged_by_package() -> bool:
    """Whether the line that calls a collective of torch.distributed now is one of an installed package."""
    frame: Any = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in (_OURS, *_COLLECTIVES)):
        frame = frame.f_back
    return frame is None or _is_of_package(frame.f_code.co_filename)


def _is_of_package(site: str) -> bool:
    return re.search(_PACKAGES, site) is not None


def counting_line(where: str) -> str:
    """The user's line and the library's line that counts: one call of a model counts many things."""
    frame: Any = sys._getframe(1)
    while frame is not None and _counts_for_caller(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return where
    line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return where if line == where else f"{where} in {re.split(_PACKAGES, line)[-1]}"


def _counts_for_caller(file: str) -> bool:
    return file.startswith(("<", _OURS)) or _TORCH in file


@cache
def _asks_for_caller(file: str) -> bool:
    return file.startswith(("<", _OURS)) or any(part in file for part in _TENSORS)


@cache
def _passing_answer(file: str, line: str) -> bool | None:
    """The answer with which a check at this line passes, as in a run that works; None: it is no check.

    A check is an `assert`, or an `if` that ends with `raise`.
    """
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.If) and not isinstance(node.body[-1], ast.Raise):
            continue
        if not isinstance(node, (ast.Assert, ast.If)) or not node.test.lineno <= int(line) <= (
            node.test.end_lineno or node.test.lineno
        ):
            continue
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        negated = {isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) for part in parts}
        if len(negated) == 1:
            return isinstance(node, ast.Assert) != negated.pop()
    return None


@cache
def _only_chooses(file: str, line: str) -> bool:
    """Whether the line asks only for `max` or `min` of numbers: either of them takes the same memory."""
    nodes = [
        node
        for node in ast.walk(parse(file))
        if isinstance(node, ast.expr) and node.lineno <= int(line) <= (node.end_lineno or node.lineno)
    ]
    statements = [
        node.test
        for node in ast.walk(parse(file))
        if isinstance(node, (ast.If, ast.While, ast.Assert))
        and node.test.lineno <= int(line) <= (node.test.end_lineno or node.test.lineno)
    ]
    asks = any(isinstance(node, (ast.Compare, ast.BoolOp, ast.IfExp, ast.Lambda)) for node in nodes)
    chooses = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min")
        for node in nodes
    )
    return chooses and not asks and not statements


@cache
def _loops(file: str) -> tuple[tuple[int, int, str | None], ...]:
    """First line, last line and kind of every loop and function of a file; a function has no kind."""
    kinds: dict[type[ast.AST], str | None] = {
        ast.While: "while",
        ast.For: "for",
        ast.AsyncFor: "for",
        ast.FunctionDef: None,
        ast.AsyncFunctionDef: None,
        ast.Lambda: None,
    }
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, kinds[type(node)])
        for node in ast.walk(parse(file))
        if isinstance(
            node, (ast.While, ast.For, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        )
    )


@cache
def _nearest_loop(file: str, line: int) -> str | None:
    """The kind of the innermost loop around a line of its function."""
    enclosing = [(last - first, kind) for first, last, kind in _loops(file) if first <= line <= last]
    return min(enclosing, key=lambda entry: entry[0])[1] if enclosing else None
