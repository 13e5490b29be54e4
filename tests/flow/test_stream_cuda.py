"""Streams, events and pinned buffers: on a GPU played by the CPU whose copies come as late as they may, predicted, and real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pinchpoint import Flow, stream
from pinchpoint.backends.torch import streaming, streaming_cuda
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.memory.forecaster import Forecaster

N = 5_003
POINTS = np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32)
STEPS = Path(__file__).parent / "stream_steps.py"


def wave(x: Any) -> Any:
    return x * x + 2 * x[:, :1]


# -- a GPU played by the CPU -------------------------------------------------------------------


class Queue:
    """A stream whose work is done only when somebody waits for it."""

    def __init__(self, *_: Any) -> None:
        self.work: list[Any] = []

    def run(self, until: int | None = None) -> None:
        for k, job in enumerate(self.work[:until]):
            if job is not None:
                self.work[k] = None
                job()

    def wait_event(self, event: Mark) -> None:
        event.synchronize()

    def wait_stream(self, other: Queue) -> None:
        other.run()


class Mark:
    def __init__(self) -> None:
        self.queue, self.at = Queue(), 0

    def record(self, queue: Queue) -> None:
        self.queue, self.at = queue, len(queue.work)

    def synchronize(self) -> None:
        self.queue.run(self.at)


class LateCopies(TorchDispatchMode):
    """Puts every copy of a side stream off until its stream is run."""

    def __init__(self) -> None:
        super().__init__()
        self.current: Queue | None = None
        self.late = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.current is None or func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        self.late += 1
        self.current.work.append(lambda: func(*args, **(kwargs or {})))
        return args[0]

    @contextmanager
    def stream(self, queue: Queue) -> Iterator[None]:
        self.current = queue
        try:
            yield
        finally:
            self.current = None


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateCopies]:
    """`device="cpu"` takes the lane of CUDA; fresh buffers hold nonsense, so that a copy that is missed shows."""
    mode = LateCopies()
    main = Queue()
    cuda = {
        "Stream": Queue, "Event": Mark, "stream": mode.stream, "current_stream": lambda device: main,
        "device": lambda device: mode.stream(None), "empty_cache": lambda: None,  # type: ignore[arg-type]
        "memory_allocated": lambda device: 0, "memory_reserved": lambda device: 0, "mem_get_info": lambda device: (2**30, 2**30),
        "max_memory_allocated": lambda device: 10_000, "reset_peak_memory_stats": lambda device: None,
    }  # fmt: skip
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.fill_(99))
    monkeypatch.setattr(streaming, "CpuLane", streaming_cuda.CudaLane)
    with mode:
        yield mode


@pytest.mark.parametrize("chunk", [1_000, 1_024, 5_002, 9_999, "auto"])
@pytest.mark.parametrize("given", [POINTS, torch.from_numpy(POINTS)])
def test_copies_that_come_late_change_nothing(late: LateCopies, chunk: Any, given: Any) -> None:
    made = stream(wave, given, chunk=chunk, device="cpu")
    assert late.late >= 2 and np.array_equal(made, wave(POINTS))


def test_a_function_may_hand_out_the_same_memory_at_every_call(late: LateCopies) -> None:
    """As a captured graph does."""
    static = torch.empty(1_000, 3)
    assert np.array_equal(stream(lambda x: static.copy_(wave(x)), POINTS, chunk=1_000, device="cpu"), wave(POINTS))


def test_running_out_of_memory_lands_what_is_under_way(late: LateCopies) -> None:
    starts: list[int] = []

    def limited(i: Tensor) -> Tensor:
        if i[0] >= 2_000 and len(i) > 600:
            raise torch.OutOfMemoryError("CUDA out of memory")
        starts.append(int(i[0]))
        return i * 3

    flows: list[Flow] = []
    out = np.zeros(N, np.int64)
    stream(limited, N, chunk=1_000, tile=500, device="cpu", out=out, report=flows.append)
    assert np.array_equal(out, 3 * np.arange(N))
    assert starts == [0, 1_000, *range(2_000, N, 500)] and flows[0].halvings == 1


def test_an_interrupt_lands_what_is_under_way(late: LateCopies) -> None:
    def interrupted(i: Tensor) -> Tensor:
        if i[0] >= 3_000:
            raise KeyboardInterrupt
        return i + 1

    out = np.zeros(N, np.int64)
    with pytest.raises(KeyboardInterrupt):
        stream(interrupted, N, chunk=1_000, device="cpu", out=out)
    assert np.array_equal(out[:3_000], np.arange(1, 3_001)) and not out[3_000:].any()


def test_several_outputs_and_bfloat16_reach_numpy(late: LateCopies) -> None:
    made = stream(lambda x, s: (x.bfloat16() * s, x[:, 0] > 0), POINTS, chunk=1_000, device="cpu", extra=(np.float32([2, 1, 1]),))
    truth = torch.from_numpy(POINTS).bfloat16() * torch.tensor([2.0, 1, 1])
    assert made[0].dtype == np.float32 and np.array_equal(made[0], truth.numpy()) and np.array_equal(made[1], POINTS[:, 0] > 0)


# -- a GPU that is predicted -------------------------------------------------------------------


def test_the_predicted_peak_is_two_slots_and_one_call_whatever_the_size() -> None:
    """Counted by hand: chunks of 4,096, points of 3 floats, 128 wide, one float out; two slots of both."""
    with Forecaster(f"{STEPS}:step_of") as forecaster:
        for size in (10_000, 40_961):
            made = forecaster.predict(size=size, mode="infer")
            assert made.breakdown["inputs"] == 2 * 4_096 * (3 * 4 + 4)
            assert made.breakdown["temporaries"] == 2 * 4_096 * 128 * 4
            assert made.breakdown["activations"] == 0


def test_results_left_on_the_device_are_all_that_grows_with_the_points() -> None:
    with Forecaster(f"{STEPS}:numbered") as forecaster:
        small, large = (forecaster.predict(size=size, mode="infer").peak_allocated_bytes for size in (10_240, 51_200))
    assert large - small == (51_200 - 10_240) * 4


# -- a real GPU --------------------------------------------------------------------------------

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 4)).cuda()


@pytest.mark.parametrize("chunk", [1_024, 10_000, 65_536, "auto"], ids=str)
@pytest.mark.parametrize("kind", ["numpy", "cpu", "cuda"])
@pytest.mark.parametrize("marks", [pytest.param(None, marks=gpu)])
def test_a_gpu_gives_what_one_whole_call_gives(chunk: Any, kind: str, marks: None) -> None:
    net, points = network(), np.random.default_rng(2).normal(size=(300_007, 3)).astype(np.float32)
    with torch.no_grad():
        whole = net(torch.from_numpy(points).cuda())
    given: Any = points if kind == "numpy" else torch.from_numpy(points).to(kind)
    made = stream(net, given, chunk=chunk)
    assert isinstance(made, np.ndarray) if kind == "numpy" else made.device.type == kind
    assert (torch.as_tensor(made).cuda() - whole).abs().max() <= 1e-5


@pytest.mark.parametrize("marks", [pytest.param(None, marks=gpu)])
def test_a_gpu_keeps_the_budget_and_settles_near_it(marks: None) -> None:
    net, flows = network(), []
    torch.cuda.empty_cache()
    points = np.zeros((4_000_000, 3), np.float32)
    stream(net, points, budget="1GiB", report=flows.append)
    flow = flows[0]
    assert flow.peak_bytes <= 2**30 and flow.halvings == 0
    assert torch.cuda.max_memory_allocated() <= 2**30
    assert flow.chunk * flow.bytes_per_point >= 0.6 * 2**30


@pytest.mark.parametrize("marks", [pytest.param(None, marks=gpu)])
def test_a_gpu_out_of_memory_halves_the_chunk(marks: None) -> None:
    net, flows = network(), []
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(2**30 / total)
    try:
        points = np.random.default_rng(3).normal(size=(3_000_000, 3)).astype(np.float32)
        made = stream(net, points, chunk=2_000_000, report=flows.append)
        with pytest.raises(DoesNotFit, match="memory ran out at a chunk"):
            stream(lambda i: torch.empty(len(i), 2**22, device=i.device)[:, 0], 10_000, chunk=2_048, tile=1_024, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert flows[0].halvings >= 1
    with torch.no_grad():
        assert np.abs(made[:1_000] - net(torch.from_numpy(points[:1_000]).cuda()).cpu().numpy()).max() <= 1e-5
        assert np.abs(made[-1_000:] - net(torch.from_numpy(points[-1_000:]).cuda()).cpu().numpy()).max() <= 1e-5


@pytest.mark.parametrize("marks", [pytest.param(None, marks=gpu)])
def test_a_captured_graph_can_be_streamed(marks: None) -> None:
    net, chunk = network(), 16_384
    static = torch.zeros(chunk, 3, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            net(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = net(static)

    def replay(x: Tensor) -> Tensor:
        static.copy_(x)
        graph.replay()
        return result

    points = np.random.default_rng(4).normal(size=(200_003, 3)).astype(np.float32)
    made = stream(replay, points, chunk=chunk, device="cuda")
    with torch.no_grad():
        whole = net(torch.from_numpy(points).cuda()).cpu().numpy()
    assert np.abs(made - whole).max() <= 1e-5


@pytest.mark.parametrize("marks", [pytest.param(None, marks=gpu)])
def test_slow_work_on_a_gpu_is_waited_for(marks: None) -> None:
    """Each chunk sleeps on the device, so that a copy that did not wait would bring what is not there yet."""

    def slow(x: Tensor) -> Tensor:
        torch.cuda._sleep(5_000_000)
        return wave(x)

    made = stream(slow, POINTS, chunk=256, device="cuda")
    assert np.array_equal(made, wave(POINTS))
