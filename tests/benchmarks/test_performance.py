"""The performance page is what its records give, and says what is slow, missing, or failed."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from pinchpoint.systems.common.bench.records import Agreement, Bench, Comparison, Floor, Row

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
RECORDS = FOLDER / "results" / "bench_h200"
BASE = Row(
    "slow", "baseline", seconds=2.0, seconds_low=1.9, seconds_high=2.1, runs=3, peak_allocated_bytes=2**30
)
LATE = Row(
    "small",
    "variant",
    seconds=4.0,
    seconds_low=3.9,
    seconds_high=4.1,
    ratio=0.5,
    ratio_low=0.48,
    ratio_high=0.53,
    peak_allocated_bytes=2**27,
    agreement=Agreement("values", 2e-7, True),
)
QUICK = replace(LATE, name="quick", seconds=0.5, ratio=4.0, ratio_low=3.9, ratio_high=4.1)
PEER = replace(QUICK, name="other", role="peer", seconds=1.0, ratio=2.0, work=0.1)
ABSENT = Row("absent", "peer", "not installed", "The package absent is not installed.")


def page(*rows: Row, **changes: Any) -> str:
    machine = {"gpu": "NVIDIA H200", "cpu_count": 16, "versions": {"torch": "2.11.0"}}
    head = ("step", "a step", "It claims this.", "points", 1000, {"width": "8"})
    one = Comparison(*head, rows, None, (), "", 1.0, "command", machine, "2026-11-17T00:00:00")
    bench = Bench("cloud", "cuda", "report", (replace(one, **changes),))
    return import_module("performance").render([bench], folder=RECORDS)


def test_the_page_is_what_the_records_give() -> None:
    performance = import_module("performance")
    text = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    benches = performance.read(RECORDS)
    assert [bench.system for bench in benches] == ["density", "cloud", "vmc", "radiance", "operator"]
    assert text == performance.render(benches, folder=RECORDS)


def test_ratios_peaks_and_peers_are_in_the_summary() -> None:
    text = page(BASE, LATE, QUICK, PEER, ABSENT)
    assert (
        "| cloud: step | 1,000 points | 2.00 s (`slow`) | 500.00 ms (`quick`) | 4.00x [3.90, 4.10] "
        "| 128.00 MiB (`small`), baseline 1.00 GiB | 2 (`other`) |"
    ) in text
    assert "| `other`, a peer | 1.00 s [3.90 s, 4.10 s], scaled up |" in text
    assert "| `absent`, a peer | not installed |" in text
    assert "- `absent`: The package absent is not installed." in text and "It claims this." in text


def test_a_variant_that_does_other_work_is_not_in_the_summary() -> None:
    summary = page(BASE, LATE, replace(QUICK, name="quick, bf16")).partition("## Beside")[0]
    assert "4.00 s (`small`) | 0.500x [0.480, 0.530] slower" in summary and "bf16`" not in summary


def test_a_slow_down_is_listed_with_the_memory_that_it_saves() -> None:
    text = page(BASE, LATE, QUICK)
    assert "- cloud, step: `small` takes 2.00 times as long as `slow`, with 12% of its peak." in text
    assert "`quick` takes" not in text
    assert "None of our variants is slower" in page(BASE, QUICK)


def test_few_runs_are_said() -> None:
    text = page(BASE, replace(QUICK, runs=15))
    assert "There are only 3 runs of `slow`; their intervals are the whole range." in text


def test_a_different_result_and_a_failed_case_are_on_the_page() -> None:
    wrong = replace(QUICK, agreement=Agreement("values", 0.5, False))
    assert "| NOT EQUAL, 5.0e-01 |" in page(BASE, wrong)
    assert "This case failed: no memory." in page(failure="no memory")


def test_the_floor_is_beside_the_times() -> None:
    floor = Floor(0.001, 2e9, None, "all products")
    assert "Floor: 1.00 ms for 2 billion operations (all products)." in page(BASE, QUICK, floor=floor)
    moved = Floor(None, None, 5_000_000, "a copy")
    assert "Floor: 5 MB (a copy)." in page(BASE, QUICK, floor=moved)
