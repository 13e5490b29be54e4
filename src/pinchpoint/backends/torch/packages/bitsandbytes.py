"""bitsandbytes on the simulated device: its own Python runs, and its compiled library does nothing.

Layers of 4 and 8 bits, their statistics and the code that calls the CUDA kernels are Python that allocates
every buffer, so the package itself says what they need; it must be installed, which needs no CUDA. Three
things are replaced: the compiled library by one whose functions return 0; `torch.library`, which would choose
kernels by the real device, by a table of the package's own Python kernels; and the two classes of parameters,
which subclass tensors, by parameters that remember their class. Optimizers are stand-ins (`optimizers`).
Two kernels of LLM.int8, whose memory depends on the data, have replacements (`int8_outliers`).
What cuBLAS allocates for itself in products of 8 bits is outside torch's allocator and not counted.
"""

from __future__ import annotations

import importlib.machinery
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.compat import tree_leaves
from pinchpoint.backends.torch.fake.tensors import parse_to
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages import int8_outliers
from pinchpoint.backends.torch.packages.changed_modules import changed_spec
from pinchpoint.backends.torch.packages.unknown_kernels import forget
from pinchpoint.core.errors import CannotFake

_NAME = "bitsandbytes"
_KIND = "_pinchpoint_kind"  # attribute of a parameter: which of the two classes it has


