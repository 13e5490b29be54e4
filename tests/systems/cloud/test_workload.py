"""The sampling workload: verify accepts its variants and rejects the faults of the point-cloud report."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import Tensor  # noqa: E402

from pinchpoint import plan, verify  # noqa: E402
from pinchpoint.core.discovery import load_workload  # noqa: E402
from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.core.workload import Case, Variant, Workload  # noqa: E402
from pinchpoint.forecasting.forecaster import Forecaster  # noqa: E402
from pinchpoint.kit.segments.segments import Segments  # noqa: E402
from pinchpoint.kit.segments.subset import sample_subset  # noqa: E402
from pinchpoint.systems.cloud import baseline  # noqa: E402
from pinchpoint.systems.cloud.workload import BINS, Problem, drawer, off_by, probe_of, problem_of  # noqa: E402

SIZE = 3_000
pytestmark = pytest.mark.usefixtures("quick_workers")
Fault = Callable[[Problem, int], Tensor]


def against_the_loop(fault: Fault) -> Workload:
    """Return a workload of the shipped baseline and a faulty variant."""

    def build(size: int, *, device: str, mode: str, variant: str, seed: int) -> Case:
        first, other = (problem_of(size, size // 20, device=device, scene=scene) for scene in (0, seed + 1))
        draw = drawer("loop", seed=seed) if variant == "loop" else lambda problem, step: fault(problem, seed)
        return Case(step=lambda: draw(first, 1), processed=size, probe=lambda: probe_of(draw, first, other))

    return Workload(
        "faulty", "points", "torch", build, (Variant("loop"), Variant("fault")), modes=("infer",), random=True
    )


def refusal(fault: Fault) -> str:
    verdict = verify(against_the_loop(fault), size=SIZE, repeats=8, device="cpu")
    assert verdict.status == "fail" and verdict.speedup is None
    return " ".join(comparison["name"] for comparison in verdict.comparisons if not comparison["ok"])


def test_the_workload_grows_along_points_and_its_baseline_is_the_loop() -> None:
    workload = load_workload("cloud")
    assert (workload.axis, workload.framework, workload.modes, workload.random) == (
        "points",
        "torch",
        ("infer",),
        True,
    )
    assert [variant.name for variant in workload.variants] == ["loop", "grouped", "sort", "exact", "nested"]


@pytest.mark.parametrize("variant", ["grouped", "sort", "exact", "nested"])
def test_every_variant_draws_like_the_loop(variant: str) -> None:
    verdict = verify("cloud", variant=variant, size=SIZE, repeats=8, device="cpu", forecaster=Unforeseen())
    assert [comparison for comparison in verdict.comparisons if not comparison["ok"]] == []
    assert verdict.status in ("pass", "inconclusive"), verdict.reason


class Unforeseen:
    """A forecaster that predicts nothing, because other tests cover peaks."""

    def predict(self, **_: Any) -> Any:
        raise BadInput("not predicted here", hint="-")


def test_verify_rejects_the_prefix_sampling_of_the_report() -> None:
    failures = refusal(lambda problem, seed: baseline.prefix(problem.segments, problem.draws_per_cell))
    assert "places: " in failures and "taken: seeds" in failures and "off" not in failures


def test_verify_rejects_a_permutation_shared_by_all_cells_of_one_count() -> None:
    assert "alike: " in refusal(
        lambda problem, seed: baseline.grouped(problem.segments, problem.draws_per_cell, shared=True)
    )


def test_verify_rejects_the_cache_by_size_of_the_report() -> None:
    sampler = baseline.GridSampler()

    def draw_from_cache(problem: Problem, seed: int) -> Tensor:
        return baseline.grouped(
            sampler.cached_segments(baseline.grid_of(problem.segments)), problem.draws_per_cell
        )

    failures = refusal(draw_from_cache)
    assert "off_other: " in failures and "taken" not in failures


def test_verify_rejects_draws_with_the_right_counts_only_on_average() -> None:
    assert "off: " in refusal(
        lambda problem, seed: sample_subset(problem.segments, 0.5, method="bernoulli", seed=seed)
    )


def test_verify_rejects_a_draw_that_ignores_the_seed() -> None:
    assert "taken: seeds" in refusal(
        lambda problem, seed: sample_subset(problem.segments, problem.draws_per_cell, seed=0)
    )


def test_the_probe_has_the_places_pairs_and_counts_computed_by_hand() -> None:
    # There are two cells of 4 points. The draw takes places 0 and 1 of the first cell and place 1 of the
    # second.
    order, offsets = torch.tensor([5, 1, 0, 7, 2, 3, 4, 6]), torch.tensor([0, 4, 8])
    segments = Segments(
        order.int(), offsets.int(), torch.tensor([0] * 4 + [1] * 4).int(), None, 4, empty=False
    )
    problem = Problem(segments, torch.tensor([2, 2]), 4)
    outputs = probe_of(lambda *_: torch.tensor([5, 1, 3]), problem, problem).outputs
    assert outputs["taken"].tolist() == [1, 1, 0, 0, 0, 1, 0, 0]
    assert outputs["off"].tolist() == [0, -1]
    assert outputs["alike"].tolist() == [1.0]  # they share one place, and 2 * 2 / 4 is expected
    shares = np.zeros(BINS)
    shares[[0, 4]] = 0.5, 1.0
    assert outputs["places"].tolist() == shares.tolist()


@pytest.mark.parametrize("variant", ["loop", "grouped", "sort", "exact", "nested"])
def test_all_subsets_of_a_small_cell_are_equally_likely(variant: str) -> None:
    cells, rounds = 200, 6
    offsets = torch.arange(0, 4 * cells + 1, 4)
    problem = Problem(Segments.from_offsets(offsets), torch.full((cells,), 2, dtype=torch.int32), 2 * cells)
    pair_counts: dict[tuple[int, ...], int] = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    torch.manual_seed(1)
    draw = drawer(variant, seed=3)
    for step in range(rounds):
        for pair in draw(problem, step).reshape(cells, 2).remainder(4).sort(dim=1).values.tolist():
            pair_counts[tuple(pair)] += 1
    expected = cells * rounds / 6
    assert (
        sum((count - expected) ** 2 / expected for count in pair_counts.values()) < 25.7
    )  # chi-square, 5 degrees, p = 1e-4


def test_the_sampler_of_the_report_confuses_scenes_of_equal_size() -> None:
    sampler = baseline.GridSampler()
    first, second = (problem_of(400, 20, device="cpu", scene=scene) for scene in (0, 1))
    grids = [baseline.grid_of(problem.segments) for problem in (first, second)]
    for draw in (sampler.by_loop, sampler.by_count):
        points, ratios = draw(grids[0], first.draws_per_cell)
        assert not off_by(first, points).any() and len(points.unique()) == first.total
        assert len(ratios) in (20, first.total) and 0 < float(ratios.min()) <= float(ratios.max()) <= 1
    errors = off_by(second, sampler.by_count(grids[1], second.draws_per_cell)[0])
    assert np.count_nonzero(errors) > 5


def test_sizes_are_predicted_and_planned_for_any_card() -> None:
    with Forecaster("cloud") as forecaster:

        def peak(variant: str, size: int) -> int:
            return forecaster.predict(size=size, variant=variant).peak_allocated_bytes

        small, large = peak("exact", 40_000), peak("exact", 80_000)
        assert 1.9 < large / small < 2.1
        # The peak includes at least the cells, the order, the counts, and the drawn indices.
        problem = problem_of(80_000, 4_000, device="cpu")
        assert large >= 4 * (2 * 80_000 + 2 * 4_000 + problem.total)
        assert peak("loop", 4_000) > peak("exact", 4_000)
    assert plan("cloud", variant="exact", budget="2GiB", up_to=100_000).size == 100_000


def test_empty_cells_and_sizes_below_one_are_rejected() -> None:
    with pytest.raises(BadInput, match="0 points"):
        load_workload("cloud").case(0, device="cpu", mode="infer")
    with pytest.raises(BadInput, match="cells"):
        problem_of(10, 11, device="cpu")
    with pytest.raises(BadInput, match="occupancy"):
        load_workload("cloud").case(10, device="cpu", mode="infer", settings={"occupancy": "0"})
