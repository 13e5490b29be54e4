"""The table of mIoU by density: points per recipe, resumed runs, and verdicts on the bars."""

from __future__ import annotations

import importlib
import json
import math
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from pinchpoint.systems.cloud.model.views import LogUniform, OnePerCell, Uniform  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cloud"
NET = [
    "--model",
    "cell=0.4",
    "widths=8,12",
    "blocks=1,1",
    "attention=0,0",
    "heads=2",
    "features=8",
    "--set",
    "points=300",
]


@pytest.fixture
def robustness() -> ModuleType:
    return importlib.import_module("robustness")


@pytest.fixture
def table() -> ModuleType:
    return importlib.import_module("robustness_table")


def run_scores(recipe: str, regime: str, seed: int, whole: float, tenth: float) -> dict[str, Any]:
    at = {1.0: whole, 0.5: whole, 0.25: whole, 0.1: tenth, 0.05: tenth}
    rows = [{"thinning": "uniform", "density": density, "miou": miou} for density, miou in at.items()]
    return {
        "recipe": recipe,
        "regime": regime,
        "seed": seed,
        "steps": 6,
        "points_seen": 60,
        "train_s": 1.0,
        "rows": rows,
    }


def test_a_tiny_run_is_evaluated_merged_and_not_repeated(
    robustness: ModuleType, tmp_path: Path, capsys: Any
) -> None:
    part, whole, rooms = tmp_path / "part.json", tmp_path / "whole.json", tmp_path / "rooms"
    arguments = [
        "run",
        str(rooms),
        "--recipes",
        "dense",
        "log-uniform",
        "--seeds",
        "0",
        "--steps",
        "2",
        "--train",
        "2",
        "--test",
        "1",
        "--points",
        "1000",
        "--device",
        "cpu",
        "-o",
        str(part),
        *NET,
    ]
    assert robustness.main(arguments) == 0
    runs = json.loads(part.read_text())["runs"]
    # A log-uniform view from 0.05 to 1 has 0.95 / ln 20 = 0.317 of the points: 2 dense steps equal 6 of it.
    assert {name: run_record["steps"] for name, run_record in runs.items()} == {
        "dense:steps:0": 2,
        "log-uniform:steps:0": 2,
        "log-uniform:points:0": 6,
    }
    assert runs["dense:steps:0"]["points_seen"] == 2 * 2 * 300
    assert 0 <= runs["dense:steps:0"]["rows"][0]["miou"] <= 1
    before = part.read_text()
    assert robustness.main(arguments) == 0 and part.read_text() == before
    assert "already done" in capsys.readouterr().out
    assert robustness.main([*arguments[:7], "--steps", "3", *arguments[9:]]) == 1, "settings have changed"
    assert "Give another -o" in capsys.readouterr().err
    assert robustness.main(["merge", str(part), "-o", str(whole)]) == 0
    output = capsys.readouterr().out
    assert "| dense | both |" in output and "open" in output
    assert {bar["verdict"] for bar in json.loads(whole.read_text())["bars"]} == {
        "open"
    }  # one seed has no interval


def test_the_share_of_a_view_is_counted_from_its_cells(robustness: ModuleType) -> None:
    xyz = torch.cat(
        [torch.full((10, 3), 0.5), torch.full((30, 3), 1.5)]
    ).numpy()  # two cells, of 10 and 30 points

    class Scenes:
        def names(self, split: str) -> list[str]:
            return ["a"]

        def scene(self, name: str) -> Any:
            return type("Scene", (), {"xyz": xyz})

    assert robustness.share_of(OnePerCell(), Scenes(), 1.0) == 2 / 40
    assert robustness.share_of(Uniform(0.5, 0.5), Scenes(), 1.0) == 0.5
    assert robustness.share_of(LogUniform(0.1, 1.0), Scenes(), 1.0) == pytest.approx(0.9 / math.log(10))


