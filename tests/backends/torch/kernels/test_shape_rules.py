"""Operations for which torch has no shape rule: their tensors are counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

_HAS_OUT_DTYPE = "dtype" in torch.ops.aten.addmm.overloads()


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


@pytest.mark.skipif(not _HAS_OUT_DTYPE, reason="this torch has no products with out_dtype")
@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_a_product_with_an_output_type_allocates_its_shape_in_that_type(take: Any, name: str) -> None:
    rows, inner, columns = 256, 64, 512
    batch = () if "b" not in name else (3,)
    left = torch.zeros(*batch, rows, inner, dtype=torch.bfloat16, device="cuda")
    right = torch.zeros(*batch, inner, columns, dtype=torch.bfloat16, device="cuda")
    start = [torch.zeros(*batch, rows, columns, device="cuda")] if "add" in name else []
    product = getattr(torch.ops.aten, name)
    product.dtype(*start, left, right, torch.float32)  # the first product allocates workspaces
    taken = take(lambda: product.dtype(*start, left, right, torch.float32))
    expected = 4 * (batch or (1,))[0] * rows * columns
    assert (taken.peak, taken.kept_bytes) == (expected, expected)
    out = torch.zeros(*batch, rows, columns, device="cuda")
    assert take(lambda: product.dtype_out(*start, left, right, torch.float32, out=out)).peak == 0
    with pytest.raises(RuntimeError, match=r"dim|size|shapes"):
        product.dtype(*start, left, right[..., 1:, :], torch.float32)
