"""`KernelModel`: library workspaces and temporaries that GPU kernels allocate besides their outputs.

There is one small function per family of operations, each a formula over shapes, compared with the
allocator's events on an H200 (benchmarks/results/op_probe_h200.json). Operations that are not listed
allocate only their outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.kernels import convolution, detection
from pinchpoint.backends.torch.kernels.cudnn_library import CudnnLibrary
from pinchpoint.backends.torch.kernels.matrix_products import copied_matrices
from pinchpoint.backends.torch.kernels.reduction import staging_bytes
from pinchpoint.backends.torch.ledger import Ledger, Site
from pinchpoint.core.events import Phase, Span
from pinchpoint.core.units import MIB

_aten = torch.ops.aten
Sizes = list[int] | list[int | Span]

MATRIX_OPS = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_addmm_activation",
    "aten::mv",
    "aten::addmv",
    "aten::dot",
    "aten::_grouped_mm",
    "aten::_scaled_mm",
    "aten::linear",  # of the values of a nested tensor; other tensors reach the products above
}


@dataclass
class KernelModel:
    """Knows the sizes that depend on the card, and the workspaces that this run has already allocated."""

    cublas_workspace_bytes: int
    cublaslt_workspace_bytes: int
    processors: int
    capability: tuple[int, int]
    _workspaces: set[tuple[str, str]] = field(default_factory=set)
    _searches: set[tuple[bool, convolution.Search]] = field(default_factory=set)

    @cached_property
    def cudnn(self) -> CudnnLibrary | None:
        """The installed library, asked from the first convolution on; only Hopper was compared."""
        if self.capability != (9, 0):
            return None
        return CudnnLibrary.open(capability=self.capability, processors=self.processors)

    def workspace(self, name: str, *, ledger: Ledger, phase: Phase, site: Site) -> None:
        """Allocate cuBLAS's workspace, one per handle; forward and backward threads have their own.

        A product with a bias uses cuBLASLt, which has its own workspace or (0 bytes) shares that of cuBLAS.
        """
        if name not in MATRIX_OPS:
            return
        thread = "backward" if phase == "backward" else "forward"
        fused_bias = name in ("aten::addmm", "aten::_addmm_activation", "aten::linear")
        for library, size in (
            ("cublas", self.cublas_workspace_bytes),
            ("cublaslt", self.cublaslt_workspace_bytes),
        ):
            if size and (library == "cublas" or fused_bias) and (library, thread) not in self._workspaces:
                self._workspaces.add((library, thread))
                ledger.add_permanent(size, phase=phase, site=site, op=library, role="workspace")

    def temporaries(self, func: Any, args: Any, kwargs: Any, out: Any) -> Sequence[Sequence[int | Span]]:
        """Rounds of bytes allocated together while the kernel runs; a Span if a library chooses its size."""
        name = func.name().split(".")[0]
        if name == "aten::convolution":
            return convolution.forward(args, out, self.cudnn)
        if name == "aten::_scaled_dot_product_efficient_attention_backward":
            return _efficient_attention_backward(args)
        if name == "torchvision::nms":
            return [detection.suppression(args[0].shape[0])]
        if name == "torchvision::deform_conv2d":
            return [detection.deformable_convolution(args, out)]
        if name == "torchvision::_deform_conv2d_backward":
            return [detection.deformable_convolution_backward(args, out)]
        family = _FAMILIES.get(name)
        return [] if family is None else [family(self, func, args, kwargs, out)]

    def convolution_gradients(self, args: Any) -> tuple[list[int], list[Sizes]]:
        """Copies made before a convolution's backward pass, and the temporaries of its three gradients."""
        copies, spans = convolution.backward(args, self.capability, self.cudnn)
        return copies, [*([span] if span else [] for span in spans), self._bias_gradient(args)]

    def new_searches(self, func: Any, args: Any, out: Any, phase: Phase) -> list[int]:
        """Bytes of every search that `torch.backends.cudnn.benchmark` makes for this call.

        torch remembers what it found, in each thread for itself: forward and backward search both.
        """
        name = func.name().split(".")[0]
        if name == "aten::convolution":
            searches = convolution.forward_searches(args, out)
        elif name == "aten::convolution_backward":
            searches = convolution.backward_searches(args)
        else:
            return []
        new = [search for search in searches if (phase == "backward", search) not in self._searches]
        self._searches |= {(phase == "backward", search) for search in new}
        return [convolution.search_bytes(search, self.cudnn) for search in new]

    def _bias_gradient(self, args: Any) -> Sizes:
        """The sum over all dimensions except the channels; torch computes it for channels-last tensors."""
        gradient, source, weight, has_bias = args[0], args[1], args[2], args[10][2]
        if not has_bias or not any(map(convolution.has_channels_last, (source, weight))):
            return []
        return reduce_sizes(
            self, gradient, gradient.shape[1], 4, tuple(d for d in range(gradient.dim()) if d != 1)
        )


