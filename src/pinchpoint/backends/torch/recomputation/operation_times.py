"""`Clock`: adds up how long the operations of a fake run would take on a card, from their FLOPs and bytes.

An operation takes the longer of two times: that of its arithmetic and that of moving its inputs and outputs.
The shares of a card's best speed that kernels reach are guesses in the middle of what is commonly seen. They
serve to compare operations with each other; a whole step may take half or twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from pinchpoint.backends.torch import compat

_LAUNCH_S = 4e-6  # least time of a kernel
_BANDWIDTH_SHARE = 0.75
# Share of the best speed that products, convolutions and attention reach.
_PRODUCT_SHARE, _CONVOLUTION_SHARE, _ATTENTION_SHARE = 0.6, 0.2, 0.35
_aten = torch.ops.aten
# Operations whose results a policy keeps while the others are recomputed: most of the arithmetic of a model.
PRODUCTS = (
    _aten.mm.default,
    _aten.addmm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
)
_HALF = (torch.float16, torch.bfloat16)
_FORMULAS: dict[str, Callable[..., Any]] = {
    str(operator).replace(".", "::"): formula for operator, formula in flop_registry.items()
}


@dataclass(frozen=True)
class Speed:
    """The best of a card: operations per second on 16-bit and on 32-bit numbers, and bytes per second."""

    half_flops: float
    single_flops: float
    bytes_per_s: float


class Moment(NamedTuple):
    """What has run so far: estimated seconds, those without products, and the number of operations."""

    all_s: float
    other_s: float
    operations: int


START = Moment(0.0, 0.0, 0)


class Clock:
    """`now`: what has run on the device so far."""

    def __init__(self, speed: Speed, events: list[int]) -> None:
        self._speed, self._events = speed, events
        self.now = START
        self._ticks: list[tuple[int, Moment]] = [(0, START)]  # number of events after each operation

    def count(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Add an operation that ran on the device."""
        time_s = seconds(func, args, kwargs, out, self._speed)
        other_s = 0.0 if func in PRODUCTS else time_s
        self.now = Moment(self.now.all_s + time_s, self.now.other_s + other_s, self.now.operations + 1)
        self._ticks.append((len(self._events), self.now))

    def at(self, event: int) -> Moment:
        """What had run when so many events had happened."""
        return max(moment for number, moment in self._ticks if number <= event)


def seconds(func: Any, args: Any, kwargs: dict[str, Any], out: Any, speed: Speed) -> float:
    """The estimated time of one operation; 0 for one that only makes a view."""
    inputs, outputs = _tensors((*args, *kwargs.values())), _tensors((out,))
    storages = {compat.storage_key(t.untyped_storage()) for t in inputs}
    is_view = all(compat.storage_key(t.untyped_storage()) in storages for t in outputs)
    if is_view and not compat.is_mutable(func):
        return 0.0
    moved = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
    arithmetic_s = 0.0
    name = func.name().split(".")[0]
    if name in _FORMULAS and inputs:
        flops, share = _flops(name, args, kwargs, out), _share(name)
        arithmetic_s = flops / (share * _flops_per_s(name, inputs[0].dtype, speed))
    return max(_LAUNCH_S, arithmetic_s, moved / (_BANDWIDTH_SHARE * speed.bytes_per_s))


def _flops(name: str, args: Any, kwargs: dict[str, Any], out: Any) -> float:
    try:
        flops = _FORMULAS[name](*args, **kwargs, out_val=out)
    except (AssertionError, TypeError, ValueError):
        return 0.0  # a shape that torch's formula does not know; the bytes still count
    causal = 4 if "flash_attention" in name else 6  # position of `is_causal`
    is_causal = "dot_product" in name and len(args) > causal and args[causal] is True
    return flops / 2 if is_causal else flops


def _share(name: str) -> float:
    if "attention" in name:
        return _ATTENTION_SHARE
    return _CONVOLUTION_SHARE if "conv" in name else _PRODUCT_SHARE


def _flops_per_s(name: str, dtype: torch.dtype, speed: Speed) -> float:
    if dtype in _HALF:
        return speed.half_flops
    is_allowed = compat.convolutions_use_tf32() if "conv" in name else compat.products_use_tf32()
    return speed.half_flops / 2 if is_allowed and dtype is torch.float32 else speed.single_flops


def _tensors(values: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [item for item in value if isinstance(item, torch.Tensor)]
    return tensors