class Layers:
    """Lets the installed package run. Create it before the package is imported."""

    def __init__(self, patches: Patches, observer: Observer) -> None:
        self._operations = _Operations(observer)
        _register(patches, self._operations)
        _moves(patches)
        patches.set(torch.ops, _NAME, self._operations)

    def find_spec(self, fullname: str, path: Any) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that is changed after its import; None for the others."""
        changes = {f"{_NAME}.cextension": _replace_library, f"{_NAME}.nn.modules": _replace_parameters}
        change = changes.get(fullname)
        if change is None:
            return None
        # Without CUDA, the package loads its library for the host and says nothing.
        return changed_spec(fullname, path, change, has_cuda=change is not _replace_library)


class _Library:
    """The compiled library: every function exists, does nothing, and returns 0."""

    compiled_with_cuda = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            return 0

        setattr(self, name, call)
        return call

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def _replace_library(module: Any) -> None:
    module.lib = _Library()
    module.BNB_BACKEND = "CUDA"


# --- operations


def _register(patches: Patches, operations: _Operations) -> None:
    """Keep the package's kernels in a table instead of torch's dispatcher."""
    library = torch.library
    define, register_fake, register_kernel = library.define, library.register_fake, library.register_kernel

    def is_ours(name: Any) -> bool:
        return isinstance(name, str) and name.startswith(f"{_NAME}::")

    def define_one(name: Any, *args: Any, **kwargs: Any) -> Any:
        return None if is_ours(name) else define(name, *args, **kwargs)

    def register_fake_one(name: Any, func: Any = None, **kwargs: Any) -> Any:
        if not is_ours(name):
            return register_fake(name, func, **kwargs)
        return func if func is not None else lambda function: function

    def register_kernel_one(name: Any, device_types: Any = None, func: Any = None, **kwargs: Any) -> Any:
        if not is_ours(name):
            return register_kernel(name, device_types, func, **kwargs)

        def keep(function: Any) -> Any:
            devices = [device_types] if isinstance(device_types, str) else device_types or ["default"]
            for device in devices:
                operations.kernels[name.removeprefix(f"{_NAME}::"), device] = function
            return function

        return keep if func is None else keep(func)

    patches.set(library, "define", define_one)
    patches.set(library, "register_fake", register_fake_one)
    patches.set(library, "register_kernel", register_kernel_one)


class _Operations:
    """`torch.ops.bitsandbytes`: calls the Python kernel for the device of the arguments."""

    def __init__(self, observer: Observer) -> None:
        self.kernels: dict[tuple[str, str], Callable[..., Any]] = {}
        self._observer = observer
        self._replaced = int8_outliers.kernels(observer, self.kernels)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Operation(self, name)

    def run(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        on_device = any(map(self._observer.on_device, tree_leaves((args, kwargs))))
        for device in ("cuda" if on_device else "cpu", "default"):
            kernel = self.kernels.get((name, device))
            if kernel is not None:
                kernel = self._replaced.get(name, kernel) if on_device else kernel
                with torch.no_grad():
                    result = kernel(*args, **kwargs)
                forget(self._observer, result)
                return result
        raise CannotFake(
            f"The operation {name!r} of bitsandbytes has no kernel in Python, so pinchpoint cannot run it.",
            hint="Install bitsandbytes 0.46 or later.",
        )


class _Operation:
    def __init__(self, operations: _Operations, name: str) -> None:
        self._operations, self._name = operations, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._operations.run(self._name, args, kwargs)

    def __getattr__(self, overload: str) -> Any:
        if overload.startswith("__"):
            raise AttributeError(overload)
        return self if overload == "default" else _Operation(self._operations, f"{self._name}.{overload}")


# --- parameters


class _Kind(type):
    """The class of the two kinds of parameters: a tensor is an instance if it remembers the kind."""

    def __instancecheck__(cls, value: object) -> bool:
        return getattr(value, _KIND, None) is cls


def _moves(patches: Patches) -> None:
    """`to`, `cuda` and `cpu` of such a parameter are those of its kind: they quantise."""
    original_to, original_cuda, original_cpu = torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kind = self.__dict__.get(_KIND)
        if kind is None:
            return original_to(self, *args, **kwargs)
        place, dtype, _ = parse_to(args, kwargs)
        device = torch.device("cuda", place) if isinstance(place, int) else place and torch.device(place)
        return kind.to(self, device, lambda: original_to(self.data, device=device, dtype=dtype or self.dtype))

    def cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _KIND not in self.__dict__:
            return original_cuda(self, device, *args, **kwargs)
        return to(self, "cuda" if device is None else device)

    def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return to(self, "cpu") if _KIND in self.__dict__ else original_cpu(self, *args, **kwargs)

    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", cpu)


def _parameter(kind: type, data: torch.Tensor | None, requires_grad: bool, **attributes: Any) -> Any:
    parameter: Any = nn.Parameter(torch.empty(0) if data is None else data.detach(), requires_grad)
    setattr(parameter, _KIND, kind)
    for name, value in attributes.items():
        setattr(parameter, name, value)
    return parameter


def _replace_parameters(module: Any) -> None:
    """Replace the classes of parameters in bitsandbytes.nn.modules; what they do is by its source."""

    class Params4bit(metaclass=_Kind):
        def __new__(
            cls,
            data: torch.Tensor | None = None,
            requires_grad: bool = False,
            quant_state: Any = None,
            blocksize: int | None = None,
            compress_statistics: bool = True,
            quant_type: str = "fp4",
            quant_storage: torch.dtype = torch.uint8,
            module: Any = None,
            bnb_quantized: bool = False,
            **_: Any,
        ) -> Any:
            return _parameter(
                cls,
                data,
                requires_grad,
                quant_state=quant_state,
                blocksize=blocksize or 64,
                compress_statistics=compress_statistics,
                quant_type=quant_type,
                quant_storage=quant_storage,
                module=module,
                bnb_quantized=bnb_quantized,
            )

        @classmethod
        def from_prequantized(
            cls,
            data: torch.Tensor,
            quantized_stats: dict[str, Any],
            requires_grad: bool = False,
            device: Any = "cuda",
            module: Any = None,
            **_: Any,
        ) -> Any:
            state = functional.QuantState.from_dict(qs_dict=quantized_stats, device=device)
            parameter = cls(
                data.to(device),
                requires_grad,
                state,
                state.blocksize,
                state.nested,
                state.quant_type,
                data.dtype,
                module,
                True,
            )
            if module is not None:
                module.quant_state = state
            return parameter

        @staticmethod
        def to(weight: Any, device: torch.device | None, move: Callable[[], torch.Tensor]) -> Any:
            if device is None or device.type == "meta" or weight.bnb_quantized:
                if weight.quant_state is not None and device is not None:
                    weight.quant_state.to(device)
                return Params4bit(move(), weight.requires_grad, **_settings(weight))
            moved = weight.data.contiguous().to(device)
            weight.data, weight.quant_state = functional.quantize_4bit(
                moved,
                blocksize=weight.blocksize,
                compress_statistics=weight.compress_statistics,
                quant_type=weight.quant_type,
                quant_storage=weight.quant_storage,
            )
            if weight.module is not None:
                weight.module.quant_state = weight.quant_state
            weight.bnb_quantized = True
            return weight

    class Int8Params(metaclass=_Kind):
        def __new__(
            cls,
            data: torch.Tensor | None = None,
            requires_grad: bool = True,
            has_fp16_weights: bool = False,
            CB: torch.Tensor | None = None,
            SCB: torch.Tensor | None = None,
            **_: Any,
        ) -> Any:
            return _parameter(cls, data, requires_grad, has_fp16_weights=has_fp16_weights, CB=CB, SCB=SCB)

        @staticmethod
        def to(weight: Any, device: torch.device | None, move: Callable[[], torch.Tensor]) -> Any:
            is_quantised = weight.data.dtype == torch.int8
            if (
                not is_quantised
                and device is not None
                and device.type != "meta"
                and weight.device.type == "cpu"
            ):
                if weight.has_fp16_weights:
                    return nn.Parameter(move(), weight.requires_grad)
                moved = weight.data.contiguous().to(device=device, dtype=torch.float16)
                weight.CB, weight.SCB, _ = functional.int8_vectorwise_quant(moved)
                weight.data = weight.CB
                return weight
            parameter = Int8Params(move(), weight.requires_grad, weight.has_fp16_weights)
            if is_quantised:
                parameter.CB = parameter.data
                if device is not None and weight.SCB is not None and weight.SCB.device.type != "meta":
                    parameter.SCB = weight.SCB.to(device)
            return parameter

    functional = module.bnb.functional
    module.Params4bit, module.Int8Params = Params4bit, Int8Params


def _settings(parameter: Any) -> dict[str, Any]:
    names = (
        "quant_state",
        "blocksize",
        "compress_statistics",
        "quant_type",
        "quant_storage",
        "bnb_quantized",
    )
    return {name: getattr(parameter, name) for name in names}
