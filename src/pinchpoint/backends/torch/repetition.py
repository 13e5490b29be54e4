"""`Repetition`: the turns of a loop that allocate in the same way, and what further turns would allocate.

A turn is what happens between two calls of `mark`. Turns are regular if they allocate and free the same
blocks in the same order, and every block grows by the same number of bytes from turn to turn, as a cache of
keys and values does. Kernels pad to multiples of up to 16 elements, so this may hold only for every second,
fourth, eighth or sixteenth turn. Further turns are then written to the ledger without running them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.core.events import FREE_CACHE, BlockInfo
from pinchpoint.core.units import MIB

PERIODS = (1, 2, 4, 8, 16)
WINDOW = 32  # turns that must be regular: two of the longest periods
_REACH = 2  # a turn may free blocks of this many earlier turns
_WHOLE = 4  # periods at the end that are written with all their blocks, for the peak
_SMALL_BYTES = MIB  # requests up to this size have segments of their own


@dataclass(frozen=True)
class _Turn:
    """The events of one turn as (turns back, number of the block in that turn), and its blocks."""

    pattern: tuple[tuple[int, int], ...]
    blocks: tuple[BlockInfo, ...]
    is_closed: bool  # refers to no block older than `_REACH` turns


class Repetition:
    """Observes the turns of one loop. window: how many must be regular; periods: those that are tried."""

    def __init__(self, ledger: Ledger, window: int = WINDOW, periods: tuple[int, ...] = PERIODS) -> None:
        self._ledger, self._window, self._periods = ledger, window, periods
        self._starts: list[tuple[int, int]] = []  # index of the first event and first block of each turn
        self._turns: list[_Turn] = []

    def mark(self) -> None:
        """End a turn, and begin the next one."""
        observation = self._ledger.observation
        if self._starts:
            self._turns.append(self._turn(*self._starts[-1]))
        self._starts.append((len(observation.events), len(observation.blocks)))

    @property
    def turns(self) -> int:
        return len(self._turns)

    def period(self) -> int | None:
        """The shortest period with which the last turns are regular; None if there is none."""
        return next((p for p in self._periods if self._is_regular(p)), None)

    def _turn(self, first_event: int, first_block: int) -> _Turn:
        observation = self._ledger.observation
        firsts = [first_block, *(block for _, block in self._starts[-2 : -2 - _REACH : -1])]
        pattern: list[tuple[int, int]] = []
        is_closed = True
        for block in observation.events[first_event:]:
            if block == FREE_CACHE:
                pattern.append((FREE_CACHE, 0))
                continue
            back = next((back for back, first in enumerate(firsts) if block >= first), None)
            if back is None:
                is_closed = False
                break
            pattern.append((back, block - firsts[back]))
        return _Turn(tuple(pattern), tuple(observation.blocks[first_block:]), is_closed)

    def _is_regular(self, period: int) -> bool:
        turns = self._turns[-(self._window + 2 * period) :]
        if len(turns) < self._window + 2 * period:
            return False
        return all(
            _continues(*turns[at - 2 * period : at + 1 : period]) for at in range(2 * period, len(turns))
        )

    def extend(self, count: int, period: int, most_events: int | None = None) -> int:
        """Write `count` further turns, a multiple of `period`; live storages then stand for the last ones.

        most_events: if they had more events, small blocks that pass with each turn are left out, except in
        the last turns. If that is not enough, half of the events are those of the last turns, and of the
        others only every n-th period is written. Turns that leave blocks behind are all written. Returns n.
        """
        assert count % period == 0, "a block of a turn has its counterpart a whole number of periods later"
        observation = self._ledger.observation
        recent = self._turns[-2 * period :]
        firsts = [block for _, block in self._starts[: len(self._turns)]]
        last = len(firsts) - 1
        created: set[int] = set()
        freed: set[int] = set()
        left_out: set[int] = set()
        periods = count // period
        passing = _passing(recent[:period], recent[period:])
        growths, stride, is_thinned = _growths(periods, recent[period:], passing, most_events)
        for growth in growths:
            is_whole = not is_thinned or growth in growths[-_WHOLE:]
            for before, now, small in zip(recent[:period], recent[period:], passing, strict=True):
                firsts.append(len(observation.blocks))
                observation.blocks += [
                    _grown(old, new, growth) for old, new in zip(before.blocks, now.blocks, strict=True)
                ]
                if not is_whole:
                    left_out.update(firsts[-1] + at for at in small)
                for back, at in now.pattern:
                    block = FREE_CACHE if back == FREE_CACHE else firsts[-1 - back] + at
                    if block in left_out:
                        continue
                    observation.events.append(block)
                    if block != FREE_CACHE:
                        (created if back == 0 and block not in created else freed).add(block)
        self._hand_over(firsts, last, len(growths) * period, period, created - freed, freed)
        return stride

    def _hand_over(
        self, firsts: list[int], last: int, count: int, period: int, alive: set[int], freed: set[int]
    ) -> None:
        """Let each live storage of the turns that ran stand for the blocks of later turns that it became.

        alive: blocks of the written turns that are not freed. freed: blocks that the written turns freed.
        """
        live = self._ledger.live_blocks()
        # Blocks that the next turn frees became the block of the same number, `count` turns later.
        for turn in range(max(last - max(period - 1, _REACH), 0), last + 1):
            for at in range(len(self._turns[turn].blocks)):
                block = firsts[turn] + at
                if block not in live:
                    continue
                followers: list[int] = []
                if turn > last - period:  # the owner of what its successors leave behind
                    copies = (firsts[later] + at for later in range(turn + period, last + count + 1, period))
                    followers = [copy for copy in copies if copy in alive]
                heir = firsts[turn + count] + at
                if block not in freed:
                    self._ledger.hand_over(block, block, followers)
                elif heir in alive:
                    self._ledger.hand_over(block, heir, [copy for copy in followers if copy != heir])


def _passing(before: list[_Turn], turns: list[_Turn]) -> list[set[int]]:
    """The numbers of the blocks of each turn of a period that only pass: small, of one size, and freed.

    Once such turns have repeated, the allocator serves them from the segments that it has for small blocks.
    """
    blocks: list[set[int]] = []
    for index, (old, now) in enumerate(zip(before, turns, strict=True)):
        allocated: set[int] = set()
        freed: set[int] = set()
        for back, at in now.pattern:
            if back == 0:
                (freed if at in allocated else allocated).add(at)
        for later in range(1, _REACH + 1):
            follower = turns[(index + later) % len(turns)]
            freed.update(at for back, at in follower.pattern if back == later)
        blocks.append(
            {
                at
                for at in freed
                if now.blocks[at].bytes == old.blocks[at].bytes <= _SMALL_BYTES
                and now.blocks[at].span is None
                and not now.blocks[at].held_bytes
            }
        )
    return blocks


def _growths(
    periods: int, turns: list[_Turn], passing: list[set[int]], most_events: int | None
) -> tuple[list[int], int, bool]:
    """Which further periods are written, every how many that is, and whether passing blocks are left out."""
    events = sum(len(turn.pattern) for turn in turns)
    leaves = 2 * sum(len(turn.blocks) for turn in turns) > sum(
        back != FREE_CACHE for turn in turns for back, _ in turn.pattern
    )
    every = list(range(1, periods + 1))
    if most_events is None or periods * events <= most_events:
        return every, 1, False
    events -= 2 * sum(map(len, passing))
    if leaves:
        return every, 1, True
    # Near a limit, the gaps that consecutive turns leave decide what fits, so the last ones are written.
    tail = min(periods, max(2, most_events // 2 // max(events, 1)))
    stride = max(1, -(-(periods - tail) * events // (most_events // 2)))
    return [*sorted(range(periods - tail, 0, -stride)), *range(periods - tail + 1, periods + 1)], stride, True


def _continues(first: _Turn, second: _Turn, third: _Turn) -> bool:
    """Whether three turns have one pattern, and every block grows by the same number of bytes each time."""
    if not third.is_closed or not first.pattern == second.pattern == third.pattern:
        return False
    return all(
        b.bytes - a.bytes == c.bytes - b.bytes and a.span == b.span == c.span and a.phase == c.phase
        for a, b, c in zip(first.blocks, second.blocks, third.blocks, strict=True)
    )


def _grown(before: BlockInfo, now: BlockInfo, growths: int) -> BlockInfo:
    growth = now.bytes - before.bytes
    return replace(now, bytes=now.bytes + growths * growth) if growth else now
