"""`Recomputation`: what modules of a fake run save for the backward pass, or the run with some recomputed.

Without chosen modules, every call of a module with gradients is recorded: the blocks that autograd saves in
it, and the time of the operations up to the last one that saves something, which is where recomputation by
`torch.utils.checkpoint` stops. With chosen modules, their calls go through `torch.utils.checkpoint`, as if
the script did that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.backends.torch.ranks.compat import local_part
from pinchpoint.backends.torch.recomputation.operation_times import Clock, Speed
from pinchpoint.backends.torch.recomputation.saved_bytes import SavedInCall, bytes_over_time
from pinchpoint.core.events import Observation

_CALL_S = 30e-6  # what torch.utils.checkpoint itself takes per call, beside the operations; a guess
_BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)


@dataclass
class _Module:
    """One module by its name in the model, and its calls."""

    name: str
    class_name: str
    is_layer: bool  # one that transformers can recompute by itself
    has_batch_norm: bool
    reason: str = ""  # why it cannot be recomputed
    calls: list[SavedInCall] = field(default_factory=list)


class Recomputation:
    """Records the module calls of one fake run, or recomputes those of the chosen modules."""

    def __init__(self, ledger: Ledger, speed: Speed, chosen: list[str]) -> None:
        self._ledger = ledger
        self._chosen = frozenset(chosen)
        self.clock = Clock(speed, ledger.observation.events)
        self._modules: dict[str, _Module] = {}
        self._open: list[SavedInCall] = []
        self._roots: dict[str, list[str]] = {}

    def call(
        self, module: torch.nn.Module, name: str, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]
    ) -> Any:
        """Run a module's forward pass, which is `run`, with the arguments of its call."""
        if self._ledger.phase is not None or not torch.is_grad_enabled():
            return run(*args, **kwargs)
        if name in self._chosen:
            if _is_layer(module):
                args, kwargs = _without_caches(args, kwargs)
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        if self._chosen:
            return run(*args, **kwargs)
        return self._record(module, name, args, kwargs, run)

    def _record(
        self, module: torch.nn.Module, name: str, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]
    ) -> Any:
        if not self._open:
            self._roots.setdefault(name, [cls.__name__ for cls in type(module).__mro__])
        entry = self._modules.setdefault(name, _described(module, name))
        if not _is_layer(module) and any(map(_is_cache, (*args, *kwargs.values()))):
            entry.reason = "it is called with a cache, which recomputing would fill twice"
        inputs = self._on_device((args, kwargs))
        versions = [compat.version(tensor) for tensor in inputs]
        call = SavedInCall(
            len(self._ledger.observation.events),
            {self._ledger.block_of(tensor) for tensor in inputs},
            start_s=self.clock.now_s,
        )
        entry.calls.append(call)
        watch = contextlib.nullcontext() if self._open else saved_tensors_hooks(self._on_save, lambda x: x)
        self._open.append(call)
        try:
            with watch:
                result = run(*args, **kwargs)
        finally:
            self._open.pop()
        call.end_event = len(self._ledger.observation.events)
        outputs = self._on_device(result)
        call.outputs = {self._ledger.block_of(tensor) for tensor in outputs}
        if not any(tensor.requires_grad for tensor in outputs):
            entry.reason = entry.reason or "it returns no tensor that has a gradient"
        if versions != [compat.version(tensor) for tensor in inputs]:
            entry.reason = entry.reason or "it changes its input in place"
        return result

    def _on_save(self, tensor: torch.Tensor) -> torch.Tensor:
        part = local_part(tensor)
        block = self._ledger.block_of(part) if type(part) is compat.FakeTensor else -1
        for call in self._open:
            call.last_s = self.clock.now_s
            call.saved.add(block)
        return tensor

    def _on_device(self, values: Any) -> list[torch.Tensor]:
        tensors = [local_part(leaf) for leaf in compat.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return [t for t in tensors if type(t) is compat.FakeTensor and self._ledger.holds(t)]

    def results(self) -> dict[str, Any]:
        """Plain data: the time of a step, and what every module would free and cost."""
        observation = self._ledger.observation
        first, last = _step(observation)
        step_s = self.clock.at(last) - self.clock.at(first)
        if self._chosen:
            return {"step_s": step_s}
        modules = [module for module in self._modules.values() if not module.reason]
        names = [module.name for module in modules]
        rows, freed = bytes_over_time(observation, {module.name: module.calls for module in modules})
        return {
            "step_s": step_s,
            "modules": [
                {
                    "name": module.name,
                    "class": module.class_name,
                    "is_layer": module.is_layer,
                    "has_batch_norm": module.has_batch_norm,
                    "freed_bytes": freed[module.name],
                    "recompute_s": sum(
                        max(call.last_s - call.start_s, 0) + _CALL_S
                        for call in module.calls
                        if first <= call.start_event < last
                    ),
                }
                for module in modules
            ],
            "rows": [
                (alive, {names.index(name): size for name, size in cover.items()}) for alive, cover in rows
            ],
            "refused": {m.name: m.reason for m in self._modules.values() if m.reason},
            "roots": self._roots,
        }


def _step(observation: Observation) -> tuple[int, int]:
    """The events of one whole training step: from the first end of an optimizer's step to its second."""
    ends = next((ends for ends in observation.step_ends.values() if len(ends) > 1), None)
    return (0, len(observation.events)) if ends is None else (ends[0], ends[1])


def _described(module: torch.nn.Module, name: str) -> _Module:
    has_batch_norm = any(isinstance(part, _BATCH_NORMS) and part.training for part in module.modules())
    return _Module(name, type(module).__name__, _is_layer(module), has_batch_norm)


def _is_layer(module: torch.nn.Module) -> bool:
    """Whether it is a layer that transformers recomputes after `gradient_checkpointing_enable`."""
    return any(cls.__name__ == "GradientCheckpointingLayer" for cls in type(module).__mro__)


def _is_cache(value: Any) -> bool:
    return "cache" in type(value).__name__.lower()


def _without_caches(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a layer as transformers passes them if the layer is recomputed."""
    plain = {name: None if _is_cache(value) else value for name, value in kwargs.items()}
    if "use_cache" in plain:
        plain["use_cache"] = False
    return tuple(None if _is_cache(value) else value for value in args), plain
