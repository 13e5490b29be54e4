"""The record of a training iteration's parts."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_a_comparison_writes_every_draw_and_every_turn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers are stand-ins: an earlier commit takes three times as long as this one."""
    compare = importlib.import_module("iteration_compare")
    asked: list[tuple[str, str]] = []

    class Contender:
        def __init__(self, source: Any, *, uses_dense_gather: bool = False) -> None:
            self.name = "dense gather" if uses_dense_gather else source.name

        def ask(self, what: str, recipe: str) -> dict[str, Any]:
            asked.append((what, self.name))
            seconds = {"before": 3.0, "now": 1.0, "dense gather": 60.0}[self.name]
            answers = {
                "draw": {"waited_s": seconds},
                "prepare": {"first_loss": 2.0},
                "run": {"seconds": seconds, "peak_bytes": 7},
                "profile": {"kernels": [], "device_s": 0.5},
            }
            return answers[what]

    class Source:
        def __init__(self, args: Any, before: Path | None = None) -> None:
            self.name = "now" if before is None else "before"

        def close(self) -> None:
            """Nothing runs."""

    monkeypatch.setattr(compare, "Contender", Contender)
    monkeypatch.setattr(compare, "Source", Source)
    records: list[dict[str, Any]] = []
    args = SimpleNamespace(before=Path("earlier"), wait_for=None, blocks=2)
    compare.compare(args, lambda record: records.append(copy.deepcopy(record)))
    assert [len(record["draws"]) for record in records[:6]] == [1, 2, 3, 4, 5, 6]
    blocks = [[row["blocks"] for row in record["rows"]] for record in records[6:]]
    assert blocks == [[1] * 3, [2] * 3, [2] * 3, [2] * 3 + [1] * 3, [2] * 6, [2] * 6]
    rows = {row["contender"]: row for row in records[-1]["rows"] if row["recipe"] == "recommended"}
    assert {name: row["times_as_long_as_now"] for name, row in rows.items()} == {
        "before": 3.0,
        "now": 1.0,
        "dense gather": 60.0,
    }
    assert rows["now"]["device_s"] == 0.5 and rows["dense gather"]["steps_a_block"] == 1
    # Two recipes: two blocks each, and one to warm up except for the slow contender.
    assert asked.count(("run", "dense gather")) == 4 and asked.count(("run", "now")) == 6
