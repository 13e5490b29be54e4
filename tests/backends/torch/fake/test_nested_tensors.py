"""Nested tensors of the jagged layout on the simulated device: the bytes of their values, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pinchpoint.core.errors import CannotFake

LENGTHS = (100, 200, 300)
TOTAL = sum(LENGTHS)


def parts(device: str) -> list[torch.Tensor]:
    return [torch.randn(length, 64, device=device) for length in LENGTHS]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_layer_on_a_nested_tensor_allocates_its_values(take: Any, device: str) -> None:
    nested = torch.nested.nested_tensor(parts(device), layout=torch.jagged).to("cuda")
    assert nested.is_cuda and nested.device == torch.device("cuda:0")
    layer = nn.Linear(64, 128).cuda()
    layer(nested)  # with the workspaces of cuBLAS
    out = take(lambda: F.gelu(layer(nested)))
    assert out.kept_bytes == 2 * TOTAL * 128 * 4  # the output of each
    F.gelu(layer(nested)).values().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.is_cuda
    padded = nested.to_padded_tensor(0.0)
    assert padded.shape == (3, 300, 64)
    assert [one.shape[0] for one in nested.unbind()] == list(LENGTHS)


def test_attention_over_nested_tensors_makes_it_unknown_whether_the_run_fits(observer: Any) -> None:
    nested = torch.nested.nested_tensor(parts("cuda"), layout=torch.jagged)
    heads = nested.unflatten(-1, (4, 16)).transpose(1, 2)
    out = F.scaled_dot_product_attention(heads, heads, heads)
    assert out.shape[1] == 4 and out.shape[3] == 16
    (reason,) = observer.ledger.observation.reasons
    assert "attention over nested tensors is not modelled" in reason
    assert "test_nested_tensors.py" in reason


@pytest.mark.usefixtures("observer")
def test_the_strided_layout_is_refused_with_its_line() -> None:
    with pytest.raises(CannotFake, match=r"strided layout on the GPU yet at .*test_nested_tensors"):
        torch.nested.nested_tensor(parts("cpu")).cuda()
