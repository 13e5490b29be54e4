"""Workspaces of kernels: properties of tensors that are read without running an operation."""

from __future__ import annotations

import pytest
import torch

from pinchpoint.backends.torch.kernels import workspaces


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 3, 5, 4), (2, 1, 5, 4), (2, 3, 1, 4)])
def test_the_order_of_heads_and_rows_in_memory_is_what_a_view_would_say(
    shape: tuple[int, int, int, int],
) -> None:
    batch, heads, rows, width = shape
    for tensor in (
        torch.zeros(shape),
        torch.zeros(batch, rows, heads, width).transpose(1, 2),
        torch.zeros(*shape[:3], 8)[..., ::2],
    ):
        assert workspaces._rows_before_heads(tensor) == tensor.transpose(1, 2).is_contiguous()
