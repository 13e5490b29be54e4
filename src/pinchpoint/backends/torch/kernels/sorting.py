"""Temporaries of operations that sort or select: radix sorts, medians, the largest, unique values.

Read from torch 2.11 and CUB, and compared with the requests of 663 calls on an H200
(benchmarks/results/sort_probe_h200.json). Blocks of other generations take other numbers of keys, which
moves the 1 to 2 % beside the second buffers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from pinchpoint.backends.torch.kernels import layouts
from pinchpoint.backends.torch.kernels.library_buffers import (
    Model,
    Sizes,
    arguments_by_name,
    bytes_of,
    wrapped_dim,
)
from pinchpoint.core.events import Span

# Keys of a block of CUB's radix sort on Hopper, by their bytes: with positions, and alone.
_KEYS_OF_PAIRS = {1: 3456, 2: 5632, 4: 5376, 8: 4608}
_KEYS_ALONE = {1: 5760, 2: 7296, 4: 7296, 8: 5760}
_SHORT_SORTS = 4096  # elements
_WHOLE_SORTS = 1_000_000  # rows from this length on are sorted one after the other


def radix_sort_bytes(count: int, key_bytes: int, *, value_bytes: int = 8, bits: int = 64) -> int:
    """What a radix sort of keys allocates, with int64 positions, other values, or alone.

    A second buffer of the pairs, unless one pass sorts them all; counters of 256 digits for each pass and
    for each block; one part besides. bits: those of a key that differ.
    """
    if count <= (4864 if max(key_bytes, value_bytes) <= 4 else 2432):
        return 1  # one block sorts them in its own memory
    passes = -(-min(8 * key_bytes, bits) // 8)
    buffers = [key_bytes * count, value_bytes * count] if passes > 1 else []
    blocks = -(-count // (_KEYS_OF_PAIRS if value_bytes else _KEYS_ALONE)[min(key_bytes, 8)])
    return _together(*buffers, 2048 * passes, 1024 * blocks, 256)


def _together(*parts: int) -> int:
    """One block for these parts, each rounded up to 256 B, and room for aligning the whole."""
    return sum(-(-part // 256) * 256 for part in parts) + 255


def sort(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    return _sizes_of_sort(args[0], out[0], arguments_by_name(func, args, kwargs).get("dim", -1))


def _sizes_of_sort(source: torch.Tensor, values: torch.Tensor, dim: int) -> list[int]:
    """Short rows are sorted in place; longer ones together, from 128 on in segments."""
    dim = wrapped_dim(dim, values)
    count, length = values.numel(), values.shape[dim] if values.dim() else 1
    if count == 0:
        return []
    if length <= _SHORT_SORTS:
        return [8 * length]  # positions of a row
    key_bytes = values.element_size()
    # Keys are read from a copy, unless they are stored without gaps and along the dimension. If the outputs
    # have other strides than the keys, they are copied from tensors that have the same.
    is_read = source.stride(dim) == 1 and _is_dense(source)
    copies = [] if is_read else [key_bytes * count]
    if tuple(values.stride()) != (tuple(source.stride()) if is_read else _strides_along(source, dim)):
        copies += [key_bytes * count, 8 * count]
    rows = count // length
    if rows == 1 or length >= _WHOLE_SORTS:
        return [*copies, 8 * length, radix_sort_bytes(length, key_bytes)]
    if rows < 128:
        positions = [8 * count, 8 * count, key_bytes * count]  # with the row of each, before and after
        return [*copies, *positions, radix_sort_bytes(count, key_bytes)]
    return [*copies, 8 * count, _together(key_bytes * count, 8 * count)]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements are stored without gaps, each once, in some order of the dimensions."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != reach:
            return False
        reach *= size
    return True


def _strides_along(tensor: torch.Tensor, dim: int) -> tuple[int, ...]:
    """The strides of a copy with this dimension as the fastest, and the others in the order they have."""
    order = sorted((d for d in range(tensor.dim()) if d != dim), key=lambda d: -tensor.stride(d))
    strides, reach = [0] * tensor.dim(), 1
    for d in (dim, *reversed(order)):
        strides[d], reach = reach, reach * tensor.shape[d]
    return tuple(strides)


def median(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The median of all elements sorts them; along a dimension, a contiguous copy is read."""
    source = args[0]
    if isinstance(out, (tuple, list)):
        return layouts.copies(source)
    count = source.numel()
    if count <= _SHORT_SORTS:
        copies = layouts.copies(source) if source.dim() > 1 else []
        return [*copies, bytes_of(source), 8 * count, 8 * count]
    sort_bytes = radix_sort_bytes(count, source.element_size())
    return [*layouts.copies(source), bytes_of(source), 8 * count, 8 * count, sort_bytes]


