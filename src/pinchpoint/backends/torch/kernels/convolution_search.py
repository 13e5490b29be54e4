"""The calls of cuDNN that a convolution makes, and the memory of `torch.backends.cudnn.benchmark`'s searches.

A `Search` describes a call as torch remembers it, and `described` as the library is asked about it.
"""

from __future__ import annotations

import math
import platform
from typing import Any, NamedTuple

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.kernels import cudnn_library
from pinchpoint.backends.torch.kernels.cudnn_library import Convolution, CudnnLibrary
from pinchpoint.backends.torch.kernels.layouts import has_channels_last
from pinchpoint.core.units import MIB

_LONGEST_TRANSFORM = 256


class Search(NamedTuple):
    """One search: all that torch remembers its result by.

    way: forward, data or weight, which is the output or one of the gradients of an ordinary convolution from
    `source` to `result`; a transposed one is described by the ordinary one that it reverses.
    """

    way: str
    source: tuple[int, ...]
    result: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    channels_last: bool


def described(search: Search) -> Convolution:
    """The call as cuDNN sees it: with two dimensions at least, and without kernels that torch forbids."""
    cudnn, is_single = torch.backends.cudnn, search.dtype is torch.float32
    forbidden = {
        cudnn_library.ROUNDS_INPUTS: is_single,
        cudnn_library.TENSOR_CORE: is_single and not compat.convolutions_use_tf32(),
        cudnn_library.NONDETERMINISTIC: cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
    }
    source, result, weight = search.source, search.result, search.weight
    stride, padding, dilation = search.stride, search.padding, search.dilation
    if len(source) == 3:
        source, result, weight = ((*shape[:2], 1, shape[2]) for shape in (source, result, weight))
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    return Convolution(
        way=search.way,
        x=source,
        y=result,
        w=weight,
        stride=stride,
        padding=padding,
        dilation=dilation,
        dtype=str(search.dtype).removeprefix("torch."),
        channels_last=search.channels_last,
        excluded=frozenset(note for note, is_forbidden in forbidden.items() if is_forbidden),
    )


def forward_searches(args: Any, out: torch.Tensor) -> list[Search]:
    """The search for a forward pass. args: those of aten::convolution."""
    how = (tuple(args[3]), tuple(args[4]), tuple(args[5]), args[8])
    if args[6]:  # a transposed convolution is the input gradient of an ordinary one
        return _searches(["data"], out, args[0], args[1], how)
    return _searches(["forward"], args[0], out, args[1], how)


def backward_searches(args: Any) -> list[Search]:
    """The searches for the gradients that are wanted. args: those of aten::convolution_backward."""
    gradient, source, weight, needs_gradient = args[0], args[1], args[2], args[10]
    how = (tuple(args[4]), tuple(args[5]), tuple(args[6]), args[9])
    ways = [way for way, need in zip(("data", "weight"), needs_gradient, strict=False) if need]
    if args[7]:
        ways = ["forward" if way == "data" else way for way in ways]
        return _searches(ways, gradient, source, weight, how)
    return _searches(ways, source, gradient, weight, how)


def _searches(
    ways: list[str], source: torch.Tensor, result: torch.Tensor, weight: torch.Tensor, how: Any
) -> list[Search]:
    if source.numel() == 0 or result.numel() == 0:
        return []
    if how[3] > 1 and how[3] == source.shape[1] and not has_channels_last(source):
        return []  # torch has kernels of its own for depthwise convolutions
    source_shape, result_shape, weight_shape = (tuple(tensor.shape) for tensor in (source, result, weight))
    stride, padding, dilation, groups = how
    return [
        Search(
            way,
            source_shape,
            result_shape,
            weight_shape,
            stride,
            padding,
            dilation,
            groups,
            source.dtype,
            has_channels_last(source) or has_channels_last(weight),
        )
        for way in ways
    ]


def search_bytes(search: Search, library: CudnnLibrary | None = None) -> int:
    """About what cuDNN uses to try all its kernels on a card with enough memory.

    An installed library lists them; its builds for ARM lack some. Without it: most kernels need the tensors
    in another layout, and partial sums for the gradient of the weight. For fp32 and windows without gaps,
    Fourier transforms need most: one complex number per frequency for every pair of image and channel, and
    for every pair of channels. Fitted to the convolutions of eight networks on an H200, some of which are in
    conv_search_h200.json. cuDNN decides which kernels it tries.
    """
    if library is not None and platform.machine() == "x86_64":
        sizes = library.all_workspaces(described(search))
        if sizes is not None:
            return max(sizes)
    item_bytes = search.dtype.itemsize
    source_bytes, result_bytes = (padded_bytes(shape, item_bytes) for shape in (search.source, search.result))
    weight_bytes = 4 * math.prod(search.weight)
    copies = source_bytes + result_bytes
    if search.way == "weight":
        copies += max(5 * weight_bytes, 17 * MIB)
    else:
        copies += max(weight_bytes, copies // 4 if item_bytes < 4 else 0)
    is_transformed = item_bytes == 4 and len(search.source) == 4 and search.groups == 1
    if not is_transformed or max(search.dilation) > 1 or search.channels_last:
        return copies
    images, channels, results = search.source[0], search.source[1], search.result[1]
    inputs, outputs, weights = images * channels, images * results, channels * results
    window = max(search.weight[2:])
    if max(search.stride) > 1:
        # Windows without overlaps are not transformed, as in one measured call. In another, no transform was
        # tried either: the library lists fewer kernels for such calls, whatever their sides are (17, not 24,
        # for a window of 4, over 192 to 256 channels, and over 64 images), so it is assumed for all of them.
        is_short_list = window == 4 and 192 < channels <= 256 and images > 64
        if search.way != "data" or window <= max(search.stride) or is_short_list:
            return copies
        image_bytes = 4 * math.prod(search.source[2:])
        return max(copies, 8 * 64 * 33 * weights + max(27_600, 26_000 + 13 * image_bytes // 10) * inputs)
    side = max(search.source[2:]) + window - 1
    length = max(16, 1 << (side - 1).bit_length())
    if length > _LONGEST_TRANSFORM:
        more = result_bytes if search.way == "forward" else 5 * (source_bytes + result_bytes) // 4
        return copies + (more if window > 1 else 0)
    numbers = 16 * length * (length // 2 + 1)
    if search.way == "forward":
        return max(copies, numbers * max(inputs + weights, outputs))
    if search.way == "weight":
        return max(copies, numbers * max(inputs + outputs, weights) + result_bytes)
    tiles = 8 * 32 * 17 * (inputs + outputs + weights)
    return max(copies, tiles if length == 16 and window > 1 else 0)


def padded_bytes(shape: tuple[int, ...], item_bytes: int) -> int:
    """Bytes with the channels padded to a multiple that the matrix units need: 4 for fp32, 8 for half."""
    step = 16 // item_bytes
    return math.prod(shape) // shape[1] * (-(-shape[1] // step) * step) * item_bytes
