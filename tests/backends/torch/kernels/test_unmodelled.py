"""Operations that are known to use more than predicted are noted, once each, with their line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

LOW = {
    "_linalg_eigh": lambda: torch.linalg.eigh(square()),
    "_linalg_svd": lambda: torch.linalg.svd(square()),
    "linalg_qr": lambda: torch.linalg.qr(square()),
    "_linalg_slogdet": lambda: torch.linalg.slogdet(square()),
    "_fft_r2c": lambda: torch.fft.rfft(square()),
    "_fft_c2c": lambda: torch.fft.fft(square().to(torch.complex64)),
    "multinomial": lambda: torch.multinomial(square()[0], 3),
    "randperm": lambda: torch.randperm(1000, device="cuda"),
    "im2col": lambda: nn.functional.unfold(torch.ones(2, 3, 8, 8, device="cuda"), 3),
    "scatter_reduce": lambda: square()[0].scatter_reduce(0, rows(), square()[1], "mean"),
    "_cdist_backward": lambda: (
        torch.cdist(square().requires_grad_(), square(), compute_mode="donot_use_mm_for_euclid_dist")
        .sum()
        .backward()
    ),
    "LSTMCell": lambda: nn.LSTMCell(8, 8, device="cuda")(square()[0]),
    "GRUCell": lambda: nn.GRUCell(8, 8, device="cuda")(square()[0]),
}


def square() -> torch.Tensor:
    return torch.ones(4, 8, 8, device="cuda")


def rows() -> torch.Tensor:
    return torch.zeros(8, 8, dtype=torch.int64, device="cuda")


@pytest.mark.parametrize("name", LOW)
def test_an_operation_predicted_too_low_is_noted_once_with_its_line(observer: Any, name: str) -> None:
    run: Callable[[], Any] = LOW[name]
    run()
    run()
    (note,) = observer.ledger.observation.notes
    assert note.startswith((f"aten::{name} at ", f"{name} at ")) and "test_unmodelled.py:" in note
    assert "not modelled" in note and note.endswith("the peak may be higher")


def test_what_is_modelled_says_nothing(observer: Any) -> None:
    x = square()[0].requires_grad_()
    nn.Conv2d(3, 4, 3, device="cuda")(torch.ones(2, 3, 8, 8, device="cuda")).sum().backward()
    many = torch.ones(
        64, 8, device="cuda", requires_grad=True
    )  # enough for cdist to go through a matrix product
    torch.cdist(many, many).sort().values.sum().backward()
    torch.linalg.cholesky(x)
    x.detach().scatter_reduce(0, rows(), x.detach(), "sum")
    torch.randperm(10)
    nn.LSTMCell(8, 8)(torch.ones(2, 8))
    assert observer.ledger.observation.notes == []


def test_a_search_for_the_fastest_convolution_is_noted(
    observer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    layer = nn.Conv2d(3, 4, 3, device="cuda")
    for _ in range(2):
        layer(torch.ones(2, 3, 8, 8, device="cuda"))
    (note,) = observer.ledger.observation.notes
    assert "cudnn.benchmark" in note and "searches" in note
