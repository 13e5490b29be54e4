"""A contest is timed in turn, and what is missing or fails becomes a row."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pinchpoint.backends.base import backend
from pinchpoint.core.errors import Missing
from pinchpoint.core.workload import Probe
from pinchpoint.systems.common.bench.cases import BenchCase, Contender, Contest, Setup, imported
from pinchpoint.systems.common.bench.records import Agreement, Bench, Comparison, show_ratio
from pinchpoint.systems.common.bench.runner import compare
from pinchpoint.systems.common.bench.workload_contest import agreement

torch = pytest.importorskip("torch", reason="the peaks are torch's")
SETUP = Setup("cpu", "tiny", 10)


def case_of(*contenders: Contender) -> BenchCase:
    return BenchCase(
        "a case", "a title", "a claim", "points", {"tiny": 10}, lambda setup: Contest(contenders)
    )


def run(*contenders: Contender, clock: Callable[[], float] | None = None, **options: Any) -> Comparison:
    ticks = itertools.count()
    return compare(
        case_of(*contenders),
        SETUP,
        backend("torch"),
        clock=clock or (lambda: float(next(ticks))),
        **{"repeats": 4, "limit_s": 60.0, **options},
    )


def working(name: str, calls: list[str], **options: Any) -> Contender:
    return Contender(name, lambda: lambda: calls.append(name), **options)


def test_all_run_in_turn_after_warming_up_and_the_order_rotates() -> None:
    calls: list[str] = []
    comparison = run(
        working("a", calls, role="baseline", peak=lambda: None), working("b", calls, peak=lambda: None)
    )
    assert calls == [*"aabb", *"aabb", *"bbaa", *"aabb", *"bbaa"], "each timed run follows an untimed one"
    a, b = comparison.rows
    assert (a.seconds, a.runs, a.ratio) == (1.0, 4, None)
    assert (b.seconds, b.ratio, b.ratio_low, b.ratio_high) == (1.0, 1.0, 1.0, 1.0)


def test_a_run_of_part_of_the_work_is_scaled_up_and_one_of_several_steps_down() -> None:
    rows = run(
        working("part", [], role="baseline", work=0.25),
        working("whole", []),
        working("ten steps", [], work=10.0),
    ).rows
    assert [row.seconds for row in rows] == [4.0, 1.0, 0.1]
    assert [row.ratio for row in rows[1:]] == pytest.approx([4.0, 40.0])


def test_what_is_missing_or_fails_is_a_row_with_the_reason() -> None:
    def out_of_memory() -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore lines")

    def broken() -> Any:
        raise ValueError("a wrong shape")

    rows = run(
        working("base", [], role="baseline"),
        Contender("absent", lambda: imported("no_such_package_at_all"), "peer"),
        Contender("large", lambda: out_of_memory, "peer"),
        Contender("broken", broken, "peer"),
    ).rows
    assert [row.state for row in rows] == ["ok", "not installed", "out of memory", "failed"]
    assert "no_such_package_at_all is not installed" in rows[1].reason
    assert rows[2].reason == "CUDA out of memory. Tried to allocate 2 GiB"
    assert rows[3].reason == "ValueError: a wrong shape" and rows[3].seconds is None


def test_a_baseline_that_cannot_run_fails_the_case() -> None:
    with pytest.raises(RuntimeError, match="the baseline base has"):
        run(Contender("base", lambda: imported("no_such_package_at_all"), "baseline"))


def test_an_error_of_a_check_or_a_peak_keeps_the_time() -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("no result")

    _, bad = run(
        working("base", [], role="baseline"), working("bad", [], check=fail, extras=fail, peak=fail)
    ).rows
    assert bad.seconds == 1.0 and bad.peak_allocated_bytes is None
    assert bad.agreement == Agreement("not compared: no result")
    assert "not measured further: no result" in bad.note and "no peak: no result" in bad.note


def test_peaks_are_of_runs_of_their_own() -> None:
    def make(count: int) -> Callable[[], Any]:
        return lambda: lambda: torch.ones(count).sum()

    small, large = run(Contender("small", make(1_000), "baseline"), Contender("large", make(100_000))).rows
    assert small.peak_allocated_bytes is not None and large.peak_allocated_bytes is not None
    assert 4_000 <= small.peak_allocated_bytes < 8_000 and large.peak_allocated_bytes >= 400_000


def test_one_that_is_slower_than_all_others_leaves_after_three_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("pinchpoint.systems.common.bench.runner.time.perf_counter", lambda: now[0])

    def taking(name: str, seconds: float, **options: Any) -> Contender:
        def step() -> None:
            now[0] += seconds

        return Contender(name, lambda: step, peak=lambda: None, warmup=1, **options)

    rows = run(
        taking("base", 1.0, role="baseline"),
        taking("quick", 0.5),
        taking("slow", 20.0),
        clock=lambda: now[0],
        repeats=10,
        limit_s=75.0,
    ).rows
    assert [row.runs for row in rows] == [10, 10, 3]
    assert [row.seconds for row in rows] == [1.0, 0.5, 20.0]
    within = run(taking("base", 10.0, role="baseline"), taking("b", 10.0), clock=lambda: now[0], limit_s=1.0)
    assert [row.runs for row in within.rows] == [3, 3], "three rounds, whatever the limit"


def test_a_slow_down_is_called_one_and_a_record_is_read_again(tmp_path: Any) -> None:
    comparison = run(working("base", [], role="baseline"), working("other", []))
    bench = Bench("operator", "cpu", "tiny").with_case(comparison)
    assert Bench.from_json(bench.save(tmp_path / "operator.json").read_text()) == bench
    row = comparison.rows[1]
    assert (
        show_ratio(replace(row, ratio=0.5, ratio_low=0.4, ratio_high=0.6)) == "0.500x [0.400, 0.600] slower"
    )
    assert show_ratio(replace(row, ratio=0.9, ratio_low=0.8, ratio_high=1.1)).endswith("not clear")
    tiny = replace(row, ratio=1e-4, ratio_low=5e-5, ratio_high=2e-4)
    assert show_ratio(tiny) == "1/10,000x [1/20,000, 1/5,000] slower"
    assert show_ratio(replace(row, ratio=1234.5, ratio_low=3.0, ratio_high=4.0)) == "1,234x [3.00, 4.00]"


def test_results_that_differ_are_not_equal() -> None:
    first = Probe({"y": np.ones(4)}, {"w": np.ones(2), "v": None})
    second = Probe({"y": np.ones(4)}, {"w": np.array([1.0, 1.1]), "v": None})
    same = agreement(first, first, tolerance=1e-6, size=4, axis="points")
    off = agreement(first, second, tolerance=1e-6, size=4, axis="points")
    assert same.equal and same.difference == 0.0
    assert off.equal is False and off.difference == pytest.approx(0.1 / 2**0.5)


def test_a_package_that_is_not_installed_is_missing() -> None:
    with pytest.raises(Missing, match="some-name is not installed") as caught:
        imported("no_such_package_at_all.part", "some-name")
    assert caught.value.hint == "Run pip install some-name."
