"""What the containers of a script hold, to see whether the turns of a loop collect, and how much at most."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pinchpoint.backends.torch.ledger import kind_of_file
from pinchpoint.backends.torch.loops.remainder import collects_rarely
from pinchpoint.backends.torch.loops.variation import Mark

_REPEATED = 16  # turns in which nothing may change before a loop that does not train is ended
_OBJECTS = 20_000  # that are looked at
_ELEMENTS = 64  # of a container that are looked into
_LAST = 3  # elements of a deque whose tensors are looked at
_TOO_MANY = object()
_CONTAINERS = (list, dict, set, frozenset, tuple, deque)
_LEAVES = (
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    type,
    str,
    bytes,
)


class Repetition:
    """Whether the turns of a loop allocate the same, leave nothing behind, and add nothing to a container."""

    def __init__(self, loops: Any, site: str) -> None:
        self._loops, self._site = loops, site
        self._before: tuple[int, int] | None = None  # a turn, and the elements that the script held then

    def is_over(self, marks: Sequence[Mark], count: int, frame: types.FrameType | None) -> bool:
        """Whether enough turns repeated themselves. marks: before the last two turns, and now."""
        if count < _REPEATED or len(marks) < 3:
            return False
        loops, (first, second, now) = self._loops, marks
        is_same = loops.sizes(first, second) == loops.sizes(second, now)
        if loops.growth(second) or loops.growth(first) or not is_same:
            self._before = None
            return False
        if self._before is None:
            size = None if collects_rarely(self._site) else collected(frame)
            self._before = None if size is None else (count, size)
            return False
        since, size = self._before
        if count < since + _REPEATED:
            return False
        self._before = None
        return size == collected(frame)


def collected(frame: types.FrameType | None) -> int | None:
    """The elements of all containers and arrays that the script's frames can reach; None if there are many.

    Numbers are not looked at: a loop that counts its turns does not collect anything.
    """
    total = 0
    for thing in _reachable(frame):
        if thing is _TOO_MANY:
            return None
        if isinstance(thing, torch.Tensor):
            total += thing.numel()
        else:
            total += len(thing) if isinstance(thing, _CONTAINERS) else _size(thing)
    return total


def limited_deques(frame: types.FrameType | None) -> list[deque[Any]]:
    """Deques with a maximum length that the script's frames can reach and that are not full."""
    things = (thing for thing in _reachable(frame) if isinstance(thing, deque))
    return [thing for thing in things if thing.maxlen is not None and len(thing) < thing.maxlen]


def tensors_at_end(container: deque[Any]) -> list[torch.Tensor]:
    """The tensors in the last elements of a deque."""
    last = [container[-at] for at in range(1, min(len(container), _LAST) + 1)]
    return [thing for thing in _inside(last) if isinstance(thing, torch.Tensor)]


def _reachable(frame: types.FrameType | None) -> Iterator[Any]:
    """The objects that the script's frames can reach, without numbers; `_TOO_MANY` ends the search."""
    roots: list[Any] = []
    while frame is not None:
        if kind_of_file(frame.f_code.co_filename) == "user":
            roots += frame.f_locals.values()
            roots += [value for name, value in frame.f_globals.items() if not name.startswith("__")]
        frame = frame.f_back
    return _inside(roots)


def _inside(waiting: list[Any]) -> Iterator[Any]:
    known: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in known or thing is None or isinstance(thing, (*_LEAVES, int, float, complex)):
            continue
        known.add(id(thing))
        if len(known) > _OBJECTS:
            yield _TOO_MANY
            return
        yield thing
        if isinstance(thing, _CONTAINERS):
            waiting += _elements(thing)
        elif not isinstance(thing, torch.Tensor):
            waiting += vars(thing).values() if hasattr(thing, "__dict__") else ()


def _elements(container: Any) -> Iterator[Any]:
    values = container.values() if isinstance(container, dict) else container
    for _, value in zip(range(_ELEMENTS), values, strict=False):
        yield value


def _size(thing: Any) -> int:
    """Elements of an array of numpy or of a library like it."""
    size = getattr(thing, "size", 0) if type(thing).__module__.partition(".")[0] == "numpy" else 0
    return size if isinstance(size, int) else 0
