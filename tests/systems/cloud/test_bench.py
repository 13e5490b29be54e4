"""The benchmark record: which times are measured or scaled, and that every variant draws correctly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from pinchpoint.cli.main import run  # noqa: E402
from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.cloud import bench as benches  # noqa: E402
from pinchpoint.systems.cloud.bench import KIT_VARIANTS, REPORT_VARIANTS, WIDTH, Benchmark, bench, three_views  # noqa: E402
from pinchpoint.systems.cloud.workload import off_by, problem_of  # noqa: E402


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(benches.COPY_BYTES, "cpu", 2**16)


def test_every_variant_is_timed_in_turn_and_the_loop_is_scaled_to_all_cells(tmp_path: Path) -> None:
    clock = iter(np.arange(0.0, 1e6))
    record = bench(
        device="cpu",
        cells=40,
        points=800,
        large=1600,
        repeats=3,
        loop_cells=10,
        clock=lambda: next(clock),
        output=tmp_path / "bench.json",
    )
    assert [row.name for row in record.rows] == [
        *REPORT_VARIANTS,
        *KIT_VARIANTS,
        "three views",
        *KIT_VARIANTS,
        "three views",
    ]
    # Each reading of the clock is a second after the previous one, so every run takes one second. The loop
    # runs on a quarter of the cells.
    loop = record.row("loop")
    assert (loop.seconds, loop.scaled, loop.timed_cells, loop.over_grouped) == (4.0, True, 10, 0.25)
    exact = record.row("exact")
    assert (exact.seconds, exact.scaled, exact.over_loop, exact.over_grouped) == (1.0, False, 4.0, 1.0)
    assert exact.queued_s == 1 / benches.QUEUE_LENGTH and exact.device_s is None
    # A copy moves 2**17 bytes in its second. A draw reads the offsets, counts and order, and writes the drawn
    # indices.
    assert exact.floor_s == pytest.approx(4 * (2 * 40 + 800 + exact.drawn) / 2**17)
    assert record.row("exact", 1600).cells == 80 and record.row("exact", 1600).over_loop is None
    assert record.same and record.waits is None and all(row.right for row in record.rows)
    assert Benchmark.from_json((tmp_path / "bench.json").read_text()) == record
    summary = dict(record.summary())
    assert "timed on 10 cells" in summary["loop"] and "4x loop" in summary["exact"]


@pytest.mark.parametrize(("text", "points"), [("0", 0), ("none", 0), ("2k", 2000)])
def test_the_second_problem_can_be_skipped(monkeypatch: pytest.MonkeyPatch, text: str, points: int) -> None:
    calls: list[dict[str, Any]] = []

    def run_bench(measure: partial[Benchmark], *, output: Path | None) -> None:
        calls.append(measure.keywords)

    monkeypatch.setattr(benches.bench_command, "run_bench", run_bench)
    assert run(["bench", "cloud", "--large", text]) == 0
    assert calls[0]["large"] == points


def test_a_draw_with_missing_or_repeated_points_is_incorrect() -> None:
    problem = problem_of(200, 10, device="cpu")
    points = benches.sample_subset(problem.segments, problem.draws_per_cell, seed=0)
    assert benches._is_correct(problem, points, None)
    assert not benches._is_correct(problem, points[:-1], None)
    twice = points.clone()
    first_cell = problem.segments.of_point()[points.long()] == problem.segments.of_point()[points[0].long()]
    twice[first_cell] = points[0]
    assert not off_by(problem, twice).any() and not benches._is_correct(problem, twice, None)


def test_three_views_are_all_points_a_draw_and_one_point_per_cell() -> None:
    problem = problem_of(300, 15, device="cpu")
    values = torch.arange(300.0)[:, None].expand(300, WIDTH).contiguous()
    rows = three_views(problem, values, seed=4, step=2)[:, 0].int()
    dense, half, one = rows.split([300, problem.total, 15])
    assert dense.sort().values.tolist() == list(range(300))
    assert not off_by(problem, half).any() and len(half.unique()) == problem.total
    assert problem.segments.of_point()[one.long()].tolist() == list(range(15))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "0 repeats"),
        ({"loop_cells": 0}, "0 cells"),
        ({"large": 5}, "5 points"),
        ({"cells": 0}, "0 cells"),
    ],
)
def test_invalid_counts_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        bench(device="cpu", **{"cells": 4, "points": 80, **options})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_three_views_do_not_wait_for_the_gpu() -> None:
    record = bench(device="cuda", cells=500, points=10_000, large=0, repeats=2, loop_cells=20)
    assert record.waits == 0 and record.same and all(row.right for row in record.rows)
    assert all((row.device_s is None) == (row.name in REPORT_VARIANTS) for row in record.rows)
    assert 0 < (record.row("exact").device_s or 0.0) < record.row("exact").seconds_high