def kept_bytes(name: str, args: Any, kwargs: Any) -> int | None:
    """Bytes of an output whose storage on the GPU is larger than its shape says, or None.

    mse_loss and smooth_l1_loss with a reduction return a scalar that keeps the unreduced buffer; fold
    (col2im), which is also the gradient of unfold, returns a buffer that was as large as its input.
    """
    if name == "aten::col2im":
        return _bytes(args[0])
    if name not in ("aten::mse_loss", "aten::smooth_l1_loss"):
        return None
    reduction = kwargs.get("reduction", args[2] if len(args) > 2 else 1)
    return _broadcast_bytes(args[0], args[1]) if reduction else None


def _broadcast_bytes(a: torch.Tensor, b: torch.Tensor) -> int:
    count = 1
    for size in torch.broadcast_shapes(a.shape, b.shape):
        count *= size
    return count * torch.promote_types(a.dtype, b.dtype).itemsize


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# --- reductions


def _reduction(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    source = args[0]
    result = out[0] if isinstance(out, (tuple, list)) else out
    if source.numel() == 0 or result.numel() == 0 or source.numel() <= result.numel():
        return []
    if result.dtype is torch.int64 and source.dtype is not torch.int64 and "arg" not in func.name():
        # Integers are summed in int64, from a converted copy.
        return [
            8 * source.numel(),
            *reduce_sizes(model, source, result.numel(), 8, _reduced_dims(func, args, kwargs, source)),
        ]
    accumulate = _ACCUMULATE_BYTES.get(func.name().split(".")[0], 4)
    if source.dtype in (torch.float64, torch.int64):
        accumulate = max(accumulate, 8)
    return reduce_sizes(model, source, result.numel(), accumulate, _reduced_dims(func, args, kwargs, source))


def reduce_sizes(
    model: KernelModel, source: torch.Tensor, outputs: int, accumulate: int, dims: tuple[int, ...]
) -> Sizes:
    inputs = source.numel() // max(outputs, 1)
    if parts := _index_parts(source):
        # Each part is reduced after the other, with a buffer of its own.
        dim, count = parts
        inputs, outputs = (inputs // count, outputs) if dim in dims else (inputs, outputs // count)
    wide = [d for d in range(source.dim()) if source.shape[d] > 1]
    fastest = min(wide, key=lambda d: (source.stride(d), -d), default=0)
    along = fastest in dims
    whole = outputs == 1 and source.is_contiguous()
    buffer, semaphores = staging_bytes(
        inputs=inputs,
        outputs=outputs,
        item_bytes=source.element_size(),
        accumulate_bytes=accumulate,
        along_fastest=along,
        whole=whole,
        processors=model.processors,
    )
    return [buffer, semaphores]


def _index_parts(source: torch.Tensor) -> tuple[int, int] | None:
    """The dimension that a kernel with 32-bit offsets halves, and into how many parts; None: one part."""
    extents = [(size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True)]
    count, rest = 1, max(extents, default=0) * source.element_size()
    while rest // count > _MAX_OFFSET:
        count *= 2
    return (extents.index(max(extents)), count) if count > 1 else None


_MAX_OFFSET = 2**31 - 1
_ACCUMULATE_BYTES = {
    "aten::var": 16,
    "aten::std": 16,
    "aten::var_mean": 16,
    "aten::argmax": 16,
    "aten::argmin": 16,
    "aten::any": 1,
    "aten::all": 1,
}


def _reduced_dims(func: Any, args: Any, kwargs: Any, source: torch.Tensor) -> tuple[int, ...]:
    names = compat.argument_names(func)
    arguments = dict(zip(names, args, strict=False)) | kwargs
    dim = arguments.get("dim")
    if dim is None or dim == []:
        return tuple(range(source.dim()))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(d % max(source.dim(), 1) for d in dims)


# --- indexing and sorting

_SORT_BYTES = 62_975  # radix sort's own state besides its double buffers


def _sort(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    values, count = out[0], out[0].numel()
    names = compat.argument_names(func)
    arguments = dict(zip(names, args, strict=False)) | kwargs
    dim = arguments.get("dim", -1)
    length = values.shape[dim] if values.dim() else 1
    if length <= 4096:
        return [8 * count // max(length, 1)]
    return [8 * count, (values.element_size() + 8) * count + 200_191]


def _topk(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Radix selection: counters of 256 buckets per row and block, in two integer widths, and row states."""
    values, source = out[0], args[0]
    dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    length = source.shape[dim] if source.dim() else 1
    rows = source.numel() // max(length, 1)
    if length <= 1024 or values.numel() == 0:
        return []
    blocks = rows * -(-length // 8192 if length > 8192 else 1)
    return [4 * rows, 8 * rows, 8 * rows, 512 * blocks, 1024 * blocks, 4 * rows, 4 * rows]


def _index_put(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """With accumulation, the indices are linearised and sorted first."""
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    if not accumulate:
        return []
    count = 1
    for size in torch.broadcast_shapes(*[i.shape for i in args[1] if i is not None]):
        count *= size
    return [8 * count] * 4 + [16 * count + _SORT_BYTES]


def _embedding_backward(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Rows are summed in segments of ten after a sort; torch allocates for the largest possible number."""
    count, width = args[1].numel(), args[0].shape[-1]
    if count <= 3072:
        return []
    segments = min(count, args[2])
    partial = segments + -(-count // 10)
    return [8 * count] * 3 + [8 * segments] * 2 + [8 * partial, 4 * width * partial]


def _nonzero(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [21_503]


def _unique(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    count = args[0].numel()
    inverse = out[1].numel() > 0
    return [8 * count] * (2 if inverse else 1) + [(16 if inverse else 8) * count + 200_000]


def _masked_scatter(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [8 * args[0].numel(), 300_799]


def _masked_select(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    mask = args[1]
    return [8 * out.numel() * max(mask.dim(), 1)]


def _cumulative(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [67_583] if args[0].dim() == 1 else []


# --- libraries


def _efficient_attention_backward(args: Any) -> list[Sizes]:
    """Row sums of grad * out in fp32, then the query gradient accumulated in padded fp32 tiles."""
    query = args[1]
    batch_heads, rows, width = query.shape[0] * query.shape[1], query.shape[2], query.shape[3]
    delta = 4 * batch_heads * rows
    padded_width = 64 if width <= 64 else (128 if width <= 128 else -(-width // 64) * 64)
    tiles = batch_heads * (-(-rows // 64) * 64 * padded_width * 4 + -(-rows // 64) * 16)
    gradient = args[0]
    copy_bytes = 0 if _rows_before_heads(gradient) else _bytes(gradient)
    # Keys and values too wide for the registers have their 16-bit gradients accumulated in fp32.
    is_wide = width > 128 and query.element_size() < 4
    wide = [4 * args[2].numel(), 4 * args[3].numel()] if is_wide else []
    # Gradients of keys and values that several heads share are computed for each head, and then summed.
    if (groups := query.shape[1] // args[2].shape[1]) > 1:
        wide = [groups * size for size in (*wide, _bytes(args[2]), _bytes(args[3]))]
    return [[copy_bytes, 4 * query.numel(), delta, delta, *wide], [copy_bytes, delta, tiles, *wide]]


def _rows_before_heads(tensor: torch.Tensor) -> bool:
    """Whether (batch, heads, rows, width) is stored as batch, rows, heads, width.

    The strides are compared, because a view would be an operation.
    """
    _, heads, rows, width = tensor.shape
    strides = (heads * rows * width, width, heads * width, 1)
    return all(
        size == 1 or have == want
        for size, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )


def _cudnn_attention_backward(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The query gradient and row sums in fp32; key and value gradients before shared heads are summed."""
    query, key, value = args[1], args[2], args[3]
    repeats = query.shape[1] // max(key.shape[1], 1)
    shared = [repeats * _bytes(key), repeats * _bytes(value)] if repeats > 1 else []
    return [4 * query.numel() + 4 * query.shape[0] * query.shape[1] * query.shape[2] + 256, *shared]


def _efficient_attention(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Wide values do not fit the registers: 16-bit outputs are accumulated in fp32."""
    value, result = args[2], out[0]
    return [4 * result.numel()] if value.shape[-1] > 128 and result.element_size() < 4 else []


def _flash_attention_backward(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Row sums and the query gradient in fp32; a gradient stored by heads is copied, as is the output."""
    gradient, query = args[0], args[1]
    rows = -(-query.shape[2] // 128) * 128
    width = -(-query.shape[3] // 32) * 32
    copy_bytes = 0 if _rows_before_heads(gradient) else _bytes(gradient)
    row_bytes = 4 * query.shape[0] * query.shape[1] * rows
    return [copy_bytes, copy_bytes, row_bytes, row_bytes * width]


def _layer_norm_backward(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Contiguous copies; tall inputs sum the gradients of weight and bias in two stages."""
    gradient, source, shape = args[:3]
    width = math.prod(shape)
    rows = source.numel() // max(width, 1)
    copies = _contiguous_copies(gradient, source)
    if rows <= 64 * 1024 or width // 32 >= model.processors // 2:
        return copies
    parts = min(2**15 // -(-width // 32), -(-rows // 32))
    item_bytes = source.element_size()
    sums = [parts * width * item_bytes for tensor in out[1:] if tensor is not None]
    staging, _ = staging_bytes(
        inputs=parts,
        outputs=width,
        item_bytes=item_bytes,
        accumulate_bytes=4,
        along_fastest=False,
        whole=False,
        processors=model.processors,
    )
    return [*copies, *sums, staging]


def _contiguous_copies(*tensors: torch.Tensor) -> Sizes:
    return [_bytes(tensor) for tensor in tensors if not tensor.is_contiguous()]


def _product(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [_bytes(matrix) for matrix in copied_matrices(func.name().split(".")[0], args, out)]


def _norms(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """One partial sum for each chunk of the longest tensor, for every tensor."""
    return [4 * len(args[0]) * max(-(-tensor.numel() // 2**16) for tensor in args[0])]


def _reduced_loss(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    reduction = kwargs.get("reduction", args[2] if len(args) > 2 else 1)
    return [_broadcast_bytes(args[0], args[1])] if reduction else []


def _logits_loss(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The logarithms, and the losses if they are reduced; otherwise these are the output."""
    reduction = kwargs.get("reduction", args[4] if len(args) > 4 else 1)
    return [_bytes(args[0])] * (2 if reduction else 1)


def _running_total(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The sum of the repeats up to each element."""
    return [8 * args[0].numel()]


Family = Callable[[KernelModel, Any, Any, Any, Any], Sizes]


def _reading_contiguous(*numbers: int, family: Family | None = None) -> Family:
    """A kernel that reads contiguous copies of these arguments. family: what else it allocates."""

    def sizes(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
        others = [] if family is None else family(model, func, args, kwargs, out)
        return [*_contiguous_copies(*(args[number] for number in numbers)), *others]

    return sizes


def _scan(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """A scan along a dimension, of a contiguous copy in the type of the result."""
    copies = (args[0].dtype != out.dtype) + (not args[0].is_contiguous())
    return [*[_bytes(out)] * copies, *_cumulative(model, func, args, kwargs, out)]


def _like_first(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [_bytes(args[0])]


_REDUCTIONS = (
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "linalg_vector_norm",
    "norm",
    "var",
    "std",
    "var_mean",
    "prod",
    "any",
    "all",
    "argmax",
    "argmin",
)


def _safe_softmax(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The mask of infinite scores, and of rows without a finite one, which are set to zero in place."""
    return [out.numel(), out.numel() // max(out.shape[-1], 1)]


# --- libraries and kernels with buffers of their own; sizes from benchmarks/results/math_probe_h200.json

_SMALL_PRIME = 7  # cuFFT transforms sides whose prime factors are at most this without a workspace ...
_SHORT_SIDE = 32_768  # ... up to this length


def _fourier(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> list[int | Span]:
    """cuFFT's workspace, and the copy of the input that a transform to real numbers overwrites."""
    source, to_real = args[0], func.name().startswith("aten::_fft_c2r")
    real = out if to_real or source.is_complex() else source
    complex_bytes = real.numel() * (16 if real.dtype in (torch.float64, torch.complex128) else 8)
    sides = [real.shape[dim] for dim in args[1]]
    is_smooth = all(_largest_prime(side) <= _SMALL_PRIME for side in sides)
    is_short = max(sides, default=1) <= _SHORT_SIDE
    copies: list[int | Span] = [_bytes(source)] if to_real else []
    if is_smooth and is_short:
        return copies
    if is_smooth:
        return [*copies, Span(complex_bytes if source.is_complex() and not to_real else 0, 0, complex_bytes)]
    if is_short:
        return [*copies, Span(0, 0, complex_bytes)]
    return [*copies, Span(int(2.55 * complex_bytes), 0, int(2.65 * complex_bytes))]


def _largest_prime(number: int) -> int:
    prime, largest = 2, 1
    while prime * prime <= number:
        while number % prime == 0:
            number, largest = number // prime, prime
        prime += 1
    return max(number, largest)


def _solver(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> list[int | Span]:
    """cuSOLVER's workspace: for one matrix of a batch, except for small eigenproblems, which run together."""
    source, name = args[0], func.name().split(".")[0]
    batch_bytes, side = _bytes(source), max(source.shape[-2:], default=1)
    count = source.numel() // max(source.shape[-1] * source.shape[-2], 1)
    matrix_bytes = batch_bytes // max(count, 1)
    if name == "aten::_linalg_eigh":
        computes_vectors = kwargs.get("compute_v", args[2] if len(args) > 2 else True)
        copies: list[int | Span] = [] if computes_vectors else [batch_bytes]
        if side <= 32:
            each = 261_000 + 3_500 * side
            return [*copies, Span(count * each, count * 280_000, count * 400_000)]
        return [*copies, Span(matrix_bytes + 200_000, 0, 5 * matrix_bytes + 2 * MIB)]
    usual, most = {
        "aten::_linalg_svd": (batch_bytes + 2 * matrix_bytes, 7 * batch_bytes // 2 + 6 * matrix_bytes),
        "aten::linalg_eig": (2 * batch_bytes + matrix_bytes, 7 * batch_bytes // 2),
        "aten::linalg_qr": (3 * MIB + matrix_bytes, 4 * MIB + 4 * matrix_bytes),
        "aten::_linalg_slogdet": (0, batch_bytes),
    }[name]
    return [Span(usual, 0, most + 200_000)]


def _random_permutation(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Random keys, indices and the buffers of a radix sort."""
    return [41 * out.numel() + 1024]


def _multinomial(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Exponentials as large as the probabilities, and the buffers that select the largest quotients."""
    return [_bytes(args[0]) + 1024 * (args[0].numel() // max(args[0].shape[-1], 1))]


def _scatter_mean(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """A mean counts its contributions: ones, counts, and the mask of those without any."""
    reduce = kwargs.get("reduce", args[4] if len(args) > 4 else "")
    return [_bytes(args[3]), _bytes(out), out.numel()] if reduce == "mean" else []


def _distance_backward(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> list[int | Span]:
    """One row of coordinates per pair, and the stages of their sum."""
    gradient, first = args[0], args[1]
    pair_bytes = gradient.numel() * first.element_size()
    return [pair_bytes * first.shape[-1], Span(2 * pair_bytes, 0, 3 * pair_bytes)]


def _complex_to_real(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The absolute value and the angle of complex numbers are computed as complex numbers first."""
    return [_bytes(args[0])] if args[0].is_complex() else []


def _triangular_solves(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """A copy of the right-hand side of one matrix; batches have none. From one call of either kind."""
    return [_bytes(out)] if out.dim() == 2 else []


def _ctc_loss_backward(model: KernelModel, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [_bytes(args[6])]  # a table like that of the forward pass


_FAMILIES: dict[str, Family] = {
    "aten::_ctc_loss_backward": _ctc_loss_backward,
    **{f"aten::{name}": _reduction for name in _REDUCTIONS},
    "aten::_softmax": _reading_contiguous(0),
    "aten::_log_softmax": _reading_contiguous(0),
    "aten::_softmax_backward_data": _reading_contiguous(0, 1, family=_like_first),  # grad * output
    "aten::_log_softmax_backward_data": _reading_contiguous(0, 1),
    "aten::roll": _reading_contiguous(0),
    "aten::adaptive_max_pool2d": _reading_contiguous(0),
    "aten::adaptive_max_pool2d_backward": _reading_contiguous(1),
    "aten::_upsample_bilinear2d_aa": _reading_contiguous(0),
    "aten::_upsample_bilinear2d_aa_backward": _reading_contiguous(0),
    "aten::upsample_bicubic2d_backward": _reading_contiguous(0),
    **{
        f"aten::reflection_pad{dims}d{way}": _reading_contiguous(0)
        for dims in (1, 2, 3)
        for way in ("", "_backward")
    },
    "aten::_safe_softmax": _safe_softmax,
    "aten::_fft_r2c": _fourier,
    "aten::_fft_c2r": _fourier,
    "aten::_fft_c2c": _fourier,
    **{
        f"aten::{name}": _solver
        for name in ("_linalg_eigh", "linalg_eig", "_linalg_svd", "linalg_qr", "_linalg_slogdet")
    },
    "aten::linalg_lu_solve": _triangular_solves,
    "aten::repeat_interleave": _running_total,
    "aten::randperm": _random_permutation,
    "aten::multinomial": _multinomial,
    "aten::im2col": _reading_contiguous(0, family=_like_first),
    "aten::abs": _complex_to_real,
    "aten::angle": _complex_to_real,
    "aten::scatter_reduce": _scatter_mean,
    "aten::scatter_reduce_": _scatter_mean,
    "aten::_cdist_backward": _distance_backward,
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"), _product),
    "aten::_foreach_norm": _norms,
    "aten::logsumexp": _like_first,  # exp(x - max)
    "aten::mse_loss": _reduced_loss,
    "aten::smooth_l1_loss": _reduced_loss,
    "aten::huber_loss": _reduced_loss,
    "aten::binary_cross_entropy_with_logits": _logits_loss,
    "aten::topk": _reading_contiguous(0, family=_topk),
    "aten::sort": _sort,
    "aten::index_put": _index_put,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::_unsafe_index_put": _index_put,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::nonzero": _nonzero,
    "aten::_unique2": _unique,
    "aten::masked_scatter": _masked_scatter,
    "aten::masked_scatter_": _masked_scatter,
    "aten::masked_select": _masked_select,
    "aten::cumsum": _scan,
    "aten::_scaled_dot_product_efficient_attention": _efficient_attention,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_attention_backward,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_attention_backward,
    "aten::native_layer_norm": _reading_contiguous(0),
    "aten::native_layer_norm_backward": _layer_norm_backward,
}