def mode(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Rows of more than 2,048 are sorted one after the other, in a copy of all."""
    source = args[0]
    length = source.shape[arguments_by_name(func, args, kwargs).get("dim", -1)] if source.dim() else 1
    if length <= 2048 or source.numel() == 0:
        return []
    key_bytes = source.element_size()
    counting = (key_bytes + 8) * length + 85_503  # of the elements of a row that are alike
    return [bytes_of(source), 8 * length, max(radix_sort_bytes(length, key_bytes), counting)]


# Rows, and the length from which on several blocks select from each of so many; of more rows from 400 on.
_SELECTED_BY_BLOCKS = (
    (20, 20_000),
    (40, 10_000),
    (80, 8_000),
    (199, 5_000),
    (799, 3_000),
    (4_000, 800),
)
_SELECTING_BLOCKS = 6  # on a multiprocessor at once, by their registers


def topk(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Long rows are selected from by several blocks; many values are sorted apart."""
    values, source = out[0], args[0]
    arguments = arguments_by_name(func, args, kwargs)
    dim = arguments.get("dim", -1)
    length, kept = (source.shape[dim], values.shape[dim]) if source.dim() else (1, 1)
    if values.numel() == 0:
        return []
    rows = source.numel() // length
    sizes: list[int] = []
    if length >= next((least for most, least in _SELECTED_BY_BLOCKS if rows <= most), 400):
        threads = model.processors * _SELECTING_BLOCKS * 256
        each = min(max(-(-source.numel() // threads), 4), 64)  # elements of a thread
        blocks = rows * -(-length // (256 * each))
        state = [source.element_size() * rows, 8 * rows, 8 * rows]
        sizes = [*state, 512 * blocks, 1024 * rows, 4 * blocks, 4 * blocks, 1279]
    if kept > _SHORT_SORTS and arguments.get("sorted", True):
        # In values and positions of their own; the sort is of one row, or of all of them.
        ordered = [bytes_of(values), 8 * values.numel()]
        sizes = max(sizes, [*ordered, *_sizes_of_sort(values, values, dim)], key=sum)
    return sizes


_MASKS = (torch.bool, torch.uint8)


def index_put(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """With accumulation, or if results are to be repeatable, the indices are linearised and sorted first."""
    arguments = arguments_by_name(func, args, kwargs)
    target, indices, values = (arguments[name] for name in ("self", "indices", "values"))
    is_fill = values.numel() == 1 and any(index is not None and index.dtype in _MASKS for index in indices)
    is_sorted = arguments.get("accumulate", False) or (
        torch.are_deterministic_algorithms_enabled() and not is_fill
    )
    return _sorted_writes(target, indices, values) if is_sorted else []


def _sorted_writes(
    target: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor
) -> Sizes:
    """Places that are written to in order, sorted with where their values are; and copies."""
    index_tensors = [index for index in indices if index is not None]
    if not index_tensors:
        return []
    dims: list[int] = []  # that the indices replace
    dim = 0
    for index in indices:
        width = index.dim() if index is not None and index.dtype in _MASKS else 1
        dims += [] if index is None else range(dim, dim + width)
        dim += width
    slice_numel = target.numel() // max(math.prod(target.shape[d] for d in dims), 1)
    if any(index.dtype in _MASKS for index in index_tensors):  # how many are true is the number of values
        count = max(index.numel() for index in index_tensors)
        count = count if values.numel() <= slice_numel else values.numel() // max(slice_numel, 1)
    else:
        count = math.prod(torch.broadcast_shapes(*[index.shape for index in index_tensors]))
    is_read = values.is_contiguous() and values.numel() >= count * slice_numel
    copies = [] if is_read else [count * slice_numel * target.element_size()]
    if not target.is_contiguous() or dims != list(range(dims[0], dims[0] + len(dims))):
        copies.append(bytes_of(target))
    sort_bytes = radix_sort_bytes(count, 8, bits=target.numel().bit_length())
    return [*copies, *[8 * count] * 4, sort_bytes]


def index_add(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Repeatable sums and copies are written by `index_put`; a sum from the source times a factor."""
    if not torch.are_deterministic_algorithms_enabled():
        return []
    arguments = arguments_by_name(func, args, kwargs)
    target, index, source = (arguments[name] for name in ("self", "index", "source"))
    indices = [None] * wrapped_dim(arguments["dim"], target) + [index]
    copies = [bytes_of(source)] if "index_add" in func.name() else []  # times a factor
    if index.dtype is not torch.int64:
        copies.append(8 * index.numel())
    return [*copies, *_sorted_writes(target, indices, source)]


def scatter(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Repeatable results are written by `index_put`, whole slices at once, but for numbers and extremes."""
    arguments = arguments_by_name(func, args, kwargs)
    is_sum = arguments.get("reduce", "sum") in ("sum", "add", "mean")
    if not torch.are_deterministic_algorithms_enabled() or not is_sum or "src" not in arguments:
        return []
    target, index, source = (arguments[name] for name in ("self", "index", "src"))
    if index.numel() == 0 or target.dim() == 0:
        return []
    dim, dims = wrapped_dim(arguments["dim"], target), range(index.dim())
    source = source.as_strided(index.shape, source.stride())  # the part that is read
    if any(index.stride(d) for d in dims if d != dim):
        return _sorted_writes(target, [index] * target.dim(), source)
    for d in reversed(dims):
        index = index if d == dim else index.select(d, 0)
    return _sorted_writes(target, [None] * dim + [index], source)


def unique(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """What the sort takes, or what comes after it, besides the outputs; the sorted values become one."""
    source, (_, inverse, counts) = args[0], out
    count, key_bytes = source.numel(), source.element_size()
    if source.dtype is torch.bool or count == 0:
        return [max(21_503 - bytes_of(inverse), 0) if count > 4096 else 1]  # true values are counted
    values_bytes, inverse_bytes, counts_bytes = (
        key_bytes * count,
        8 * count * (inverse.numel() > 0),
        8 * count * (counts.numel() > 0),
    )
    if inverse_bytes:
        phases = [
            [values_bytes, 8 * count, 8 * count, radix_sort_bytes(count, key_bytes)],
            [values_bytes, 8 * count, 8 * count, inverse_bytes, values_bytes * (counts_bytes > 0)],
        ]
    else:
        phases = [
            [values_bytes, radix_sort_bytes(count, key_bytes, value_bytes=0)],
            [values_bytes, values_bytes, counts_bytes],
        ]
    most = max(sum(phase) for phase in phases)
    return [*layouts.copies(source), most - values_bytes - inverse_bytes - counts_bytes]


def unique_along(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Whole rows are compared: their order is sorted, and stays to the end."""
    source, arguments = args[0], arguments_by_name(func, args, kwargs)
    if (dim := arguments.get("dim")) is None:  # neighbours that are equal, of all elements
        return layouts.copies(source)
    rows = source.shape[dim]
    outputs = sum(bytes_of(tensor) for tensor in out)
    inverse, counts = (bool(arguments.get(f"return_{name}")) for name in ("inverse", "counts"))
    marks = 8 * rows * (2 * inverse + counts)  # where others begin, the inverse, and where each was
    copies = layouts.copies(source) if dim % source.dim() == 0 else [bytes_of(source)]
    return [*copies, 8 * rows, max(_together(8 * rows, 2048) - outputs, marks - outputs, 0)]


def is_in(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> list[int | Span]:
    """Few elements are compared with each other one; otherwise the unique ones of both are sorted together.

    How many there are is not known.
    """
    elements, others = (args[at] if isinstance(args[at], torch.Tensor) else None for at in (0, 1))
    if elements is None or others is None or elements.numel() == 0:
        return []
    count, other_count = elements.numel(), others.numel()
    if other_count < 10 * count**0.145:
        return [count * other_count, count]
    key_bytes = elements.element_size()
    unique_bytes = (key_bytes + 16) * count + radix_sort_bytes(count, key_bytes)
    both = count + other_count
    sort_bytes = (2 * key_bytes + 16 + 3) * both + radix_sort_bytes(both, key_bytes)
    most = (key_bytes + 8) * count + key_bytes * other_count + sort_bytes
    return [Span(unique_bytes, unique_bytes, max(unique_bytes, most))]


def random_permutation(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Positions sorted by random keys, of so many bits that few are equal."""
    count, item_bytes = out.numel(), out.element_size()
    bits = math.ceil(math.log2(max(count - (6 * count**2 + 1) / (12 * math.log(0.9)), 2)))
    key_bytes = 4 if bits <= 32 else 8
    sort_bytes = radix_sort_bytes(count, key_bytes, value_bytes=item_bytes, bits=bits)
    return [item_bytes, item_bytes * count, key_bytes * count, key_bytes * count, sort_bytes]
