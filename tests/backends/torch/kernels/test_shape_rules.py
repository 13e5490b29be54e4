"""Operations for which torch has no shape rule: their tensors are counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F


def test_the_ctc_loss_keeps_a_table_of_two_entries_per_symbol(take: Any) -> None:
    steps, batch, symbols, classes = 100, 8, 30, 20
    scores = torch.zeros(steps, batch, classes, device="cuda", requires_grad=True)
    targets = torch.ones(batch, symbols, dtype=torch.long, device="cuda")
    lengths = [torch.full((batch,), size, device="cuda") for size in (steps, symbols)]
    kept = take(lambda: F.ctc_loss(scores, targets, *lengths, reduction="none"))
    table = batch * steps * (2 * symbols + 1) * 4
    assert table <= kept.kept_bytes <= table + 4 * 512
    loss = F.ctc_loss(scores, targets, *lengths, reduction="none").sum()
    backward = take(loss.backward)
    assert table + scores.numel() * 4 <= backward.peak <= table + scores.numel() * 4 + 8 * 512


def test_a_product_with_out_dtype_returns_what_it_writes_to(observer: Any, take: Any) -> None:
    if "dtype_out" not in torch.ops.aten.addmm.overloads():
        pytest.skip("this torch has no products with out_dtype")
    left, right = (torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.zeros(64, 64, device="cuda")
    torch.mm(left, right)  # creates the workspaces
    torch.addmm(out[0].bfloat16(), left, right)
    assert take(lambda: torch.addmm(out, left, right, out_dtype=torch.float32, out=out)).peak == 0
