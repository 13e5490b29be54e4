"""Eager runs before a recording, with streams that only count."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="recordings are torch's")

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
