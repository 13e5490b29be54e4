"""Tensors that change their place and stay the same objects, as `tensor.data = ...` does on a real card."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture(params=[4, 1200], ids=["real", "fake"])
def model(observer: Any, request: pytest.FixtureRequest) -> Any:
    """Two layers with one weight; on the host a matrix of over 1,000,000 elements is fake."""
    width = request.param
    layers: Any = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width))
    layers[2].weight = layers[0].weight
    return layers


def test_a_moved_module_keeps_its_parameter_objects(model: Any) -> None:
    parameters, width = list(model.parameters()), model[0].weight.shape[0]
    model[0].weight.mark = 7
    reference = weakref.ref(model[0].weight)
    model.cuda()
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model[2].weight is model[0].weight is reference()
    assert all(p.is_cuda and isinstance(p, nn.Parameter) and p.is_leaf for p in parameters)
    assert model[0].weight.mark == 7
    assert all(buffer.is_cuda for buffer in model.buffers())
    loss = model(torch.randn(3, width, device="cuda")).sum()
    gradients = torch.autograd.grad(loss, parameters)
    assert [g.shape for g in gradients] == [p.shape for p in parameters]
    model.half()
    assert parameters[0].dtype == torch.float16 and model[0].weight is parameters[0]
    model.cpu()
    assert not parameters[0].is_cuda and model[0].weight is parameters[0]


def test_an_optimizer_made_before_the_move_trains_with_a_gradient_scaler(model: Any) -> None:
    optimizer, width = torch.optim.Adam(model.parameters()), model[0].weight.shape[0]
    model.cuda()
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", torch.float16):
        loss = model(torch.randn(3, width, device="cuda")).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(state["exp_avg"].is_cuda for state in optimizer.state.values())


def test_gradients_hooks_and_live_graphs_survive_the_move(model: Any) -> None:
    calls, width = [], model[0].weight.shape[0]
    model[0].bias.register_hook(lambda gradient: calls.append("hook"))
    model[0].bias.register_post_accumulate_grad_hook(lambda parameter: calls.append("accumulated"))
    out = model(torch.randn(3, width)).sum()
    out.backward(retain_graph=True)  # a graph that is alive during the move
    average = copy.deepcopy(model)
    model.cuda()
    average.to("cuda")
    assert model[0].bias.grad is not None and model[0].bias.grad.is_cuda
    assert average[0].weight is not model[0].weight and average[0].weight is average[2].weight
    calls.clear()
    model(torch.randn(3, width, device="cuda")).sum().backward()
    assert calls == ["hook", "accumulated"]


def test_a_move_costs_one_copy_per_tied_weight(model: Any, take: Any) -> None:
    tensors = [*model.parameters(), *model.buffers()]
    moved = take(model.cuda)
    assert moved.kept_bytes == moved.peak == sum(max(512, -(-t.nbytes // 512) * 512) for t in tensors)
    assert {block.role for block in moved.blocks[:1]} == {"weights"}


def test_data_can_be_assigned_in_both_directions_and_as_views_of_one_buffer(model: Any) -> None:
    parameters, width = list(model.parameters()), model[0].weight.shape[0]
    for parameter in parameters:
        parameter.data = parameter.data.cuda()
    flat = torch.cat([parameter.data.reshape(-1) for parameter in parameters])
    start = 0
    for parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    assert parameters[0].data_ptr() == parameters[1].data_ptr() == flat.data_ptr()
    model[1].cuda()
    model(torch.randn(3, width, device="cuda")).sum().backward()
    for parameter in parameters:
        parameter.data = torch.zeros(parameter.shape)
    assert not any(parameter.is_cuda for parameter in parameters)


def test_data_that_is_replaced_brings_its_own_values(observer: Any) -> None:
    tensor, other = torch.tensor([1, 2], device="cuda"), torch.tensor([3, 4, 5], device="cuda")
    tensor.data = other
    assert tensor.tolist() == [3, 4, 5]


def test_overwriting_on_conversion_creates_new_parameters(model: Any) -> None:
    before = model[0].bias
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.cuda()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert model[0].bias is not before and model[0].bias.is_cuda and not before.is_cuda


def test_a_recurrent_layer_moves_the_weights_that_it_lists_itself(observer: Any) -> None:
    layer = nn.LSTM(4, 4)
    weight = layer.weight_hh_l0
    layer.cuda()
    assert layer.weight_hh_l0 is weight and weight.is_cuda
    assert any(one is weight for one in layer._flat_weights)


def test_meta_weights_are_allocated_by_to_empty_and_cannot_be_copied(take: Any) -> None:
    with torch.device("meta"):
        layer = nn.Linear(256, 256, bias=False)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        layer.cuda()
    assert take(lambda: layer.to_empty(device="cuda")).kept_bytes == 256 * 256 * 4


@pytest.mark.usefixtures("observer")
def test_a_module_moves_to_the_device_of_a_number_or_a_tensor() -> None:
    assert nn.Linear(3, 3).to(0).weight.is_cuda
    example = torch.ones(1, device="cuda", dtype=torch.half)
    for layer in (nn.Linear(3, 3).to(example), nn.Linear(3, 3).to(tensor=example)):
        assert layer.weight.is_cuda and layer.weight.dtype == torch.half
    assert nn.Linear(3, 3).to(device=0, dtype=torch.float16).weight.dtype == torch.float16


def test_libraries_that_look_for_shared_weights_may_ask_where_a_storage_is(observer: Any) -> None:
    """As `save_pretrained` of transformers does, also with weights of the host that have no values."""
    for _ in range(3):
        for tensor in (torch.empty(1200, 1000).normal_(), torch.ones(8, device="cuda") + 1):
            assert isinstance(tensor.untyped_storage().data_ptr(), int)


def test_a_tensor_without_data_takes_no_memory_however_it_is_made(observer: Any, take: Any) -> None:
    x = torch.ones(1024, 1024, device="cuda")
    tensors: list[Any] = []

    def make() -> None:
        tensors.extend([torch.zeros_like(x, device="meta"), x.to("meta"), x.new_empty((4, 4), device="meta")])

    for _ in range(2):  # shapes that are known already have no other device
        assert take(make).kept_bytes == 0
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 6
    assert torch.nn.Parameter(tensors[0]).device.type == tensors[0].detach().device.type == "meta"


def test_a_large_module_moves_to_meta(observer: Any, take: Any) -> None:
    layer = nn.Linear(1200, 1200).to(torch.device("meta"))
    assert [parameter.device.type for parameter in layer.parameters()] == ["meta"] * 2


def test_the_number_of_a_device_is_enough(observer: Any) -> None:
    tensors = (
        torch.zeros(3, device=0),
        torch.randint(0, 9, (3,), device=0),
        torch.ones_like(torch.ones(3), device=0),
    )
    assert all(tensor.is_cuda for tensor in tensors)
    with torch.device("meta"):
        assert torch.zeros(3).is_meta


class Halves(torch.Tensor):
    """A tensor that consists of two, as quantised ones do of codes and scales."""

    @staticmethod
    def __new__(cls, low: torch.Tensor, high: torch.Tensor) -> Any:
        make: Any = getattr(torch.Tensor, "_make_wrapper_subclass")  # noqa: B009
        return make(cls, low.shape, device=low.device, dtype=torch.float32)

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        self.low, self.high = low, high

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten._to_copy.default
        device = kwargs["device"]
        return cls(args[0].low.to(device), args[0].high.to(device))


def test_a_tensor_that_consists_of_others_moves_them(observer: Any, take: Any) -> None:
    halves = Halves(torch.zeros(1024, dtype=torch.uint8), torch.zeros(1024, dtype=torch.uint8))
    moved = []
    assert take(lambda: moved.append(halves.to("cuda"))).kept_bytes == 2 * 1024
    (there,) = moved
    assert isinstance(there, Halves)
    assert there.low.is_cuda
    assert there.to(there.device) is there
    back = there.cpu()
    assert isinstance(back, Halves)
    assert not back.low.is_cuda
