"""`Loops`: ends the loops of a script that train, once their turns repeat themselves.

A loop that trains is one in which optimizer steps were taken. After the requested steps it runs only those of
its remaining turns that may differ: the first one for which a condition on its variable has another answer,
and the last one if the variable is used in other ways. Conditions are read from the loop's body, and recorded
where the script asks them (see `counters`). A turn is added where memory is left behind by the
first one, and where it grows from turn to turn. Loops that do not train are ended only if the run
would be cut short otherwise and their turns only repeat themselves, because
what they collect (chunks of an image, tokens) determines sizes afterwards.
"""

from __future__ import annotations

import builtins
import copy
import dis
import inspect
import itertools
import math
import operator
import sys
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.data_dependent import float_calls
from pinchpoint.backends.torch.fake.progress import Progress
from pinchpoint.backends.torch.loops.conditions import Conditions
from pinchpoint.backends.torch.loops.counters import Count
from pinchpoint.backends.torch.loops.draws import Draws
from pinchpoint.backends.torch.loops.increments import Increments
from pinchpoint.backends.torch.loops.marking import lookups, loop_source
from pinchpoint.backends.torch.loops.marking.condition_source import IF
from pinchpoint.backends.torch.loops.remainder import Remainder, left_after_error, what_is_left
from pinchpoint.backends.torch.loops.turns import Loop, Test
from pinchpoint.backends.torch.loops.variation import Mark
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import FREE_CACHE
from pinchpoint.core.files import shown_path

_PHASES = 2  # times that a loop which is not part of another one trains
_DRIVEN = 8  # optimizer steps since a loop of the script went on; more are taken by a library's loop
_RANGE_ITERATOR = type(iter(range(0)))
_LONG_RANGE_ITERATOR = type(iter(range(1 << 1000)))


class Loops:
    """Starts the loops of a script, and knows which of them were ended."""

    def __init__(self, observer: Observer, progress: Progress) -> None:
        self.observer, self.progress = observer, progress
        self.ended: dict[str, str] = {}  # line of a loop -> how many of its turns were run
        self._repeating: dict[str, str] = {}  # the same, of loops that do not train
        self.answers: dict[str, set[Any]] = {}  # line of a loop -> answers of its conditions so far
        self.counts: dict[str, Count] = {}  # line of a loop -> its variable
        self.increments = Increments(self)
        self.draws = Draws(self)
        self.conditions = Conditions(self)
        self.modules_before = set(sys.modules)  # those of the script are imported later
        self._while_loops: dict[str, tuple[Loop, int]] = {}  # and the last line of each
        self._running: list[weakref.ref[Loop]] = []
        self._phases: dict[str, int] = {}  # line of a loop -> how often it began outside all others
        self.numbers = itertools.count()  # of the loops, in the order in which they start
        self._blocks_at_end = 0  # when a loop was last ended
        self._trained_at: int | None = None  # optimizer steps when a loop that trains last went on
        self.beyond = 0.0  # share by which turns that were not run may need more than those that were
        self.spreads: dict[
            str, float
        ] = {}  # line of a loop -> deviation of its turns, as a share of their size
        progress.loops = self

    @property
    def spread(self) -> float | None:
        """The share by which turns of a loop may deviate from their mean size, if they differ."""
        return max(self.spreads.values(), default=None)

    def for_loop(self, things: Any, line: int, tests: tuple[Test, ...], is_used: bool) -> Any:
        """Iterate over `things`, as far as is needed. tests: conditions on the loop's variable."""
        sequence = _sequence(things)
        self._allow_training(_site(line))
        may_end = sequence is not None or isinstance(things, (itertools.count, types.GeneratorType))
        if self.observer.dynamic.calibrating:
            return things
        if not may_end:
            return self.increments.follow(things, _site(line)) if self.progress.trains else things
        loop = Loop(self, _site(line), sequence, tests, is_used, iter(things))
        self._running = [ref for ref in self._running if ref() is not None] + [weakref.ref(loop)]
        return loop

    def while_starts(self, line: int, last_line: int) -> None:
        self._allow_training(_site(line))
        self._while_loops[_site(line)] = Loop(self, _site(line), None, (), False, iter(())), last_line

    def goes_on(self, line: int) -> bool:
        """Whether a `while` loop evaluates its condition again."""
        loop, _ = self._while_loops.get(_site(line), (None, 0))
        if loop is None:
            return True
        frame = sys._getframe(1)
        if frame.f_code.co_flags & inspect.CO_GENERATOR and self.progress.is_late:
            others = (other for other in self.running_loops() if other is not loop)
            if _is_asked_by_next(frame) or any(other.is_training for other in others):
                return loop.feed()
        return loop.goes_on()

    def _allow_training(self, site: str) -> None:
        """Let a loop that is not part of another one that trains, as a second phase, get batches again."""
        if self.progress.is_late and not self.enclose():
            self._phases[site] = self._phases.get(site, 0) + 1
            if self._phases[site] <= _PHASES:
                self.progress.loaders.allow(self.progress.wanted)

    def begin_special(self, steps: int) -> None:
        """A turn begins that may differ from others: so many training steps show what it needs."""
        self.went_on()
        self.progress.loaders.allow(steps)

    @property
    def runs_special(self) -> bool:
        """Whether a loop runs its last turns, which were chosen because they may differ."""
        return any(loop.is_ending for loop in self.running_loops())

    def running_loops(self) -> list[Loop]:
        """The loops that run now: `for` loops with a live iterator, `while` loops on the stack."""
        running = [loop for ref in self._running if (loop := ref()) is not None]
        if not self._while_loops:
            return running
        lines: dict[str, set[int]] = {}
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
            frame = frame.f_back
        for site, (loop, last) in self._while_loops.items():
            file, _, first = site.rpartition(":")
            if any(int(first) <= line <= last for line in lines.get(file, ())):
                running.append(loop)
        return running

    def drive(self) -> bool:
        """Whether a loop of the script, and not of a library, led to the last optimizer step."""
        return self._trained_at is not None and self.progress.trained - self._trained_at <= _DRIVEN

    def enclose(self) -> bool:
        """Whether a loop of the script that trains runs now."""
        return any(loop.is_training for loop in self.running_loops())

    def went_on(self) -> None:
        """A loop that trains asked for its next turn."""
        self._trained_at = self.progress.trained
        self.progress.forget_late_steps()

    def turns(self) -> int | None:
        """The product of the lengths of the loops that run now; None if one is unknown or none runs."""
        lengths = [loop.length for loop in self.running_loops()]
        if not lengths or self.progress.loaders.trains:
            return None
        return None if None in lengths else math.prod(length for length in lengths if length)

    def outermost(self) -> int | None:
        """The number of the outermost `for` loop that runs now."""
        return next((loop.number for ref in self._running if (loop := ref()) is not None), None)

    def planned_steps(self) -> int | None:
        """How many optimizer steps the running loops of the script take; None if that is unknown."""
        turns, batches = self.turns(), self.progress.loaders.batches()
        return None if turns is None or batches is None else turns * batches

    def at(self, site: str) -> Loop | None:
        """The loop at a line, if it runs now."""
        return next((loop for loop in self.running_loops() if loop.site == site), None)

    def left_after(self, frame: types.FrameType | None) -> Remainder:
        """What is left of the script if it is stopped in this frame."""
        return what_is_left(frame, self)

    def left_after_error(self, error: BaseException) -> Remainder:
        """What is left of the script after an error that ended it."""
        return left_after_error(error, self)

    def share_run(self) -> float | None:
        """The share of the innermost loop's turns that were started; None if it is unknown."""
        loops = [loop for ref in self._running if (loop := ref()) is not None]
        return loops[-1].share_run if loops else None

    def now(self) -> Mark:
        observation = self.observer.ledger.observation
        progress = self.progress
        return Mark(len(observation.events), len(observation.blocks), progress.trained, progress.backwards)

    def growth(self, since: Mark, without: tuple[str, ...] = ()) -> int:
        """Bytes by which memory grew since then; without: roles of blocks that do not count."""
        observation = self.observer.ledger.observation
        grown = 0
        allocated: set[int] = set()
        for block in observation.events[since.events :]:
            if block == FREE_CACHE or observation.blocks[block].role in without:
                continue
            is_new = block >= since.blocks and block not in allocated
            grown += observation.blocks[block].bytes if is_new else -observation.blocks[block].bytes
            allocated.add(block)
        return grown

    def sizes(self, since: Mark, until: Mark) -> list[int]:
        """Bytes of the blocks that were allocated between two times."""
        return [block.bytes for block in self.observer.ledger.observation.blocks[since.blocks : until.blocks]]

    def report_end(self, site: str, turns: str, *, trains: bool, again: bool) -> None:
        """Remember that a loop was ended, for the note. again: whether this run of it was reported before."""
        ended = self.ended if trains else self._repeating
        if again or site not in ended:
            ended[site] = turns
        self._blocks_at_end = self.now().blocks

    def notes(self) -> list[str]:
        """Which loops were ended, and whether something was allocated after them."""
        after = "" if self.now().blocks == self._blocks_at_end else ", and what follows them was run"
        return [
            f"loops that {what} were ended early{after}: "
            + ", ".join(f"{shown_path(site)} ({turns} turns)" for site, turns in loops.items())
            for what, loops in (("train", self.ended), ("only repeat themselves", self._repeating))
            if loops
        ]


