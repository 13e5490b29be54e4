"""`watch_graphs`: graphs of earlier steps that are still alive, and the variable that holds them.

A token is attached to the last nodes of each backward pass. It dies with the graph. If tokens of several
earlier steps are alive, the variables of the user's functions are searched for one that leads to them.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from itertools import islice
from types import FrameType
from typing import Any

import torch

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import Place, is_user_file
from pinchpoint.backends.torch.recording.phases import Watched

_KEY = "pinchpoint"
_AGE = 3  # steps after which a graph should be gone: a loop keeps the last one or two
_LAST = 3  # nodes at the end of a graph that get the token
_NODES = 400  # of a graph that are searched for a token
_VALUES = 400  # variables of a function that are looked at


class _Token:
    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


def watch_graphs(recorder: Recorder, watched: Watched) -> None:
    recent: deque[tuple[int, Any, Place | None]] = deque(maxlen=256)
    kept: dict[str, Any] = {"alive": 0, "holders": [], "place": None}
    alive: list[tuple[int, Any]] = []
    steps: set[int] = set()  # whose graphs are alive; a step may have several backward passes
    searched_at = 0

    def mark(tensors: Any) -> None:
        for tensor in tensors if isinstance(tensors, tuple | list) else (tensors,):
            node = getattr(tensor, "grad_fn", None)
            if node is not None:
                token = _Token(recorder.step)
                for each in _chain(node):
                    each.metadata[_KEY] = token
                recent.append((recorder.step, weakref.ref(token), recorder.lines.place(2)))

    def look() -> None:
        nonlocal searched_at
        if alive and alive[0][1]() is None:
            alive[:] = [pair for pair in alive if pair[1]() is not None]
            steps.clear()
            steps.update(step for step, _ in alive)
        while recent and recorder.step - recent[0][0] >= _AGE:
            step, reference, place = recent.popleft()
            if reference() is not None and len(alive) < 10_000:
                alive.append((step, reference))
                steps.add(step)
                kept["place"] = place
        # What is kept for an epoch only is gone when the run ends.
        kept["alive"] = max(kept["alive"], len(steps))
        if len(alive) >= 3 and len(alive) >= 2 * searched_at:
            searched_at = len(alive)
            with recorder.paused():
                kept["holders"] = list(_holders(recorder))[:5] or kept["holders"]

    def report() -> None:
        recorder.parts["kept_graphs"] = kept

    watched.before_backward.append(mark)
    recorder.on_step.append(look)
    recorder.on_finish.append(report)


def _chain(node: Any) -> Iterator[Any]:
    """The last nodes of a graph. A program may keep a loss whose scaled value has the backward pass."""
    for _ in range(_LAST):
        yield node
        before = [each for each, _ in node.next_functions if each is not None]
        if len(before) != 1 or hasattr(before[0], "variable"):  # a parameter's own node outlives the graph
            return
        node = before[0]


def _holders(recorder: Recorder) -> Iterator[str]:
    """Variables of the running functions of the user that hold a graph of an earlier step."""
    frame: FrameType | None = recorder.lines.frame(0)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            function = frame.f_code.co_name
            where = "of the script" if function == "<module>" else f"in {function}()"
            values = frame.f_locals
            for name, value in islice(list(values.items()), _VALUES):
                if not name.startswith("__") and (text := _describe(name, value, recorder.step)):
                    yield f"{text} {where}"
            if frame.f_code.co_flags & CO_OPTIMIZED and sys.version_info < (3, 13):
                values.clear()  # a copy that the frame keeps: it would keep the tensors alive
        frame = frame.f_back


def _describe(name: str, value: Any, step: int) -> str:
    if isinstance(value, torch.Tensor):
        return f"the tensor {name}" if _holds_old(value, step) else ""
    if isinstance(value, list | tuple | deque | dict):
        items = value.values() if isinstance(value, dict) else value
        for item in islice(items, 3):
            inner = item if not isinstance(item, list | tuple) else next(iter(item), None)
            if isinstance(inner, torch.Tensor) and _holds_old(inner, step):
                return f"the {type(value).__name__} {name} ({len(value):,} items)"
        return ""
    fields = getattr(value, "__dict__", None)
    home = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    if home is None or not is_user_file(home) or not isinstance(fields, dict):
        return ""
    return next(
        (
            text
            for key, item in islice(list(fields.items()), 100)
            if isinstance(item, torch.Tensor | list | tuple | deque | dict)
            and (text := _describe(f"{name}.{key}", item, step))
        ),
        "",
    )


def _holds_old(tensor: torch.Tensor, step: int) -> bool:
    """Whether the graph of a tensor contains the last node of a backward pass of an earlier step."""
    waiting: deque[Any] = deque([tensor.grad_fn])
    visited = 0
    while waiting and visited < _NODES:
        node = waiting.popleft()
        visited += 1
        if node is None:
            continue
        token = node.metadata.get(_KEY)
        if token is not None and step - token.step >= _AGE:
            return True
        waiting.extend(parent for parent, _ in node.next_functions)
    return False
