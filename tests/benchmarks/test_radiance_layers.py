"""The comparison with and without kernels of whole layers, on a CPU, where both are the same."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from pinchpoint.systems.radiance.rendering import render as render_module  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"


def test_kernels_are_switched_off_before_and_errors_are_those_of_bf16() -> None:
    script = importlib.import_module("layers")
    runs_fused = render_module.runs_fused
    with script.single_products("before"):
        assert render_module.runs_fused is not runs_fused
        assert not render_module.runs_fused(None, None, None)  # pyright: ignore[reportArgumentType]
    with script.single_products("after"):
        assert render_module.runs_fused is runs_fused
    assert render_module.runs_fused is runs_fused
    errors = script.errors("cpu", "tiny", 2)
    assert errors["before"] == errors["after"] and 1e-4 < errors["after"]["median"] < 0.1
    assert script.milliseconds([0.003, 0.001, 0.002]) == {"median": 2.0, "low": 1.0, "high": 3.0}
