"""Forecasts of every model and size, which need no GPU."""

from __future__ import annotations

import time
from typing import Any

from entries import Entry

from pinchpoint.core.errors import PinchpointError
from pinchpoint.forecasting.predict import predict

STEPS = 2


def predict_case(name: str, entry: Entry, size: int, *, card: str, timeout_s: float) -> dict[str, Any]:
    """Return the forecast of one case; a failed forecast is recorded with its reason."""
    case: dict[str, Any] = {"model": name, "size": size}
    start = time.perf_counter()
    try:
        forecast = predict(entry.target, size=size, card=card, steps=STEPS, timeout_s=timeout_s)
    except PinchpointError as error:
        return {
            **case,
            "status": "failed",
            "reason": f"{type(error).__name__}: {error.what}",
            "wall_s": time.perf_counter() - start,
        }
    return {
        **case,
        "status": "ok",
        "wall_s": time.perf_counter() - start,
        "took_s": forecast.took_s,
        "peak_allocated_bytes": forecast.peak_allocated_bytes,
        "peak_reserved_bytes": forecast.peak_reserved_bytes,
        "workspace_bytes": forecast.workspace_bytes,
        "context_bytes": forecast.context_bytes,
        "total_bytes": forecast.total_bytes,
        "needs_bytes": forecast.needs_bytes,
        "low_bytes": forecast.low_bytes,
        "high_bytes": forecast.high_bytes,
        "breakdown": forecast.breakdown,
        "lines": [f"{line.file}:{line.line} {line.bytes}" for line in forecast.lines[:5]],
        "notes": list(forecast.notes),
    }
