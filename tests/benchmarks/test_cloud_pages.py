"""The pages on point clouds contain the figures of their records."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "cloud"
NAMES = {
    "dense": "dense",
    "log-uniform": "log-uniform",
    "dense+log-uniform": "dense,log-uniform",
    "three": "dense,uniform,one-per-cell",
}


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def format_seconds(seconds: float) -> str:
    """Return three digits in the unit that leaves one to three digits before the point."""
    unit, size = next(
        (unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if seconds >= size
    )
    number = seconds / size
    return f"{number:.{2 - (number >= 10) - (number >= 100)}f} {unit}"


def test_the_page_has_the_table_of_recipes_and_differences_of_the_record() -> None:
    table, data, text = (
        importlib.import_module("robustness_table"),
        record("cloud_robustness_h200.json"),
        page("systems/cloud.md"),
    )
    assert data["table"] == table.table_of(data["runs"]) and data["differences"] == table.differences_of(
        data["runs"]
    )
    for line in table.markdown(data["table"]).splitlines()[2:]:
        assert line.partition(" | ")[2].partition(" | ")[2] in text, line
    for recipe, name in NAMES.items():
        row = next(
            row for row in data["table"] if row["recipe"] == recipe and row["regime"] in ("points", "steps")
        )
        assert f"| `{name}` |" in text and row["seeds"] in (5, 10)
    for bar in (bar for bar in data["bars"] if bar["recipe"] == "log-uniform"):
        assert bar["verdict"] == "held"
        assert f"{bar['difference']:+.1f} [{bar['low']:+.1f}, {bar['high']:+.1f}]" in text, bar["bar"]


@pytest.mark.parametrize("case", ["draw", "large draw", "views"])
def test_the_page_has_the_gpu_times_of_draws_of_the_record(case: str) -> None:
    data, text = record("bench_h200/cloud.json"), page("reports/cloud.md")
    rows = next(one["rows"] for one in data["comparisons"] if one["case"] == case)
    for row in (row for row in rows if row["role"] != "peer"):
        low, high = format_seconds(row["seconds_low"]), format_seconds(row["seconds_high"])
        assert f"{format_seconds(row['seconds'])} [{low}, {high}]" in text
        for other in row["extras"].keys() - {"waits"}:
            assert f"| {format_seconds(row['extras'][other])} |" in text


def test_the_page_has_the_times_of_pdal_of_the_record() -> None:
    rows, text = record("cloud_voxel_sampling_pdal_cpu.json")["rows"], page("systems/cloud.md")
    times = {(row["peer"], row["job"]): f"{row['peer_s']:.2f} s" for row in rows}
    means, centres = "pdal voxeldownsize", "pdal voxelcenternearestneighbor"
    start_s = {row["pdal_start_s"] for row in rows if row["peer"].startswith("pdal") and row["job"] == "file"}
    assert all("pdal_start_s" not in row for row in rows if row["job"] == "cells")
    assert (
        f"`voxeldownsize` takes {times[means, 'cells']} for the cells and {times[means, 'file']} from file to"
        f" file, and `voxelcenternearestneighbor` {times[centres, 'cells']} and {times[centres, 'file']};"
        f" {start_s.pop():.2f} s of the times from file to file is the start of its program"
    ) in text
    assert not start_s
