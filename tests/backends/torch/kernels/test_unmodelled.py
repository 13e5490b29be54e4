"""Operations that are known to use more than predicted are noted, once each, with their line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

LOW = {
    "LSTMCell": lambda: nn.LSTMCell(8, 8, device="cuda")(square()[0]),
    "GRUCell": lambda: nn.GRUCell(8, 8, device="cuda")(square()[0]),
}


def square() -> torch.Tensor:
    return torch.ones(4, 8, 8, device="cuda")


def rows() -> torch.Tensor:
    return torch.zeros(8, 8, dtype=torch.int64, device="cuda")


@pytest.mark.parametrize("name", LOW)
def test_an_operation_predicted_too_low_is_a_reason_once_with_its_line(observer: Any, name: str) -> None:
    run: Callable[[], Any] = LOW[name]
    run()
    run()
    (reason,) = observer.ledger.observation.reasons
    assert reason.startswith(f"{name} at ") and "test_unmodelled.py:" in reason and "not modelled" in reason


def test_what_is_modelled_says_nothing(observer: Any) -> None:
    x = square()[0].requires_grad_()
    nn.Conv2d(3, 4, 3, device="cuda")(torch.ones(2, 3, 8, 8, device="cuda")).sum().backward()
    many = torch.ones(
        64, 8, device="cuda", requires_grad=True
    )  # enough for cdist to go through a matrix product
    torch.cdist(many, many).sort().values.sum().backward()
    torch.linalg.cholesky(x)
    torch.linalg.eigh(x.detach())
    torch.fft.rfft(x)
    torch.randperm(1000, device="cuda")
    x.detach().scatter_reduce(0, rows(), x.detach(), "sum")
    torch.randperm(10)
    nn.LSTMCell(8, 8)(torch.ones(2, 8))
    assert observer.ledger.observation.notes == observer.ledger.observation.reasons == []


def test_a_search_for_the_fastest_convolution_is_noted(
    observer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    layer = nn.Conv2d(3, 4, 3, device="cuda")
    for _ in range(2):
        layer(torch.ones(2, 3, 8, 8, device="cuda"))
    (note,) = observer.ledger.observation.notes
    assert "cudnn.benchmark" in note and "searches" in note
