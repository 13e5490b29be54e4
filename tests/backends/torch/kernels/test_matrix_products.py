"""Which matrices a product copies, by the strides that cuBLAS can read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.kernels.matrix_products import copied_matrices

LEFT, RIGHT = torch.empty(6, 8), torch.empty(8, 4)
BATCH, OTHER = torch.empty(3, 6, 8), torch.empty(3, 8, 4)


@pytest.mark.parametrize(
    ("left", "right", "copies"),
    [
        (LEFT, RIGHT, 0),
        (LEFT.t().contiguous().t(), RIGHT, 0),
        (torch.empty(6, 20)[:, :8], RIGHT, 0),  # rows at a fixed distance
        (torch.empty(6, 16)[:, ::2], RIGHT, 1),  # every second column
        (torch.empty(1, 1).expand(6, 8), RIGHT, 1),  # the gradient of a sum
        (torch.empty(8).expand(6, 8), torch.empty(4).expand(8, 4), 2),
        (BATCH, OTHER, 0),
        (BATCH.transpose(1, 2).contiguous().transpose(1, 2), OTHER, 0),
        (torch.empty(3, 6, 20)[..., :8], OTHER, 0),
        (torch.empty(3, 6, 16)[..., ::2], OTHER, 1),
        (torch.empty(3, 1, 8).expand(3, 6, 8), OTHER, 1),
        (torch.empty(1, 6, 8).expand(3, 6, 8), OTHER, 0),  # one matrix for the whole batch
        (BATCH, torch.empty(3, 8, 8)[..., ::2], 1),
        (BATCH, torch.empty(3, 8, 1), 0),
    ],
)
def test_copied_matrices(left: torch.Tensor, right: torch.Tensor, copies: int) -> None:
    name = "aten::mm" if left.dim() == 2 else "aten::bmm"
    assert len(copied_matrices(name, (left, right), left @ right)) == copies


def test_a_copy_is_alive_with_the_result(take: Any) -> None:
    left, right = torch.rand(1024, 1024, device="cuda"), torch.rand(1024, 1024, device="cuda")
    torch.mm(left, right)  # takes cuBLAS's workspace
    steps = torch.rand(1024, 2048, device="cuda")[:, ::2]
    plain, copied = take(lambda: torch.mm(left, right)), take(lambda: torch.mm(steps, right))
    assert (plain.peak, copied.peak) == (4 * 2**20, 8 * 2**20)
    assert copied.kept_bytes == plain.kept_bytes == 4 * 2**20
