"""torch's older API of typed tensors on the simulated device.

`torch.cuda.FloatTensor(...)`, `tensor.type(...)`, `tensor.type_as(...)`, `tensor.new(...)` and
`torch.set_default_tensor_type` decide in C code where a tensor lives, below what `Observer` sees.
"""

from __future__ import annotations

from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.fake.devices import CUDA
from pinchpoint.backends.torch.observer import Observer

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_CPU = torch.device("cpu")


def install(patches: Patches, observer: Observer) -> None:
    for name, dtype in _DTYPES.items():
        patches.set(torch.cuda, name, _typed(name, dtype))
    _methods(patches, observer)
    _defaults(patches)


class _CudaType(type):
    """The class of `torch.cuda.FloatTensor`: calling it creates a tensor, and isinstance checks one."""

    dtype: torch.dtype
    is_cuda = True
    is_sparse = False
    layout = torch.strided

    def __call__(cls, *args: Any, **_: Any) -> torch.Tensor:
        return _construct(args, dtype=cls.dtype, device=CUDA)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.dtype


def _typed(name: str, dtype: torch.dtype) -> type:
    return _CudaType(name, (), {"__module__": "torch.cuda", "dtype": dtype})


def _construct(args: tuple[Any, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Like the constructors of typed tensors: integers are sizes, anything else is data."""
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return torch.tensor(args[0], dtype=dtype, device=device)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else (args or (0,))
    return torch.empty(tuple(sizes), dtype=dtype, device=device)


def _parse(kind: Any) -> tuple[torch.device, torch.dtype] | None:
    """Device and dtype of a typed tensor, given as its name or class."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    owner, _, short = name.rpartition(".")
    if owner not in ("torch", "torch.cuda") or short not in (*_DTYPES, "Tensor"):
        return None
    dtype = _DTYPES.get(short, torch.get_default_dtype())
    return CUDA if owner == "torch.cuda" else _CPU, dtype


def _methods(patches: Patches, observer: Observer) -> None:
    original_type: Any = torch.Tensor.type
    original_as: Any = torch.Tensor.type_as
    original_new: Any = torch.Tensor.new

    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        if dtype is None:
            name = _NAMES.get(self.dtype)
            return f"torch.cuda.{name}" if name and observer.on_device(self) else original_type(self)
        if isinstance(dtype, torch.dtype):
            return self.to(dtype)
        place = _parse(dtype)
        return original_type(self, dtype) if place is None else self.to(*place)

    def type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if observer.on_device(self) or observer.on_device(other):
            return self.to(other.device, other.dtype)
        return original_as(self, other)

    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if observer.on_device(self) and not kwargs:
            return _construct(args, dtype=self.dtype, device=CUDA)
        return original_new(self, *args, **kwargs)

    patches.set(torch.Tensor, "type", type_)
    patches.set(torch.Tensor, "type_as", type_as)
    patches.set(torch.Tensor, "new", new)


def _defaults(patches: Patches) -> None:
    """`torch.set_default_tensor_type` of a CUDA type: a default device that `torch.Tensor(...)` obeys too."""
    original_set: Any = torch.set_default_tensor_type
    new: Any = torch.Tensor.__new__
    on_cuda = False

    def construct(cls: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        if on_cuda and cls is torch.Tensor and not kwargs:
            return _construct(args, dtype=torch.get_default_dtype(), device=CUDA)
        return new(cls, *args, **kwargs)

    def set_type(kind: Any) -> None:
        nonlocal on_cuda
        device, dtype = _parse(kind) or (None, None)
        if device is None or dtype is None:
            original_set(kind)
            return
        torch.set_default_dtype(dtype)
        if device.type == "cuda":
            if not on_cuda:
                patches.set(torch.Tensor, "__new__", construct)
            torch.set_default_device(CUDA)
        elif on_cuda:
            torch.set_default_device(None)
        on_cuda = device.type == "cuda"

    patches.set(torch, "set_default_tensor_type", set_type)
