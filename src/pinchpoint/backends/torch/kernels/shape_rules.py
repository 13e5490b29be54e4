"""`RULES`: shape rules for operations whose own rule in torch is missing or wrong, by operation.

A rule takes the operation's arguments as fake tensors and returns its results. Products with an
`out_dtype` only run on a GPU: torch's rules read that type as the factor `beta`, or refuse the host.
Some kernels return contiguous tensors on a GPU (seen on an H200 with torch 2.11), where those of the host
keep the channels-last layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def _product(*args: Any, out: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
    """The product of the last two matrices, in the type that follows them. Other options do not matter."""
    left, right, dtype = args[-3:]
    shape = torch.matmul(left, right).shape  # raises torch's own error if the shapes do not match
    if out is None:
        return left.new_empty(shape, dtype=dtype)
    return out if out.shape == shape else out.resize_(shape)


def _returns_contiguous(op: Any) -> Callable[..., Any]:
    def rule(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = op(*args, **kwargs)
        return out if out.is_contiguous() else out.new_empty(out.shape)

    return rule


def _channels(tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """So many numbers per channel, in the type in which CUDA adds up."""
    dtype = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    return tuple(tensor.new_empty(tensor.shape[1], dtype=dtype) for _ in range(count))


def _backward_reduce(
    gradient: torch.Tensor, source: torch.Tensor, mean: Any, invstd: Any, weight: Any, *wanted: bool
) -> tuple[torch.Tensor | None, ...]:
    """Two sums, and the gradients of weight and bias; None for those that are not `wanted`."""
    for_input, for_weight, for_bias = wanted
    sums = _channels(source, 2) if for_input else (None, None)
    like = mean if weight is None else weight
    return (*sums, *(torch.empty_like(like) if one else None for one in (for_weight, for_bias)))


# The parts of SyncBatchNorm, which have kernels for CUDA only.
_SYNC_BATCH_NORM: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": lambda source, eps: _channels(source, 2),
    "batch_norm_gather_stats_with_counts": lambda source, *_: _channels(source, 2),
    "batch_norm_elemt": lambda source, *_: torch.empty_like(source),
    "batch_norm_backward_reduce": _backward_reduce,
    "batch_norm_backward_elemt": lambda gradient, source, *_: torch.empty_like(source),
}

_CONTIGUOUS = (
    *(f"{kind}_pad{dims}d" for kind in ("reflection", "replication") for dims in (1, 2, 3)),
    "pixel_shuffle",
    "pixel_unshuffle",
    "glu_backward",
    "mse_loss_backward",
    "huber_loss_backward",
)

RULES: dict[Any, Callable[..., Any]] = (
    {
        getattr(getattr(_aten, name), overload): _product
        for name in _PRODUCTS
        for overload in getattr(_aten, name).overloads()
        if overload in ("dtype", "dtype_out")
    }
    | {op: _returns_contiguous(op) for op in (getattr(_aten, name).default for name in _CONTIGUOUS)}
    | {getattr(_aten, name).default: rule for name, rule in _SYNC_BATCH_NORM.items()}
)
