"""Replacements for fake runs and fresh interpreters, with peaks in closed form."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.records import Forecast
from pinchpoint.studies.worker import Request

MIB = 2**20
# Bytes per point and fixed bytes of each line, which a study must recover.
SLOPES = {
    ("eager", "train"): 11_296,
    ("eager", "infer"): 2_060,
    ("checkpoint", "train"): 6_200,
    ("checkpoint", "infer"): 2_060,
}
FIXED = {"train": 74 * MIB, "infer": 67 * MIB}
CHUNK = 16_384
WORKSPACE = 66 * MIB


def peak_of(variant: str, mode: str, size: int) -> int:
    if variant == "chunked":
        slope = SLOPES["eager", mode]
        return FIXED[mode] + slope * min(size, CHUNK)
    return FIXED[mode] + SLOPES.get((variant, mode), 1_000) * size


class Forecasts:
    """Forecasts in closed form. `errors` maps a size to the error that predicting it raises."""

    def __init__(
        self,
        *,
        errors: dict[int, PinchpointError] | None = None,
        mode: str = "train",
        ignores_axis: bool = False,
    ) -> None:
        self.errors, self.mode, self.ignores_axis = errors or {}, mode, ignores_axis
        self.requests: list[tuple[str | None, str | None, int]] = []
        self.settings: list[dict[str, str]] = []

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
        settings: Any = None,
    ):
        assert size is not None
        self.settings.append(dict(settings or {}))
        self.requests.append((variant, mode, size))
        if size in self.errors:
            raise self.errors[size]
        mode = mode or self.mode
        peak = peak_of(variant or "plain", mode, 5_000 if self.ignores_axis else size)
        live = peak - FIXED[mode]
        parts = {
            "weights": MIB,
            "gradients": MIB if mode == "train" else 0,
            "optimizer": 2 * MIB if mode == "train" else 0,
            "activations": int(0.88 * live) if mode == "train" else 0,
            "inputs": 12 * size,
            "workspace": WORKSPACE,
        }
        parts["temporaries"] = peak - sum(parts.values())
        return Forecast(
            target="t",
            framework="torch",
            method="fake tensors",
            mode=mode,
            size=size,
            variant=variant,
            peak_allocated_bytes=peak,
            peak_reserved_bytes=-(-peak // (2 * MIB)) * 2 * MIB,
            workspace_bytes=WORKSPACE,
            context_bytes=529 * MIB,
            total_bytes=peak + 529 * MIB,
            breakdown=parts,
            lines=(),
            modules=tuple({"name": f"layers.{i}", "bytes": int(live * 0.17)} for i in range(5)),
            timeline=(),
            fits={},
            margin_bytes=0,
            card="h200",
            steps=2,
            processed=5_000 if self.ignores_axis else size,
            machine={},
            created="2026-01-01T00:00:00+00:00",
        )


class Workers:
    """Answers requests as fresh interpreters would. `limit_bytes`: beyond it a size runs out of memory."""

    def __init__(
        self, *, limit_bytes: int = 10**18, trouble: dict[int, dict[str, Any]] | None = None
    ) -> None:
        self.limit_bytes, self.trouble = limit_bytes, trouble or {}
        self.requests: list[Request] = []

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]:
        if request.what == "check":
            return {"status": "ok", "machine": {"gpu": "stand-in", "versions": {}}}
        self.requests.append(request)
        if request.size in self.trouble:
            return self.trouble[request.size]
        mode, variant = request.mode or "train", request.variant or "plain"
        peak = peak_of(variant, mode, request.size)
        if request.device == "cpu":
            peak -= WORKSPACE
        if peak > self.limit_bytes:
            return {"status": "oom", "reason": "CUDA out of memory", "limit_bytes": self.limit_bytes}
        reserved = None if request.device == "cpu" else peak + 20 * MIB
        answer = {
            "status": "ok",
            "limit_bytes": self.limit_bytes,
            "processed": request.size,
            "machine": {"gpu": "stand-in", "versions": {}},
            "peak_allocated_bytes": peak,
            "peak_reserved_bytes": reserved,
            "peak_total_bytes": reserved and reserved + 529 * MIB,
        }
        if not request.timed:
            return answer
        slow = {"eager": 1.0, "checkpoint": 1.31, "chunked": 1.12}.get(variant, 1.0)
        seconds = slow * (2e-3 + request.size * (6e-8 if mode == "train" else 2e-8))
        return {
            **answer,
            "median_s": seconds,
            "low_s": 0.97 * seconds,
            "high_s": 1.04 * seconds,
            "runs": request.repeats,
        }


@pytest.fixture
def forecasts() -> type[Forecasts]:
    return Forecasts


@pytest.fixture
def workers() -> type[Workers]:
    return Workers
