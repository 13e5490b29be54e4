"""torch's older typed tensors on the simulated device: each call's place, dtype and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn


@pytest.fixture
def default_type() -> Iterator[None]:
    """Undo what a script may change for its whole process."""
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("observer")
def test_a_typed_constructor_creates_on_the_device() -> None:
    cuda: Any = torch.cuda
    for tensor, shape, dtype in (
        (cuda.FloatTensor(2, 3), (2, 3), torch.float32),
        (cuda.FloatTensor(np.zeros((4, 1))), (4, 1), torch.float32),
        (cuda.LongTensor([1, 2]), (2,), torch.int64),
        (cuda.HalfTensor(torch.Size([5])), (5,), torch.float16),
    ):
        assert tensor.is_cuda and (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
    assert isinstance(cuda.LongTensor([1]), cuda.LongTensor)
    assert not isinstance(cuda.LongTensor([1]), cuda.FloatTensor)
    assert cuda.LongTensor([3, 4]).sum().item() == 7


@pytest.mark.usefixtures("observer")
def test_type_type_as_and_new_follow_the_device() -> None:
    host: Any = torch.ones(3)
    device: Any = torch.ones(3, device="cuda")
    assert device.type() == "torch.cuda.FloatTensor"
    assert host.type() == "torch.FloatTensor"
    assert host.type("torch.cuda.HalfTensor").is_cuda
    assert host.type(torch.cuda.LongTensor).dtype == torch.int64
    assert host.type_as(device).is_cuda
    assert not device.type_as(host).is_cuda
    assert not device.type(torch.FloatTensor).is_cuda
    assert device.type(torch.int32).is_cuda
    assert device.new(4, 2).zero_().is_cuda and device.new(4, 2).shape == (4, 2)
    assert not host.new(4).is_cuda


def test_a_default_cuda_type_creates_everything_on_the_device(take: Any, default_type: None) -> None:
    """As in nerf-pytorch: a Linear of 256 x 256 weights, and tensors of every constructor."""
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    created = take(
        lambda: [nn.Linear(256, 256), torch.Tensor(512, 1), torch.Tensor([1e10]), torch.rand(1024)]
    )
    assert created.kept_bytes == 256 * 256 * 4 + 256 * 4 + 512 * 4 + 512 + 1024 * 4
    assert not torch.from_numpy(np.zeros(3)).is_cuda
    torch.set_default_tensor_type(torch.cuda.HalfTensor)
    assert torch.Tensor(2).dtype == torch.zeros(2).dtype == torch.float16
    torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.Tensor(2).is_cuda and not torch.zeros(2).is_cuda
