"""torch.compile on the simulated device, by counts of what compiled code must keep."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.backends.torch.compiled import compat
from pinchpoint.backends.torch.compiled.generated_code import GeneratedCode
from pinchpoint.backends.torch.compiled.tracing import MARKS
from pinchpoint.forecasting.allocator import Allocator
from pinchpoint.forecasting.replay import apply_event

ROWS, WIDTH = 4096, 256


class Net(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = self.linear(x).sin()
        if self.breaks:
            torch._dynamo.graph_break()
        return waves.cos().exp()


def warm_up() -> None:
    """Let the libraries allocate their workspaces."""
    nn.Linear(8, 8).cuda()(torch.ones(8, 8, device="cuda")).sum().backward()


def allocated_bytes(observer: Any) -> int:
    allocator, alive = Allocator(), {}
    for number in observer.ledger.observation.events:
        apply_event(allocator, alive, observer.ledger.observation, number)
    return allocator.allocated_bytes


def test_a_compiled_layer_keeps_no_result_that_its_backward_pass_can_recompute(
    observer: Any, take: Any
) -> None:
    warm_up()
    net = Net().cuda()
    x = torch.randn(ROWS, WIDTH, device="cuda")
    assert take(lambda: net(x)).kept_bytes == 3 * x.nbytes  # of the layer, the sine, and the result
    compiled = torch.compile(net)
    for _ in range(2):  # the second call uses the compiled code of the first
        assert take(lambda: compiled(x)).kept_bytes == 2 * x.nbytes  # the sine is computed again
    compiled(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert not observer.ledger.observation.reasons


def test_compiled_code_goes_on_after_a_graph_break_and_with_other_sizes(observer: Any, take: Any) -> None:
    warm_up()
    net = torch.compile(Net(breaks=True).cuda())
    for rows in (ROWS, 2 * ROWS, 3 * ROWS):
        x = torch.randn(rows, WIDTH, device="cuda")
        # The sine crosses the break, so it is kept too.
        assert take(lambda: net(x)).kept_bytes == 3 * x.nbytes  # noqa: B023
    assert not observer.ledger.observation.reasons


def test_a_function_compiled_at_every_call_with_a_scalar_of_the_host_is_compiled_once(
    observer: Any, monkeypatch: Any
) -> None:
    lowered = []
    lower = compat.lower
    monkeypatch.setattr(compat, "lower", lambda *args: (lowered.append(args), lower(*args))[1])
    weight, step = torch.zeros(ROWS, device="cuda"), torch.tensor(0.0)
    for _ in range(3):  # as the optimizers of torchao do
        step += 1
        torch.compile(_move, fullgraph=True, dynamic=False)(weight, step)
    torch.compile(_move, fullgraph=True, dynamic=False)(weight, torch.tensor(1))  # of another type
    assert len(lowered) == 2
    assert not observer.ledger.observation.reasons


def _move(weight: torch.Tensor, step: torch.Tensor) -> None:
    weight.add_(0.1 / (1 - 0.9**step))


def test_what_needs_a_gpu_to_choose_makes_it_unknown_whether_a_run_fits(observer: Any) -> None:
    net = nn.Linear(4, 4).cuda()
    assert torch.compile(net, backend="aot_eager") is net
    torch.compile(net, mode="max-autotune")
    reasons = observer.ledger.observation.reasons
    assert len(reasons) == 2
    assert "aot_eager" in reasons[0]
    assert "max-autotune" in reasons[1]


def test_a_kernel_may_be_timed_when_it_runs_first_and_not_again(observer: Any) -> None:
    net = torch.compile(Net().cuda())
    x = torch.randn(ROWS, WIDTH, device="cuda")
    blocks = observer.ledger.observation.blocks
    timings = []
    for _ in range(2):
        before = len(blocks)
        net(x)
        timings.append([block.span for block in blocks[before:] if block.op == "timing"])
    assert timings == [[(0, 0, 64 * 2**20)], []]  # it changes nothing that torch would have to copy


def test_copies_for_timing_raise_the_peak_only_in_a_forward_pass_that_is_trained(observer: Any) -> None:
    x = torch.randn(ROWS, WIDTH, device="cuda")
    source = "@heuristics(inductor_meta={'optimize_mem': %s})\ndef triton_(in_out_ptr0, in_ptr1):\n    pass"
    kernels = GeneratedCode(observer).kernels()
    for saves in (False, True, True):
        kernels.triton("triton_", source % saves)(x, x)
        if saves:
            torch.empty_like(x)  # from now on, the peak has room for a copy
    taken = [block.span.most for block in observer.ledger.observation.blocks if block.op == "timing"]
    assert taken == [64 * 2**20 + copies for copies in (x.nbytes, 0, x.nbytes)]


def test_a_captured_function_runs_once_is_recorded_and_then_allocates_nothing(observer: Any) -> None:
    module = Net().cuda()
    net = torch.compile(module, mode="reduce-overhead")
    x = torch.randn(ROWS, WIDTH, device="cuda")
    alive = []
    for _ in range(3):
        result = net(x)
        alive.append(allocated_bytes(observer) - x.nbytes - sum(w.nbytes for w in module.parameters()))
        module.zero_grad()
        result.sum().backward()
        del result
    # The copy of the input is kept for the backward pass from the second time on. The gradients of the first
    # step are freed when the second one starts, although the parameters still have them.
    assert alive == [2 * x.nbytes, 3 * x.nbytes, 0]
    assert not observer.ledger.observation.reasons


def test_every_function_that_a_marked_script_calls_can_be_compiled(observer: Any) -> None:
    assert {name for name in vars(builtins) if name.startswith("_pinchpoint")} == set(MARKS)


def test_attention_is_compiled_for_all_lengths(observer: Any) -> None:
    attend = torch.compile(
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).sum(),
        dynamic=True,
    )
    for length in (64, 128):
        x = torch.ones(2, 4, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        attend(x).backward()
    assert not observer.ledger.observation.reasons


def test_a_compiled_optimizer_makes_its_states_and_no_copies_of_the_gradients(
    observer: Any, take: Any
) -> None:
    warm_up()
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    step = torch.compile(optimizer.step)
    x = torch.randn(8, WIDTH, device="cuda")
    weights = sum(parameter.nbytes for parameter in net.parameters())
    runs = []
    for _ in range(3):
        net(x).sum().backward()
        runs.append(take(step))
        optimizer.zero_grad()
    assert not observer.ledger.observation.reasons
    # Two moments, and on the device, because it is compiled, a count of steps for each of four parameters.
    states = 2 * weights + 4 * 512
    assert [run.kept_bytes for run in runs] == [states, 0, 0]
    assert [run.peak for run in runs] == [states, 0, 0]
    optimizer = torch.optim.AdamW(net.parameters())
    net(x).sum().backward()
    optimizer.step()
    assert take(optimizer.step).peak >= weights  # uncompiled, it has a root of the second moments


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1024, 1024), nn.Linear(1024, 1024)  # 4 MiB each

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).sin())


def test_a_module_with_buckets_of_gradients_is_compiled_in_parts(
    observer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.distributed.init_process_group("nccl", rank=0, world_size=2)
    graphs: list[Any] = []
    lower = compat.lower
    monkeypatch.setattr(compat, "lower", lambda graph, *args: (graphs.append(graph), lower(graph, *args))[1])
    net = torch.compile(TwoLayers().cuda())
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=2)
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    assert len(graphs) == 2  # one of each layer, because a layer fills a bucket
    assert not observer.ledger.observation.reasons
