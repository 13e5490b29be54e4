"""`watch_copies`: tensors that move between host and device, how they were copied, and whether needlessly.

A copy to the host makes the program wait and counts as a wait, unless it is non-blocking.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from functools import wraps
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.steps import DATA, OPTIMIZER, TO_DEVICE
from pinchpoint.backends.torch.compat import version, view_base
from pinchpoint.backends.torch.recording import compat

_REMEMBERED = 4096  # tensors whose copies are compared with later ones


class _Copied:
    """The host data that was copied lately, to see that it is copied again unchanged."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()

    def again(self, tensor: torch.Tensor, device: str) -> bool:
        # A view has a new object each time; the tensor that it is a view of stays. A dead reference means
        # that the address belongs to other data by now.
        base = view_base(tensor)
        owner = tensor if base is None else base
        try:
            layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, device)
        except RuntimeError:
            return False  # a sparse tensor, or one inside vmap, has no storage of its own
        key, changes = (id(owner), *layout), version(tensor)
        before = self._entries.pop(key, None)
        self._entries[key] = (weakref.ref(owner), changes)
        if len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)
        return before is not None and before[0]() is owner and before[1] == changes


def watch_copies(recorder: Recorder, patches: Patches) -> None:
    copied = _Copied()
    plain = {torch.Tensor, torch.nn.Parameter}
    dtype, is_compiling = torch.dtype, torch.compiler.is_compiling

    def moves(source: Any, target: str | None) -> bool:
        """Whether a call is a copy to be recorded."""
        if target is None or type(source) not in plain or not recorder.is_here:
            return False
        return source.device.type != target

    def record(what: str, source: torch.Tensor, target: str, run: Any, *, is_free: bool) -> Any:
        """Run a copy and report it. is_free: the program does not wait for it."""
        origin, size = source.device.type, source.numel() * source.element_size()
        to_host = target == "cpu"
        if not to_host:
            recorder.begin(TO_DEVICE)
        start_ns = recorder.clock_ns()
        try:
            return run()
        finally:
            spent_ns = recorder.clock_ns() - start_ns
            if not to_host:
                recorder.end()
            place = recorder.lines.place(2)
            if to_host:
                kind, detail, again = ("copy" if is_free else "wait"), "", False
            else:
                pinned = origin == "cpu" and recorder.device == "cuda" and source.is_pinned()
                kind, again = "copy", copied.again(source, target)
                detail = f"{'pinned' if pinned else 'pageable'}, {'non-blocking' if is_free else 'blocking'}"
            name = what if to_host else f"{origin} -> {target}"
            recorder.event(kind, name, place, spent_ns, size=size, detail=detail, repeated=again)

    def would_wait(source: Any) -> bool:
        """Whether `cpu()`, which does nothing without a GPU, would make the program wait with one."""
        return (
            recorder.device != "cuda"
            and type(source) in plain
            and source.device.type == "cpu"
            and recorder.phase not in (DATA, OPTIMIZER)
        )

    def watch(name: str, target_of: Any) -> None:
        original = getattr(torch.Tensor, name)

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            # Most calls of `to` are for a type, and quick.
            if (len(args) == 2 and type(args[1]) is dtype and not kwargs) or is_compiling():
                return original(*args, **kwargs)
            source, target = target_of(*args, **kwargs)
            if moves(source, target):
                free = bool(kwargs.get("non_blocking"))
                return record(
                    f"Tensor.{name}", source, target, lambda: original(*args, **kwargs), is_free=free
                )
            # `to` may mean the device of the model, which is a GPU where there is one.
            if name == "cpu" and would_wait(source):
                recorder.event("wait", f"Tensor.{name}", recorder.lines.place(1))
            return original(*args, **kwargs)

        patches.set(torch.Tensor, name, compat.with_name_of(torch.Tensor, name, call))

    watch("to", lambda tensor, *args, **kwargs: (tensor, _target(args, kwargs)))
    watch("cpu", lambda tensor, *args, **kwargs: (tensor, "cpu"))
    watch("cuda", lambda tensor, *args, **kwargs: (tensor, "cuda"))
    watch("copy_", _of_copy)
    compat.allow_for_lazy_modules(patches, ("to", "cpu", "cuda", "copy_"))
    for name in ("tensor", "as_tensor"):
        _watch_factory(recorder, patches, name)


def _of_copy(target: Any, source: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, str | None]:
    return source, target.device.type if isinstance(source, torch.Tensor) else None


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The type of the device that `Tensor.to` is asked for; None if it is asked for a dtype."""
    wanted = kwargs.get("device", kwargs.get("other"))
    if wanted is None and args:
        wanted = args[0]
    if isinstance(wanted, str):
        return wanted.partition(":")[0]
    if isinstance(wanted, torch.device | torch.Tensor):
        return wanted.type if isinstance(wanted, torch.device) else wanted.device.type
    return "cuda" if type(wanted) is int else None


def _watch_factory(recorder: Recorder, patches: Patches, name: str) -> None:
    """Watch `torch.tensor(values, device="cuda")`, which copies from pageable memory and waits for it."""
    original = getattr(torch, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is None or torch.compiler.is_compiling() or not recorder.is_here:
            return original(*args, **kwargs)
        target = _target((), {"device": kwargs["device"]})
        source = args[0] if args else kwargs.get("data")
        if target in (None, "cpu") or (isinstance(source, torch.Tensor) and source.device.type != "cpu"):
            return original(*args, **kwargs)
        start_ns = recorder.clock_ns()
        recorder.begin(TO_DEVICE)
        try:
            result = original(*args, **kwargs)
        finally:
            recorder.end()
        size = result.numel() * result.element_size()
        spent_ns = recorder.clock_ns() - start_ns
        place = recorder.lines.place(1)
        recorder.event("copy", f"cpu -> {target}", place, spent_ns, size=size, detail="pageable, blocking")
        return result

    patches.set(torch, name, compat.with_name_of(torch, name, call))
