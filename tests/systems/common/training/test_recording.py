"""Eager runs before a recording, with streams that only count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recordings are torch's")

from pinchpoint.backends.torch.compat import end_failed_capture  # noqa: E402
from pinchpoint.systems.common.training import recording  # noqa: E402
from pinchpoint.systems.common.training.recording import SideStream  # noqa: E402


class FakeStream:
    """Notes what it waits for."""

    def __init__(self, waits: list[tuple[FakeStream, FakeStream]]) -> None:
        self.waits = waits

    def wait_stream(self, other: FakeStream) -> None:
        self.waits.append((self, other))


def test_all_runs_aside_share_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[FakeStream, FakeStream]] = []
    current, streams = FakeStream(waits), []
    monkeypatch.setattr(torch.cuda, "Stream", lambda: streams.append(FakeStream(waits)) or streams[-1])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    aside = SideStream()
    assert [aside.run(lambda at=at: torch.tensor(at)).item() for at in range(3)] == [0, 1, 2]
    (side,) = streams
    assert waits == [(side, current), (current, side)] * 3


@pytest.mark.parametrize(("error", "repairs"), [(RuntimeError, 1), (torch.OutOfMemoryError, 0)])
def test_a_recording_that_fails_leaves_its_stream_and_ends_the_state_of_the_generator(
    error: Any, repairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for torch, which stays on the stream of a recording that fails."""
    stream, recordings = ["usual"], []

    @contextmanager
    def use(other: str) -> Iterator[None]:
        before = stream[0]
        stream[0] = other
        try:
            yield
        finally:
            stream[0] = before

    @contextmanager
    def record(graph: str, **_: Any) -> Iterator[None]:
        before, stream[0] = stream[0], "of the recording"
        yield
        stream[0] = before
        recordings.append(graph)

    zeros, pools = torch.zeros, []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "the pool")
    end = lambda graph, pool, has_begun: pools.append((graph, pool, has_begun))  # noqa: E731
    monkeypatch.setattr(recording, "end_failed_capture", end)
    monkeypatch.setattr(torch, "zeros", lambda shape, device: zeros(shape))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "another")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream[0])
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "graph", record)
    with pytest.raises(error, match="cannot"), recording.recording_into("own"):
        raise error("cannot be recorded")
    assert stream == ["usual"] and recordings == ["another"] * repairs
    assert pools == [("own", "the pool", True)] * repairs
    with recording.recording_into("own"):
        assert stream == ["of the recording"]
    assert stream == ["usual"] and recordings[repairs:] == ["own"]


class FakeGraph:
    """A recording whose memory is known only if it ended well."""

    def __init__(self, *, ends_well: bool = True) -> None:
        self.ends_well = ends_well

    def pool(self) -> tuple[int, int]:
        if not self.ends_well:
            raise RuntimeError("without a preceding successful capture")
        return 0, 7


