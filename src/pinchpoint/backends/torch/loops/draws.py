"""`Draws`: numbers that a script draws at random, of which the largest may not have come up.

A loop that is ended early may not have drawn its largest size. A first run records what each line could draw
and what it drew; in a later run, a turn of the loop gets the largest number of every line (see `conditions`),
and the largest item of a list of numbers that such a number is an index of, wherever it is in the list.
"""

from __future__ import annotations

import builtins
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.loops.marking.draw_source import (
    DRAWING,
    DRAWN_ITEM,
    FROM_LIST,
    WHOLE,
    WITH_DECIMALS,
)
from pinchpoint.core.files import shown_path

_SHORT = 64  # choices of a list whose largest one is missed if no loop can be given a turn for it
_SIZE = 16  # the smallest of these that is taken for a size, which is a guess
_LONGEST = 1_000_000  # items of a list that are looked at
_RECORDED = 256  # calls of a line for which the loops around it are looked up
_FORCED = 64  # draws of a line that give the largest number; a loop may wait for a smaller one
_FEW_ITEMS = 16  # of a list, of which several are drawn at a time
_BELOW_ONE = 1 - 2**-24  # also as a float of 32 bits


def _size(choice: Any) -> float | None:
    """The size that a choice stands for: a number, or the product of several; None for other things."""
    if isinstance(choice, (int, float, np.integer, np.floating)) and not isinstance(choice, bool):
        return None if choice != choice else float(choice)
    if isinstance(choice, (tuple, list)) and 0 < len(choice) <= _FEW_ITEMS:
        parts = [_size(part) if not isinstance(part, (tuple, list)) else None for part in choice]
        return None if None in parts else math.prod(part for part in parts if part is not None)
    return None


def _sizes(choices: Any) -> list[float] | None:
    """The sizes of all items of a list; None if one of them is not a number."""
    is_array = isinstance(choices, np.ndarray) and choices.ndim == 1 and choices.dtype.kind in "iuf"
    if not (is_array or isinstance(choices, (list, tuple, range))) or not 1 < len(choices) <= _LONGEST:
        return None
    if isinstance(choices, range):
        return [float(choices[0]), float(choices[-1])]
    sizes: list[float] = []
    for choice in choices.tolist() if isinstance(choices, np.ndarray) else choices:
        size = _size(choice)
        if size is None:
            return None
        sizes.append(size)
    return sizes


@dataclass
class _Line:
    """What one line may draw, and what it drew."""

    largest: float = -math.inf
    drawn: float = -math.inf
    is_listed: bool = False  # in a short list of sizes
    calls: int = 0
    forced: int = 0
    loops: set[str] = field(default_factory=set)  # that trained when it drew

    @property
    def is_open(self) -> bool:
        return self.largest > max(self.drawn, 1)


