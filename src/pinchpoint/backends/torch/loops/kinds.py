"""`Kinds`: turns of a loop that differ by the answers of its conditions, and what each kind leaves behind.

A turn of a kind that comes again (`if step % 500 == 0:`) may keep memory every time (`samples.append(...)`),
or change what later turns allocate (`batch *= 2`). Such a turn is run once more, and so is the turn after it,
which shows what is still alive. If every turn of a kind leaves the same blocks behind, those of the turns
that are not run are written to the ledger; they are freed with the blocks of the turn that was run. If a kind
changes what later turns allocate, all its turns are run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pinchpoint.backends.torch.loops.variation import Mark
from pinchpoint.core.files import shown_path
from pinchpoint.core.units import MIB, show_bytes

_RUNS = 4  # turns of a kind that may leave other blocks behind each time before that is a reason
_CHANGING = 12  # turns of a kind that are all run because they change what later turns allocate
_LARGE = 64 * 1024  # bytes of a block whose size counts as a change
_BLOCKS = 20_000  # that are written one by one
_ROUND = 512  # bytes that blocks are multiples of
_SLIGHT = 0.005  # share of the live bytes by which the remaining turns may let them grow
_FEW_BYTES = 4 * MIB  # by which all remaining turns together may let them grow in any case
ROLES = ("weights", "gradients", "optimizer", "workspace", "temporaries")  # of blocks that do not count


def is_slight(grown_bytes: int, live_bytes: int) -> bool:
    """Whether memory may grow by so many bytes in all turns that are not run."""
    return grown_bytes <= max(_SLIGHT * live_bytes, _FEW_BYTES)


def add_copies(ledger: Any, blocks: dict[int, int], count: int) -> None:
    """Write each block `count` more times. blocks: block -> a live block, with which its copies are freed."""
    for block, leader in sorted(blocks.items()):
        info = ledger.observation.blocks[block]
        if count * len(blocks) > _BLOCKS:
            sizes = [count * -(-info.bytes // _ROUND) * _ROUND]
        else:
            sizes = [info.bytes] * count
        ledger.add_followers(leader, [replace(info, bytes=size) for size in sizes])


@dataclass(frozen=True)
class Turn:
    """A turn that was run: its place in the loop, and the times when it began and ended."""

    place: int
    start: Mark
    end: Mark


@dataclass
class _Kind:
    """places: of the turns of this kind that were not run."""

    places: list[int]
    lasting: list[set[int]] = field(default_factory=list)  # blocks that each of its turns left behind
    is_done: bool = False


class Kinds:
    """Chooses further turns of one loop. changes: whether a conditional part sets what other parts use."""

    def __init__(self, loops: Any, site: str, *, changes: bool) -> None:
        self._loops, self._site, self._changes = loops, site, changes
        self._ledger = loops.observer.ledger
        self._kind_at: dict[int, _Kind] = {}
        self._awaited: Turn | None = None  # a turn that is judged after the next one

    @property
    def is_waiting(self) -> bool:
        """Whether a turn runs that shows what the turn before it changed."""
        return self._awaited is not None

    def expect(self, places: list[int], earlier: Iterable[Turn]) -> set[int]:
        """Turns to run of a kind, of which these places remain and these turns were run, maybe none."""
        turns = list(earlier)
        kind = _Kind(sorted(places))
        left = (block for turn in turns for block in self._left_behind(turn))
        if turns and not self._changes and self._is_slight(left, kind):
            return set()
        self._kind_at |= dict.fromkeys(places, kind)
        return set(kind.places[:1])

    def after_turn(self, turn: Turn) -> set[int]:
        """Further turns to run, after one that was chosen."""
        before, self._awaited = self._awaited, None
        further: set[int] = set()
        if before is not None and turn.place == before.place + 1:
            further = self._judge(self._kind_at[before.place], before, turn)
        kind = self._kind_at.get(turn.place)
        if kind is not None and not kind.is_done:
            kind.places = [place for place in kind.places if place > turn.place]
            if kind.places and (self._changes or self._loops.growth(turn.start, ROLES) > 0):
                self._awaited = turn
                further.add(turn.place + 1)
        return further

    def _judge(self, kind: _Kind, turn: Turn, after: Turn) -> set[int]:
        """Further turns of a kind, after one of its turns and the turn after that one."""
        if not kind.places:
            return set()
        left = self._left_behind(turn)
        alive = self._ledger.live_blocks()
        grown = kind.lasting[-1] & alive if kind.lasting else None  # what the turn before left for good
        kind.lasting.append(left)
        if not self._is_slight(left, kind) and (grown is None or not self._is_slight(grown, kind)):
            if grown and not self._sizes(grown) - self._sizes(left):
                return self._extend(kind, grown)
            if len(kind.lasting) < _RUNS:
                return {kind.places[0]}
            kind.is_done = True
            self._give_reason(
                f"memory grows by about {show_bytes(self._bytes(left))} with turns of the loop at "
                f"{shown_path(self._site)}, of which {len(kind.places):,} were not run"
            )
        elif self._has_new_sizes(turn, after):
            kind.is_done = True
            if len(kind.places) <= _CHANGING:
                return {place + more for place in kind.places for more in (0, 1)}
            self._give_reason(
                f"turns of the loop at {shown_path(self._site)} change what later ones allocate, "
                f"and {len(kind.places):,} of them were not run; for an answer, set what they change, "
                "such as a size, to its largest value before the loop"
            )
        return set()

    def _extend(self, kind: _Kind, blocks: set[int]) -> set[int]:
        """Write what all turns of a kind leave behind except the last one, which is run."""
        kind.is_done = True
        count = len(kind.places) - 1
        add_copies(self._ledger, {block: block for block in blocks}, count)
        kept = show_bytes(self._bytes(blocks))
        self._loops.observer.note(
            f"some turns of the loop at {shown_path(self._site)} keep {kept} each: "
            f"this was added for {count:,} of them that were not run"
        )
        return {kind.places[-1], kind.places[-1] + 1}

    def _left_behind(self, turn: Turn) -> set[int]:
        """Blocks of a turn that are alive now."""
        blocks = self._ledger.observation.blocks
        new = set(range(turn.start.blocks, turn.end.blocks)) & self._ledger.live_blocks()
        return {block for block in new if blocks[block].role not in ROLES}

    def _has_new_sizes(self, turn: Turn, after: Turn) -> bool:
        """Whether the turn after this one has a large block of a size that no block before it had."""
        if self._site in self._loops.spreads:
            return False  # the sizes are random
        blocks = self._ledger.observation.blocks
        known = {block.bytes for block in blocks[: turn.start.blocks]}
        later = blocks[after.start.blocks : after.end.blocks]
        return any(block.bytes >= _LARGE and block.bytes not in known for block in later)

    def _is_slight(self, blocks: Iterable[int], kind: _Kind) -> bool:
        return is_slight(self._bytes(blocks) * len(kind.places), self._ledger.live_bytes())

    def _bytes(self, blocks: Iterable[int]) -> int:
        return sum(self._ledger.observation.blocks[block].bytes for block in blocks)

    def _sizes(self, blocks: Iterable[int]) -> Counter[int]:
        return Counter(self._ledger.observation.blocks[block].bytes for block in blocks)

    def _give_reason(self, reason: str) -> None:
        self._ledger.observation.reasons.append(reason)
