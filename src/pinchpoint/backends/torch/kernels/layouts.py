"""Copies that kernels make of tensors in layouts that they cannot read or write, and `COPIES` by operation.

Read from torch's CUDA kernels (aten/src/ATen/native/cuda of torch 2.11) and compared with 68 operations in
three layouts on an H200. A kernel that is not listed reads any layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.torch.kernels.library_buffers import Model, Sizes, bytes_of

Family = Callable[[Model, Any, Any, Any, Any], Sizes]


def has_channels_last(tensor: torch.Tensor) -> bool:
    """Whether torch takes the strides for those of the channels-last layout, which wins where both fit."""
    if tensor.dim() not in (4, 5):
        return False
    shape, strides = tensor.shape, tensor.stride()
    reach = 0
    for dim in (1, *reversed(range(2, tensor.dim())), 0):
        if not strides[1] or not shape[dim] or strides[dim] < reach or (dim == 0 and reach == strides[1]):
            return False
        reach = strides[dim] * max(shape[dim], 1)
    return True


def is_dense(tensor: torch.Tensor, channels_last: bool) -> bool:
    """Whether a tensor is stored without gaps, in the channels-last or in the standard layout."""
    if not channels_last:
        return tensor.is_contiguous()
    layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.is_contiguous(memory_format=layout)


def copies(*tensors: torch.Tensor, channels_last: bool = False) -> list[int]:
    """Bytes of copies in a layout, of the tensors that have another one, or gaps."""
    return [bytes_of(tensor) for tensor in tensors if not is_dense(tensor, channels_last)]


def reading_contiguous(*numbers: int, family: Family | None = None) -> Family:
    """A kernel that reads contiguous copies of these arguments. family: what else it allocates."""

    def sizes(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
        others = [] if family is None else family(model, func, args, kwargs, out)
        return [*copies(*(args[number] for number in numbers)), *others]

    return sizes


def _computing_contiguous(*numbers: int) -> Family:
    """A kernel that also writes contiguous tensors, which are copied to results in another layout."""

    def sizes(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
        results = out if isinstance(out, (tuple, list)) else (out,)
        return copies(*results, *(args[number] for number in numbers))

    return sizes


def _reading_like(leader: int, *numbers: int) -> Family:
    """A kernel that reads these arguments in the layout of one of its arguments, the leader."""

    def sizes(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
        channels_last = has_channels_last(args[leader])
        return copies(*(args[number] for number in numbers), channels_last=channels_last)

    return sizes


def _averaging(leader: int) -> Family:
    """Adaptive averages read any strides of the channels-last layout, and otherwise a contiguous copy."""

    def sizes(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
        return [] if has_channels_last(args[leader]) else copies(args[0])

    return sizes


def _resizing(least_channels: int) -> Family:
    """A kernel for channels-last images with enough channels; others are computed contiguously."""

    def sizes(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
        source = args[0]
        if source.shape == out.shape:
            return []
        if has_channels_last(source) and source.shape[1] >= least_channels and is_dense(out, True):
            return copies(source, channels_last=True)
        return copies(out, source)

    return sizes


def _resizing_bilinear(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Images of few channels are read and written with any strides."""
    source = args[0]
    is_copied = has_channels_last(source) and source.shape[1] >= 16 and is_dense(out, True)
    return copies(source, channels_last=True) if is_copied and source.shape != out.shape else []


def _distances(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Both arguments of exact distances are copied if they are repeated along the batch, or have gaps."""
    batch = out.shape[:-2]
    return [
        tensor.element_size() * batch.numel() * tensor.shape[-2:].numel()
        for tensor in args[:2]
        if not tensor.is_contiguous() or tensor.shape[:-2].numel() != batch.numel()
    ]


def batch_norm_layout(
    source: torch.Tensor, *parameters: torch.Tensor | None, training: bool
) -> torch.memory_format | None:
    """The layout that cuDNN's batch norm copies its input to if it has another; None: torch's kernel runs.

    parameters: weight, bias, running mean and running variance
    """
    weight, bias, mean, _ = parameters
    if weight is None or bias is None or (mean is None and not training) or not torch.backends.cudnn.enabled:
        return None
    is_half = source.dtype is torch.float16 and weight.dtype is not torch.float32
    if is_half or torch.bfloat16 in (source.dtype, weight.dtype) or source.dim() < 3:
        return None
    if source.shape[0] > (880_801 if training else 65_535) or source.numel() >= 2**31 - 1:
        return None
    if not has_channels_last(source):
        return torch.contiguous_format
    return torch.channels_last if source.dim() == 4 else torch.channels_last_3d


def _batch_norm_backward(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """cuDNN reads the gradient in the layout of the input."""
    gradient, source, weight = args[:3]
    if batch_norm_layout(source, weight, weight, args[3], args[4], training=args[7]) is None:
        return []
    return copies(gradient, channels_last=has_channels_last(source))


COPIES: dict[str, Family] = {
    **dict.fromkeys(("_softmax", "_log_softmax", "roll", "kthvalue"), reading_contiguous(0)),
    "_log_softmax_backward_data": reading_contiguous(0, 1),
    "nll_loss_forward": reading_contiguous(0, 1),
    "nll_loss2d_forward": reading_contiguous(0, 1),
    "native_layer_norm": reading_contiguous(0),
    **{
        f"reflection_pad{dims}d{way}": reading_contiguous(0)
        for dims in (1, 2, 3)
        for way in ("", "_backward")
    },
    "_cdist_forward": _distances,
    "native_batch_norm_backward": _batch_norm_backward,
    # Pooling.
    "max_pool2d_with_indices": _reading_like(0, 0),
    "max_pool2d_with_indices_backward": _reading_like(1, 1, 0, 7),
    "max_pool3d_with_indices": _reading_like(0, 0),
    "max_pool3d_with_indices_backward": _reading_like(1, 0, 7),
    "avg_pool2d": _reading_like(0, 0),
    "avg_pool2d_backward": _reading_like(1, 1, 0),
    "avg_pool3d": reading_contiguous(0),
    "avg_pool3d_backward": reading_contiguous(0),
    "_adaptive_avg_pool2d": _averaging(0),
    "_adaptive_avg_pool2d_backward": _averaging(1),
    "_adaptive_avg_pool3d_backward": reading_contiguous(0),
    "adaptive_max_pool2d": _computing_contiguous(0),
    "adaptive_max_pool2d_backward": _computing_contiguous(0, 2),
    "adaptive_max_pool3d_backward": reading_contiguous(0),
    # Resizing.
    **{
        f"{name}{dims}d{way}": family
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for dims, way, family in (
            (1, "", reading_contiguous(0)),
            (1, "_backward", reading_contiguous(0)),
            (2, "", _resizing(4)),
            (2, "_backward", _resizing(4)),
            (3, "", _computing_contiguous(0)),
            (3, "_backward", reading_contiguous(0)),
        )
    },
    "upsample_linear1d_backward": reading_contiguous(0),
    "upsample_bilinear2d": _resizing_bilinear,
    "upsample_bilinear2d_backward": _resizing(4),
    "upsample_bicubic2d_backward": reading_contiguous(0),
    "upsample_trilinear3d_backward": _computing_contiguous(0),
    **{
        f"_upsample_{kind}2d_aa{way}": family
        for kind in ("bilinear", "bicubic")
        for way, family in (("", _computing_contiguous(0)), ("_backward", reading_contiguous(0)))
    },
}
