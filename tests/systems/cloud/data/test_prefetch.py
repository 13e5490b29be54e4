"""Prefetching: the requested steps are prepared, and on a GPU the points equal those of a plain step."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from pinchpoint.systems.cloud.data.prefetch import Prefetcher, PreparedStep, SideStream, receive  # noqa: E402
from pinchpoint.systems.cloud.data.scene import Scene  # noqa: E402
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw, draw_views, parse_views  # noqa: E402


def test_prefetched_results_belong_to_the_requested_steps_and_errors_are_raised() -> None:
    calls: list[int] = []

    def make(step: int) -> int:
        calls.append(step)
        if step == 5:
            raise ValueError("no such step")
        return 10 * step

    with Prefetcher(make, last=6) as prefetcher:
        assert [prefetcher.get(step) for step in (1, 2, 4)] == [10, 20, 40]
        with pytest.raises(ValueError, match="no such step"):
            prefetcher.get(5)
    with Prefetcher(make, last=2) as prefetcher:
        calls.clear()
        prefetcher.get(2)
    assert calls == [2], "nothing is computed beyond the last step"


def test_a_step_that_could_not_be_prepared_ahead_is_prepared_again_when_it_is_asked_for_again() -> None:
    """A run that is short of memory makes room first: what the failed attempt held must be gone by then."""
    attempts: list[int] = []
    parts: list[weakref.ref[Any]] = []

    def make(step: int) -> int:
        attempts.append(step)
        if attempts == [1, 2]:
            half = np.zeros(4)
            parts.append(weakref.ref(half))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 10 * step

    with Prefetcher(make, last=3) as prefetcher:
        assert prefetcher.get(1) == 10
        with pytest.raises(torch.OutOfMemoryError) as caught:
            prefetcher.get(2)
        del caught
        assert parts[0]() is None
        assert [prefetcher.get(step) for step in (2, 3)] == [20, 30]
    assert attempts == [1, 2, 2, 3]


def points(step: int, device: str) -> tuple[Batch, ViewDraw]:
    rng = np.random.default_rng(step)
    scene = Scene(
        "a",
        rng.uniform(size=(5000, 3)).astype(np.float32),
        rng.uniform(size=(5000, 2)).astype(np.float32),
        None,
    )
    batch = Batch.from_scenes([scene, scene], device=device)
    return batch, draw_views(
        batch, parse_views("dense,uniform:0.3:0.7,one-per-cell"), cell=0.1, seed=3, step=step
    )


def test_points_of_two_steps_at_most_are_on_the_device_however_far_the_host_is_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queued = finished = 0  # steps of a device that computes only while somebody waits for it

    class Event:
        def __init__(self, blocking: bool) -> None:
            self.steps = 0

        def record(self) -> None:
            self.steps = queued

        def synchronize(self) -> None:
            nonlocal finished
            finished = max(finished, self.steps)

    class Stream:
        def record_event(self) -> None:
            return None

    for name, value in {
        "current_device": lambda: 0,
        "Stream": Stream,
        "Event": Event,
        "device": nullcontext,
        "stream": nullcontext,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    side_stream = SideStream()
    on_device: list[int] = []

    def make(step: int) -> PreparedStep:
        def draw() -> Any:
            on_device.append(step - finished)
            return None, None

        return side_stream.prepare(draw)

    with Prefetcher(make, last=9, side_stream=side_stream) as prefetcher:
        for step in range(1, 10):
            receive(prefetcher.get(step))
            queued = step
    # Not 1: the next step is prepared during this one.
    assert on_device == [1, 2, 2, 2, 2, 2, 2, 2, 2]


def test_points_on_a_cpu_are_received_unchanged() -> None:
    batch, draw = points(1, "cpu")
    assert receive(PreparedStep(batch, draw)) == (batch, draw)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_points_prepared_on_a_side_stream_are_correct_while_the_gpu_is_busy() -> None:
    side_stream = SideStream()
    busy = torch.randn(4096, 4096, device="cuda")

    def make(step: int) -> PreparedStep:
        return side_stream.prepare(lambda: points(step, "cuda"))

    with Prefetcher(make, last=8, side_stream=side_stream) as prefetcher:
        for step in range(1, 9):
            batch, draw = receive(prefetcher.get(step))
            for _ in range(4):
                # Keep the current stream busy while the next points are prepared.
                busy = (busy @ busy).clamp(-1, 1)
            expected_batch, expected_draw = points(step, "cpu")
            assert batch.xyz.cpu().equal(expected_batch.xyz), step
            assert draw.index.cpu().equal(expected_draw.index), step
            assert draw.offsets.cpu().equal(expected_draw.offsets) and draw.sizes == expected_draw.sizes
            del batch, draw
