"""Rows of a table by their numbers, as fast as a GPU moves them.

torch's own gathers read one number after another and reach a tenth of what a copy moves. Letters: N rows, M taken.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels

_WIDEST = 4096  # values of a row: more fill a GPU by torch's own kernel too


def take_rows(values: Tensor, index: Tensor, *, absent: bool = False) -> Tensor:
    """values: (N, ...); index: (M,) whole numbers in 0 .. N - 1 -> (M, ...), as index_select gives them.

    absent: the number N is taken too, and stands for a row of zeros. On a GPU the numbers are not looked at, which would wait:
    any that is out of range gives zeros there.
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
    taken = torch.empty(index.shape[0], *values.shape[1:], dtype=values.dtype, device=values.device)
    if index.shape[0] and not is_fake(values):
        from pinchpoint.kit.segments import take_rows_triton

        with on_device(values):
            take_rows_triton.take(values, index, taken, width)
    return taken


def with_zeros(values: Tensor) -> Tensor:
    """(N + 1, ...): a row of zeros after the others."""
    return torch.cat([values, values.new_zeros(1, *values.shape[1:])])
