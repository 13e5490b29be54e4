"""Peaks of whole steps, counted by hand.

Sizes are chosen so that a bias is one 512-byte block and everything else is a multiple of it. The
workspace of cuBLAS is not counted: `moving` is a peak without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pinchpoint.core.events import Observation
from pinchpoint.forecasting import replay

F32 = 4


def alive_by_part(observation: Observation) -> dict[str, int]:
    """Requested bytes at the peak by part, without the allocator's rounding of large blocks."""
    result = replay.replay(observation, expandable=True)
    parts: dict[str, int] = {}
    ends = replay._ends(observation)
    for number in result.alive:
        part = replay.part_of(observation.blocks[number], ends.get(number))
        parts[part] = parts.get(part, 0) + observation.blocks[number].bytes
    return parts


class Mlp(nn.Module):
    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def test_an_mlp_with_adam_holds_what_is_listed_here(observer: Any) -> None:
    rows, width = 65_536, 1024
    weight, row = width * width * F32, rows * width * F32
    net = Mlp(width).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x = torch.randn(rows, width, device="cuda")
    for _ in range(2):
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
    parts = alive_by_part(observer.ledger.observation)
    # The peak is in tanh's backward of the second step: both weights and their Adam moments; the batch;
    # tanh's output, which tanh and the second product share; the incoming and the outgoing gradient, with
    # the seed of the backward pass; the second weight's gradient. The first product's result is freed
    # already, and the gradient of a sum is expanded, not stored.
    assert parts == {
        "weights": 2 * weight,
        "optimizer": 4 * weight,
        "inputs": row,
        "activations": row + F32,
        "temporaries": 2 * row + F32,
        "gradients": weight,
        "workspace": 2 * 32 * 2**20,
    }
    assert observer.ledger.observation.trained


def test_gradients_accumulate_in_place(observer: Any, take: Any) -> None:
    net = nn.Linear(2048, 2048, bias=False).cuda()
    x = torch.randn(64, 2048, device="cuda")
    weight = 2048 * 2048 * F32

    def step() -> None:
        net(x).sum().backward()

    step()
    again = take(step)
    # A second pass computes one gradient and adds it to the first: one more weight for a moment, none kept.
    assert again.kept_bytes == 0
    assert weight <= again.peak < 1.2 * weight
    step()
    assert net.weight.grad is not None


def test_a_sum_over_branches_needs_no_second_buffer(take: Any) -> None:
    x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    row = 1024 * 1024 * F32
    loss = torch.stack([(x * k).sum() for k in range(2, 8)]).sum()
    allocations = take(loss.backward)
    # Each branch's gradient is added to the previous one: two at a time, not three, and one is kept.
    assert 2 * row <= allocations.peak <= 2 * row + 16_384
    assert row - 16_384 <= allocations.kept_bytes <= row


def test_double_backward_keeps_the_first_passs_graph(take: Any) -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)).cuda()
    x = torch.randn(8192, 256, device="cuda", requires_grad=True)

    def plain() -> None:
        net(x).sum().backward()
        net.zero_grad()
        x.grad = None

    def double() -> None:
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        net.zero_grad()
        x.grad = None

    plain()
    assert take(double).peak > 1.5 * take(plain).peak


def test_the_gradient_of_a_loss_that_is_a_gradient_counts_as_forward(observer: Any) -> None:
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    y = nn.Linear(512, 8).cuda()(x)
    start = len(observer.ledger.observation.blocks)
    torch.autograd.grad((y**3).sum(), x, create_graph=True)
    assert {block.phase for block in observer.ledger.observation.blocks[start:]} == {"forward"}


class Blocks(nn.Module):
    def __init__(self, *, lean: bool) -> None:
        super().__init__()
        self.lean = lean
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)) for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.lean else block(x)
        return x


def one_pass(net: nn.Module, x: torch.Tensor) -> None:
    net(x).sum().backward()


def test_checkpointing_keeps_one_block_and_names_the_line_that_recomputes(simulate: Any, count: Any) -> None:
    peaks = []
    for lean in (False, True):
        with simulate() as observer:
            net = Blocks(lean=lean).cuda()
            step = partial(one_pass, net, torch.randn(16_384, 512, device="cuda"))
            step()
            net.zero_grad()
            peaks.append(count(observer.ledger.observation, step).peak)
            if lean:
                again = [
                    b
                    for b in observer.ledger.observation.blocks
                    if b.phase == "backward" and b.op == "aten::gelu"
                ]
                assert again and all(b.file == __file__ and "blocks" in b.module for b in again)
                code = Path(__file__).read_text(encoding="utf-8").splitlines()
                assert all("checkpoint(block, x" in code[b.line - 1] for b in again)
    row = 16_384 * 512 * F32
    # A plain block keeps the results of two products and of the GELU; a checkpointed one keeps its output.
    assert peaks[0] > 12 * row
    assert peaks[1] < 0.75 * peaks[0]