def _is_asked_by_next(generator: types.FrameType) -> bool:
    """Whether a function of the script calls `next` on a generator, so that no loop ends with it."""
    caller = generator.f_back
    if caller is None or caller.f_code.co_filename != generator.f_code.co_filename:
        return False
    return dis.opname[caller.f_code.co_code[caller.f_lasti]].startswith(("CALL", "PRECALL"))


def _sequence(things: Any) -> Sequence[Any] | None:
    """All values that a loop over `things` takes, without taking any; None if they are unknown."""
    if isinstance(things, (range, list, tuple)):
        return things
    if isinstance(things, (_RANGE_ITERATOR, _LONG_RANGE_ITERATOR)):  # of reversed(range(...))
        return list(copy.copy(things)) if operator.length_hint(things) < 1_000_000 else None
    if type(things).__module__.partition(".")[0] == "tqdm" and hasattr(things, "iterable"):
        return _sequence(things.iterable)
    return None


def _site(line: int) -> str:
    return f"{sys._getframe(2).f_code.co_filename}:{line}"


def install(patches: Patches, observer: Observer, progress: Progress) -> None:
    """Define the functions that a marked script calls."""
    loops = Loops(observer, progress)
    patches.set(builtins, loop_source.FOR, loops.for_loop)
    patches.set(builtins, loop_source.WHILE, loops.goes_on)
    patches.set(builtins, loop_source.WHILE_STARTS, loops.while_starts)
    patches.set(builtins, loop_source.COUNT, loops.increments.count)
    patches.set(builtins, loop_source.COUNT_STARTS, loops.increments.start)
    patches.set(builtins, IF, loops.conditions.ask)
    patches.set(builtins, lookups.KEY, lookups.key)
    patches.set(builtins, float_calls.FLOAT, float_calls.to_float)
    loops.draws.install(patches)
    torch.serialization.add_safe_globals([int, float])  # as which a Counter in a checkpoint is loaded
