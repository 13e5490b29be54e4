"""`Live`: an operation with its inputs on the device, run in stages by `op_probe.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Stage = tuple[str, Callable[[], Any]]


@dataclass
class Live:
    """An operation with its inputs on the device. `reset` restores the state before the first stage."""

    stages: list[Stage]
    reset: Callable[[], None] = lambda: None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[str], Live]


def once(make: Callable[[str], Callable[[], Any]]) -> Callable[[str], Live]:
    """Return a case of one stage; the result of the call stays alive until the figures are read."""

    def build(device: str) -> Live:
        call = make(device)
        results: list[Any] = []

        def run() -> None:
            results.append(call())

        return Live([("call", run)], reset=results.clear)

    return build


def both_ways(make: Callable[[str], tuple[Callable[[], Tensor], list[Tensor]]]) -> Callable[[str], Live]:
    """Return a case of forward, then backward with a given gradient; every reset drops the gradients."""

    def build(device: str) -> Live:
        forward, inputs = make(device)
        results: dict[str, Tensor] = {}
        with torch.no_grad():
            gradient = torch.ones_like(forward())

        def run_forward() -> None:
            results["y"] = forward()

        def run_backward() -> None:
            results.pop("y").backward(gradient)

        def reset() -> None:
            results.clear()
            for tensor in inputs:
                tensor.grad = None

        return Live([("forward", run_forward), ("backward", run_backward)], reset=reset)

    return build


def tensor(device: str, *shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(grad)


def indices(device: str, count: int, below: int) -> Tensor:
    return torch.randint(below, (count,), device=device)


def module_case(
    module: Callable[[], nn.Module],
    *shape: int,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Any:
    def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        net = module().to(device, dtype)
        x = torch.randn(*shape, device=device, dtype=dtype)
        if channels_last:
            net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            x = x.to(memory_format=torch.channels_last)
        x.requires_grad_()

        def forward() -> Tensor:
            y = net(x)
            return y[0] if isinstance(y, tuple) else y

        return forward, [x, *net.parameters()]

    return both_ways(make)


def function_case(
    function: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Any:
    def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        inputs = [tensor(device, *shape, dtype=dtype) for shape in shapes]
        return lambda: function(*inputs), inputs

    return both_ways(make)


def call_case(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Any:
    def make(device: str) -> Callable[[], Any]:
        inputs = [tensor(device, *shape, dtype=dtype, grad=False) for shape in shapes]
        return lambda: function(*inputs)

    return once(make)


def on_inputs(function: Callable[..., Any], *make_inputs: Callable[[str], Tensor]) -> Any:
    def make(device: str) -> Callable[[], Any]:
        inputs = [make_input(device) for make_input in make_inputs]
        return lambda: function(*inputs)

    return once(make)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
