"""The page on the density inference report shows the figures of the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reports" / "density.md").read_text(encoding="utf-8")


def record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def memory(value: int) -> str:
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


@pytest.mark.parametrize("form", ["original", "full", "plain", "scalar"])
def test_the_table_has_every_form_as_recorded(form: str) -> None:
    row = next(row for row in record("density_bench_h200.json")["forms"] if row["form"] == form)
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{form}` |"))
    low, high = (seconds(row[key]).split()[0] for key in ("seconds_low", "seconds_high"))
    assert f"| {row['chunk']:,} | {seconds(row['seconds'])} [{low}, {high}]" in line
    assert memory(row["peak_bytes"]) in line
    assert ("scaled" in line) == row["scaled"]
    if row["error"] is not None:
        assert f"{row['error']:.1e}".replace("e-0", "e-") in line


def test_the_findings_quote_the_records() -> None:
    bench, whole = record("density_bench_h200.json"), record("density_whole_h200.json")
    assert (bench["mul"], bench["lmax"], bench["probes"]) == (500, 4, 512_000)
    scalar = next(row for row in bench["forms"] if row["form"] == "scalar")
    assert (
        f"{scalar['speedup']:.0f} times as fast [{scalar['speedup_low']:.0f}, {scalar['speedup_high']:.0f}]"
        in PAGE
    )
    fine = whole["fine"]
    assert f"{fine['seconds']:.1f} s and {memory(fine['peak_bytes'])} on a card capped at 6 GiB" in PAGE
    assert (
        f"takes {whole['file']['first_s']:.1f} s" in PAGE and f"{whole['file']['seconds']:.2f} s from" in PAGE
    )
