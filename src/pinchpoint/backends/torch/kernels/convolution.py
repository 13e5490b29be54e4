"""Workspaces of cuDNN's convolutions; the library chooses their size, so each is a Span.

cuDNN's kernels need the channels-last layout; tensors in another layout are copied in and out of a
workspace. cuDNN runs the kernel that it guesses to be the fastest. The usual sizes and the spans come from
benchmarks/results/conv_probe_h200.json: 1,000 convolutions of every kind on an H200. Earlier GPUs have
kernels for the backward pass that need no other layout. That is fitted to a few runs on an RTX 3060 and an
RTX 4060 (benchmarks/estimators), so the H200's sizes stay in the span there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from pinchpoint.core.events import Span
from pinchpoint.core.units import MIB

Round = list[int | Span]

_SEARCH_FACTOR = 2
_LONGEST_TRANSFORM = 256
_SPLIT_BYTES = 12 * MIB  # the most that partial sums of a small product took in that record


class _Call(NamedTuple):
    """One convolution: its input, its output (or the output's gradient), and the weight."""

    source: torch.Tensor
    result: torch.Tensor
    weight: torch.Tensor
    stride: int
    groups: int


def forward(args: Any, out: torch.Tensor) -> list[Round]:
    """Rounds of bytes that are allocated together. args: those of aten::convolution."""
    call = _Call(args[0], out, args[1], max(args[3]), args[8])
    return [[*_copies(call.source), span]] if (span := _data_span(call)) else []


def backward(args: Any, capability: tuple[int, int]) -> list[Round]:
    """One round for the gradient of the input, one for that of the weight.

    args: those of aten::convolution_backward; capability: that of the card
    """
    gradient, source, weight, needs_gradient = args[0], args[1], args[2], args[10]
    call = _Call(source, gradient, weight, max(args[4]), args[9])
    copies = [*_copies(gradient), *_copies(source)]
    spans = [
        _data_span(call) if needs_gradient[0] else None,
        _weight_span(call) if needs_gradient[1] else None,
    ]
    if capability < (9, 0):
        spans = [span and span._replace(usual=0, most=max(span.usual, span.most)) for span in spans]
    return [[*copies, span] for span in spans if span]


def search_bytes(args: Any, out: torch.Tensor | None) -> int:
    """About what cuDNN uses to try all its kernels on a card with enough memory.

    Its Fourier transforms need most: one complex number per frequency for every pair of image and channel,
    and for every pair of channels. They exist for fp32 and windows without gaps. The rest are factors over
    the tensors. Fitted to the convolutions of eight networks on an H200, some of which are in
    conv_search_h200.json: within 25 % for half of the calls, and for the largest of a network.
    args: those of aten::convolution with its result, or of aten::convolution_backward with None
    """
    backward = out is None
    if backward:
        gradient, source, weight = args[0], args[1], args[2]
        stride, dilation, transposed, groups = max(args[4]), max(args[6]), args[7], args[9]
    else:
        gradient, source, weight = out, args[0], args[1]
        stride, dilation, transposed, groups = max(args[3]), max(args[5]), args[6], args[8]
    both = _both(_Call(source, gradient, weight, stride, groups))
    if source.element_size() < 4 or source.dim() != 4 or groups > 1 or dilation > 1:
        return _SEARCH_FACTOR * both
    images, channels, results = source.shape[0], source.shape[1], gradient.shape[1]
    spread = bool(backward) != bool(transposed)  # the result is wider than what it is computed from
    side = max(*source.shape[2:], *gradient.shape[2:]) + max(weight.shape[2:]) - 1
    length = max(16, 1 << (side - 1).bit_length())
    if stride > 1:
        frequencies = 2 * 32 * 17 if spread and max(weight.shape[2:]) > 1 else 0  # tiles of 32 x 32
    else:
        frequencies = length * (length // 2 + 1) if length <= _LONGEST_TRANSFORM else 0
    pairs = images * (max(channels, results) if spread else channels) + channels * results
    return max(_SEARCH_FACTOR * both, 16 * frequencies * pairs)


def is_channels_last(tensor: torch.Tensor) -> bool:
    if tensor.is_contiguous():
        return False
    if tensor.dim() == 4:
        return tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d)


def _data_span(call: _Call) -> Span | None:
    """Workspace for the output or the input gradient: both tensors and the weight in the other layout."""
    both = _both(call)
    most = both + max(4 * _float_bytes(call.weight), _SPLIT_BYTES)
    if _is_depthwise(call) or _is_small(call) or (_is_one_by_one(call.weight) and call.stride == 1):
        return None
    if _is_one_by_one(call.weight):
        return Span(0, 0, most)
    usual = 131 if is_channels_last(call.source) else both + _bytes(call.weight) + 147
    return Span(usual, 0, 2 * most if call.groups > 1 else most)


def _weight_span(call: _Call) -> Span | None:
    """Workspace for the weight gradient: both tensors in the other layout, and the partial sums."""
    both = _both(call)
    most = both + max(16 * _float_bytes(call.weight), _SPLIT_BYTES)
    if _is_depthwise(call):
        return Span(0, 0, 2 * most) if is_channels_last(call.source) else None
    if _is_small(call) and call.source.dim() < 5:
        return Span(0, 0, most)
    copy_bytes = 0 if is_channels_last(call.source) or _is_one_by_one(call.weight) else both
    return Span(copy_bytes + _partial_sums(call.weight, copy_bytes), 0, 2 * most if call.groups > 1 else most)


def _partial_sums(weight: torch.Tensor, copy_bytes: int) -> int:
    """Bytes of the weight gradient's partial sums; cuDNN chooses their number, which grows with the work."""
    single = _float_bytes(weight)
    return max(2 * MIB, min(15 * single, max(4 * single, 9 * MIB // 2)), min(copy_bytes // 12, 17 * MIB // 2))


def _is_depthwise(call: _Call) -> bool:
    return call.groups > 1 and call.groups == call.source.shape[1]


def _is_small(call: _Call) -> bool:
    """Whether the call has few channels and a small window, for which kernels accept any layout."""
    return call.source.shape[1] < 4 and call.source.element_size() == 4 and max(call.weight.shape[2:]) <= 3


def _is_one_by_one(weight: torch.Tensor) -> bool:
    return weight.numel() == weight.shape[0] * weight.shape[1]


def _both(call: _Call) -> int:
    return _padded_bytes(call.source) + _padded_bytes(call.result)


def _padded_bytes(tensor: torch.Tensor) -> int:
    """Bytes with the channels padded to a multiple that the matrix units need: 4 for fp32, 8 for half."""
    channels, step = tensor.shape[1], 16 // tensor.element_size()
    return _bytes(tensor) // channels * (-(-channels // step) * step)


def _copies(tensor: torch.Tensor) -> Round:
    """Copies that are made first: cuDNN accepts dense tensors only, so a slice is copied."""
    return [] if tensor.is_contiguous() or is_channels_last(tensor) else [_bytes(tensor)]


def _float_bytes(tensor: torch.Tensor) -> int:
    return 4 * tensor.numel()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
