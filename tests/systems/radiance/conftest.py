"""Fixtures shared by the tests of the radiance system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

_PEAKS: dict[tuple[Any, ...], int] = {}  # live bytes per distinct step, shared by all tests


@pytest.fixture
def remembered_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the tensors of each distinct fake step once per session; searches repeat the same steps."""
    pytest.importorskip("torch", reason="the radiance fields are torch's")
    from pinchpoint.systems.radiance.training import budget

    count = budget._on_cpu

    @contextmanager
    def remember(settings: dict[str, str], *what: Any) -> Iterator[Any]:
        with count(settings, *what) as peaks:

            def peaks_of(chunk: int | None) -> tuple[int, int]:
                key = (json.dumps(settings, sort_keys=True), *what, chunk)
                if key not in _PEAKS:
                    _PEAKS[key] = peaks(chunk)[1]
                return budget.resident_bytes() + _PEAKS[key], _PEAKS[key]

            yield peaks_of

    count_steps = budget._of_steps

    def steps_of(config: Any, settings: Any, images: Any) -> int:
        alike = replace(
            settings, chunk=None, memory="none", steps=1
        )  # settings that do not change these bytes
        key = (repr(config), repr(alike), tuple(images.pixels.shape[1:]))
        if key not in _PEAKS:
            _PEAKS[key] = count_steps(config, settings, images)
        return _PEAKS[key]

    monkeypatch.setattr(budget, "_on_cpu", remember)
    monkeypatch.setattr(budget, "_of_steps", steps_of)
