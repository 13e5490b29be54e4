"""The record of a training iteration's parts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cloud"


def test_each_recipe_has_the_seconds_of_its_parts_and_the_share_of_sampling(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    iteration = importlib.import_module("iteration")
    monkeypatch.setattr(iteration, "BLOCK", 1)
    monkeypatch.setattr(iteration, "DRAWS", 2)
    output = tmp_path / "iteration.json"
    options = [
        "--points",
        "1000",
        "--steps",
        "2",
        "--blocks",
        "1",
        "--device",
        "cpu",
        "--precision",
        "fp32",
        "--preset",
        "small",
    ]
    arguments = [str(tmp_path / "rooms"), *options]
    assert iteration.main([*arguments, "-o", str(output)]) == 0
    record = json.loads(output.read_text())
    assert list(record["rows"]) == list(iteration.RECIPES)
    for row in record["rows"].values():
        assert row["iteration_s"] == pytest.approx(sum(row["seconds"].values()))
        assert (
            -0.9
            < row["drawing_costs"]["low"]
            <= row["drawing_costs"]["share"]
            <= row["drawing_costs"]["high"]
        )
        assert row["sampling_share"] == pytest.approx(row["seconds"]["sampling"] / row["iteration_s"])
    three = record["rows"]["three views, consistency"]
    assert three["points_a_step"] > 1000 and three["seconds"]["consistency"] > 0
    assert "sampling" in capsys.readouterr().out
