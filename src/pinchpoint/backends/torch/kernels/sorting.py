"""Temporaries of operations that sort or select: radix sorts, medians, the largest, unique values.

Read from torch 2.11 and CUB, and compared with every request of 495 calls on an H200
(benchmarks/results/sort_probe_h200.json). Blocks of other generations take other numbers of keys, which
moves the 1 to 2 % beside the second buffers.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.kernels import layouts
from pinchpoint.backends.torch.kernels.library_buffers import Model, Sizes, bytes_of

# Keys of a block of CUB's radix sort on Hopper, by their bytes: with positions, and alone.
_KEYS_OF_PAIRS = {1: 3456, 2: 5632, 4: 5376, 8: 4608}
_KEYS_ALONE = {1: 5760, 2: 7296, 4: 7296, 8: 5760}
_SHORT_SORTS = 4096  # elements
_WHOLE_SORTS = 1_000_000  # rows from this length on are sorted one after the other


def _radix_sort_bytes(count: int, key_bytes: int, *, alone: bool = False, bits: int = 64) -> int:
    """What a radix sort of keys allocates, with int64 positions or alone.

    A second buffer of the pairs, unless one pass sorts them all; counters of 256 digits for each pass and
    for each block; one part besides. bits: those of a key that differ.
    """
    buffers = [key_bytes * count, 0 if alone else 8 * count] if key_bytes > 1 else []
    blocks = -(-count // (_KEYS_ALONE if alone else _KEYS_OF_PAIRS)[min(key_bytes, 8)])
    passes = -(-min(8 * key_bytes, bits) // 8)
    return _together(*buffers, 2048 * passes, 1024 * blocks, 256)


def _together(*parts: int) -> int:
    """One block for these parts, each rounded up to 256 B, and room for aligning the whole."""
    return sum(-(-part // 256) * 256 for part in parts) + 255


def sort(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    names = compat.argument_names(func)
    arguments = dict(zip(names, args, strict=False)) | kwargs
    return _sizes_of_sort(args[0], out[0], arguments.get("dim", -1))


def _sizes_of_sort(source: torch.Tensor, values: torch.Tensor, dim: int) -> list[int]:
    """Short rows are sorted in place; longer ones together, from 128 on in segments."""
    count, length = values.numel(), values.shape[dim] if values.dim() else 1
    if length <= _SHORT_SORTS:
        return [8 * length]  # positions of a row
    key_bytes = values.element_size()
    # Keys with gaps are copied, and those of a dimension that is not the fastest one; these also come out in
    # values and positions that are copied to the outputs.
    reach = sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True))
    is_read = source.stride(dim) == 1 and reach + 1 == count
    copies = [] if is_read else [key_bytes * count]
    copies += [key_bytes * count, 8 * count] if values.stride(dim) > 1 else []
    rows = count // length
    if rows == 1 or length >= _WHOLE_SORTS:
        return [*copies, 8 * length, _radix_sort_bytes(length, key_bytes)]
    if rows < 128:
        positions = [8 * count, 8 * count, key_bytes * count]  # with the row of each, before and after
        return [*copies, *positions, _radix_sort_bytes(count, key_bytes)]
    return [*copies, 8 * count, _together(key_bytes * count, 8 * count)]


def median(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """The median of all elements sorts them; along a dimension, a contiguous copy is read."""
    source = args[0]
    if isinstance(out, (tuple, list)):
        return layouts.copies(source)
    count, sort = source.numel(), []
    if count > _SHORT_SORTS:
        sort = [_radix_sort_bytes(count, source.element_size())]
    return [bytes_of(source), 8 * count, 8 * count, *sort]


def topk(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Long rows are selected from by several blocks; many values are sorted apart."""
    values, source = out[0], args[0]
    dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
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
    if kept > _SHORT_SORTS and kwargs.get("sorted", args[4] if len(args) > 4 else True):
        # In values and positions of their own; the sort is of one row, or of all of them.
        ordered = [bytes_of(values), 8 * values.numel()]
        sizes = max(sizes, [*ordered, *_sizes_of_sort(values, values, dim)], key=sum)
    return sizes


# Rows, and the length from which on several blocks select from each of so many.
_SELECTED_BY_BLOCKS = (
    (20, 20_000),
    (40, 10_000),
    (80, 8_000),
    (199, 5_000),
    (799, 3_000),
    (4_000, 800),
)
_SELECTING_BLOCKS = 6  # on a multiprocessor at once, by their registers


def index_put(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """With accumulation, the indices are linearised and sorted first."""
    accumulate = kwargs.get("accumulate", args[3] if len(args) > 3 else False)
    if not accumulate:
        return []
    count = 1
    for size in torch.broadcast_shapes(*[i.shape for i in args[1] if i is not None]):
        count *= size
    return [8 * count] * 4 + [_radix_sort_bytes(count, 8, bits=args[0].numel().bit_length())]


def unique(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """What the sort takes, or what comes after it, besides the outputs; the sorted values stay to the end."""
    count, key_bytes = args[0].numel(), args[0].element_size()
    has_inverse, has_counts = (tensor.numel() > 0 for tensor in out[1:])
    sort = 16 * count * has_inverse + _radix_sort_bytes(count, key_bytes, alone=not has_inverse)
    after = 24 * count if has_inverse else (key_bytes + 8 * has_counts) * count
    if has_inverse and has_counts:
        after += key_bytes * count
    return [max(sort, after) - 8 * count * (has_inverse + has_counts)]


def random_permutation(model: Model, func: Any, args: Any, kwargs: Any, out: Any) -> Sizes:
    """Positions sorted by random keys, of so many bits that few are equal."""
    count = out.numel()
    bits = math.ceil(math.log2(max(count - (6 * count**2 + 1) / (12 * math.log(0.9)), 2)))
    key_bytes = 4 if bits <= 32 else 8
    keys = [key_bytes * count] * 2
    return [8, 8 * count, *keys, _radix_sort_bytes(count, key_bytes, bits=bits)]
