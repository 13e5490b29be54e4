"""Private torch APIs that only the recording of real runs needs: memory history, reasons of the compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from pinchpoint.backends.patches import Patches

_HISTORY = 300_000  # events of the allocator that are kept


def with_name_of(owner: Any, name: str, function: Any) -> Any:
    """A replacement of `owner.name` that is pickled by this name, as a program does with its arguments.

    Functions of torch that are written in C have the names of private classes.
    """
    is_module = isinstance(owner, ModuleType)
    function.__module__ = owner.__name__ if is_module else owner.__module__
    function.__qualname__ = name if is_module else f"{owner.__qualname__}.{name}"
    return function


def after_cuda_starts(patches: Patches, act: Callable[[], None]) -> None:
    """Call `act` once, as soon as the program initialises CUDA; at once if it has done so."""
    if torch.cuda.is_initialized():
        act()
        return
    original = torch.cuda._lazy_init
    is_done = False

    def start() -> None:
        nonlocal is_done
        original()
        if not is_done and torch.cuda.is_initialized():
            is_done = True
            act()

    patches.set(torch.cuda, "_lazy_init", start)


def allow_for_lazy_modules(patches: Patches, names: Sequence[str]) -> None:
    """Let parameters without a shape take the replacements of these methods of a tensor, as the methods."""
    mixin: Any = vars(torch.nn.parameter)["UninitializedTensorMixin"]
    replacements = [getattr(torch.Tensor, name) for name in names]
    patches.set(mixin, "_allowed_methods", [*mixin._allowed_methods, *replacements])


def current_stream_key() -> Any:
    """A value that stays the same while the current stream does; None if this torch does not tell it."""
    try:
        return torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
    except AttributeError:
        return None


def tell_torchscript(pairs: list[tuple[Any, Any]]) -> Callable[[], None]:
    """Let TorchScript take replacements for the builtin functions that they replace, until what is returned
    is called. pairs: function and replacement
    """
    from torch.jit._builtins import _get_builtin_table

    table = _get_builtin_table()
    names = {id(new): table[id(old)] for old, new in pairs if id(old) in table}
    table.update(names)

    def forget() -> None:
        for key in names:
            table.pop(key, None)

    return forget


def start_history() -> None:
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=_HISTORY
    )


def take_history(device: int) -> list[dict[str, Any]]:
    """The allocator's events so far: action, addr, size, frames, time_us; then stop recording them."""
    snapshot: Any = torch.cuda.memory._snapshot(device)
    traces = snapshot["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    return traces[device] if device < len(traces) else []


def allocation_profiler() -> Any:
    """A profiler of torch that records allocations on the CPU; it has `start` and `stop`."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)


def allocations(profiler: Any) -> Iterator[tuple[int, int, int]]:
    """What such a profiler recorded: nanoseconds of the day, address, and bytes; negative bytes are freed."""
    from torch._C._profiler import _EventType

    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    found = []
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
            fields = event.extra_fields
            found.append((event.start_time_ns, int(fields.ptr or 0), int(fields.alloc_size)))
    yield from sorted(found, key=lambda entry: entry[0])


def watch_compiler(
    patches: Patches,
    *,
    on_start: Callable[[], None],
    on_end: Callable[[], None],
    on_reasons: Callable[[Any, list[str]], None],
) -> None:
    """Report the start and end of each compilation by torch.compile, and why a function is compiled again.

    on_reasons: called with the code of the function and the guards that failed.
    """
    from torch._dynamo import convert_frame
    from torch._dynamo.callback import callback_handler as handler

    def start(*_: Any) -> None:
        on_start()

    def end(*_: Any) -> None:
        on_end()

    patches.set(handler, "start_callbacks", [*handler.start_callbacks, start])
    patches.set(handler, "end_callbacks", [*handler.end_callbacks, end])
    name = "get_and_maybe_log_recompilation_reasons"
    original = getattr(convert_frame, name, None)
    if original is None:
        return  # an older torch: compilations are counted without their reasons

    def explain(entry: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        reasons = original(entry, frame, *args, **kwargs)
        code = getattr(frame, "f_code", None) or getattr(entry, "code", None)
        if reasons and code is not None:
            on_reasons(code, [str(reason) for reason in reasons])
        return reasons

    patches.set(convert_frame, name, explain)


def is_compiler_imported() -> bool:
    return "torch._dynamo" in sys.modules
