"""`collected`: how much the containers of a script hold, to see whether the turns of a loop collect."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from pinchpoint.backends.torch.ledger import kind_of_file

_OBJECTS = 20_000  # that are looked at
_ELEMENTS = 64  # of a container that are looked into
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


def collected(frame: types.FrameType | None) -> int | None:
    """The elements of all containers and arrays that the script's frames can reach; None if there are many.

    Numbers are not looked at: a loop that counts its turns does not collect anything.
    """
    waiting: list[Any] = []
    while frame is not None:
        if kind_of_file(frame.f_code.co_filename) == "user":
            waiting += frame.f_locals.values()
            waiting += [value for name, value in frame.f_globals.items() if not name.startswith("__")]
        frame = frame.f_back
    known: set[int] = set()
    total = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in known or thing is None or isinstance(thing, (*_LEAVES, int, float, complex)):
            continue
        known.add(id(thing))
        if len(known) > _OBJECTS:
            return None
        if isinstance(thing, torch.Tensor):
            total += thing.numel()
        elif isinstance(thing, _CONTAINERS):
            total += len(thing)
            waiting += _elements(thing)
        else:
            total += _size(thing)
            waiting += vars(thing).values() if hasattr(thing, "__dict__") else ()
    return total


def _elements(container: Any) -> Iterator[Any]:
    values = container.values() if isinstance(container, dict) else container
    for _, value in zip(range(_ELEMENTS), values, strict=False):
        yield value


def _size(thing: Any) -> int:
    """Elements of an array of numpy or of a library like it."""
    size = getattr(thing, "size", 0) if type(thing).__module__.partition(".")[0] == "numpy" else 0
    return size if isinstance(size, int) else 0
