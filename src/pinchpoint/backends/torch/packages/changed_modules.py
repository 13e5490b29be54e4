"""Modules of installed packages that are changed after their import, because C code decides in them.

transformers turns the numbers in a device map into devices, which a build of torch without CUDA cannot do.
optimum-quanto asks for the exact type of a tensor.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import types
from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.fake.devices import at_user_line
from pinchpoint.backends.torch.observer import Observer

Change = Callable[[Any, Observer], None]


def changed_spec(
    fullname: str, path: Any, change: Callable[[Any], None], *, has_cuda: bool = True
) -> importlib.machinery.ModuleSpec | None:
    """The spec of an installed module that is changed once it is executed; None if it does not exist.

    has_cuda: what `torch.cuda.is_available` answers while it is executed.
    """
    spec = importlib.machinery.PathFinder.find_spec(fullname, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _Changed(spec.loader, change, has_cuda)
    return spec


class _Changed(importlib.abc.Loader):
    def __init__(self, loader: Any, change: Callable[[Any], None], has_cuda: bool) -> None:
        self._loader, self._change, self._has_cuda = loader, change, has_cuda

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        with Patches() as patches:
            if not self._has_cuda:
                patches.set(torch.cuda, "is_available", lambda: False)
            self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:  # what else a loader has, such as `get_source`
        return getattr(self._loader, name)


def _name_devices(module: Any, observer: Observer) -> None:
    """Let device maps of transformers name their devices: `cuda:0` instead of 0."""
    original = getattr(module, compat.DEVICE_MAP, None)
    if original is None:
        return

    def device_map(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not isinstance(result, dict):
            return result
        return {
            name: torch.device("cuda", place) if type(place) is int else place
            for name, place in result.items()
        }

    setattr(module, compat.DEVICE_MAP, device_map)


def _step_without_overflow(module: Any, observer: Observer) -> None:
    """Let optimizers of DeepSpeed take their step: whether a gradient is infinite is not known here."""
    if hasattr(module, "is_invalid_grad_norm"):
        module.is_invalid_grad_norm = lambda norm: False
    for kind in [value for value in vars(module).values() if isinstance(value, type)]:
        original = vars(kind).get("has_overflow")
        if original is None or kind.__module__ != module.__name__:
            continue

        def has_overflow(*args: Any, original: Callable[..., Any] = original, **kwargs: Any) -> bool:
            original(*args, **kwargs)  # for what it allocates
            return False

        setattr(kind, "has_overflow", has_overflow)  # noqa: B010 (other classes have no such attribute)


def is_measured(engine: Any) -> bool:
    """Whether an engine of DeepSpeed has only settings that were compared with a GPU (benchmarks/sharded)."""

    def ask(name: str) -> Any:
        return getattr(engine, name, lambda: None)()

    optimizer: Any = getattr(engine, "basic_optimizer", None)
    return (
        type(engine).__name__ == "DeepSpeedEngine"
        and ask("zero_optimization_stage") in (1, 2, 3)
        and ask("bfloat16_enabled") is True
        and type(optimizer).__module__.startswith("torch.")
        and not ask("zero_use_cpu_optimizer")
        and str(getattr(ask("zero_offload_param"), "device", "none")).endswith("none")
        and ask("zero_hpz_partition_size") in (None, 1)
        and not ask("zero_quantized_weights")
        and not ask("zero_quantized_gradients")
        and not getattr(engine, "has_moe_layers", False)
    )


def _note_engine(module: Any, observer: Observer) -> None:
    """Say so where the engine of DeepSpeed does what has not been compared with a GPU."""
    original = module.DeepSpeedEngine.__init__

    @functools.wraps(original)
    def init(engine: Any, *args: Any, **kwargs: Any) -> None:
        original(engine, *args, **kwargs)
        if is_measured(engine):
            return
        reason = (
            f"the settings of DeepSpeed{at_user_line()} have not been compared with a GPU: only bf16 with "
            "ZeRO 1 to 3, an optimizer of torch, and no offload have"
        )
        if reason not in observer.ledger.observation.reasons:
            observer.ledger.observation.reasons.append(reason)

    module.DeepSpeedEngine.__init__ = init


def _pack_codes(module: Any, observer: Observer) -> None:
    """Let optimum-quanto pack codes of 2 and 4 bits: it asks whether their type is `torch.Tensor`."""
    original = module.WeightQBitsTensor.__init__

    @functools.wraps(original)
    def init(
        tensor: Any,
        qtype: Any,
        axis: Any,
        group: Any,
        size: Any,
        stride: Any,
        data: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if type(data) is compat.FakeTensor:
            data = module.PackedTensor.pack(data, qtype.bits)
        original(tensor, qtype, axis, group, size, stride, data, *args, **kwargs)

    module.WeightQBitsTensor.__init__ = init


CHANGES: dict[str, Change] = {
    "optimum.quanto.tensor.weights.qbits": _pack_codes,
    "transformers.modeling_utils": _name_devices,
    "deepspeed.runtime.engine": _note_engine,
    "deepspeed.runtime.utils": _step_without_overflow,
    "deepspeed.runtime.zero.stage_1_and_2": _step_without_overflow,
    "deepspeed.runtime.zero.stage3": _step_without_overflow,
}
