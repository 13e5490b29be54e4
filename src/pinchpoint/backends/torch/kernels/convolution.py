"""Workspaces of cuDNN's convolutions; the library chooses their size, so each is a Span.

cuDNN's kernels need the channels-last layout; tensors in another layout are copied in and out of a
workspace. cuDNN runs the kernel that it guesses to be the fastest. An installed library is asked for its
guess, on Hopper only, where this was compared. Without it, the usual sizes, and always the spans, come from
benchmarks/results/conv_probe_h200.json: 1,000 convolutions of every kind on an H200. Earlier GPUs have
kernels for the backward pass that need no other layout. That is fitted to a few runs on an RTX 3060 and an
RTX 4060 (benchmarks/estimators), so the H200's sizes stay in the span there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from pinchpoint.backends.torch.kernels import convolution_search
from pinchpoint.backends.torch.kernels.cudnn_library import CudnnLibrary
from pinchpoint.backends.torch.kernels.layouts import copies, has_channels_last, is_dense
from pinchpoint.core.events import Span
from pinchpoint.core.units import MIB

Round = list[int | Span]

_PARTIAL_SUMS = 512
_SUMS_BYTES = 35 * MIB // 4
_WIDE_CHANNELS = 96
_SPLIT_BYTES = 12 * MIB  # the most that partial sums of a small product took in that record


class _Call(NamedTuple):
    """One convolution: its input, its output (or the output's gradient), and the weight."""

    source: torch.Tensor
    result: torch.Tensor
    weight: torch.Tensor
    stride: int
    groups: int

    @property
    def channels_last(self) -> bool:
        """Whether torch hands all tensors to cuDNN in the channels-last layout: if one of these has it."""
        return has_channels_last(self.source) or has_channels_last(self.weight)


def forward(args: Any, out: torch.Tensor, library: CudnnLibrary | None = None) -> list[Round]:
    """Rounds of bytes that are allocated together. args: those of aten::convolution."""
    call = _Call(args[0], out, args[1], max(args[3]), args[8])
    span = _data_span(call)
    if span is not None and call.channels_last and call.source.element_size() < 4:
        # Grouped and transposed ones copied both tensors in the one call of either that was measured.
        if call.groups > 1:
            span = span._replace(usual=_both(call) + 147)
        elif args[6]:
            span = span._replace(usual=_both(call) + _bytes(call.weight) + 147)
        elif _is_native(call):
            span = span._replace(most=max(4 * _float_bytes(call.weight), _SPLIT_BYTES))
    elif span is not None and _copies_input_only(call) and not args[6]:
        span = span._replace(usual=_padded_bytes(call.source) + _bytes(call.weight) + 147)
    spans = [span]
    if library is not None:
        spans = _chosen(spans, convolution_search.forward_searches(args, out), library)
    copied = copies(call.source, call.weight, channels_last=call.channels_last)
    return [[*copied, *(span for span in spans if span)]]


def backward(
    args: Any, capability: tuple[int, int], library: CudnnLibrary | None = None
) -> tuple[list[int], list[Round]]:
    """Copies that are made first, and what is allocated together for the gradients of input and weight.

    args: those of aten::convolution_backward; capability: that of the card
    """
    gradient, source, weight, needs_gradient = args[0], args[1], args[2], args[10]
    call = _Call(source, gradient, weight, max(args[4]), args[9])
    spans = [
        *([_data_span(call)] if needs_gradient[0] else []),
        *([_weight_span(call)] if needs_gradient[1] else []),
    ]
    if library is not None:
        spans = _chosen(spans, convolution_search.backward_searches(args), library)
    if capability < (9, 0):
        spans = [span and Span(0, 0, max(span.usual, span.most)) for span in spans]
    first, rounds = _backward_copies(call, transposed=args[7], needs_gradient=needs_gradient)
    chosen = iter(spans)
    for needed, sizes in zip(needs_gradient[:2], rounds, strict=True):
        if needed and (span := next(chosen)):
            sizes.append(span)
    return first, rounds


def _backward_copies(call: _Call, *, transposed: bool, needs_gradient: Any) -> tuple[list[int], list[Round]]:
    """Copies that both gradients share, and those for the gradient of the input and of the weight.

    The input of an image is copied only for the gradient of the weight. The output's gradient is first
    brought to the layout of the input, and then, for the input's gradient, to that of the weight if this is
    channels-last: a frozen channels-last weight and a contiguous input take two copies of it.
    """
    is_sequence = call.source.dim() == 3
    source, gradient, weight = call.source, call.result, call.weight
    first: list[int] = []
    source_last = has_channels_last(source)
    if needs_gradient[1] or is_sequence:
        source_last = call.channels_last
        first += copies(source, channels_last=source_last)
    gradient_last = has_channels_last(gradient)
    gradient_dense = is_dense(gradient, gradient_last)
    if gradient_last != source_last or (not gradient_dense and (transposed or is_sequence)):
        first.append(_bytes(gradient))
        gradient_last, gradient_dense = source_last, True
    rounds: list[Round] = [[], []]
    if needs_gradient[0]:
        last = gradient_last or has_channels_last(weight)
        is_copied = not gradient_dense or gradient_last != last
        rounds[0] = [*copies(weight, channels_last=last), *([_bytes(gradient)] if is_copied else [])]
    if needs_gradient[1] and not gradient_dense:
        rounds[1] = [_bytes(gradient)]
    return first, rounds


def _chosen(
    spans: list[Span | None], searches: list[convolution_search.Search], library: CudnnLibrary
) -> list[Span | None]:
    """The spans with the sizes that the library chooses.

    For windows of one element without a stride it is not asked: its list lacks a kernel for them on some
    machines. With a stride it is right for all 22 such calls on images of the record.
    """
    if len(searches) != len(spans):  # of empty tensors, and of depthwise ones, which torch computes itself
        return spans
    chosen: list[Span | None] = []
    for span, search in zip(spans, searches, strict=True):
        sizes = None
        is_listed = max(search.weight[2:]) > 1 or max(search.stride) > 1
        if span is not None and search.groups < search.source[1] and is_listed:
            sizes = library.workspaces(convolution_search.described(search))
        if span is not None and sizes is not None:
            span = Span(sizes[0], min(span.least, sizes[0]), max(span.most, sizes[0]))
        chosen.append(span)
    return chosen


def _data_span(call: _Call) -> Span | None:
    """Workspace for the output or the input gradient: both tensors and the weight in the other layout."""
    both = _both(call)
    most = both + max(4 * _float_bytes(call.weight), _SPLIT_BYTES)
    if _is_depthwise(call) or _is_small(call):
        return None
    if _is_one_by_one(call.weight) and call.stride == 1:
        # Images whose rows the matrix units cannot read were copied in half of the calls of a Faster R-CNN.
        is_aligned = math.prod(call.source.shape[2:]) % (16 // call.source.element_size()) == 0
        return None if is_aligned or call.channels_last else Span(0, 0, most)
    if _is_one_by_one(call.weight):  # with a stride: of such wide calls in the record, three of four copied
        is_wide = min(call.source.shape[1], call.result.shape[1]) >= _WIDE_CHANNELS
        return Span(both + 147 if is_wide and not call.channels_last else 0, 0, most)
    if _is_narrow(call) and call.source.dim() < 5:
        return Span(0, 0, most)
    copied = _padded_copies(call) if call.channels_last else both
    usual = copied + (_bytes(call.weight) + 147 if copied else 131)
    return Span(usual, both if _is_copied(call) else 0, 2 * most if call.groups > 1 else most)


def _weight_span(call: _Call) -> Span | None:
    """Workspace for the weight gradient: both tensors in the other layout, and the partial sums."""
    both = _both(call)
    most = both + max(16 * _float_bytes(call.weight), _SPLIT_BYTES)
    if _is_depthwise(call):
        if not call.channels_last:
            return None
        # Four calls of one ConvNeXt at batch 64 took 512 partial sums; smaller windows take next to nothing.
        wide = call.source.element_size() < 4 and min(call.weight.shape[2:]) >= 7
        return Span(_PARTIAL_SUMS * _float_bytes(call.weight) if wide else 0, 0, 2 * most)
    if _is_narrow(call) and call.source.element_size() == 4 and call.source.dim() < 5:
        return Span(0, 0, most)
    if _is_one_by_one(call.weight) and call.stride == 1 and not call.channels_last:
        # One sum per image, in 81 of 111 such calls of the record to 1 %, if this is less than copies would
        # take: small images of a YOLO were copied instead.
        per_image = call.source.shape[0] * _float_bytes(call.weight)
        usual = min(per_image, both + _partial_sums(call.weight))
        return Span(usual, 0, max(most, min(per_image, 2 * both)))
    copy_bytes = _padded_copies(call) if call.channels_last else both
    usual = copy_bytes + _partial_sums(call.weight)
    return Span(usual, both if _is_copied(call) else 0, 2 * most if call.groups > 1 else most)


def _partial_sums(weight: torch.Tensor) -> int:
    """Bytes of the weight gradient's partial sums; cuDNN chooses their number.

    In the record, they are as many as fill 8.75 MiB, but at most 15; a weight over half of that takes one
    or two.
    """
    single = _float_bytes(weight)
    if single > _SUMS_BYTES // 2:
        return max(single, min(2 * single, 2 * _SUMS_BYTES))
    if single > _SUMS_BYTES // 4:
        return -(-_SUMS_BYTES // single) * single
    return max(MIB // 2, min(15 * single, _SUMS_BYTES))


def _is_copied(call: _Call) -> bool:
    """Whether the tensors are copied for certain, as in all 70 such calls of the record."""
    return _is_half_image(call) and not call.channels_last and not _is_one_by_one(call.weight)


def _is_native(call: _Call) -> bool:
    """Whether the tensors have the layout of the kernels: the 21 such forward passes took next to nothing."""
    is_aligned = call.source.shape[1] % 8 == 0 and call.result.shape[1] % 8 == 0
    return _is_half_image(call) and is_aligned and call.channels_last


def _copies_input_only(call: _Call) -> bool:
    """Whether the result of a forward pass is written in its own layout, as in 21 of 25 such calls."""
    channels, results = call.source.shape[1], call.result.shape[1]
    is_image = call.source.dim() == 4 and call.source.element_size() == 4 and not call.channels_last
    is_widened = 4 <= channels < 112 and results >= max(64, 4 * channels // 3)
    return is_image and is_widened and call.groups == 1 and max(call.weight.shape[2:]) == 3


def _is_half_image(call: _Call) -> bool:
    """Whether the call is in half precision on images of at least 32 channels, without groups."""
    channels = min(call.source.shape[1], call.result.shape[1])
    return call.source.element_size() < 4 and call.source.dim() == 4 and channels >= 32 and call.groups == 1


def _is_depthwise(call: _Call) -> bool:
    return call.groups > 1 and call.groups == call.source.shape[1]


def _is_small(call: _Call) -> bool:
    """Whether the call has few channels and a small window, for which kernels accept any layout."""
    return _is_narrow(call) and call.source.element_size() == 4 and max(call.weight.shape[2:]) <= 3


def _is_narrow(call: _Call) -> bool:
    """Whether the call has few channels, for which such kernels are usual; windows of 7 x 7 have none."""
    return call.source.shape[1] < 4 and (call.source.dim() == 3 or max(call.weight.shape[2:]) <= 5)


def _is_one_by_one(weight: torch.Tensor) -> bool:
    return weight.numel() == weight.shape[0] * weight.shape[1]


def _padded_copies(call: _Call) -> int:
    """Bytes of copies of channels-last tensors whose number of channels the matrix units cannot read."""
    step = 16 // call.source.element_size()
    return sum(_padded_bytes(tensor) for tensor in (call.source, call.result) if tensor.shape[1] % step)


def _both(call: _Call) -> int:
    return _padded_bytes(call.source) + _padded_bytes(call.result)


def _padded_bytes(tensor: torch.Tensor) -> int:
    return convolution_search.padded_bytes(tuple(tensor.shape), tensor.element_size())


def _float_bytes(tensor: torch.Tensor) -> int:
    return 4 * tensor.numel()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
