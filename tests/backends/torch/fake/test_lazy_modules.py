"""Modules whose parameters get their shape with the first call, on the simulated device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.backends.torch.conftest import rounded
from torch import nn


def build_and_move(kind: str, width: int) -> Any:
    if kind == "cuda":
        return nn.LazyLinear(width).cuda()
    if kind == "to":
        return nn.LazyLinear(width).to("cuda:0", torch.float32)
    if kind == "back and forth":
        return nn.LazyLinear(width).cuda().cpu().to(0)
    return nn.LazyLinear(width, device="cuda")


@pytest.mark.parametrize("kind", ["cuda", "to", "back and forth", "device"])
@pytest.mark.parametrize("width", [4, 1200])  # on the host a matrix of over 1,000,000 elements is fake
def test_a_lazy_layer_takes_the_memory_of_a_plain_one(kind: str, width: int, take: Any) -> None:
    model = build_and_move(kind, width)
    x = torch.ones(2, 1200, device="cuda")
    plain = nn.Linear(1200, width, device="cuda")
    plain(x)  # the workspace of cuBLAS is allocated
    used = take(lambda: model(x))
    weights = rounded(4 * 1200 * width) + rounded(4 * width)
    assert used.kept_bytes == take(lambda: plain(x)).kept_bytes + weights
    assert type(model) is nn.Linear
    assert model.weight.shape == plain.weight.shape and model.weight.is_cuda
    assert isinstance(model.weight, nn.Parameter)
    optimizer = torch.optim.SGD(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    assert model.weight.grad is not None and model.weight.grad.is_cuda


def test_a_lazy_layer_on_the_host_stays_there(observer: Any) -> None:
    model: Any = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()).half().float()
    out = model(torch.ones(2, 3, 8, 8))
    assert not out.is_cuda and not model[1].running_mean.is_cuda
    model.cuda()
    assert model(torch.ones(2, 3, 8, 8, device="cuda")).is_cuda
    assert model[1].running_mean.is_cuda


def test_a_lazy_layer_follows_the_default_device(observer: Any) -> None:
    with torch.device("cuda"):
        model: Any = nn.LazyLinear(4)
        moved: Any = nn.LazyLinear(4).cpu()
        moved(torch.ones(2, 3, device="cpu"))
    model(torch.ones(2, 3, device="cuda"))
    assert model.weight.is_cuda and not moved.weight.is_cuda
