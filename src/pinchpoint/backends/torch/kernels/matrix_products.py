"""Copies of matrices that cuBLAS cannot read, and `COMPOSED`: operations that consist of products and others.

Views with steps and dimensions of stride 0 are copied. The conditions are those of torch's
`prepare_matrix_for_cublas` and `prepare_batch_matrix_for_cublas` (ATen/native/cuda/Blas.cpp and
LinearAlgebra).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten
_FIRST = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}  # number of the left factor


def copied_matrices(name: str, args: Any, result: torch.Tensor) -> list[torch.Tensor]:
    """The factors that the product `name` copies before it calls cuBLAS."""
    first = _FIRST[name]
    left, right = args[first : first + 2]
    if left.dim() == 2:
        return [matrix for matrix in (left, right) if _is_copied(matrix)]
    # The product of the transposed matrices is computed, because results are stored by rows.
    by_rows = result.shape[2] > 1
    rows, columns = (result.shape[2], result.shape[1]) if by_rows else (result.shape[1], result.shape[2])
    inner = left.shape[2]
    factors = (
        ((right, rows, inner), (left, inner, columns))
        if by_rows
        else (
            (left, rows, inner),
            (right, inner, columns),
        )
    )
    return [matrix for matrix, m, n in factors if _is_copied_in_batch(matrix, m, n, by_rows=by_rows)]


def _is_copied(matrix: torch.Tensor) -> bool:
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    if _is_dense(matrix):
        return False
    by_columns = row_stride == 1 and column_stride >= max(1, rows)
    by_rows = column_stride == 1 and row_stride >= max(1, columns)
    return not (by_columns or by_rows)


def _is_copied_in_batch(matrix: torch.Tensor, m: int, n: int, *, by_rows: bool) -> bool:
    strides = matrix.stride()
    fast, leading = (strides[2], strides[1]) if by_rows else (strides[1], strides[2])
    if (fast == 1 and leading >= max(1, m)) or (leading == 1 and fast >= max(1, n)):
        return False
    return not (matrix.is_contiguous() and strides[1] and strides[2])


def _is_dense(matrix: torch.Tensor) -> bool:
    """Whether the elements fill a piece of memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(matrix.stride(), matrix.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _distances(run: Callable[..., Any], first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Distances by a product of padded copies, as torch computes those between many points (`cdist`)."""
    first_norms = run(_aten.sum.dim_IntList, run(_aten.pow.Tensor_Scalar, first, 2), [-1], True)
    first_ones = run(_aten.ones_like.default, first_norms)
    second_norms = run(_aten.sum.dim_IntList, run(_aten.pow.Tensor_Scalar, second, 2), [-1], True)
    second_ones = run(_aten.ones_like.default, second_norms)
    left = run(_aten.cat.default, [run(_aten.mul.Tensor, first, -2), first_norms, first_ones], -1)
    del first_norms, first_ones
    right = run(_aten.cat.default, [second, second_ones, second_norms], -1)
    del second_norms, second_ones
    product = _aten.mm.default
    if left.dim() > 2 or right.dim() > 2:  # as one batch
        product = _aten.bmm.default
        left, right = (
            run(_aten.view.default, one, [one.shape[:-2].numel(), *one.shape[-2:]]) for one in (left, right)
        )
    result = run(product, left, run(_aten.transpose.int, right, -2, -1))
    return run(_aten.sqrt_.default, run(_aten.clamp_min_.default, result, 0))


# Each takes a function that runs an operation, and the arguments.
COMPOSED: dict[Any, Callable[..., Any]] = {_aten._euclidean_dist.default: _distances}
