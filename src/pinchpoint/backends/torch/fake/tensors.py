"""Fake tensors that report the device `cuda`: devices, copies both ways, and reading values back.

This module replaces the tensor methods and constructors that decide where a tensor lives. The other
factories of torch reach `Observer` with their device argument and need no patch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.compat import (
    FakeTensor,
    become,
    default_device,
    fake_device,
    has_dispatch,
    hide_fake_tensors,
    in_kernel,
    remember_factories,
    storage_key,
)
from pinchpoint.backends.torch.data_dependent.nonzero_counts import is_whole
from pinchpoint.backends.torch.fake.devices import CUDA, at_user_line, cuda_device, place_of
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import CannotFake
from pinchpoint.core.files import shown_path

_CPU = torch.device("cpu")
_META = torch.device("meta")
_LIKE = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
_FACTORIES = (
    *_LIKE,
    *(f"{name}_like" for name in _LIKE),
    "arange",
    "eye",
    "linspace",
    "logspace",
    "randperm",
)


def install(patches: Patches, observer: Observer) -> None:
    hide_fake_tensors(patches.set, lambda: not observer.inside)
    _devices(patches, observer)
    _copies(patches, observer)
    _data(patches, observer)
    _constructors(patches, observer)
    _device_numbers(patches)
    _reads(patches, observer)
    _storages(patches, observer)


def _is_composed(tensor: torch.Tensor) -> bool:
    """Whether a tensor consists of others, as a DTensor and the quantised tensors of torchao."""
    return type(tensor) is not FakeTensor and has_dispatch(type(tensor))


def _devices(patches: Patches, observer: Observer) -> None:
    def device(self: FakeTensor) -> torch.device:
        if in_kernel(self):
            return _META
        if observer.inside:
            return fake_device(self)
        return cuda_device() if observer.on_device(self) else fake_device(self)

    patches.set(FakeTensor, "device", property(device))
    patches.set(FakeTensor, "is_cuda", property(lambda self: observer.on_device(self)))
    patches.set(FakeTensor, "is_cpu", property(lambda self: device(self).type == "cpu"))
    patches.set(
        FakeTensor, "get_device", lambda self: cuda_device().index if observer.on_device(self) else -1
    )


def _copies(patches: Patches, observer: Observer) -> None:
    original_to: Callable[..., Any] = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype, rest = parse_to(args, kwargs)
        place = place_of(device)
        if _is_composed(self):  # its class moves its parts
            options = {} if device is None else {"device": cuda_device() if place == "device" else device}
            return original_to(self, **options, dtype=dtype or self.dtype, **rest)
        if type(self) is not FakeTensor and place != "device":
            return original_to(self, *args, **kwargs)
        if str(device) == "meta":
            return torch.empty_like(self, dtype=dtype or self.dtype, device=_META)
        now = "device" if observer.on_device(self) else "host"
        if place is None or place == now:
            return original_to(self, dtype=dtype or self.dtype, **rest)
        if self.is_meta:  # torch's own message
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        copy = observer.copy_to(self, place, dtype)
        if "memory_format" in rest:
            copy = original_to(copy, memory_format=rest["memory_format"])
        return copy

    def cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:
        return to(self, CUDA if device is None else device, non_blocking=non_blocking)

    def cpu(self: torch.Tensor, **_: Any) -> torch.Tensor:
        return to(self, _CPU) if type(self) is FakeTensor or _is_composed(self) else self

    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", cpu)
    # Pinned memory is host memory and uses no device memory.
    patches.set(torch.Tensor, "pin_memory", lambda self, *_, **__: self)
    patches.set(torch.Tensor, "is_pinned", lambda self, *_, **__: False)
    patches.set(
        torch.Tensor,
        "record_stream",
        lambda self, stream: observer.ledger.record_stream(self, getattr(stream, "stream_id", 0)),
    )


def _data(patches: Patches, observer: Observer) -> None:
    """`tensor.data = value`: the tensor keeps its identity and gets the value's storage, place and dtype.

    Modules move their parameters this way, so optimizers and lists made before the move stay valid.
    """
    original: Any = torch.Tensor.data

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        is_fake = type(self) is FakeTensor
        if _is_composed(self):  # its parts have data
            original.__set__(self, value)
            return
        if not is_fake and type(value) is not FakeTensor:
            original.__set__(self, value)
            return
        value = observer.as_fake(value)
        if is_fake:
            original.__set__(self, value)
            observer.shadows.share(self, value)
        elif self.grad_fn is not None:
            raise CannotFake(
                f"The data of a tensor that autograd computed on the host is replaced by a tensor on the GPU"
                f"{at_user_line()}, which pinchpoint does not support yet.",
                hint="Move the tensor before it is used in a computation.",
            )
        else:
            with torch.no_grad():
                content = value.detach()
            if isinstance(self, torch.nn.Parameter):
                content = torch.nn.Parameter(content, self.requires_grad)
            else:
                content.requires_grad_(self.requires_grad)
            if self.grad is not None:
                content.grad = observer.as_fake(self.grad)
            become(self, content)
        if isinstance(self, torch.nn.Parameter):
            observer.ledger.set_role(self, "weights")

    patches.set(torch.Tensor, "data", property(original.__get__, set_data))


def parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, torch.dtype | None, dict[str, Any]]:
    """Device, dtype and the other options of any overload of `Tensor.to`."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    rest = {key: kwargs[key] for key in ("copy", "memory_format") if key in kwargs}
    positional = list(args)
    if positional and (
        isinstance(positional[0], torch.Tensor) or isinstance(kwargs.get("other"), torch.Tensor)
    ):
        other = positional[0] if positional else kwargs["other"]
        return other.device, other.dtype, rest
    for value in positional:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, torch.device)) or (
            isinstance(value, int) and not isinstance(value, bool)
        ):
            device = value
    flags = [value for value in positional if isinstance(value, bool)]
    if len(flags) > 1:
        rest["copy"] = flags[1]
    return device, dtype, rest


