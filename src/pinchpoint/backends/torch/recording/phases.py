"""`watch_phases`: data, forward, backward, optimizer and evaluation phases of an unmodified training loop.

The outermost call of a module is the forward pass, or an evaluation if gradients are off. Functions of torch
are replaced by ones that report to the recorder and then do the same: no mode and no hook of a tensor is
used, so that results stay bit-identical and compiled code is compiled as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import line_of
from pinchpoint.backends.recording.steps import BACKWARD, DATA, EVALUATION, FORWARD, OPTIMIZER
from pinchpoint.backends.torch.compat import LoaderIterator, set_module_call


class Watched:
    """What the loop uses, for those who look at it at the end of a step."""

    def __init__(self) -> None:
        self.models: WeakSet[torch.nn.Module] = WeakSet()  # the first that were called
        self.tell_compiler: Callable[[], None] = lambda: None
        self.before_step: list[Callable[[Optimizer], None]] = []
        self.after_closure: list[Callable[[Optimizer], None]] = []
        self.before_backward: list[Callable[[Any], None]] = []


def watch_phases(recorder: Recorder, patches: Patches) -> Watched:
    watched = Watched()
    inside = _Inside()
    _watch_modules(recorder, patches, watched, inside)
    _watch_backward(recorder, patches, watched, inside)
    _watch_optimizers(recorder, patches, watched)
    _watch_loaders(recorder, patches)
    return watched


class _Inside:
    """Whether a model's forward pass or a backward pass is running in the recorded thread."""

    __slots__ = ("model",)

    def __init__(self) -> None:
        self.model = False


def _watch_modules(recorder: Recorder, patches: Patches, watched: Watched, inside: _Inside) -> None:
    original: Any = torch.nn.Module.__call__
    is_compiling, grad_is_on = torch.compiler.is_compiling, torch.is_grad_enabled
    thread = recorder.thread
    known: dict[int, weakref.ref[torch.nn.Module]] = {}

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        # The parts of a model are called many times per step, so they are let through first.
        if inside.model or get_ident() != thread or is_compiling():
            return original(module, *args, **kwargs)
        inside.model = True
        recorder.begin(FORWARD if grad_is_on() else EVALUATION)
        try:
            return original(module, *args, **kwargs)
        finally:
            recorder.end()
            inside.model = False
            key = id(module)
            reference = known.get(key)
            if (reference is None or reference() is not module) and len(watched.models) < 16:
                known[key] = weakref.ref(module)
                watched.models.add(module)
            recorder.mark("module call", key)

    watched.tell_compiler, forget = set_module_call(patches.set, call)
    recorder.on_close.append(forget)


def _watch_backward(recorder: Recorder, patches: Patches, watched: Watched, inside: _Inside) -> None:
    def watch(owner: Any, name: str, *, is_end: bool) -> None:
        original = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not recorder.is_here:
                return original(*args, **kwargs)
            for act in watched.before_backward if is_end else ():
                act(args[0] if args else kwargs.get("tensors"))
            # A checkpoint calls modules again inside the backward pass, to which their time belongs.
            before, inside.model = inside.model, True
            recorder.begin(BACKWARD)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.end()
                inside.model = before
                if is_end and not before:
                    recorder.mark("backward pass", recorder.lines.place(1))

        patches.set(owner, name, wraps(original)(run))

    watch(torch.autograd, "backward", is_end=True)  # Tensor.backward calls it
    watch(torch.autograd, "grad", is_end=False)


def _watch_optimizers(recorder: Recorder, patches: Patches, watched: Watched) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if not recorder.is_here:
            return None
        for act in watched.before_step:
            act(optimizer)
        recorder.begin(OPTIMIZER)
        return _with_closure(optimizer, args, kwargs)

    def _with_closure(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The arguments with a closure whose own time is forward; None if there is no closure."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            return None

        @wraps(closure)
        def run(*inner: Any, **options: Any) -> Any:
            with recorder.within(FORWARD):
                loss = closure(*inner, **options)
            for act in watched.after_closure:
                act(optimizer)
            return loss

        return ((args[0], run, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": run})

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if recorder.is_here:
            recorder.end()
            recorder.mark("optimizer step", slots.of(optimizer))

    slots = _Slots()
    handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    recorder.on_close += [handle.remove for handle in handles]
    around: list[tuple[Any, str]] = [(Optimizer, "zero_grad"), (torch.nn.Module, "zero_grad")]
    around += [(torch.amp.GradScaler, name) for name in ("step", "update", "unscale_")]
    around += [(torch.nn.utils, name) for name in ("clip_grad_norm_", "clip_grad_value_")]
    for owner, name in around:
        _surround(recorder, patches, owner, name, OPTIMIZER)


class _Slots:
    """Numbers for optimizers. One that takes the place of another, as in a loop that builds them, gets its
    number, so that its step ends a step of the loop too.
    """

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Optimizer]] = []

    def of(self, optimizer: Optimizer) -> int:
        free = len(self._optimizers)
        for number, reference in enumerate(self._optimizers):
            other = reference()
            if other is optimizer:
                return number
            if other is None:
                free = min(free, number)
        self._optimizers[free : free + 1] = [weakref.ref(optimizer)]
        return free


def _watch_loaders(recorder: Recorder, patches: Patches) -> None:
    loaders = recorder.parts.setdefault("loaders", {})
    following, beginning = LoaderIterator.__next__, DataLoader.__iter__

    def follow(iterator: Any) -> Any:
        if not recorder.is_here:
            return following(iterator)
        start_ns = recorder.clock_ns()
        recorder.begin(DATA)
        try:
            batch = following(iterator)
        finally:
            recorder.end()
        facts = getattr(iterator, "_pinchpoint_loader", None)
        if facts is not None:
            facts["batches"] += 1
            facts["host_ns"] += recorder.clock_ns() - start_ns
        return batch

    def begin(loader: Any) -> Any:
        if not recorder.is_here:
            return beginning(loader)
        place = recorder.lines.place(1)
        with recorder.within(DATA):
            iterator = beginning(loader)
        file, line, _ = line_of(place)
        facts = loaders.setdefault(
            (file, line),
            {
                "workers": loader.num_workers,
                "pinned": bool(loader.pin_memory),
                "batch_size": loader.batch_size,
                "batches": 0,
                "host_ns": 0,
            },
        )
        if not isinstance(iterator, LoaderIterator):
            return iterator
        iterator._pinchpoint_loader = facts  # pyright: ignore[reportAttributeAccessIssue]
        return iterator

    patches.set(LoaderIterator, "__next__", wraps(following)(follow))
    patches.set(DataLoader, "__iter__", wraps(beginning)(begin))


def _surround(recorder: Recorder, patches: Patches, owner: Any, name: str, phase: str) -> None:
    """Count the time of a function towards a phase."""
    original = getattr(owner, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        # The program may keep this function under another name.
        if torch.compiler.is_compiling() or recorder.is_closed or not recorder.is_here:
            return original(*args, **kwargs)
        recorder.begin(phase)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.end()

    patches.set(owner, name, wraps(original)(run))
