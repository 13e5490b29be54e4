"""Progress of work that is partly done: what existed before does not affect the remaining time."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.console import progress_bar


def test_the_remaining_time_depends_only_on_new_items(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 1.0, 3.0, 9.0])
    monkeypatch.setattr(progress_bar.time, "perf_counter", lambda: next(seconds))
    messages: list[Any] = []
    progress = progress_bar.AddedProgress(
        lambda stage, done, total, *, text="", eta_s=None: messages.append((stage, done, total, eta_s)),
        "rooms",
    )
    for result in (10, 12, 16):
        progress(result, 20)
    assert messages == [
        ("rooms", 10, 20, None),
        ("rooms", 12, 20, 3.0 / 2 * 8),
        ("rooms", 16, 20, 9.0 / 6 * 4),
    ]
    assert progress.there == 10
