"""`Growth`: what every turn of a loop keeps, counted for the turns that are not run.

If few turns are left, they are run. If turns keep blocks of the same sizes again and again, the blocks of all
other turns are written to the ledger, and one more turn is run on top of them. A deque with a maximum length
limits their number. Where memory grows irregularly, where the length of the loop is unknown, and where the
script may remove what it keeps, the growth is a reason instead.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from types import FrameType
from typing import Any

from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.ledger import kind_of_file
from pinchpoint.backends.torch.loops.collecting import limited_deques, tensors_at_end
from pinchpoint.backends.torch.loops.kinds import add_copies, is_slight
from pinchpoint.backends.torch.loops.marking.syntax import parse
from pinchpoint.backends.torch.loops.variation import Mark
from pinchpoint.core.events import FREE_CACHE
from pinchpoint.core.files import shown_path
from pinchpoint.core.units import show_bytes

_GROWING = 5  # turns in which memory may grow irregularly before that is a reason
_REGULAR = 3  # turns that keep the same before others are taken to be like them
_UNKNOWN_TURNS = 10_000  # of a loop whose length is unknown, to judge its growth
_EVENTS = 6_000  # of all turns that are left, if these are few enough to be run
_REMOVING = {"pop", "popleft", "popitem", "clear", "remove", "discard", "heappushpop", "heapreplace"}
_LIMITS = {"maxlen", "maxsize", "max_size", "capacity"}


class Growth:
    """Decides about further turns of one loop whose memory grows."""

    def __init__(self, loops: Any, site: str) -> None:
        self._loops, self._site = loops, site
        self._ledger = loops.observer.ledger
        self._growths: list[int] = []  # of turns that were added because memory grows
        self._is_written = False

    def adds_turn(self, marks: Sequence[Mark], left: int | None) -> bool:
        """Whether another turn is run. marks: before the last two turns, and now; left: turns, if known."""
        loops, turns = self._loops, _UNKNOWN_TURNS if left is None else left
        grown = loops.growth(marks[-2], ("optimizer",))
        if self._is_written or is_slight(grown * turns, self._ledger.live_bytes()):
            return False
        self._growths.append(grown)
        events = marks[-1].events - marks[-2].events
        if left is not None and left * events <= _EVENTS and not loops.progress.is_running_out():
            return True
        is_regular = len(set(self._growths[-_REGULAR:])) == 1
        if len(self._growths) < (_REGULAR if is_regular else _GROWING):
            return True
        if is_regular and self._write(marks, left, grown, sys._getframe(1)):
            self._is_written = True
            return True
        after = "whose length is unknown" if left is None else f"of which {left:,} were not run"
        self._ledger.observation.reasons.append(
            f"memory grows by {show_bytes(grown)} with every turn of the loop at "
            f"{shown_path(self._site)}, {after}"
        )
        return False

    def _write(self, marks: Sequence[Mark], left: int | None, grown: int, frame: FrameType) -> bool:
        """Write what the turns that are left keep, except the next one; False if that is unknown."""
        kept, newest = self._alive(*marks[-3:-1]), self._alive(*marks[-2:])
        blocks = self._ledger.observation.blocks
        if not any(blocks[block].role == "weights" for block in kept):  # states of a model that is kept count
            kept = {block for block in kept if blocks[block].role != "optimizer"}
        sizes = Counter(blocks[block].bytes for block in kept)
        size = sum(blocks[block].bytes for block in kept if blocks[block].role != "optimizer")
        if size != grown or sizes - Counter(blocks[block].bytes for block in newest):
            return False
        leaders = self._leaders(kept)
        rooms = self._rooms(frame)
        is_limited = self._is_limited(in_deques=kept <= rooms.keys())
        if leaders is None or is_limited or (left is None and not kept <= rooms.keys()):
            return False
        copies: dict[int, dict[int, int]] = {}  # number of copies -> blocks
        for block in kept:
            turns = min(count for count in (left, rooms.get(block)) if count is not None)
            copies.setdefault(max(turns - 1, 0), {})[block] = leaders[block]
        for count, group in copies.items():
            add_copies(self._ledger, group, count)
        full = ", until a deque is full" if rooms.keys() & kept else ""
        self._loops.observer.note(
            f"every turn of the loop at {shown_path(self._site)} keeps {show_bytes(grown)}: this was added "
            f"for {max(copies):,} turns that were not run{full}"
        )
        return True

    def _alive(self, since: Mark, until: Mark) -> set[int]:
        """Blocks that were allocated between two times and are alive now."""
        alive: set[int] = set()
        for block in self._ledger.observation.events[since.events :]:
            if block != FREE_CACHE and since.blocks <= block < until.blocks:
                alive ^= {block}
        return alive

    def _leaders(self, blocks: set[int]) -> dict[int, int] | None:
        """For each block the one of a tensor with which it is freed: itself, or one before it."""
        live = self._ledger.live_blocks()
        leaders: dict[int, int] = {}
        last: int | None = None
        for block in sorted(blocks):
            last = block if block in live else last
            if last is None:
                return None
            leaders[block] = last
        return leaders

    def _rooms(self, frame: FrameType) -> dict[int, int]:
        """Blocks at the end of a deque with a maximum length, and how many elements it may still take."""
        rooms: dict[int, int] = {}
        for container in limited_deques(frame):
            for tensor in tensors_at_end(container):
                if type(tensor) is FakeTensor and self._ledger.holds(tensor):
                    room = (container.maxlen or 0) - len(container)
                    block = self._ledger.block_of(tensor)
                    rooms[block] = max(rooms.get(block, 0), room)
        return rooms

    def _is_limited(self, *, in_deques: bool) -> bool:
        """Whether a file of the script may remove what it keeps, or limit it in another way than a deque."""
        modules = dict(sys.modules)
        folder = os.path.dirname(os.path.abspath(getattr(modules.get("__main__"), "__file__", None) or ""))
        files = {self._site.rpartition(":")[0]}
        for name, module in modules.items():
            file = getattr(module, "__file__", None) or ""
            if name not in self._loops.modules_before or file.startswith(os.path.join(folder, "")):
                files.add(file)
        own = (file for file in files if file.endswith(".py") and kind_of_file(file) == "user")
        return any(removes(file, limits=not in_deques) for file in own)


@cache
def removes(file: str, *, limits: bool) -> bool:
    """Whether a file may remove what it keeps. limits: whether maximum lengths count."""
    tree = parse(file)
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.Delete) for node in nodes):
        return True
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if any(getattr(call.func, "attr", "") in _REMOVING for call in calls):
        return True
    if limits and any(word.arg in _LIMITS for call in calls for word in call.keywords):
        return True
    slices = (node.slice for node in nodes if isinstance(node, ast.Subscript))
    if any(isinstance(one, ast.Slice) and isinstance(one.lower, ast.UnaryOp) for one in slices):
        return True
    return _replaces(tree) or _overwrites(nodes)


def _replaces(tree: ast.Module) -> bool:
    """Whether a container is emptied by a new one under a condition."""
    conditional = (one for node in ast.walk(tree) if isinstance(node, ast.If) for one in ast.walk(node))
    values = (one.value for one in conditional if isinstance(one, ast.Assign))
    return any(
        (isinstance(value, (ast.List, ast.Dict)) and not ast.unparse(value).strip("[]{}"))
        or (isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("list", "dict", "deque"))
        for value in values
    )


def _overwrites(nodes: list[ast.AST]) -> bool:
    """Whether an element is set at a position that a remainder limits, as in a ring buffer."""
    stores = any(isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) for node in nodes)
    tests = {id(one) for node in nodes if isinstance(node, ast.If) for one in ast.walk(node.test)}
    return stores and any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and id(node) not in tests
        for node in nodes
    )
