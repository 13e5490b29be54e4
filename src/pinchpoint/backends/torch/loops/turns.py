"""`Loop`: one run of a loop of the script: whether it ends, and which of its turns are run."""

from __future__ import annotations

import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pinchpoint.backends.torch.fake.out_of_memory import searches
from pinchpoint.backends.torch.loops.collecting import Repetition
from pinchpoint.backends.torch.loops.counters import EVALUATED, Count
from pinchpoint.backends.torch.loops.growth import Growth
from pinchpoint.backends.torch.loops.increments import Totals
from pinchpoint.backends.torch.loops.items import largest_items
from pinchpoint.backends.torch.loops.kinds import ROLES, Kinds, Turn
from pinchpoint.backends.torch.loops.remainder import changes_later_turns
from pinchpoint.backends.torch.loops.variation import Mark, Variation
from pinchpoint.core.files import shown_path

_EVALUATED_TURNS = 1_000_000  # whose conditions are evaluated
_SPECIAL = 6  # turns that are run because a condition has another answer
_RECORDED = 12  # turns that are run because any condition has another answer
_RARE = 3  # a condition that is met so rarely is run every time, because it may change what follows
_REMEMBERED = 64  # turns whose memory is looked at later
_SEARCHED = 64  # turns of a loop that may run until the card is full
Test = Callable[[Any], Any]


