"""Operations of a training loop around the network: optimizers, clipping, scaling, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from op_live import Case, Live, Stage, call_case, once
from torch import nn


def optimizer_cases() -> Iterator[Case]:
    def shapes() -> list[tuple[int, ...]]:
        return [(1024, 1024), (1024,)] * 10

    def optimizer(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Any:
        def build(device: str) -> Live:
            params = [nn.Parameter(torch.randn(*shape, device=device)) for shape in shapes()]
            for p in params:
                p.grad = torch.randn_like(p)
            stepper = make(params)
            return Live([("step", lambda: stepper.step())])

        return build

    kinds: dict[str, type[Any]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    for name, kind in kinds.items():
        for how, flags in {
            "default": {},
            "foreach": {"foreach": True},
            "fused": {"fused": True},
            "single": {"foreach": False},
        }.items():
            yield Case(f"{name}-{how}", optimizer(lambda p, k=kind, f=flags: k(p, lr=1e-3, **f)))
    yield Case("adam-decay", optimizer(lambda p: torch.optim.Adam(p, weight_decay=0.1)))
    yield Case("adam-amsgrad", optimizer(lambda p: torch.optim.Adam(p, amsgrad=True)))
    yield Case("sgd", optimizer(lambda p: torch.optim.SGD(p, lr=0.1)))
    yield Case("sgd-momentum", optimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))
    yield Case(
        "sgd-nesterov-decay",
        optimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)),
    )
    yield Case("rmsprop", optimizer(lambda p: torch.optim.RMSprop(p)))
    yield Case("adagrad", optimizer(lambda p: torch.optim.Adagrad(p)))

    def clip(device: str) -> Live:
        params = [nn.Parameter(torch.randn(*shape, device=device)) for shape in shapes()]
        for p in params:
            p.grad = torch.randn_like(p)
        return Live([("clip", lambda: nn.utils.clip_grad_norm_(params, 1.0))])

    yield Case("clip_grad_norm", clip)

    def scale_and_step(device: str) -> Live:
        params = [nn.Parameter(torch.randn(*shape, device=device)) for shape in shapes()]
        stepper = torch.optim.Adam(params)
        scaler = torch.amp.GradScaler(device)

        def reset() -> None:
            for p in params:
                p.grad = torch.randn_like(p)

        def scale() -> None:
            scaler.scale(torch.ones((), device=device))

        stages: list[Stage] = [
            ("scale", scale),
            ("unscale", lambda: scaler.unscale_(stepper)),
            ("step", lambda: scaler.step(stepper)),
            ("update", scaler.update),
        ]
        return Live(stages, reset=reset)

    yield Case("grad_scaler", scale_and_step)

    def average(device: str) -> Live:
        params = [torch.randn(*shape, device=device) for shape in shapes()]
        averages = [p.clone() for p in params]

        def loop() -> None:
            for k, p in zip(averages, params, strict=True):
                k.mul_(0.99).add_(p, alpha=0.01)

        return Live(
            [
                ("loop", loop),
                ("foreach", lambda: torch.ops.aten._foreach_lerp_.Scalar(averages, params, 0.01)),
            ]
        )

    yield Case("ema", average)


def transfer_cases() -> Iterator[Case]:
    def copy_pinned(device: str) -> Callable[[], Any]:
        x = torch.randn(4096, 4096)
        if device == "cuda":
            x = x.pin_memory()
        return lambda: x.to(device, non_blocking=True)

    yield Case("copy-pinned", once(copy_pinned))

    def copy_half(device: str) -> Callable[[], Any]:
        x = torch.randn(4096, 4096)
        return lambda: x.to(device, torch.float16)

    yield Case("copy-half", once(copy_half))
    yield Case("item", call_case(lambda x: x.sum().item(), (4096, 4096)))
    yield Case("randn", once(lambda device: lambda: torch.randn(4096, 4096, device=device)))
    yield Case("randint", once(lambda device: lambda: torch.randint(9, (4096, 4096), device=device)))
    yield Case("arange", once(lambda device: lambda: torch.arange(1_000_000, device=device)))
    yield Case("python-scalar-tensor", once(lambda device: lambda: torch.tensor([1.0, 2.0], device=device)))
