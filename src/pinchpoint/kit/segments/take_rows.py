"""Gathering rows of a table at the memory bandwidth of the GPU.

torch's own gathers read one value at a time and reach a tenth of the bandwidth of a copy. Letters: N rows, M
rows taken.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels

_WIDEST = 4096  # values per row; with more, torch's own kernel also uses the whole GPU


def take_rows(values: Tensor, index: Tensor, *, absent: bool = False) -> Tensor:
    """values: (N, ...); index: (M,) integers in 0 .. N - 1 -> (M, ...), as index_select returns them.

    absent: the index N is also allowed and gives a row of zeros. On a GPU the indices are not checked,
    because that would wait for the device; any index out of range gives zeros there.
    """
    width = math.prod(values.shape[1:])
    differentiated = values.requires_grad and torch.is_grad_enabled()
    if (
        differentiated
        or not 0 < width <= _WIDEST
        or not values.shape[0]
        or not values.is_contiguous()
        or not own_kernels(values)
    ):
        return (with_zeros(values) if absent else values).index_select(0, index)
    rows = torch.empty(index.shape[0], *values.shape[1:], dtype=values.dtype, device=values.device)
    if index.shape[0] and not is_fake(values):
        from pinchpoint.kit.segments import take_rows_triton

        with on_device(values):
            take_rows_triton.take(values, index, rows, width)
    return rows


def with_zeros(values: Tensor) -> Tensor:
    """(N + 1, ...): the values and a last row of zeros."""
    return torch.cat([values, values.new_zeros(1, *values.shape[1:])])
