"""The record of a training iteration's parts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training is torch's")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cloud"


def test_each_recipe_tells_the_seconds_of_its_parts_and_sampling_s_share(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    iteration = importlib.import_module("iteration")
    output = tmp_path / "iteration.json"
    small = [
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
    told = [str(tmp_path / "rooms"), *small]
    assert iteration.main([*told, "-o", str(output)]) == 0
    made = json.loads(output.read_text())
    assert list(made["rows"]) == list(iteration.RECIPES)
    for row in made["rows"].values():
        assert row["iteration_s"] == pytest.approx(sum(row["seconds"].values()))
        assert (
            -0.9
            < row["drawing_costs"]["low"]
            <= row["drawing_costs"]["share"]
            <= row["drawing_costs"]["high"]
        )
        assert row["sampling_share"] == pytest.approx(row["seconds"]["sampling"] / row["iteration_s"])
    three = made["rows"]["three views, consistency"]
    assert three["points_a_step"] > 1000 and three["seconds"]["consistency"] > 0
    assert "sampling" in capsys.readouterr().out