@pytest.mark.parametrize(
    ("ends_well", "has_begun", "is_ended", "calls"),
    [
        (False, True, False, ["end", "release"]),  # torch 2.11 does neither
        (False, True, True, ["end", "release"]),  # torch 2.12 does not release the pool
        (False, False, True, ["end"]),  # nothing was begun
        (True, True, True, []),
    ],
)
@pytest.mark.parametrize("name", ["_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"])
def test_a_failed_capture_is_ended_and_its_pool_released_once(
    ends_well: bool,
    has_begun: bool,
    is_ended: bool,
    calls: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[tuple[str, int, Any]] = []

    def end(device: int, pool: Any) -> None:
        log.append(("end", device, pool))
        if is_ended:
            raise RuntimeError("not currently recording to mempool_id")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool", raising=False)
    monkeypatch.setattr(torch._C, name, end, raising=False)
    release = lambda *given: log.append(("release", *given))  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    graph = FakeGraph(ends_well=ends_well)
    users = sys.getrefcount(graph)
    end_failed_capture(graph, (0, 7), has_begun=has_begun)
    assert log == [(call, 3, (0, 7)) for call in calls]
    # Its end would release the pool again, in versions that do so themselves.
    assert sys.getrefcount(graph) == users + ("release" in calls)


def _segment(total: int, allocated: int = 0, *, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> Any:
    return {"total_size": total, "allocated_size": allocated, "stream": stream, "segment_pool_id": pool}


def test_only_the_memory_of_a_recording_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the recording another thread reserves 5,000 bytes, and the memory of the recording grows."""
    numbers = {"free": 10**6, "reserved": 2000}
    segments = [_segment(2000), _segment(100, pool=(0, 5))]

    def step() -> Any:
        segments.extend([_segment(5000, stream=3), _segment(700, pool=(0, 7))])
        numbers["reserved"] += 5000 + 700
        numbers["free"] -= 5000 + 700 + 30
        return torch.zeros(2)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (numbers["free"], 10**7))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: numbers["reserved"])
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(recording, "release_memory", lambda: None)
    monkeypatch.setattr(recording, "recording_into", lambda graph, pool: nullcontext())
    found, pool = recording.record(step, clear=lambda: None)
    assert found.graph_bytes == 30
    assert recording.pool_bytes([pool]) == 700 and recording.pool_bytes([(0, 5), [0, 7]]) == 800


def test_memory_that_a_validation_left_is_not_taken_for_that_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aside = SideStream()
    monkeypatch.setattr(
        torch.cuda,
        "memory_snapshot",
        lambda: [
            _segment(9000, 1000),
            _segment(800, 100, stream=3),
            _segment(50, stream=3),
            _segment(7000, stream=3, pool=(0, 5)),
        ],
    )
    assert aside.unused_bytes() == 0, "nothing was run"
    aside._stream = SimpleNamespace(cuda_stream=3)
    assert aside.unused_bytes() == 750


def _random_numbers() -> Any:
    return torch.rand(4, device="cuda")


def _record_with_a_wait(number: Any, wait: str) -> None:
    with recording.recording_into(torch.cuda.CUDAGraph()):
        number += _random_numbers()
        if wait == "for a number":
            number.sum().item()
        else:
            torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("wait", ["for a number", "for the device"])
def test_random_numbers_are_the_same_after_a_recording_that_cuda_refused(wait: str) -> None:
    """A recording must not wait: CUDA invalidates it, and torch leaves its generator in the state of one."""
    number = torch.zeros(4, device="cuda")
    recording.SideStream().run(_random_numbers)
    recorded, _ = recording.record(_random_numbers, clear=lambda: None)
    state = torch.cuda.get_rng_state()
    expected = torch.stack([_random_numbers(), recorded.replay(), _random_numbers()])
    torch.cuda.set_rng_state(state)
    with pytest.raises(RuntimeError, match="captur"):
        _record_with_a_wait(number, wait)
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    values = torch.stack([_random_numbers(), recorded.replay(), _random_numbers()])
    assert torch.equal(values, expected)
    again, _ = recording.record(_random_numbers, clear=lambda: None)
    torch.cuda.set_rng_state(state)
    assert torch.equal(again.replay(), expected[0])


@pytest.mark.gpu
def test_memory_that_two_streams_used_is_free_after_a_recording_that_cuda_refused() -> None:
    """While the allocator takes a recording to be under way, it keeps all such memory."""
    with pytest.raises(RuntimeError, match="captur"):
        _record_with_a_wait(torch.zeros(4, device="cuda"), "for a number")
    side, size = torch.cuda.Stream(), 2**26

    def use_on_two_streams() -> None:
        with torch.cuda.stream(side):
            block = torch.empty(size, dtype=torch.uint8, device="cuda")
        block.record_stream(torch.cuda.current_stream())
        del block
        torch.cuda.synchronize()

    use_on_two_streams()
    reserved_bytes = torch.cuda.memory_reserved()
    for _ in range(4):
        use_on_two_streams()
    assert torch.cuda.memory_reserved() <= reserved_bytes + size
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved_bytes


_SIZE = 2**26


def _allocate(count: int = 1) -> Any:
    return torch.empty(count * _SIZE, dtype=torch.uint8, device="cuda").fill_(1)[:4].clone()


@pytest.mark.gpu
def test_the_memory_of_recordings_is_counted_without_that_of_another_thread() -> None:
    other, kept = torch.cuda.Stream(), []

    def reserve() -> None:
        with torch.cuda.stream(other):
            kept.append(torch.empty(4 * _SIZE, dtype=torch.uint8, device="cuda"))

    def allocate() -> Any:
        if torch.cuda.is_current_stream_capturing():
            thread = Thread(target=reserve)
            thread.start()
            thread.join()
        return _allocate()

    aside = SideStream()
    aside.run(allocate)
    found, pool = recording.record(allocate, clear=lambda: None)
    assert len(kept) == 1
    assert _SIZE <= recording.pool_bytes([pool]) < 2 * _SIZE
    assert found.replay().tolist() == [1] * 4
    # A larger recording in the same memory makes it grow; the smaller one is still right.
    again, same = recording.record(lambda: _allocate(2), clear=lambda: None, pool=pool)
    assert tuple(same) == tuple(pool) and 2 * _SIZE <= recording.pool_bytes([pool]) < 4 * _SIZE
    assert (again.replay() + found.replay()).tolist() == [2] * 4


@pytest.mark.gpu
def test_only_what_was_run_aside_counts_as_unused() -> None:
    torch.cuda.empty_cache()
    aside = SideStream()
    aside.run(_allocate)
    unused_bytes = aside.unused_bytes()
    assert _SIZE <= unused_bytes < 2 * _SIZE
    _allocate(4)
    assert aside.unused_bytes() == unused_bytes