def _constructors(patches: Patches, observer: Observer) -> None:
    """torch.tensor and similar functions build on the host first, below any mode; then they copy."""

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def construct(*args: Any, **kwargs: Any) -> torch.Tensor:
            device = kwargs.pop("device", None)
            if device is None:
                data = args[0] if args else kwargs.get("data")
                device = data.device if isinstance(data, torch.Tensor) else default_device()
            requires_grad = kwargs.pop("requires_grad", False)
            if _has_fake(args):
                tensor = (
                    torch.stack([torch.as_tensor(v) for v in args[0]])
                    if not isinstance(args[0], torch.Tensor)
                    else args[0]
                )
                tensor = tensor.to(device, dtype=kwargs.get("dtype"))
                tensor = tensor.detach().clone() if name == "tensor" and tensor is args[0] else tensor
            else:
                tensor = (
                    original(*args, **kwargs, device="cpu")
                    if place_of(device) == "device"
                    else original(*args, **kwargs, device=device)
                )
                if place_of(device) == "device":
                    tensor = observer.copy_to(tensor, "device")
            return tensor.requires_grad_() if requires_grad else tensor

        patches.set(owner, name, construct)

    patches.set(
        torch, "get_default_device", lambda: CUDA if default_device().type == "cuda" else default_device()
    )
    for name in ("tensor", "as_tensor", "asarray"):
        wrap(torch, name)

    def new_tensor(self: torch.Tensor, data: Any, **kwargs: Any) -> torch.Tensor:
        """Create a tensor from `data` with the dtype and device of `self`."""
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    patches.set(torch.Tensor, "new_tensor", new_tensor)


def _has_fake(args: tuple[Any, ...]) -> bool:
    data = args[0] if args else None
    return type(data) is FakeTensor or (
        isinstance(data, (list, tuple)) and any(type(v) is FakeTensor for v in data)
    )


def _device_numbers(patches: Patches) -> None:
    """`device=0` in factories: torch cannot parse the number of a device without an accelerator."""
    if torch.version.cuda:
        return
    remember_factories()

    def wrap(name: str) -> None:
        original = getattr(torch, name)

        @functools.wraps(original)
        def factory(*args: Any, **kwargs: Any) -> torch.Tensor:
            if type(kwargs.get("device")) is int:
                kwargs["device"] = torch.device("cuda", kwargs["device"])
            return original(*args, **kwargs)

        patches.set(torch, name, factory)

    for name in _FACTORIES:
        wrap(name)


