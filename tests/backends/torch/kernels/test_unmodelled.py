"""What is modelled says nothing; a search for kernels is noted once, with its line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


def square() -> torch.Tensor:
    return torch.ones(4, 8, 8, device="cuda")


def rows() -> torch.Tensor:
    return torch.zeros(8, 8, dtype=torch.int64, device="cuda")


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
    nn.LSTMCell(8, 8, device="cuda")(square()[0])
    nn.GRUCell(8, 8, device="cuda")(square()[0])
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
