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

from pinchpoint.systems.cloud.data.dataset import make_dataset

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
    asked: list[tuple[str, str, str, int]] = []

    class Contender:
        def __init__(self, args: Any, name: str, source: Path | None = None) -> None:
            assert (source is None) is (name != "before")
            self.name = name

        def ask(self, what: str, recipe: str, *, first: int = 0, steps: int = 0) -> dict[str, Any]:
            asked.append((what, recipe, self.name, first))
            seconds = {"before": 3.0, "now": 1.0, "eager": 2.0, "dense gather": 60.0}[self.name]
            answers = {
                "draw": {"waited_s": seconds},
                "prepare": {"first_loss": 2.0},
                "run": {"seconds": seconds, "peak_bytes": 7, "recorded_sizes": 4 if seconds == 1 else None},
                "profile": {"kernels": [], "device_s": 0.5},
            }
            assert what != "run" or steps == (1 if seconds == 60 else 5)
            return answers[what]

        def close(self) -> None:
            """Nothing runs."""

    monkeypatch.setattr(compare, "Contender", Contender)
    records: list[dict[str, Any]] = []
    args = SimpleNamespace(before=Path("earlier"), wait_for=None, blocks=2)
    compare.compare(args, lambda record: records.append(copy.deepcopy(record)))
    assert [len(record["draws"]) for record in records[:6]] == [1, 2, 3, 4, 5, 6]
    blocks = [[row["blocks"] for row in record["rows"]] for record in records[6:]]
    three = [2] * 3
    assert blocks[:4] == [[1] * 3, three, [*three, 1, 1, 1], three * 2], "all but the dense gather"
    assert blocks[4:] == [[2, 2, 2, 1, 2, 2, 2], [2, 2, 2, 1] * 2, *[[2, 2, 2, 2, 2, 2, 2, 1]] * 3]
    rows = {row["contender"]: row for row in records[-1]["rows"] if row["recipe"] == "recommended"}
    assert {name: row["times_as_long_as_now"] for name, row in rows.items()} == {
        "before": 3.0,
        "now": 1.0,
        "eager": 2.0,
        "dense gather": 60.0,
    }
    assert rows["now"]["device_s"] == 0.5 and rows["dense gather"]["steps_a_block"] == 1
    assert rows["now"]["recorded_sizes"] == 4 and rows["eager"]["recorded_sizes"] is None
    runs = {
        name: [
            first for what, recipe, one, first in asked if (what, recipe, one) == ("run", "recommended", name)
        ]
        for name in rows
    }
    # All see the same points: a block to warm up, and two that are timed.
    assert runs == {"dense gather": [66, 71]} | {name: [61, 66, 71] for name in ("before", "now", "eager")}


def test_contenders_compute_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = importlib.import_module("iteration_compare")
    monkeypatch.setattr(compare, "BLOCK", 2)
    monkeypatch.setattr(compare, "FIRST", dict.fromkeys(compare.RECIPES, 2))
    make_dataset(tmp_path / "rooms", train=1, test=1, points=1000, jobs=1)
    args = SimpleNamespace(
        data=tmp_path / "rooms", points=1000, device="cpu", precision="fp32", preset="small"
    )
    losses = []
    for name in ("now", "eager", "dense gather"):
        worker = compare.Worker(args, name)
        losses.append(worker.answer("prepare", "recommended")["first_loss"])
        result = worker.answer("run", "recommended", first=7, steps=1)
        assert result["seconds"] > 0 and result["recorded_sizes"] is None, "nothing is recorded on a CPU"
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)