def _reads(patches: Patches, observer: Observer) -> None:
    """Values of fake tensors: the shadow if there is one, otherwise what `Dynamic` assumes."""
    dynamic = observer.dynamic

    def line() -> str:
        site = observer.ledger.site()
        return f"{site.file}:{site.line}"

    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        if type(self) is not FakeTensor:
            return original_numpy(self, *args, **kwargs)
        real = observer.shadow(self)
        where, dtype = line(), original_numpy(torch.empty(0, dtype=self.dtype)).dtype
        array = dynamic.array(self, None if real is None else original_numpy(real.detach()), dtype, where)
        if array is not None:
            return array
        observer.note(f"values read at {shown_path(where)} depend on weights and are assumed to be zeros")
        return dynamic.floats(tuple(self.shape), dtype, where)

    original_numpy: Callable[..., Any] = torch.Tensor.numpy
    original_item: Callable[..., Any] = torch.Tensor.item

    def item(self: FakeTensor) -> Any:
        if observer.inside:
            return original_item(self)
        real = observer.shadow(self)
        if real is None and self.numel() == 1 and not dynamic.calibrating and not is_whole(self):
            return dynamic.number(self, None, lambda: observer.read_unknown(self), line)
        return dynamic.number(self, real, lambda: original_item(self), line)

    def tolist(self: FakeTensor) -> Any:
        return self.item() if self.dim() == 0 else numpy(self).tolist()

    patches.set(FakeTensor, "item", item)
    # Go through item(): a count that is only logged as a float or compared with zero need not be known.
    patches.set(FakeTensor, "__int__", lambda self: int(item(self)))
    patches.set(FakeTensor, "__float__", lambda self: float(item(self)))
    patches.set(FakeTensor, "__bool__", lambda self: bool(item(self)))
    patches.set(torch.Tensor, "numpy", numpy)
    patches.set(
        FakeTensor,
        "__array__",
        lambda self, dtype=None, copy=None: numpy(self).astype(dtype) if dtype else numpy(self),
    )
    patches.set(FakeTensor, "tolist", tolist)
    patches.set(FakeTensor, "__format__", _format)
    patches.set(FakeTensor, "__copy__", _copy)
    patches.set(FakeTensor, "__deepcopy__", lambda self, memo: _deepcopy(self, memo, observer))
    patches.set(
        FakeTensor,
        "__repr__",
        lambda self, **_: (
            f"tensor(..., device='{self.device}', size={tuple(self.shape)}, dtype={self.dtype})"
        ),
    )
    patches.set(FakeTensor, "data_ptr", lambda self: id(self.untyped_storage()))


def _storages(patches: Patches, observer: Observer) -> None:
    """Storages that are resized directly, as sharded training frees and restores its weights."""
    original: Callable[..., Any] = torch.UntypedStorage.resize_

    def resize(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        result = original(self, size)
        if observer.ledger.holds_storage(self):
            observer.resized(self)
        return result

    patches.set(torch.UntypedStorage, "resize_", resize)
    original_pointer: Callable[..., Any] = torch.UntypedStorage.data_ptr

    def data_ptr(self: torch.UntypedStorage) -> int:
        """Zero for an emptied storage, by which sharded training knows it."""
        if observer.ledger.holds_storage(self):
            return storage_key(self) if self.nbytes() else 0
        return original_pointer(self)

    patches.set(torch.UntypedStorage, "data_ptr", data_ptr)


def _format(self: FakeTensor, spec: str) -> str:
    return self.detach().item().__format__(spec) if self.dim() == 0 else str(self)


def _copy(self: FakeTensor) -> torch.Tensor:
    """A tensor with the same storage and no gradient, as torch makes it."""
    if isinstance(self, torch.nn.Parameter):
        return torch.nn.Parameter(self.detach(), self.requires_grad)
    return self.detach().requires_grad_(self.requires_grad)


def _deepcopy(self: FakeTensor, memo: dict[int, Any], observer: Observer) -> Any:
    """As torch does it: the copy of a parameter has no gradient, that of another tensor has a copy of it."""
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad(), observer.ledger.enter_phase("data"):
        result: Any = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        result = torch.nn.Parameter(result, self.requires_grad)
        observer.ledger.set_role(result, "weights")  # a copied model, such as an average, may never be called
    else:
        result.requires_grad_(self.requires_grad)
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
    memo[id(self)] = result
    return result
