"""Eager runs before a recording, with streams that only count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recordings are torch's")

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

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda shape, device: zeros(shape))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "another")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream[0])
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "graph", record)
    with pytest.raises(error, match="cannot"), recording.recording_into("own"):
        raise error("cannot be recorded")
    assert stream == ["usual"] and recordings == ["another"] * repairs
    with recording.recording_into("own"):
        assert stream == ["of the recording"]
    assert stream == ["usual"] and recordings[repairs:] == ["own"]


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
