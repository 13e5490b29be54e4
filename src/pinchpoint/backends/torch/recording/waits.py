"""`watch_waits`: calls that make the program wait for the device, with their line and time.

On CUDA, calls on CUDA tensors count. Without CUDA nothing waits: the calls that would wait on a GPU are
counted instead, except while data is loaded or an optimizer steps, where tensors stay on the host.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.steps import DATA, OPTIMIZER
from pinchpoint.backends.torch.recording.compat import with_name_of

_METHODS = (
    "item",
    "tolist",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__repr__",
    "__format__",
    "__array__",
    "nonzero",
    "masked_select",
    "unique",
)
_FUNCTIONS = ("nonzero", "masked_select", "unique", "equal", "allclose", "argwhere")
_READABLE = {
    "__bool__": "bool of a tensor",
    "__int__": "int of a tensor",
    "__float__": "float of a tensor",
    "__index__": "index from a tensor",
    "__repr__": "printing a tensor",
    "__format__": "formatting a tensor",
    "__array__": "NumPy of a tensor",
}


class _Busy:
    """Whether a watched call is running, whose own calls belong to it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = False


def watch_waits(recorder: Recorder, patches: Patches) -> None:
    busy = _Busy()
    plain = {torch.Tensor, torch.nn.Parameter}

    def counts(value: Any) -> bool:
        if busy.now or type(value) not in plain:
            return False
        if recorder.device == "cuda":
            return value.is_cuda
        return recorder.phase not in (DATA, OPTIMIZER)

    def watch(owner: Any, name: str, what: str, applies: Callable[..., bool]) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or recorder.is_closed or not applies(*args, **kwargs):
                return original(*args, **kwargs)
            busy.now = True
            start_ns = recorder.clock_ns()
            try:
                return original(*args, **kwargs)
            finally:
                spent_ns = recorder.clock_ns() - start_ns
                busy.now = False
                recorder.event("wait", what, recorder.lines.place(1), spent_ns)

        patches.set(owner, name, with_name_of(owner, name, call))

    def of_first(value: Any = None, *args: Any, **kwargs: Any) -> bool:
        return counts(value)

    for name in _METHODS:
        watch(torch.Tensor, name, _READABLE.get(name, f"Tensor.{name}"), of_first)
    for name in _FUNCTIONS:
        watch(torch, name, f"torch.{name}", of_first)

    def of_condition(condition: Any = None, *values: Any, **kwargs: Any) -> bool:
        return not values and not kwargs and counts(condition)

    def of_repeats(value: Any = None, repeats: Any = None, *args: Any, **kwargs: Any) -> bool:
        return kwargs.get("output_size") is None and counts(repeats)

    watch(torch, "where", "torch.where of a condition", of_condition)
    watch(torch, "repeat_interleave", "torch.repeat_interleave", of_repeats)
    watch(torch.Tensor, "repeat_interleave", "Tensor.repeat_interleave", of_repeats)
    if not recorder.light:
        _watch_masks(recorder, patches, counts, busy)
    for owner, name, what in (
        (torch.cuda, "synchronize", "torch.cuda.synchronize"),
        (torch.cuda.Event, "synchronize", "Event.synchronize"),
        (torch.cuda.Stream, "synchronize", "Stream.synchronize"),
    ):
        watch(owner, name, what, lambda *args, **kwargs: not busy.now)
    _watch_cleanup(recorder, patches)


def _watch_masks(recorder: Recorder, patches: Patches, counts: Callable[[Any], bool], busy: _Busy) -> None:
    read, write, boolean = torch.Tensor.__getitem__, torch.Tensor.__setitem__, torch.bool

    def is_mask(index: Any) -> bool:
        if type(index) is tuple:
            return any(type(part) is torch.Tensor and part.dtype is boolean for part in index)
        return type(index) is torch.Tensor and index.dtype is boolean

    def get(tensor: Any, index: Any) -> Any:
        if type(index) is int or torch.compiler.is_compiling() or not is_mask(index) or not counts(tensor):
            return read(tensor, index)
        start_ns = recorder.clock_ns()
        busy.now = True
        try:
            return read(tensor, index)
        finally:
            busy.now = False
            recorder.event("wait", "mask index", recorder.lines.place(1), recorder.clock_ns() - start_ns)

    def put(tensor: Any, index: Any, value: Any) -> None:
        # One value for all places is a masked fill, which does not wait.
        if (
            torch.compiler.is_compiling()
            or type(value) is not torch.Tensor
            or not value.ndim
            or not is_mask(index)
            or not counts(tensor)
        ):
            write(tensor, index, value)
            return
        start_ns = recorder.clock_ns()
        write(tensor, index, value)
        recorder.event("wait", "mask index", recorder.lines.place(1), recorder.clock_ns() - start_ns)

    patches.set(torch.Tensor, "__getitem__", wraps(read)(get))
    patches.set(torch.Tensor, "__setitem__", wraps(write)(put))


def _watch_cleanup(recorder: Recorder, patches: Patches) -> None:
    for owner, name, what in (
        (torch.cuda, "empty_cache", "torch.cuda.empty_cache"),
        (gc, "collect", "gc.collect"),
    ):
        original: Any = getattr(owner, name)

        def call(*args: Any, _original: Any = original, _what: str = what, **kwargs: Any) -> Any:
            start_ns = recorder.clock_ns()
            try:
                return _original(*args, **kwargs)
            finally:
                recorder.event("cleanup", _what, recorder.lines.place(1), recorder.clock_ns() - start_ns)

        patches.set(owner, name, wraps(original)(call))