class Loop:
    """One run of a loop. sequence: all values of its variable, if they are known."""

    def __init__(
        self,
        loops: Any,  # the `Loops` of the script
        site: str,
        sequence: Sequence[Any] | None,
        tests: tuple[Test, ...],
        is_used: bool,
        iterator: Iterator[Any],
    ) -> None:
        self.number = next(loops.numbers)
        self._loops, self.site, self._sequence = loops, site, sequence
        self._tests, self._is_used, self._iterator = tests, is_used, iterator
        self._trained = loops.progress.trained
        self._optimizers = loops.progress.optimizers
        self._marks: deque[Mark] = deque([loops.now()], maxlen=2)  # before the last turns
        self._count = 0  # turns that were started
        self.totals: Totals = {}  # of the counters that the script increases itself, before the last turn
        self._place = 0  # of the last turn in the sequence
        self._ordinary = 0  # of these, turns before others were chosen
        self._growth = Growth(loops, site)
        self._variation = Variation(loops, site)
        self._is_extended = self._has_larger = self._is_reported = False
        self._epochs = 0  # of a DataLoader that were ended before this turn
        self._batches: Any = None  # the iterator whose batches were trained on before this turn
        self._first_turns: list[Turn] = []  # turns that were run before others were chosen
        self._kinds: Kinds | None = None  # once turns are chosen
        self._chosen: set[int] | None = None  # places of the remaining turns in the sequence
        self._further: set[int] = set()  # places of turns that are not the first of their kind
        self._special: dict[int, int] = {}  # places of turns that may differ -> training steps to take there
        self._repetition = Repetition(loops, site)
        self._is_in_special = loops.progress.is_late and loops.runs_special
        self._variable = self._counter = None  # what conditions on the loop's variable are recorded for
        if isinstance(sequence, range) and loops.progress.trains:
            self._variable = loops.counts.setdefault(site, Count(site))
        counts = isinstance(iterator, itertools.count) and "," not in repr(iterator)  # by one
        if counts and loops.progress.trains:
            self._counter = loops.increments.variable(site, is_used=is_used)

    @property
    def length(self) -> int | None:
        return None if self._sequence is None else len(self._sequence)

    @property
    def turns(self) -> int:
        """Turns that were started."""
        return self._count

    @property
    def share_run(self) -> float | None:
        return self._count / self.length if self.length else None

    @property
    def _wanted(self) -> int:
        return self._loops.progress.wanted

    @property
    def is_training(self) -> bool:
        return self._loops.progress.trained > self._trained

    @property
    def is_ending(self) -> bool:
        return self._chosen is not None

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Any:
        turn = Turn(self._place, self._marks[-1], self._loops.now()) if self._count else None
        if turn is not None and self._chosen is None and len(self._first_turns) < _REMEMBERED:
            self._first_turns.append(turn)
        if self._chosen is None and not self._ends():
            value, self._place = next(self._iterator), self._count
            if self._count in self._special:
                self._loops.begin_special(self._special[self._count])
        else:
            value = self._remaining(turn)
        self._start_turn()
        if type(value) is int and self._counter is not None:
            return self._counter.follow(value, self.number, is_first=self._count == 1)
        return value if type(value) is not int or self._variable is None else self._variable.give(value)

    def __del__(self) -> None:
        observer, decisions = self._loops.observer, self._loops.observer.dynamic.decisions
        is_open = bool(self._chosen) or (self._kinds is not None and self._kinds.is_waiting)
        is_left = is_open and self._place in self._further and not observer.ledger.is_closed
        if is_left and (decisions.sites or decisions.unexplored):
            observer.ledger.observation.reasons.append(
                f"the loop at {shown_path(self.site)} was left after a branch on an unknown value, "
                "before turns that may differ"
            )

    def goes_on(self) -> bool:
        """For a `while` loop: whether there is another turn."""
        if self._chosen is not None or self._ends():
            self._chosen = set()
            is_wanted = self.is_training and self._wants_turn()
            self._report()
            if not is_wanted:
                return False
            self._loops.begin_special(self._loops.progress.wanted)
        self._start_turn()
        return True

    def feed(self) -> bool:
        """Give the batches that a loop outside a generator still needs; that loop ends after its turn."""
        loaders = self._loops.progress.loaders
        if loaders.epochs_ended > self._epochs:  # the last turn gave no batch
            loaders.is_over = True
            loaders.allow(self._wanted)
        self._start_turn()
        return True

    def _start_turn(self) -> None:
        self._count += 1
        self._marks.append(self._loops.now())
        self.totals = self._loops.increments.totals()
        self._epochs = self._loops.progress.loaders.epochs_ended
        self._batches = self._loops.progress.loaders.source

    def _report(self) -> None:
        length = "" if self.length is None else f" of {self.length:,}"
        if self.length is None or self.length > self._count:
            turns = f"{self._count}{length}"
            self._loops.report_end(self.site, turns, trains=self.is_training, again=self._is_reported)
            self._is_reported = True

    # --- whether the loop is over

    def _ends(self) -> bool:
        """Whether enough turns were run; only if this loop trains."""
        loops, progress = self._loops, self._loops.progress
        taken = progress.trained - self._trained
        if not taken:
            return self._only_repeats()
        loops.went_on()
        if not progress.is_late or not progress.has_enough:
            return False
        if self._count < _SEARCHED and loops.observer.ledger.before_large is not None and searches(self.site):
            return False
        if self._count == self.length:
            return not progress.loaders.trains and self._is_varied()
        is_known = self.site in loops.ended and not self._is_in_special
        if taken < (1 if is_known else progress.wanted):
            return False
        if progress.loaders.trains:
            if progress.loaders.epochs_ended > self._epochs:
                return self._ends_after_epoch()
            if progress.loaders.want_more() and not self._has_larger:
                self._has_larger = True
                return False
            if self._sequence is None and not self._asks_for_batches():
                return progress.loaders.is_over  # a generator may give the batches of a loader
        elif self._is_varied():
            return False
        return self._is_steady()

    def _asks_for_batches(self) -> bool:
        """Whether a `while` loop takes batches with `next`: an epoch does not end with its turns."""
        is_while = not isinstance(self._iterator, (itertools.count, types.GeneratorType))
        return is_while and self._batches is not None and self._loops.progress.loaders.source is self._batches

    def _is_varied(self) -> bool:
        """Whether turns differ in size so that another one is run."""
        return self._variation.adds_turn([*self._marks, self._loops.now()], self._count, self.length)

    def _only_repeats(self) -> bool:
        """Whether a loop that does not train can be ended, because it would not end before the limit."""
        progress = self._loops.progress
        if not progress.is_late or not progress.trains or self.length in (None, self._count):
            return False
        marks = [*self._marks, self._loops.now()]
        return progress.is_running_out() and self._repetition.is_over(marks, self._count, sys._getframe(1))

    def has_other_turns(self) -> bool:
        """Whether a condition has another answer in a turn that was not run."""
        if self._sequence is None:
            return False
        try:
            known = {self._answer(value) for value in self._sequence[: self._count]}
            rest = itertools.islice(self._sequence, self._count, self._count + _EVALUATED_TURNS)
            return self._chosen is not None or any(self._answer(value) not in known for value in rest)
        except Exception:  # a condition may need a name that does not exist yet
            return True

    def _ends_after_epoch(self) -> bool:
        """Whether epochs of a DataLoader, which ends by itself, are run no further."""
        loaders = self._loops.progress.loaders
        if loaders.is_over:
            return True
        if not self._loops.progress.has_evaluated():
            # Epochs are empty now except those that may differ, and a later one may evaluate.
            if not self._special:
                self._choose()
            return False
        is_extended, self._is_extended = self._is_extended, True
        return is_extended or not loaders.left_behind()

    def _is_steady(self) -> bool:
        """Whether another turn would find memory as the last one did."""
        loops = self._loops
        if self._count == 1:
            # What the first turn leaves behind is alive during the second.
            is_new = loops.progress.optimizers > self._optimizers
            return not (is_new or loops.growth(self._marks[0], ROLES) > 0)
        left = None if self.length is None else self.length - self._count
        return not self._growth.adds_turn([*self._marks, loops.now()], left)

    # --- the turns that remain

    def _remaining(self, turn: Turn | None) -> Any:
        """The value of the next turn that may differ. turn: the last one."""
        if self._chosen is None:
            self._choose()
            self._chosen = {at for at in self._special if at >= self._count}
        elif self._kinds is not None and turn is not None:
            further = {at for at in self._kinds.after_turn(turn) if at < (self.length or 0)}
            self._special |= dict.fromkeys(further, self._wanted)
            self._chosen |= further
            self._further |= further
        if not self._chosen:  # the turns that were run may have asked further questions
            self._chosen = set(self._choose_recorded())
        is_wanted = self.is_training and self._wants_turn()
        if not self._chosen and not is_wanted:
            self._report()
            raise StopIteration
        if self._sequence is None:
            return next(self._iterator)
        if self._chosen:
            self._place = min(self._chosen)
            self._chosen.remove(self._place)
        else:
            self._place = min(max(self._place, self._count - 1) + 1, len(self._sequence) - 1)
        self._loops.begin_special(self._special.get(self._place, self._loops.progress.wanted))
        return self._sequence[self._place]

    def _wants_turn(self) -> bool:
        """Whether a counter, or a condition that is to be answered otherwise, needs another turn."""
        if self._loops.increments.want_turn(self):
            return True
        return not self._chosen and self._loops.conditions.want_turn(self.site)

    def _choose(self) -> None:
        """Add the places of the turns that may differ from those that were run to `_special`."""
        values = self._sequence
        if values is None:
            return
        answers = self._loops.answers.setdefault(self.site, set())
        is_first_time = self.site not in self._loops.ended
        last = len(values) - 1
        chosen: set[int] = set()
        try:
            answers |= {self._answer(value) for value in values[: min(self._count, _EVALUATED_TURNS)]}
            groups: dict[Any, list[int]] = {}
            for at in itertools.islice(range(self._count, len(values)), _EVALUATED_TURNS):
                groups.setdefault(self._answer(values[at]), []).append(at)
            groups.setdefault(self._answer(values[last]), []).append(last)
            self._kinds = kinds = Kinds(self._loops, self.site, changes=changes_later_turns(self.site))
            for answer in groups.keys() - answers:
                turns = sorted(set(groups[answer]))
                chosen |= set(turns) if len(turns) <= _RARE else kinds.expect(turns, ())
                if len(turns) <= _RARE and turns[-1] != last:
                    chosen.add(last)  # what such a turn changed may show later
            usual = self._answer(values[self._count - 1])
            for answer in (groups.keys() & answers) - {usual} if is_first_time else ():
                earlier = [turn for turn in self._first_turns if self._answer(values[turn.place]) == answer]
                chosen |= kinds.expect(sorted(set(groups[answer])), earlier)
            answers |= groups.keys()
        except Exception:  # a condition may need a name that does not exist yet
            self._is_used = True
        kept = sorted(chosen)[-_SPECIAL:]
        if len(chosen) > _SPECIAL or len(values) - self._count > _EVALUATED_TURNS:
            self._has_more_kinds()
        self._special |= dict.fromkeys(kept, self._wanted)
        others = [last] if self._is_used and is_first_time else []
        if not isinstance(values, range) and is_first_time:
            others += largest_items(values[:_EVALUATED_TURNS], self._count)
        self._special = dict.fromkeys(others, 1) | self._special
        self._ordinary = self._count
        self._choose_recorded()

    def _choose_recorded(self) -> list[int]:
        """Add the places of turns for which a recorded condition has another answer; returns them."""
        values, variable, first = self._sequence, self._variable, self._ordinary
        if variable is None or not isinstance(values, range) or first >= len(values):
            return []
        rest = values[first:]
        span = rest[:EVALUATED]
        try:
            numbers = np.arange(span.start, span.stop, span.step)
        except OverflowError:
            return []
        places = variable.choose(numbers, [at - first for at in self._special if at >= first])
        found = [at + first for at in places]
        left = max(_RECORDED - len(self._special), 0)
        if len(found) > left or (found and len(rest) > EVALUATED):
            self._has_more_kinds()
        self._special |= dict.fromkeys(found[:left], self._wanted)
        return found[:left]

    def _has_more_kinds(self) -> None:
        reason = f"the loop at {shown_path(self.site)} has more kinds of turns than were run"
        reasons = self._loops.observer.ledger.observation.reasons
        reasons += [] if reason in reasons else [reason]

    def _answer(self, value: Any) -> tuple[bool, ...]:
        return tuple(bool(test(value)) for test in self._tests)
