"""Parameters without a shape, as of `nn.LazyLinear`, on the simulated device.

Until their module is called they stay empty on the host, and only the place that they were moved to is
remembered, where they are built once their shape is known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.compat import default_device
from pinchpoint.backends.torch.fake.devices import CUDA, place_of

_LAZY = (UninitializedParameter, UninitializedBuffer)
_PLACE = "pinchpoint_place"  # attribute of such a parameter


def install(patches: Patches) -> None:
    original_to, original_cuda, original_cpu = torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, _LAZY):
            return original_to(self, *args, **kwargs)
        dtypes = [value for value in (*args, kwargs.get("dtype")) if isinstance(value, torch.dtype)]
        devices = (*args[:1], kwargs.get("device"))
        place = next(
            (place_of(value) for value in devices if isinstance(value, (str, int, torch.device))), None
        )
        if dtypes:
            self.data = self.data.to(dtypes[0])
        return _moved(self, place or getattr(self, _PLACE, None))

    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_lazy = isinstance(self, _LAZY)
        return _moved(self, "device") if is_lazy else original_cuda(self, *args, **kwargs)

    def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_lazy = isinstance(self, _LAZY)
        return _moved(self, "host") if is_lazy else original_cpu(self, *args, **kwargs)

    def materialize(self: Any, shape: Any, device: Any = None, dtype: torch.dtype | None = None) -> None:
        place = getattr(self, _PLACE, None) if device is None else place_of(device)
        dtype = dtype or self.data.dtype
        # The class first: what becomes a fake tensor below cannot change it any more.
        self.__class__ = self.cls_to_become
        self.data = torch.empty(shape, device=CUDA if place == "device" else "cpu", dtype=dtype)

    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", cpu)
    for owner in _LAZY:
        patches.set(owner, "materialize", materialize)
        _build_on_the_host(patches, owner)


def _build_on_the_host(patches: Patches, owner: Any) -> None:
    original = owner.__new__

    def new(cls: Any, requires_grad: Any = owner is UninitializedParameter, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None)
        place = place_of(default_device() if device is None else device)
        return _moved(original(cls, requires_grad, device="cpu", **kwargs), place)

    patches.set(owner, "__new__", staticmethod(new))


def _moved(tensor: Any, place: str | None) -> Any:
    setattr(tensor, _PLACE, place)
    return tensor
