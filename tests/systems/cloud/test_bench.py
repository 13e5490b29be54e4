"""The benchmark record: what is timed, what is scaled, and that every variant draws correctly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="draws are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.cloud import bench as benches  # noqa: E402
from pinchpoint.systems.cloud.bench import KIT_VARIANTS, REPORT_VARIANTS, WIDTH, Benchmark, bench, three_views  # noqa: E402
from pinchpoint.systems.cloud.workload import off_by, problem_of  # noqa: E402


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(benches.COPY_BYTES, "cpu", 2**16)


def test_every_way_is_timed_in_turn_and_the_loop_scaled_to_all_cells(tmp_path: Path) -> None:
    clock = iter(np.arange(0.0, 1e6))
    made = bench(
        device="cpu",
        cells=40,
        points=800,
        large=1600,
        repeats=3,
        loop_cells=10,
        clock=lambda: next(clock),
        output=tmp_path / "bench.json",
    )
    assert [row.name for row in made.rows] == [
        *REPORT_VARIANTS,
        *KIT_VARIANTS,
        "three views",
        *KIT_VARIANTS,
        "three views",
    ]
    # Every reading is a second after the one before, so that a run takes one: the loop's on a quarter of the
    # cells.
    loop = made.row("loop")
    assert (loop.seconds, loop.scaled, loop.timed_cells, loop.over_grouped) == (4.0, True, 10, 0.25)
    exact = made.row("exact")
    assert (exact.seconds, exact.scaled, exact.over_loop, exact.over_grouped) == (1.0, False, 4.0, 1.0)
    assert exact.queued_s == 1 / benches.QUEUE_LENGTH and exact.device_s is None
    # 2**17 bytes in the second of a copy; a draw reads offsets, counts and the order, and writes what it
    # drew.
    assert exact.floor_s == pytest.approx(4 * (2 * 40 + 800 + exact.drawn) / 2**17)
    assert made.row("exact", 1600).cells == 80 and made.row("exact", 1600).over_loop is None
    assert made.same and made.waits is None and all(row.right for row in made.rows)
    assert Benchmark.from_json((tmp_path / "bench.json").read_text()) == made
    said = dict(made.summary())
    assert "timed on 10 cells" in said["loop"] and "4x loop" in said["exact"]


def test_a_draw_of_too_few_points_or_of_one_twice_is_called_wrong() -> None:
    problem = problem_of(200, 10, device="cpu")
    drawn = benches.sample_subset(problem.segments, problem.wanted, seed=0)
    assert benches._right(problem, drawn, None)
    assert not benches._right(problem, drawn[:-1], None)
    twice = drawn.clone()
    first = problem.segments.of_point()[drawn.long()] == problem.segments.of_point()[drawn[0].long()]
    twice[first] = drawn[0]
    assert not off_by(problem, twice).any() and not benches._right(problem, twice, None)


def test_three_views_are_all_points_a_draw_and_one_of_each_cell() -> None:
    problem = problem_of(300, 15, device="cpu")
    values = torch.arange(300.0)[:, None].expand(300, WIDTH).contiguous()
    rows = three_views(problem, values, seed=4, step=2)[:, 0].int()
    dense, half, one = rows.split([300, problem.total, 15])
    assert dense.sort().values.tolist() == list(range(300))
    assert not off_by(problem, half).any() and len(half.unique()) == problem.total
    assert problem.segments.of_point()[one.long()].tolist() == list(range(15))


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"repeats": 0}, "0 repeats"),
        ({"loop_cells": 0}, "0 cells"),
        ({"large": 5}, "5 points"),
        ({"cells": 0}, "0 cells"),
    ],
)
def test_counts_that_make_no_sense_are_refused(asked: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        bench(device="cpu", **{"cells": 4, "points": 80, **asked})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_three_views_wait_for_nothing_on_a_gpu() -> None:
    made = bench(device="cuda", cells=500, points=10_000, large=0, repeats=2, loop_cells=20)
    assert made.waits == 0 and made.same and all(row.right for row in made.rows)
    assert all((row.device_s is None) == (row.name in REPORT_VARIANTS) for row in made.rows)
    assert 0 < (made.row("exact").device_s or 0.0) < made.row("exact").seconds_high
