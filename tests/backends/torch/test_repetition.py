"""Turns written to the ledger equal the same turns run one by one."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.backends.torch import repetition
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.backends.torch.repetition import Repetition
from pinchpoint.core.events import BlockInfo
from pinchpoint.forecasting.replay import replay


class Loop:
    """A loop with a cache that grows, a score that is kept, and scratch memory of every `pad`-th turn."""

    def __init__(self, pad: int) -> None:
        self.ledger, self.pad = Ledger(), pad
        self.repetition = Repetition(self.ledger)
        self.cache, self.scores, self.turn = self.allocate(2**20), [], 0
        self.keys: dict[int, int] = {}

    def allocate(self, size: int) -> int:
        block = self.ledger._append(BlockInfo(size, "forward", "a.py", 1))
        self.ledger._block_of[block] = block  # a storage with this key
        return block

    def free(self, key: int) -> None:
        self.ledger._on_free(key)

    def run(self) -> None:
        self.turn += 1
        new = self.allocate(2**20 + 98_304 * self.turn)
        self.free(self.cache)
        self.cache = new
        self.scores.append(self.allocate(4096))
        if self.turn % self.pad == 0:
            self.free(self.allocate(2**18 + 512 * self.turn))
        self.repetition.mark()

    def end(self) -> None:
        self.free(self.cache)
        for score in self.scores:
            self.free(score)
        self.free(self.allocate(2**24))


def result(loop: Loop) -> Any:
    peaks = replay(loop.ledger.observation)
    return peaks.peak_allocated_bytes, peaks.peak_reserved_bytes, len(loop.ledger.observation.events) % 2


@pytest.mark.parametrize("pad", [1, 4, 16])
def test_written_turns_equal_those_that_run(pad: int) -> None:
    short, whole = Loop(pad), Loop(pad)
    for _ in range(400):
        whole.run()
    period = None
    while period is None or (400 - short.turn) % period:
        short.run()
        period = short.repetition.period()
    assert period == pad
    assert short.turn <= repetition.WINDOW + 3 * pad + 3
    short.repetition.extend(400 - short.turn, period)
    assert len(short.ledger.live_blocks()) == len(whole.ledger.live_blocks()) - (400 - short.turn)
    short.end()
    whole.end()
    assert result(short) == result(whole)
    assert sorted(short.ledger.observation.events) == sorted(whole.ledger.observation.events)


def test_of_many_turns_some_are_written_with_nearly_the_same_peaks() -> None:
    ledger = Ledger()
    turns = repetition.Repetition(ledger)
    site = ledger.site()

    def run(count: int) -> int:
        """Turns that replace a block by one that is 64 KiB larger, as a cache grows."""
        last = ledger.add_temporary(16 * 2**20, phase="forward", site=site, op="")
        for turn in range(1, count + 1):
            turns.mark()
            new = ledger.add_temporary(16 * 2**20 + turn * 2**16, phase="forward", site=site, op="")
            ledger.free_temporary(last)
            last = new
        turns.mark()
        return last

    run(40)
    events = len(ledger.observation.events)
    assert turns.period() == 1
    assert turns.extend(4000, 1, most_events=100) == 159  # the last 25 turns, and 25 of the other 3,975
    assert len(ledger.observation.events) - events == 2 * 50
    sizes = [block.bytes - 16 * 2**20 for block in ledger.observation.blocks[-25:]]
    assert sizes == [turn * 2**16 for turn in range(4016, 4041)]
    # The last block and the one before it are alive together.
    assert replay(ledger.observation).peak_allocated_bytes == 2 * (16 * 2**20 + 4040 * 2**16) - 2**16


def test_small_blocks_that_pass_are_left_out_of_all_but_the_last_turns() -> None:
    def run(loop: Loop, count: int) -> Loop:
        for _ in range(count):
            for _ in range(3):
                loop.free(loop.allocate(4096))  # passes within the turn
            loop.scores.append(loop.allocate(1024))  # passes to the next turn
            if len(loop.scores) > 1:
                loop.free(loop.scores.pop(0))
            new = loop.allocate(2**20 + 98_304 * (turn := loop.turn + 1))
            loop.free(loop.cache)
            loop.cache, loop.turn = new, turn
            loop.repetition.mark()
        return loop

    whole, thinned = run(Loop(1), 400), run(Loop(1), 60)
    assert thinned.repetition.period() == 1
    before = len(thinned.ledger.observation.events)
    assert thinned.repetition.extend(340, 1, most_events=1000) == 1
    assert len(thinned.ledger.observation.events) - before == 340 * 2 + 4 * 8
    for loop in (whole, thinned):
        loop.free(loop.cache)
        loop.free(loop.scores.pop())
        events = loop.ledger.observation.events
        assert all(events.count(block) == 2 for block in set(events))
    assert result(thinned) == result(whole)


def test_a_loop_that_grows_faster_and_faster_is_not_regular() -> None:
    ledger = Ledger()
    loop = Repetition(ledger)
    for turn in range(80):
        ledger._append(BlockInfo(turn**2, "forward", "a.py", 1))
        loop.mark()
    assert loop.period() is None
