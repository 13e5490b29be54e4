"""What a profile sees on a CUDA device: waits, copies, times of the device, memory by line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pinchpoint
from pinchpoint.core.records import Trace, TraceEvent

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
MIB = 2**20


def train(steps: int = 6, *, act: Callable[[Any, Any], Any] | None = None, width: int = 64) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 3)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x, y = torch.randn(6, 8).cuda(), torch.randint(3, (6,)).cuda()
        optimizer.zero_grad()
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        if act is not None:
            act(out, loss)
    return model


def events(trace: Trace, kind: str) -> list[TraceEvent]:
    return [event for event in trace.events if event.kind == kind]


def line_with(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_with)).splitlines()  # pyright: ignore[reportArgumentType]
    return next(number for number, line in enumerate(lines, 1) if text in line and "line_with" not in line)


def test_only_tensors_on_the_device_wait_and_their_time_is_measured() -> None:
    host = torch.ones(3)

    def act(out: Any, loss: Any) -> None:
        host.sum().item()
        loss.item()
        out[out > 0].sum()
        out.cpu()

    trace = pinchpoint.profile(lambda: train(act=act))
    waits = {event.what: event for event in events(trace, "wait")}
    assert set(waits) == {"Tensor.item", "mask index", "Tensor.cpu"}
    assert waits["Tensor.item"].line == line_with("        loss.item()")
    assert all(event.count == 6 and event.host_s > 0 for event in waits.values())
    problems = [problem for problem in trace.problems if problem.kind == "wait"]
    assert len(problems) == 3
    assert all(problem.cost_s and "waits for the device" in problem.what for problem in problems)


def test_phases_have_times_of_the_device() -> None:
    trace = pinchpoint.profile(lambda: train(20, width=2048))
    assert trace.device == "cuda"
    device = {phase.name: phase.device_s for phase in trace.phases}
    for name in ("host to device", "forward", "backward", "optimizer"):
        assert (device[name] or 0.0) > 0
    # Both clocks cover the same steps; the device is behind the host by what is queued.
    assert sum(filter(None, device.values())) == pytest.approx(
        sum(phase.host_s for phase in trace.phases), rel=0.5
    )
    assert trace.idle_s is not None


def test_copies_say_how_they_were_made_and_whether_needlessly() -> None:
    same, pinned = torch.ones(1000), torch.ones(500).pin_memory()

    def act(out: Any, loss: Any) -> None:
        same.cuda()
        pinned.to("cuda", non_blocking=True)
        torch.tensor([1.0, 2.0], device="cuda")

    trace = pinchpoint.profile(lambda: train(act=act))
    copies = {event.line: event for event in events(trace, "copy")}
    again = copies[line_with("        same.cuda()")]
    assert (again.detail, again.repeated, again.bytes) == ("pageable, blocking", 5, 6 * 4000)
    assert copies[line_with('        pinned.to("cuda"')].detail == "pinned, non-blocking"
    assert copies[line_with("        torch.tensor([1.0")].count == 6
    assert any(problem.kind == "copy again" for problem in trace.problems)


def test_memory_at_the_peak_belongs_to_its_lines() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    def run() -> None:
        large = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        train(5)
        del large

    trace = pinchpoint.profile(run)
    memory = trace.memory
    assert memory is not None
    assert memory["allocated_bytes"] == torch.cuda.max_memory_allocated()
    assert memory["reserved_bytes"] == torch.cuda.max_memory_reserved()
    first = memory["lines"][0]
    assert (first["file"], first["line"]) == (__file__, line_with("large = torch.empty(64"))
    assert first["bytes"] == 64 * MIB
    assert sum(line["bytes"] for line in memory["lines"]) <= memory["lines_bytes"]
    assert any(line["phase"] == "forward" for line in memory["lines"])


def test_memory_that_grows_is_found_with_its_bytes_per_step() -> None:
    kept: list[Any] = []
    trace = pinchpoint.profile(
        lambda: train(
            40, act=lambda out, loss: kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))
        )
    )
    assert trace.memory is not None
    assert trace.memory["growth_bytes_per_step"] == pytest.approx(MIB, rel=0.05)
    assert any(problem.kind == "growth" for problem in trace.problems)
    assert pinchpoint.profile(lambda: train(40)).memory["growth_bytes_per_step"] == 0  # pyright: ignore[reportOptionalSubscript]


def test_no_synchronisation_is_added_to_the_loop() -> None:
    def run() -> None:
        x, y = torch.randn(6, 8).cuda(), torch.randint(3, (6,)).cuda()
        model = torch.nn.Linear(8, 3).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(6):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    assert pinchpoint.profile(run).steps == 6
    assert pinchpoint.profile(run, light=True).steps == 6


@pytest.mark.parametrize("light", [False, True])
def test_the_weights_are_bit_identical_to_a_plain_run_on_the_device(light: bool) -> None:
    results: list[Any] = []
    plain = train(20, act=lambda out, loss: loss.item())
    pinchpoint.profile(lambda: results.append(train(20, act=lambda out, loss: loss.item())), light=light)
    for a, b in zip(plain.state_dict().values(), results[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_device_times_follow_the_stream_that_is_current() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    model = torch.nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def run() -> None:
        for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(5):
                    for _ in range(10):
                        model(x)
                    model(x).sum().backward()
                    optimizer.step()

    trace = pinchpoint.profile(run, light=True)
    forward = next(phase for phase in trace.phases if phase.name == "forward")
    # 11 products of 137 GFLOP in each of 9 steps take over 20 ms on any device of today.
    assert forward.device_s is not None
    assert forward.device_s > 0.02


def test_many_tiny_kernels_are_launch_bound() -> None:
    def act(out: Any, loss: Any) -> None:
        with torch.no_grad():
            for _ in range(300):
                out = out + 1

    trace = pinchpoint.profile(lambda: train(20, act=act, width=8))
    assert any(problem.kind == "launch bound" for problem in trace.problems)


def test_a_script_starts_cuda_itself_and_its_memory_is_recorded_from_the_beginning(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "weight = torch.ones(1000, 1000, device='cuda', requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(5):\n"
        "    (weight * 2).sum().backward()\n"
        "    optimizer.step()\n"
    )
    trace = pinchpoint.profile(str(script))
    assert (trace.device, trace.steps, trace.ended) == ("cuda", 5, "finished")
    assert trace.memory is not None
    assert {line["line"] for line in trace.memory["lines"]} >= {2, 5}
