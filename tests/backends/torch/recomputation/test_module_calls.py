"""What modules save and how long they take, counted by hand, and calls that are recomputed.

U is one activation of the network: 16,384 x 512 floats.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pinchpoint.backends.torch.recomputation.module_calls import Recomputation
from pinchpoint.backends.torch.recomputation.operation_times import Speed, seconds

ROWS, WIDTH = 16_384, 512
U = ROWS * WIDTH * 4
SPEED = Speed(half_flops=1e15, single_flops=1e14, bytes_per_s=4e12)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def train(net: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.randn(ROWS, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def record(observer: Any, net: nn.Module) -> dict[str, Any]:
    observer.recomputation = Recomputation(observer.ledger, SPEED, {})
    train(net.cuda())
    return observer.recomputation.results()


def test_a_block_frees_what_is_saved_between_its_input_and_its_output(observer: Any) -> None:
    results = record(observer, Net())
    whole = [module for module in results["modules"] if not module["keeps_products"]]
    freed = {module["name"]: module["freed_bytes"] for module in whole}
    # GELU saves its input and the second product that of GELU, U each; the input is kept for the first one.
    assert [freed[f"Net.blocks.{at}"] for at in range(3)] == [2 * U] * 3
    assert freed["Net.blocks.0.up"] == freed["Net.blocks.0.down"] == 0
    alive, frees = max(results["rows"], key=lambda row: row[0])
    names = [(module["name"], module["keeps_products"]) for module in results["modules"]]
    freed_now = {names[at]: size for at, size in frees.items()}
    assert freed_now["Net.blocks.0", False] == freed_now["Net.blocks.1", False] == 2 * U
    assert alive > 8 * U


def test_recomputing_takes_the_operations_up_to_the_last_that_saves_something(observer: Any) -> None:
    results = record(observer, Net())
    block = next(module for module in results["modules"] if module["name"] == "Net.blocks.1")
    product_s = 2 * ROWS * WIDTH * WIDTH / (0.6 * 1e14)
    gelu_s = 2 * U / (0.75 * 4e12)
    # The second product saves its inputs before it is computed: recomputation stops there.
    assert block["device_s"] == pytest.approx(product_s + gelu_s, rel=1e-3)
    assert block["host_s"] > 400e-6 + 2 * 58e-6  # one call of two operations and their views
    assert results["device_s"] > 3 * 6 * product_s  # two products, each with two of its size in backward


def test_a_chosen_module_is_recomputed_as_if_the_script_did_it(simulate: Any, count: Any) -> None:
    peaks = []
    for by_hand in (True, False):
        with simulate() as observer:
            net = Net().cuda()
            if by_hand:
                net.blocks[1].forward = partial(checkpoint, net.blocks[1].forward, use_reentrant=False)
            else:
                observer.recomputation = Recomputation(observer.ledger, SPEED, {"Net.blocks.1": False})
            peaks.append(count(observer.ledger.observation, partial(train, net)).peak)
    with simulate() as observer:
        net = Net().cuda()
        plain = count(observer.ledger.observation, partial(train, net)).peak
    assert peaks[0] == peaks[1]
    # At the other peak there are a weight's gradient and other buffers of sums.
    assert peaks[0] == pytest.approx(plain - 2 * U, abs=2**22)


def test_the_time_of_a_run_with_recomputed_modules_includes_them(simulate: Any) -> None:
    times = []
    for chosen in ({}, {"Net.blocks.0": False, "Net.blocks.1": False}):
        with simulate() as observer:
            net = Net().cuda()
            observer.recomputation = Recomputation(observer.ledger, SPEED, chosen)
            train(net)
            results = observer.recomputation.results()
            times.append(results["device_s"])
    product_s, gelu_s = 2 * ROWS * WIDTH * WIDTH / (0.6 * 1e14), 2 * U / (0.75 * 4e12)
    assert times[1] - times[0] == pytest.approx(2 * (product_s + gelu_s), rel=1e-3)


def test_recording_changes_no_peak(simulate: Any, count: Any) -> None:
    peaks = []
    for is_recorded in (False, True):
        with simulate() as observer:
            net = Net().cuda()
            if is_recorded:
                observer.recomputation = Recomputation(observer.ledger, SPEED, {})
            peaks.append(count(observer.ledger.observation, partial(train, net)).peak)
    assert peaks[0] == peaks[1]


def test_with_a_policy_the_results_of_products_are_kept_and_the_rest_is_recomputed(simulate: Any) -> None:
    """The first product is what GELU saves; only GELU's own result is recomputed, in each of three blocks."""
    with simulate() as observer:
        results = record(observer, Net())
    ways = {(m["name"], m["keeps_products"]): m for m in results["modules"]}
    freed = ways["Net.blocks.1", True]["freed_bytes"]
    # The result of the second product is kept as well, though nothing needs it: that is what a policy does.
    assert freed == 0
    with simulate() as observer:
        observer.recomputation = Recomputation(observer.ledger, SPEED, {"Net.blocks.1": True})
        train(Net().cuda())
        device_s = observer.recomputation.results()["device_s"]
    assert device_s - results["device_s"] == pytest.approx(2 * U / (0.75 * 4e12), rel=1e-3)  # one GELU


class ChangesInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(x).square()


class KeepsCache(nn.Module):
    def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
        return x * x


class DynamicCache:
    pass


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(WIDTH, WIDTH), ChangesInput(), KeepsCache()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)), DynamicCache())


def test_modules_that_cannot_be_recomputed_are_named(observer: Any) -> None:
    refused = record(observer, Odd())["refused"]
    assert refused["Odd.second"] == "it changes its input in place"
    assert "called with a cache" in refused["Odd.third"]
    assert "Odd.first" not in refused


def test_an_operation_takes_the_longer_of_its_arithmetic_and_its_bytes(observer: Any) -> None:
    add, mm = torch.ops.aten.add.Tensor, torch.ops.aten.mm.default
    a = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
    assert seconds(add, (a, a), {}, a + a, SPEED) == pytest.approx(3 * 2 * 4096**2 / 3e12)
    assert seconds(mm, (a, a), {}, a @ a, SPEED) == pytest.approx(2 * 4096**3 / 6e14)
    single = a.float()
    assert seconds(mm, (single, single), {}, single @ single, SPEED) == pytest.approx(2 * 4096**3 / 6e13)
    small = a[:2, :2]
    assert seconds(add, (small, small), {}, small + small, SPEED) == 4e-6  # the launch of a kernel
    assert seconds(torch.ops.aten.view.default, (a, [-1]), {}, a.view(-1), SPEED) == 0