def test_a_bar_is_held_or_missed_by_the_whole_interval_and_open_otherwise(table: ModuleType) -> None:
    runs: dict[str, Any] = {}
    for seed, offset in enumerate((-0.002, 0.0, 0.002)):
        runs[f"d{seed}"] = run_scores("dense", "steps", seed, 0.80, 0.40)
        runs[f"g{seed}"] = run_scores("good", "points", seed, 0.79 + offset, 0.60 + offset)
        runs[f"b{seed}"] = run_scores("bad", "steps", seed, 0.70 + offset, 0.55 + 10 * offset)
    bars = {(bar["recipe"], bar["least"]): bar for bar in table.bars_of(runs)}
    assert {key: bar["verdict"] for key, bar in bars.items()} == {
        ("good", 15.0): "held",
        ("good", -3.0): "held",
        ("bad", 15.0): "open",
        ("bad", -4.5): "missed",
    }
    difference = bars["good", 15.0]
    # The mean is 20 and the deviation 0.2 over three seeds, so the half width is 4.303 * 0.2 / sqrt(3).
    assert difference["difference"] == pytest.approx(20) and difference["high"] - 20 == pytest.approx(
        4.303 * 0.2 / math.sqrt(3)
    )
    line = table.markdown(table.table_of(runs)).splitlines()[3]
    assert line.startswith("| good | points | 79.0 ± 0.5 |")


def test_recipes_are_compared_on_the_seeds_that_both_have(table: ModuleType) -> None:
    runs: dict[str, Any] = {}
    for seed, level in enumerate((0.1, 0.3, 0.5, 0.7)):  # seeds differ much more than recipes
        runs[f"d{seed}"] = run_scores("dense", "steps", seed, level, level)
        if seed < 3:
            runs[f"p{seed}"] = run_scores("log-uniform", "points", seed, level + 0.02, level + 0.10)
            runs[f"t{seed}"] = run_scores("three", "points", seed, level, level)
        if seed > 0:
            runs[f"c{seed}"] = run_scores("three+consistency", "points", seed, level - 0.01, level)
    bars = {(row["recipe"], row["less"], row["density"]): row for row in table.differences_of(runs)}
    difference = bars["log-uniform", "dense", 0.1]
    assert (difference["seeds"], difference["regime"]) == (3, "points")
    assert [difference[key] for key in ("difference", "low", "high")] == pytest.approx(
        [10, 10, 10]
    )  # not the seeds' own spread
    loss = bars["three+consistency", "three", 1.0]
    assert loss["seeds"] == 2 and loss["difference"] == pytest.approx(-1)
    lines = table.markdown_of_differences(list(bars.values())).splitlines()
    assert lines[2].startswith("| log-uniform less dense | points | 3 | +2.0 [+2.0, +2.0] |")


def test_the_figure_requires_a_merged_record(table: ModuleType, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    figure, record, picture = (
        importlib.import_module("robustness_figure"),
        tmp_path / "made.json",
        tmp_path / "made.png",
    )
    runs = {
        f"{r}{s}": run_scores("dense", "steps", s, 0.8, 0.4) | {"recipe": r}
        for r in ("dense", "log-uniform")
        for s in range(2)
    }
    record.write_text(json.dumps({"table": table.table_of(runs)}))
    assert figure.main([str(record), "-o", str(picture)]) == 0 and picture.read_bytes().startswith(b"\x89PNG")
    record.write_text("{}")
    assert figure.main([str(record), "-o", str(picture)]) == 1
    assert "robustness.py merge" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", [2, 5, 10, 12, 30])
def test_an_interval_is_never_narrower_than_students(table: ModuleType, seeds: int) -> None:
    scipy = pytest.importorskip("scipy.stats")
    values = [float(number) for number in range(seeds)]
    mean, low, high = table.interval(values)
    expected = scipy.t.ppf(0.975, seeds - 1) * statistics.stdev(values) / math.sqrt(seeds)
    assert high - mean == pytest.approx(mean - low) and expected * (1 - 1e-3) <= high - mean < 1.15 * expected


def test_a_file_that_is_not_a_part_is_rejected(robustness: ModuleType, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "no.json").write_text("{}")
    assert robustness.main(["merge", str(tmp_path / "no.json"), "-o", str(tmp_path / "out.json")]) == 1
    assert "robustness.py run" in capsys.readouterr().err
