"""Streams, events and pinned buffers on a CPU that simulates a GPU with copies as late as possible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pinchpoint import Flow, stream
from pinchpoint.backends.torch import streaming, streaming_cuda
from pinchpoint.forecasting.forecaster import Forecaster

N = 5_003
POINTS = np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32)
STEPS = Path(__file__).parent / "stream_steps.py"
pytestmark = pytest.mark.usefixtures("quick_workers")


def wave(x: Any) -> Any:
    return x * x + 2 * x[:, :1]


# -- A GPU simulated by the CPU ----------------------------------------------------------------


class Queue:
    """A stream whose work runs only when something waits for it."""

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
    """Delays every copy on a side stream until the stream runs."""

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
    """`device="cpu"` uses the lane of CUDA; new buffers contain garbage, so that a missing copy shows."""
    mode = LateCopies()
    main = Queue()
    cuda = {
        "Stream": Queue,
        "Event": Mark,
        "stream": mode.stream,
        "current_stream": lambda device: main,
        "device": lambda device: mode.stream(None),
        "empty_cache": lambda: None,  # type: ignore[arg-type]
        "memory_allocated": lambda device: 0,
        "memory_reserved": lambda device: 0,
        "mem_get_info": lambda device: (2**30, 2**30),
        "max_memory_allocated": lambda device: 10_000,
        "reset_peak_memory_stats": lambda device: None,
    }
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(
        streaming_cuda,
        "_pinned_buffer",
        lambda shape, dtype: torch.empty(tuple(shape), dtype=dtype).fill_(99),
    )
    monkeypatch.setattr(streaming, "CpuLane", streaming_cuda.CudaLane)
    with mode:
        yield mode


@pytest.mark.parametrize("chunk", [1_000, 1_024, 5_002, 9_999, "auto"])
@pytest.mark.parametrize("given", [POINTS, torch.from_numpy(POINTS)])
def test_late_copies_do_not_change_the_result(late: LateCopies, chunk: Any, given: Any) -> None:
    result = stream(wave, given, chunk=chunk, device="cpu")
    assert late.late >= 2 and np.array_equal(result, wave(POINTS))


def test_a_function_may_return_the_same_memory_at_every_call(late: LateCopies) -> None:
    """A captured graph does this."""
    static = torch.empty(1_000, 3)
    assert np.array_equal(
        stream(lambda x: static.copy_(wave(x)), POINTS, chunk=1_000, device="cpu"), wave(POINTS)
    )


def test_chunks_in_flight_are_stored_when_memory_runs_out(late: LateCopies) -> None:
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


def test_chunks_in_flight_are_stored_after_an_interrupt(late: LateCopies) -> None:
    def interrupted(i: Tensor) -> Tensor:
        if i[0] >= 3_000:
            raise KeyboardInterrupt
        return i + 1

    out = np.zeros(N, np.int64)
    with pytest.raises(KeyboardInterrupt):
        stream(interrupted, N, chunk=1_000, device="cpu", out=out)
    assert np.array_equal(out[:3_000], np.arange(1, 3_001)) and not out[3_000:].any()


def test_several_outputs_and_bfloat16_reach_numpy(late: LateCopies) -> None:
    result = stream(
        lambda x, s: (x.bfloat16() * s, x[:, 0] > 0),
        POINTS,
        chunk=1_000,
        device="cpu",
        extra=(np.float32([2, 1, 1]),),
    )
    truth = torch.from_numpy(POINTS).bfloat16() * torch.tensor([2.0, 1, 1])
    assert (
        result[0].dtype == np.float32
        and np.array_equal(result[0], truth.numpy())
        and np.array_equal(result[1], POINTS[:, 0] > 0)
    )


# -- A predicted GPU ---------------------------------------------------------------------------


def test_the_predicted_peak_is_two_slots_and_one_call_whatever_the_size() -> None:
    """Counted by hand: chunks of 4,096, points of 3 floats, width 128, one output; two slots for each."""
    with Forecaster(f"{STEPS}:step_of") as forecaster:
        for size in (10_000, 40_961):
            result = forecaster.predict(size=size, mode="infer")
            assert result.breakdown["inputs"] == 2 * 4_096 * (3 * 4 + 4)
            assert result.breakdown["temporaries"] == 2 * 4_096 * 128 * 4
            assert result.breakdown["activations"] == 0


def test_only_results_on_the_device_grow_with_the_points() -> None:
    with Forecaster(f"{STEPS}:numbered") as forecaster:
        small, large = (
            forecaster.predict(size=size, mode="infer").peak_allocated_bytes for size in (10_240, 51_200)
        )
    assert large - small == (51_200 - 10_240) * 4
