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
import platform
from typing import Any, NamedTuple

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.kernels import cudnn_library
from pinchpoint.backends.torch.kernels.cudnn_library import Convolution, CudnnLibrary
from pinchpoint.backends.torch.kernels.layouts import copies, has_channels_last, is_dense
from pinchpoint.core.events import Span
from pinchpoint.core.units import MIB

Round = list[int | Span]

_LONGEST_TRANSFORM = 256
_PARTIAL_SUMS = 512
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
    spans = [span]
    if library is not None:
        spans = _chosen(spans, forward_searches(args, out), library)
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
        spans = _chosen(spans, backward_searches(args), library)
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


def _chosen(spans: list[Span | None], searches: list[Search], library: CudnnLibrary) -> list[Span | None]:
    """The spans with the sizes that the library chooses.

    For windows of one element it is not asked: its list lacks a kernel for them on some machines.
    """
    if len(searches) != len(spans):  # of empty tensors, and of depthwise ones, which torch computes itself
        return spans
    chosen: list[Span | None] = []
    for span, search in zip(spans, searches, strict=True):
        sizes = None
        if span is not None and search.groups < search.source[1] and max(search.weight[2:]) > 1:
            sizes = library.workspaces(_described(search))
        if span is not None and sizes is not None:
            span = Span(sizes[0], min(span.least, sizes[0]), max(span.most, sizes[0]))
        chosen.append(span)
    return chosen


def _described(search: Search) -> Convolution:
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
        sizes = library.all_workspaces(_described(search))
        if sizes is not None:
            return max(sizes)
    item_bytes = search.dtype.itemsize
    source_bytes, result_bytes = (_padded(shape, item_bytes) for shape in (search.source, search.result))
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
        # Seen once each: no transform of a result that is as small as the window, nor without overlaps.
        if search.way != "data" or window <= max(search.stride) or max(search.result[2:]) <= window:
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


def _padded(shape: tuple[int, ...], item_bytes: int) -> int:
    """Bytes with the channels padded to a multiple that the matrix units need: 4 for fp32, 8 for half."""
    step = 16 // item_bytes
    return math.prod(shape) // shape[1] * (-(-shape[1] // step) * step) * item_bytes


def _data_span(call: _Call) -> Span | None:
    """Workspace for the output or the input gradient: both tensors and the weight in the other layout."""
    both = _both(call)
    most = both + max(4 * _float_bytes(call.weight), _SPLIT_BYTES)
    if _is_depthwise(call) or _is_small(call) or (_is_one_by_one(call.weight) and call.stride == 1):
        return None
    if _is_one_by_one(call.weight):  # with a stride: of such wide calls in the record, three of four copied
        is_wide = min(call.source.shape[1], call.result.shape[1]) >= _WIDE_CHANNELS
        return Span(both + 147 if is_wide and not call.channels_last else 0, 0, most)
    if _is_narrow(call) and call.source.dim() < 5:
        return Span(0, 0, most)
    usual = 131 if call.channels_last else both + _bytes(call.weight) + 147
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
    is_read_directly = _is_one_by_one(call.weight) and call.stride == 1
    copy_bytes = 0 if call.channels_last or is_read_directly else both
    usual = copy_bytes + _partial_sums(call.weight, copy_bytes)
    return Span(usual, both if _is_copied(call) else 0, 2 * most if call.groups > 1 else most)


def _partial_sums(weight: torch.Tensor, copy_bytes: int) -> int:
    """Bytes of the weight gradient's partial sums; cuDNN chooses their number, which grows with the work."""
    single = _float_bytes(weight)
    return max(2 * MIB, min(15 * single, max(4 * single, 9 * MIB // 2)), min(copy_bytes // 12, 17 * MIB // 2))


def _is_copied(call: _Call) -> bool:
    """Whether the tensors are copied for certain, as in all 70 such calls of the record."""
    return _is_half_image(call) and not call.channels_last and not _is_one_by_one(call.weight)


def _is_native(call: _Call) -> bool:
    """Whether the tensors have the layout of the kernels: the 21 such forward passes took next to nothing."""
    is_aligned = call.source.shape[1] % 8 == 0 and call.result.shape[1] % 8 == 0
    return _is_half_image(call) and is_aligned and call.channels_last


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


def _both(call: _Call) -> int:
    return _padded_bytes(call.source) + _padded_bytes(call.result)


def _padded_bytes(tensor: torch.Tensor) -> int:
    return _padded(tuple(tensor.shape), tensor.element_size())


def _float_bytes(tensor: torch.Tensor) -> int:
    return 4 * tensor.numel()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