class Draws:
    """The lines of a script that draw."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops
        self._lines: dict[str, _Line] = {}  # "file:line:draw column" -> what is drawn there
        self._lists: dict[tuple[str, int, int], list[float] | None] = {}

    def install(self, patches: Patches) -> None:
        patches.set(builtins, DRAWING, self.drawing)
        patches.set(builtins, DRAWN_ITEM, self.item)

    # --- what the script calls

    def drawing(self, function: Any, line: int, column: int) -> Any:
        """A function of the script with the name of one that draws; one that draws is followed."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        is_random = isinstance(owner, (random.Random, np.random.Generator, np.random.RandomState))
        if not (is_random or function is torch.randint or function is torch.rand) or not self._is_followed():
            return function
        site = f"{sys._getframe(1).f_code.co_filename}:{line}:draw {column}"
        if name in FROM_LIST:
            return lambda *args, **options: self._choose(function, site, args, options)
        return lambda *args, **options: self._draw(function, site, args, options)

    def item(self, things: Any, index: Any, line: int, column: int) -> Any:
        """`things[index]` for an index that was drawn."""
        item = things[index]
        if not isinstance(things, (list, tuple, np.ndarray)) or not self._is_followed():
            return item
        site = f"{sys._getframe(1).f_code.co_filename}:{line}:draw {column}"
        key = site, id(things), len(things)
        if key not in self._lists or len(things) <= _SHORT:
            self._lists[key] = _sizes(things)
        sizes, size = self._lists[key], _size(item)
        if sizes is None or size is None:
            return item
        forces = self._add(site, max(sizes), size, is_listed=_is_short(things, sizes))
        return things[sizes.index(max(sizes))] if forces else item

    def _draw(self, function: Any, site: str, args: Any, options: Any) -> Any:
        drawn = function(*args, **options)
        largest = _bound(function, args, options)
        if largest is None or not _is_one_number(drawn):
            return drawn
        if not self._add(site, largest, float(drawn.item() if hasattr(drawn, "item") else drawn)):
            return drawn
        if isinstance(drawn, torch.Tensor):
            return torch.full_like(drawn, largest)
        return np.full_like(drawn, largest) if isinstance(drawn, np.ndarray) else type(drawn)(largest)

    def _choose(self, function: Any, site: str, args: Any, options: Any) -> Any:
        choices: Any = args[0] if args else next(iter(options.values()), None)
        is_shuffled = function.__name__ == "shuffle"
        sizes = _sizes(choices)
        if sizes is not None and _is_order(sizes) and function.__name__ in ("shuffle", "permutation"):
            sizes = None  # the numbers of rows
        drawn = function(*args, **options)
        if sizes is None:
            return drawn
        several = list(drawn) if isinstance(drawn, (list, np.ndarray)) else [drawn]
        # It is unknown how far the script goes through a list that it shuffles.
        size = min(sizes) if is_shuffled else max((_size(one) or 0.0 for one in several), default=0.0)
        if not self._add(site, max(sizes), size, is_listed=_is_short(choices, sizes) and not is_shuffled):
            return drawn
        if is_shuffled:
            choices[:] = sorted(choices, key=lambda one: _size(one) or 0.0, reverse=True)
            return drawn
        if isinstance(choices, range):
            largest = [max(choices[0], choices[-1])] * len(several)
        else:
            order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
            is_repeated = function.__name__ in ("choice", "choices")
            largest = [choices[order[0 if is_repeated else at]] for at in range(len(several))]
        if isinstance(drawn, np.ndarray):
            return np.array(largest, drawn.dtype).reshape(drawn.shape)
        return largest if isinstance(drawn, list) else largest[0]

    # --- what is known about the lines

    def _is_followed(self) -> bool:
        return self._loops.progress.trains and not self._loops.observer.dynamic.calibrating

    def _add(self, site: str, largest: float, drawn: float, *, is_listed: bool = False) -> bool:
        """Remember a draw; whether the largest number is to be given instead."""
        line = self._lines.setdefault(site, _Line())
        line.calls += 1
        line.largest, line.drawn = max(line.largest, largest), max(line.drawn, drawn)
        line.is_listed = line.is_listed or is_listed
        if line.calls <= _RECORDED:
            line.loops |= {loop.site for loop in self._loops.conditions.running() if loop.is_training}
        if line.forced < _FORCED and self._loops.conditions.forces_draws():
            line.forced += 1
            return True
        return False

    def knows(self, site: str | None) -> bool:
        return site in self._lines

    def loops_of(self, site: str) -> set[str]:
        """The loops that may draw a larger number at a line in a later turn."""
        line = self._lines.get(site)
        return line.loops if line is not None and line.is_open else set()

    def open_sites(self, ended: set[str]) -> list[list[str]]:
        """Lines that may draw a larger number in a turn of a loop that was ended, by their loops."""
        groups: dict[frozenset[str], list[str]] = {}
        for site, line in self._lines.items():
            if line.is_open and line.loops & ended:
                groups.setdefault(frozenset(line.loops & ended), []).append(site)
        return list(groups.values())

    def reasons(self) -> list[str]:
        """Lines whose largest choice was not drawn, and which no loop of the script can try."""
        ended = self._loops.conditions.ended
        return [
            f"the largest choice at {shown_path(site.rpartition(':')[0])}, {line.largest:,.0f}, was not "
            "drawn in the turns that were run"
            for site, line in self._lines.items()
            if line.is_listed and line.is_open and line.largest > _SIZE and not line.loops & ended
        ]


def _is_one_number(drawn: Any) -> bool:
    if isinstance(drawn, torch.Tensor):
        return drawn.numel() == 1 and drawn.device.type == "cpu"
    return isinstance(drawn, (int, float, np.generic)) or (isinstance(drawn, np.ndarray) and drawn.size == 1)


def _is_short(choices: Any, sizes: list[float]) -> bool:
    """Whether a list is one of a few sizes."""
    return len(choices) <= _SHORT and not isinstance(choices, range) and all(one % 1 == 0 for one in sizes)


def _is_order(sizes: list[float]) -> bool:
    return max(sizes) == len(sizes) - 1 and min(sizes) == 0 and len(set(sizes)) == len(sizes)


def _bound(function: Any, args: Any, options: Any) -> Any:
    """The largest number that a call may draw; None if there is none."""
    try:
        bound = _BOUNDS.get(getattr(function, "__name__", ""), lambda *_, **__: None)
        if isinstance(getattr(function, "__self__", None), random.Random) and function.__name__ == "randint":
            return max(args[1] if len(args) > 1 else options["b"], 0)
        return bound(*args, **options)
    except (TypeError, KeyError, ValueError, IndexError):  # arrays of bounds
        return None


def _below(low: Any, high: Any = None, *_: Any, endpoint: bool = False, **__: Any) -> int | None:
    # torch.randint(high, size) has its size second.
    high = low if high is None or isinstance(high, (tuple, list)) else high
    return int(high) - (0 if endpoint else 1)


def _in_range(*args: Any, **options: Any) -> int:
    numbers = range(*(int(one) for one in (*args, *options.values())))
    return max(numbers[0], numbers[-1])


def _uniform(low: Any = 0.0, high: Any = 1.0, *_: Any, **options: Any) -> float:
    return float(max(options.get("a", low), options.get("b", high)))


_BOUNDS: dict[str, Callable[..., Any]] = dict.fromkeys(WHOLE, _below)
_BOUNDS |= dict.fromkeys(WITH_DECIMALS, lambda *_, **__: _BELOW_ONE)
_BOUNDS |= {"randrange": _in_range, "uniform": _uniform}
