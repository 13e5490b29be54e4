"""`FAMILIES`: temporaries that GPU kernels allocate besides their outputs, by operation.

There is one small function per family of operations, each a formula over shapes, compared with the
allocator's events on an H200 (benchmarks/results/op_probe_h200.json). Operations that are not listed
allocate only their outputs.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pinchpoint.backends.torch.kernels import layouts, library_buffers, sorting
from pinchpoint.backends.torch.kernels.library_buffers import Model, Sizes, arguments_by_name, bytes_of
from pinchpoint.backends.torch.kernels.matrix_products import copied_matrices
from pinchpoint.backends.torch.kernels.reduction import output_vector, staging_bytes

_aten = torch.ops.aten


def broadcast_bytes(a: torch.Tensor, b: torch.Tensor) -> int:
    count = 1
    for size in torch.broadcast_shapes(a.shape, b.shape):
        count *= size
    return count * torch.promote_types(a.dtype, b.dtype).itemsize


# --- reductions


def _reduction(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
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
    name = func.name().split(".")[0]
    has_places = name in ("aten::max", "aten::min") and result is not out  # with a dimension
    accumulate = 16 if has_places else _ACCUMULATE_BYTES.get(name, 4)
    if source.dtype in (torch.float64, torch.int64):
        accumulate = max(accumulate, 8)
    return reduce_sizes(model, source, result.numel(), accumulate, _reduced_dims(func, args, kwargs, source))


def reduce_sizes(
    model: Model, source: torch.Tensor, outputs: int, accumulate: int, dims: tuple[int, ...]
) -> Sizes:
    inputs = source.numel() // max(outputs, 1)
    if parts := _index_parts(source):
        # Each part is reduced after the other, with a buffer of its own.
        dim, count = parts
        inputs, outputs = (inputs // count, outputs) if dim in dims else (inputs, outputs // count)
    long_dims = [d for d in range(source.dim()) if source.shape[d] > 1]
    result_dims = [d for d in long_dims if d not in dims]
    sum_dims = [d for d in long_dims if d in dims]
    if not sum_dims:
        return []
    along = not result_dims or source.stride(_first(source, sum_dims)) < source.stride(result_dims[-1])
    buffer, semaphores = staging_bytes(
        inputs=inputs,
        outputs=outputs,
        accumulate_bytes=accumulate,
        along_fastest=along,
        whole=outputs == 1 and source.is_contiguous(),
        vector=1 if along else _vector(source, result_dims),
        processors=model.processors,
    )
    return [buffer, semaphores]


def _first(source: torch.Tensor, dims: list[int]) -> int:
    """The dimension that torch puts first when it sorts them by stride; a repeated one is like any other."""
    order = dims[::-1]
    for number in range(1, len(order)):
        at = number
        for before in reversed(range(number)):
            one, other = order[before], order[at]
            if source.stride(one) == 0 or source.stride(other) == 0:
                continue
            if (source.stride(one), source.shape[one]) > (source.stride(other), source.shape[other]):
                order[before], order[at], at = other, one, before
            elif source.stride(one) < source.stride(other):
                break
    return order[0]


def _vector(source: torch.Tensor, result_dims: list[int]) -> int:
    """How many neighbouring outputs one thread computes; neighbours lie along the result's last dimension."""
    *outer, last = result_dims
    if source.stride(last) != 1:
        return 1
    neighbours = source.shape[last]
    while outer and source.stride(outer[-1]) == neighbours:
        neighbours *= source.shape[outer.pop()]
    joined_dims = set(result_dims) - set(outer)
    other_dims = [d for d in range(source.dim()) if d not in joined_dims and source.shape[d] > 1]
    return output_vector([int(source.storage_offset()), neighbours, *map(source.stride, other_dims)])


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
    dim = arguments_by_name(func, args, kwargs).get("dim")
    if dim is None or dim == []:
        return tuple(range(source.dim()))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(d % max(source.dim(), 1) for d in dims)