def test_an_average_of_the_weights_costs_another_set(observer: Any) -> None:
    net = nn.Linear(1024, 1024, bias=False).cuda()
    before = observer.ledger.live_bytes()
    average = copy.deepcopy(net)
    for mine, theirs in zip(average.parameters(), net.parameters(), strict=True):
        mine.data.lerp_(theirs.data, 0.01)
    assert observer.ledger.live_bytes() - before == 1024 * 1024 * F32


def test_an_optimizer_made_before_the_model_moved_steps_the_moved_one(observer: Any) -> None:
    net = nn.Linear(512, 512, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    net.cuda()
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 512, device="cuda")).sum().backward()
        optimizer.step()
    states = [s for s in optimizer.state.values() if "exp_avg" in s]
    assert len(states) == 1 and states[0]["exp_avg"].is_cuda
    roles = [
        block.bytes
        for block in observer.ledger.observation.blocks
        if block.role == "optimizer" and block.bytes > 4096
    ]
    assert roles == [512 * 512 * F32] * 2


def optimizer_step(take: Any, make: Callable[[Any], torch.optim.Optimizer]) -> Any:
    parameters = [nn.Parameter(torch.randn(1024, 1024, device="cuda")) for _ in range(8)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = make(parameters)
    optimizer.step()
    return take(optimizer.step)


def test_foreach_single_and_fused_optimizers_differ_as_they_do_on_a_gpu(take: Any) -> None:
    one = 1024 * 1024 * F32
    foreach = optimizer_step(take, lambda p: torch.optim.Adam(p))
    single = optimizer_step(take, lambda p: torch.optim.Adam(p, foreach=False))
    fused = optimizer_step(take, lambda p: torch.optim.Adam(p, fused=True))
    assert foreach.peak >= 8 * one  # a temporary of every parameter at once
    assert one <= single.peak <= 3 * one  # of one parameter at a time
    assert fused.peak < one // 8  # none
    assert foreach.kept_bytes == single.kept_bytes == fused.kept_bytes == 0


def test_a_grad_scaler_scales_steps_and_skips_nothing(observer: Any) -> None:
    net = nn.Linear(64, 64).cuda()
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = net(torch.randn(8, 64, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert list(observer.progress.steps.values()) == [2]


def test_layers_of_a_torch_model_keep_their_names_and_lines(observer: Any) -> None:
    """Also where the backward pass recomputes them; weights and optimizer state belong to their module."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, activation="gelu")
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.encoder.layers:
                x = checkpoint(layer, x, use_reentrant=False)  # type: ignore[assignment]
            return x

    net = Model().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(8, 64, 256, device="cuda")).sum().backward()
    optimizer.step()
    blocks = observer.ledger.observation.blocks
    again = {b.module for b in blocks if b.op == "aten::gelu" and b.phase == "backward"}
    assert again == {"Model.encoder.layers.0", "Model.encoder.layers.1"}
    assert {Path(b.library_file).name for b in blocks if b.library_line} == {"transformer.py"}
    for role in ("weights", "optimizer"):
        owners = {b.module for b in blocks if b.role == role and b.bytes == 512 * 256 * F32}
        assert owners == {f"Model.encoder.layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)}


def test_phases_and_modules_are_named(observer: Any) -> None:
    net = Mlp(256).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(512, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    blocks = observer.ledger.observation.blocks
    assert {block.phase for block in blocks} == {"data", "forward", "backward", "optimizer"}
    assert {block.module for block in blocks if block.op == "aten::tanh"} == {"Mlp"}
    assert {block.module for block in blocks if block.op == "aten::mm" and block.phase == "forward"} == {
        "Mlp.first",
        "Mlp.second",
    }
    code = Path(__file__).read_text(encoding="utf-8").splitlines()
    for block in blocks:
        if block.op == "aten::tanh_backward":
            assert "torch.tanh(self.first(x))" in code[block.line - 1]  # the forward line it differentiates


@pytest.mark.parametrize("train", [True, False])
def test_the_cost_of_a_fake_run_does_not_depend_on_the_size(simulate: Any, train: bool) -> None:
    events = []
    for rows in (2_048, 4_000_000):
        with simulate() as observer, torch.set_grad_enabled(train):
            net = Mlp(256).cuda()
            x = torch.randn(rows, 256, device="cuda")
            loss = net(x).square().sum()
            if train:
                loss.backward()
            events.append(
                len(
                    [
                        n
                        for n in observer.ledger.observation.events
                        if observer.ledger.observation.blocks[n].role != "temporaries"
                    ]
                )
            )
    assert events[0] == events[1]
