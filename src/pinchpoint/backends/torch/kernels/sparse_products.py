"""Memory of products with sparse matrices on the GPU, following the steps of torch's CUDA code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pinchpoint.backends.torch.fake.sparse_tensors import DeviceSparse


def multiply(matrix: DeviceSparse, dense: torch.Tensor) -> torch.Tensor:
    """`matrix @ dense`, without autograd."""
    rows, width = matrix.shape[0], dense.shape[1]
    matrix = coalesce(matrix)
    count = matrix.values_.shape[0]
    out = _new(matrix, dense, (rows, width), dense.dtype)
    if not matrix.is_csr:
        row_numbers = _new(matrix, dense, (count,), torch.int32)
        row_starts = _new(matrix, dense, (rows + 1,), torch.int32)
        del row_numbers
        columns = _new(matrix, dense, (count,), torch.int32)
        column_major = _new(matrix, dense, (rows, width), dense.dtype)
        del row_starts, columns, column_major
    return out


def coalesce(matrix: DeviceSparse) -> DeviceSparse:
    """Sort the entries and sum those of one place. Their number stays the same at most."""
    if matrix.is_coalesced_:
        return matrix
    values = matrix.values_
    count = values.shape[0]
    flat = _new(matrix, values, (count,), torch.int64)
    order, offsets = (_new(matrix, values, (count,), torch.int64) for _ in range(2))
    buffers = [_new(matrix, values, (count,), torch.int64) for _ in range(2)]
    del buffers
    new_values = torch.empty_like(values)
    indices = _new(matrix, values, (2, count), torch.int64)
    del flat, order, offsets
    return type(matrix)(matrix.observer, (indices,), new_values, matrix.shape, is_coalesced=True)


def transpose(matrix: DeviceSparse) -> DeviceSparse:
    shape = (matrix.shape[1], matrix.shape[0])
    indices = tuple(index.clone() for index in matrix.indices_)
    return type(matrix)(matrix.observer, indices, matrix.values_.detach().clone(), shape)


def gradient_of_values(matrix: DeviceSparse, gradient: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """torch computes the gradient of the whole dense matrix and then picks the entries."""
    whole = gradient @ dense.t()
    picked = torch.empty_like(matrix.values_)
    del whole
    return picked


def _new(
    matrix: DeviceSparse, like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """An uninitialised tensor whose values are unknown."""
    tensor = torch.empty(shape, dtype=dtype, device="cuda")
    matrix.observer.shadows.forget(tensor)
    return tensor
