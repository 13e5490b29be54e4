"""`Recomputation`: what modules of a fake run save for the backward pass, or the run with some recomputed.

Without chosen modules, every call of a module with gradients is recorded: the blocks that autograd saves in
it, and the time of the operations up to the last one that saves something, which is where recomputation by
`torch.utils.checkpoint` stops. With chosen modules, their calls go through `torch.utils.checkpoint`, as if
the script did that; a policy may keep the results of products, which are most of the arithmetic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.backends.torch.ranks.compat import local_part
from pinchpoint.backends.torch.recomputation.operation_times import PRODUCTS, Clock, Speed
from pinchpoint.backends.torch.recomputation.saved_bytes import SavedInCall, Way, bytes_over_time
from pinchpoint.core.events import Observation

# What the host takes, in seconds. Fitted to the step times of GPT-2 and a U-Net on one machine with an H200:
# eager PyTorch for an operation, and torch.utils.checkpoint for a call and for an operation in it, which runs
# twice and has hooks. A policy is Python code that is called for each operation twice, which is a guess.
_OPERATION_S = 25e-6
_CALL_S = 400e-6
_RECOMPUTED_S = 58e-6
_POLICY_S = 60e-6
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

    def __init__(self, ledger: Ledger, speed: Speed, chosen: Mapping[str, bool]) -> None:
        """chosen: modules to recompute, and whether the results of their products are kept."""
        self._ledger = ledger
        self._chosen = chosen
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
            policy = {"context_fn": _keep_products} if self._chosen[name] else {}
            return checkpoint(run, *args, use_reentrant=False, **policy, **kwargs)
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
            self.clock.now,
        )
        entry.calls.append(call)
        watch = contextlib.nullcontext() if self._open else saved_tensors_hooks(self._on_save, lambda x: x)
        self._open.append(call)
        try:
            with watch:
                result = run(*args, **kwargs)
        finally:
            self._open.pop()
        call.end_event, call.end = len(self._ledger.observation.events), self.clock.now
        outputs = self._on_device(result)
        call.outputs = {self._ledger.block_of(tensor) for tensor in outputs}
        if not any(tensor.requires_grad for tensor in outputs):
            entry.reason = entry.reason or "it returns no tensor that has a gradient"
        if versions != [compat.version(tensor) for tensor in inputs]:
            entry.reason = entry.reason or "it changes its input in place"
        return result

    def count(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Add an operation that ran on the device."""
        self.clock.count(func, args, kwargs, out)
        if self._open and func in PRODUCTS:
            blocks = {self._ledger.block_of(tensor) for tensor in self._on_device(out)}
            for call in self._open:
                call.products |= blocks

    def _on_save(self, tensor: torch.Tensor) -> torch.Tensor:
        part = local_part(tensor)
        block = self._ledger.block_of(part) if type(part) is compat.FakeTensor else -1
        for call in self._open:
            call.last = self.clock.now
            call.saved.add(block)
        return tensor

    def _on_device(self, values: Any) -> list[torch.Tensor]:
        tensors = [local_part(leaf) for leaf in compat.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return [t for t in tensors if type(t) is compat.FakeTensor and self._ledger.holds(t)]

    def results(self) -> dict[str, Any]:
        """Plain data: the time of a step, and what every module would free and cost."""
        observation = self._ledger.observation
        first, last = _step(observation)
        before, after = self.clock.at(first), self.clock.at(last)
        step = {
            "device_s": after.all_s - before.all_s,
            "host_s": _OPERATION_S * (after.operations - before.operations),
        }
        if self._chosen:
            return step
        ways: dict[Way, list[SavedInCall]] = {}
        times: dict[Way, tuple[float, float]] = {}
        for module in self._modules.values():
            if module.reason:
                continue
            in_step = [call for call in module.calls if first <= call.start_event < last]
            for keeps_products in (False, True) if any(call.products for call in in_step) else (False,):
                way = module.name, keeps_products
                ways[way], times[way] = module.calls, _recompute_s(in_step, keeps_products)
        rows, freed = bytes_over_time(observation, ways)
        numbers = {way: number for number, way in enumerate(ways)}
        return {
            **step,
            "modules": [
                {
                    "name": name,
                    "class": self._modules[name].class_name,
                    "is_layer": self._modules[name].is_layer,
                    "has_batch_norm": self._modules[name].has_batch_norm,
                    "keeps_products": keeps_products,
                    "freed_bytes": freed[name, keeps_products],
                    "device_s": times[name, keeps_products][0],
                    "host_s": times[name, keeps_products][1],
                }
                for name, keeps_products in ways
            ],
            "rows": [(alive, {numbers[way]: size for way, size in cover.items()}) for alive, cover in rows],
            "refused": {m.name: m.reason for m in self._modules.values() if m.reason},
            "roots": self._roots,
        }


def _recompute_s(calls: list[SavedInCall], keeps_products: bool) -> tuple[float, float]:
    """What recomputing takes on the device and on the host, up to the last operation that saves something."""
    device_s = host_s = 0.0
    for call in calls:
        last = max(call.last, call.start)
        operations = last.operations - call.start.operations
        device_s += last.other_s - call.start.other_s if keeps_products else last.all_s - call.start.all_s
        host_s += _CALL_S + (_RECOMPUTED_S + (_POLICY_S if keeps_products else 0.0)) * operations
    return device_s, host_s


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(list(PRODUCTS))


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
