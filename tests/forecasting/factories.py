"""Targets of the forecaster's tests: well-behaved steps, and every way a target can misbehave."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pinchpoint.core.workload import Case, Variant, Workload


def train(size: int, device: str) -> Callable[[], None]:
    """A wide MLP: 1 KiB of hidden activations per point and layer."""
    net = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.GELU())]).to(device)
    x = torch.randn(size, 256, device=device)
    optimizer = torch.optim.Adam(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step


def train_half(size: int, device: str) -> Callable[[], None]:
    """The same step, which itself enters bf16 autocast."""
    inner = train(size, device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            inner()

    return step


def infer(size: int, device: str) -> Callable[[], Any]:
    net = nn.Linear(256, 256).to(device)
    x = torch.randn(size, 256, device=device)
    return lambda: net(x)


def masked(size: int, device: str) -> Callable[[], None]:
    """Three tenths of the points, selected by their values, go through the network."""
    net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 1)).to(device)
    x = torch.empty(size, 64, device=device).uniform_()

    def step() -> None:
        net(x[x[:, 0] < 0.3]).sum().backward()
        net.zero_grad()

    return step


def loops(size: int, device: str) -> Callable[[], None]:
    def step() -> None:
        while size == 13:
            pass
        torch.ones(size, device=device)

    return step


def _raise(device: str) -> Callable[[], None]:
    raise ZeroDivisionError("the factory fails")


def _missing(device: str) -> Callable[[], None]:
    import package_that_is_not_there  # noqa: F401  # pyright: ignore[reportMissingImports]

    return lambda: None


def _unfakable(device: str) -> Callable[[], None]:
    library = torch.library.Library("pinchpoint_factories", "DEF")
    library.define("secret(Tensor x) -> Tensor")
    library.impl("secret", lambda x: x.clone(), "CPU")

    def step(held: object = library) -> None:
        torch.ops.pinchpoint_factories.secret(torch.ones(3, device=device))

    return step


def _leave(device: str) -> Callable[[], None]:
    def step() -> None:
        raise SystemExit(4)

    return step


MISDEEDS: list[Callable[[str], Any]] = [
    _raise,
    lambda device: lambda: torch.ones(3, device=device) @ torch.ones(4, device=device),
    lambda device: 5,
    lambda device: lambda: os.kill(os.getpid(), signal.SIGKILL),
    lambda device: lambda: os._exit(7),
    _leave,
    _missing,
    _unfakable,
]


def misbehaves(size: int, device: str) -> Any:
    """Each size fails in a different way, so that one process can show all of them."""
    return MISDEEDS[size - 1](device)


def _build(size: int, *, device: str, mode: str, variant: str, seed: int, chunk: int | None) -> Case:
    net = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 1)).to(device)
    x = torch.randn(size, 64, device=device)

    def step() -> None:
        with torch.set_grad_enabled(mode == "train"):
            for part in x.split(chunk or 65_536) if variant == "chunked" else (x,):
                out = net(part).sum()
                if mode == "train":
                    out.backward()

    return Case(step, processed=size)


WORKLOAD = Workload(
    name="parts",
    axis="points",
    framework="torch",
    build=_build,
    variants=(Variant("whole"), Variant("chunked")),
    chunked=True,
)


def on_the_host(size: int, device: str) -> Callable[[], None]:
    net, x = nn.Linear(3, 8), torch.ones(100, 3)
    return lambda: net(x).sum().backward()


def a_slice(size: int, device: str) -> Callable[[], None]:
    """Creates its points but processes only a thousand of them."""
    net, x = nn.Linear(3, 8).to(device), torch.ones(size, 3, device=device)
    return lambda: net(x[:1000]).sum().backward()


def kept_pairs(size: int, device: str) -> Callable[[], None]:
    """Allocates 1 GiB per positive value; their number depends on the data, so there is an interval."""
    x = torch.randn(size, device=device)
    return lambda: x[x > 0].repeat(2**28, 1).sum().item()


def _forces(size: int, *, device: str, mode: str, variant: str, seed: int) -> Case:
    net, x = nn.Linear(3, 8).to(device), torch.ones(size, 3, device=device, requires_grad=True)
    return Case(step=lambda: torch.autograd.grad(net(x).square().sum(), x), processed=size)


FORCES = Workload(name="forces", axis="atoms", framework="torch", build=_forces, variants=(Variant("plain"),))


def crashes(size: int, device: str) -> Callable[[], None]:
    import ctypes

    ctypes.string_at(0)
    raise AssertionError


def lacks(size: int, device: str) -> Callable[[], None]:
    import no_such_package  # type: ignore[import-not-found]

    return no_such_package.step
