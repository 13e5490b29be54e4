"""The cases of `bench cloud`: every sampler draws correctly, and a wrong draw is not called equal."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from pinchpoint.backends.base import backend  # noqa: E402
from pinchpoint.systems.cloud import bench  # noqa: E402
from pinchpoint.systems.cloud.bench import WIDTH, cases, three_views  # noqa: E402
from pinchpoint.systems.cloud.workload import off_by, problem_of  # noqa: E402
from pinchpoint.systems.common.bench.cases import Setup  # noqa: E402
from pinchpoint.systems.common.bench.runner import compare  # noqa: E402


def test_every_sampler_draws_correctly_and_the_loop_is_timed_on_a_part() -> None:
    draw = next(case for case in cases() if case.name == "draw")
    comparison = compare(draw, Setup("cpu", "tiny", 2_000), backend("torch"), repeats=1, limit_s=60.0)
    assert comparison.settings["cells"] == "100" and comparison.row("loop").work == 0.25
    for row in comparison.rows:
        assert row.state == "not installed" or (row.agreement is not None and row.agreement.equal), row
    assert {"loop", "grouped", "sort", "exact", "nested", "numpy"} <= {row.name for row in comparison.rows}
    assert comparison.row("exact").extras["queued_s"] > 0
    # A draw reads the offsets, counts and order, and writes the drawn indices.
    drawn = int(comparison.settings["drawn"])
    assert comparison.floor is not None and comparison.floor.moved_bytes == 4 * (2 * 100 + 2_000 + drawn)


def test_both_ways_to_three_views_are_right() -> None:
    views = next(case for case in cases() if case.name == "views")
    comparison = compare(views, Setup("cpu", "tiny", 2_000), backend("torch"), repeats=1, limit_s=60.0)
    assert all(row.agreement is not None and row.agreement.equal for row in comparison.rows)


def test_a_draw_with_missing_or_repeated_points_is_incorrect() -> None:
    problem = problem_of(200, 10, device="cpu")
    points = bench.sample_subset(problem.segments, problem.draws_per_cell, seed=0)
    assert bench._is_correct(problem, points).equal
    assert not bench._is_correct(problem, points[:-1]).equal
    twice = points.clone()
    first_cell = problem.segments.of_point()[points.long()] == problem.segments.of_point()[points[0].long()]
    twice[first_cell] = points[0]
    assert not off_by(problem, twice).any() and not bench._is_correct(problem, twice).equal


def test_three_views_are_all_points_a_draw_and_one_point_per_cell() -> None:
    problem = problem_of(300, 15, device="cpu")
    values = torch.arange(300.0)[:, None].expand(300, WIDTH).contiguous()
    rows = three_views(problem, values, seed=4, step=2)[:, 0].int()
    dense, half, one = rows.split([300, problem.total, 15])
    assert dense.sort().values.tolist() == list(range(300))
    assert not off_by(problem, half).any() and len(half.unique()) == problem.total
    assert problem.segments.of_point()[one.long()].tolist() == list(range(15))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_three_views_do_not_wait_for_the_gpu() -> None:
    views = next(case for case in cases() if case.name == "views")
    comparison = compare(views, Setup("cuda", "tiny", 10_000), backend("torch"), repeats=2, limit_s=60.0)
    row = comparison.row("three views")
    assert row.extras["waits"] == 0 and 0 < row.extras["device_s"] < (row.seconds_high or 0.0)
