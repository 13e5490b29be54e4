"""The comparison of interpolated and exact views: its decibels, and its rows."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.systems.radiance.export.known_fields import make_ball  # noqa: E402

from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.training.runs import TrainedRun  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"


def test_views_of_a_ball_are_compared_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module("views")
    white = torch.ones(1, 3, 2, 2)
    assert script.decibels(white, white - 0.2) == pytest.approx(20), "a tenth of black to white"
    ball = make_ball()
    monkeypatch.setattr(ball.field, "config", FieldConfig.preset("tiny", direction_octaves=-1))
    trained = TrainedRun(ball, ball.field.config, ball.settings, 5)
    monkeypatch.setattr(script, "load_weights", lambda *args, **options: trained)
    rows = script.compare("run", objects=1, count=2, turn=30, size=16)
    assert [row["way"] for row in rows] == ["interpolated", "exact"]
    assert all(len(row["views_cpu_s"]) == 2 for row in rows) and "psnr_db" not in rows[1]
    assert min(rows[0]["largest_pixel_error"]) > 0 and 0 < max(rows[0]["mean_depth_error"]) < 0.05
    assert len(rows[0]["psnr_db"]) == 2 and 20 < min(rows[0]["psnr_db"]) < 80