def _power(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [] if isinstance(args[0], torch.Tensor) else [8]  # a number as the base is copied to the card


# --- indexing


def _embedding_backward(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Rows are summed in segments of ten after a sort; torch allocates for the largest possible number."""
    count, width = args[1].numel(), args[0].shape[-1]
    if count <= 3072:
        return []
    segments = min(count, args[2])
    partial = segments + -(-count // 10)
    sort = [8 * count, sorting.radix_sort_bytes(count, 8, bits=args[2].bit_length())]
    sums = [8 * count, 8 * segments, 8 * segments, 8 * partial, 4 * width * partial]
    return [8 * count, 8 * count, *max(sort, sums, key=sum)]  # sorted indices, and where they come from


def _nonzero(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [21_503]


def _scatter_reduce(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    means = library_buffers.scatter_mean(model, func, args, kwargs, out)
    return [*means, *sorting.scatter(model, func, args, kwargs, out)]


def _masked_scatter(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [8 * args[0].numel(), 300_799]


def _masked_select(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    mask = args[1]
    return [8 * out.numel() * max(mask.dim(), 1)]


def _cumulative(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """A scan of all elements has a state for each block of 1,920 and for 32 more."""
    if args[0].dim() != 1:
        return []
    return [-(-8 * (-(-out.numel() // 1920) + 32) // 256) * 256 + 511]


# --- libraries


def efficient_attention_backward(args: Any) -> list[Sizes]:
    """Row sums of grad * out in fp32, then the query gradient accumulated in padded fp32 tiles."""
    query = args[1]
    batch_heads, rows, width = query.shape[0] * query.shape[1], query.shape[2], query.shape[3]
    delta = 4 * batch_heads * rows
    padded_width = 64 if width <= 64 else (128 if width <= 128 else -(-width // 64) * 64)
    tiles = batch_heads * (-(-rows // 64) * 64 * padded_width * 4 + -(-rows // 64) * 16)
    gradient = args[0]
    copy_bytes = 0 if _rows_before_heads(gradient) else bytes_of(gradient)
    # Keys and values too wide for the registers have their 16-bit gradients accumulated in fp32.
    is_wide = width > 128 and query.element_size() < 4
    wide = [4 * args[2].numel(), 4 * args[3].numel()] if is_wide else []
    # Gradients of keys and values that several heads share are computed for each head, and then summed.
    if (groups := query.shape[1] // args[2].shape[1]) > 1:
        wide = [groups * size for size in (*wide, bytes_of(args[2]), bytes_of(args[3]))]
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


def _cudnn_attention_backward(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The query gradient and row sums in fp32; key and value gradients before shared heads are summed."""
    query, key, value = args[1], args[2], args[3]
    repeats = query.shape[1] // max(key.shape[1], 1)
    shared = [repeats * bytes_of(key), repeats * bytes_of(value)] if repeats > 1 else []
    return [4 * query.numel() + 4 * query.shape[0] * query.shape[1] * query.shape[2] + 256, *shared]


def _efficient_attention(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Wide values do not fit the registers: 16-bit outputs are accumulated in fp32."""
    value, result = args[2], out[0]
    return [4 * result.numel()] if value.shape[-1] > 128 and result.element_size() < 4 else []


def _flash_attention_backward(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Row sums and the query gradient in fp32; a gradient stored by heads is copied, as is the output."""
    gradient, query = args[0], args[1]
    rows = -(-query.shape[2] // 128) * 128
    width = -(-query.shape[3] // 32) * 32
    copy_bytes = 0 if _rows_before_heads(gradient) else bytes_of(gradient)
    row_bytes = 4 * query.shape[0] * query.shape[1] * rows
    return [copy_bytes, copy_bytes, row_bytes, row_bytes * width]


def _layer_norm_backward(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Contiguous copies; tall inputs sum the gradients of weight and bias in two stages."""
    gradient, source, shape = args[:3]
    width = math.prod(shape)
    rows = source.numel() // max(width, 1)
    copies = layouts.copies(gradient, source)
    if rows <= 64 * 1024 or width // 32 >= model.processors // 2:
        return copies
    parts = min(2**15 // -(-width // 32), -(-rows // 32))
    item_bytes = source.element_size()
    sums = [parts * width * item_bytes for tensor in out[1:] if tensor is not None]
    staging, _ = staging_bytes(
        inputs=parts,
        outputs=width,
        accumulate_bytes=4,
        along_fastest=False,
        whole=False,
        vector=output_vector([width]),
        processors=model.processors,
    )
    return [*copies, *sums, staging]


def _product(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [bytes_of(matrix) for matrix in copied_matrices(func.name().split(".")[0], args, out)]


def _norms(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """One partial sum for each chunk of the longest tensor, for every tensor."""
    return [4 * len(args[0]) * max(-(-tensor.numel() // 2**16) for tensor in args[0])]


def _reduced_loss(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    reduction = kwargs.get("reduction", args[2] if len(args) > 2 else 1)
    return [broadcast_bytes(args[0], args[1])] if reduction else []


def _logits_loss(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The logarithms, and the losses if they are reduced; otherwise these are the output."""
    reduction = kwargs.get("reduction", args[4] if len(args) > 4 else 1)
    return [bytes_of(args[0])] * (2 if reduction else 1)


def _running_total(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The sum of the repeats up to each element."""
    return [8 * args[0].numel()]


def _scan(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """A scan along a dimension, of a contiguous copy in the type of the result."""
    copies = (args[0].dtype != out.dtype) + (not args[0].is_contiguous())
    return [*[bytes_of(out)] * copies, *_cumulative(model, func, args, kwargs, out)]


def _like_first(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return [bytes_of(args[0])]


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


def _safe_softmax(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The mask of infinite scores, and of rows without a finite one, which are set to zero in place."""
    return [out.numel(), out.numel() // max(out.shape[-1], 1)]


FAMILIES: dict[str, layouts.Family] = {
    **{f"aten::{name}": family for name, family in layouts.COPIES.items()},
    "aten::pow": _power,
    "aten::_ctc_loss_backward": library_buffers.ctc_loss_backward,
    **{f"aten::{name}": _reduction for name in _REDUCTIONS},
    "aten::_softmax_backward_data": layouts.reading_contiguous(0, 1, family=_like_first),  # grad * output
    "aten::_safe_softmax": _safe_softmax,
    "aten::_fft_r2c": library_buffers.fourier,
    "aten::_fft_c2r": library_buffers.fourier,
    "aten::_fft_c2c": library_buffers.fourier,
    **{
        f"aten::{name}": library_buffers.solver
        for name in ("_linalg_eigh", "linalg_eig", "_linalg_svd", "linalg_qr", "_linalg_slogdet")
    },
    "aten::linalg_lu_solve": library_buffers.triangular_solves,
    "aten::repeat_interleave": _running_total,
    "aten::randperm": sorting.random_permutation,
    "aten::multinomial": library_buffers.multinomial,
    "aten::im2col": layouts.reading_contiguous(0, family=_like_first),
    "aten::abs": library_buffers.complex_to_real,
    "aten::angle": library_buffers.complex_to_real,
    "aten::scatter_reduce": _scatter_reduce,
    "aten::scatter_reduce_": _scatter_reduce,
    "aten::_cdist_backward": library_buffers.distance_backward,
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"), _product),
    "aten::_foreach_norm": _norms,
    "aten::logsumexp": _like_first,  # exp(x - max)
    "aten::mse_loss": _reduced_loss,
    "aten::smooth_l1_loss": _reduced_loss,
    "aten::huber_loss": _reduced_loss,
    "aten::binary_cross_entropy_with_logits": _logits_loss,
    "aten::topk": layouts.reading_contiguous(0, family=sorting.topk),
    "aten::sort": sorting.sort,
    "aten::median": sorting.median,
    "aten::nanmedian": sorting.median,
    "aten::index_put": sorting.index_put,
    "aten::index_put_": sorting.index_put,
    "aten::_index_put_impl_": sorting.index_put,
    **{f"aten::{name}": sorting.index_add for name in ("index_add", "index_copy")},
    **{f"aten::{name}_": sorting.index_add for name in ("index_add", "index_copy")},
    **{f"aten::{name}": sorting.scatter for name in ("scatter", "scatter_add")},
    **{f"aten::{name}_": sorting.scatter for name in ("scatter", "scatter_add")},
    "aten::_unsafe_index_put": sorting.index_put,
    "aten::embedding_dense_backward": layouts.reading_contiguous(0, 1, family=_embedding_backward),
    "aten::nonzero": _nonzero,
    "aten::_unique2": sorting.unique,
    "aten::unique_dim": sorting.unique_along,
    "aten::unique_consecutive": sorting.unique_along,
    "aten::isin": sorting.is_in,
    "aten::mode": sorting.mode,
    "aten::masked_scatter": _masked_scatter,
    "aten::masked_scatter_": _masked_scatter,
    "aten::masked_select": _masked_select,
    "aten::cumsum": _scan,
    "aten::_scaled_dot_product_efficient_attention": _efficient_attention,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_attention_backward,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_attention_backward,
    "aten::native_layer_norm_backward": _layer_norm_backward,
}
