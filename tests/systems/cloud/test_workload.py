"""The sampling workload: verify passes our variants and refuses the faults of the point-cloud report."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the workload is torch's")

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
    """The shipped baseline beside a variant that draws wrongly."""

    def build(size: int, *, device: str, mode: str, variant: str, seed: int) -> Case:
        first, other = (problem_of(size, size // 20, device=device, scene=scene) for scene in (0, seed + 1))
        draw = drawer("loop", seed=seed) if variant == "loop" else lambda problem, step: fault(problem, seed)
        return Case(step=lambda: draw(first, 1), processed=size, probe=lambda: probe_of(draw, first, other))

    return Workload(
        "faulty", "points", "torch", build, (Variant("loop"), Variant("fault")), modes=("infer",), random=True
    )


def refusal(fault: Fault) -> str:
    made = verify(against_the_loop(fault), size=SIZE, repeats=8, device="cpu")
    assert made.status == "fail" and made.speedup is None
    return " ".join(one["name"] for one in made.comparisons if not one["ok"])


def test_it_grows_along_its_points_and_the_originals_loop_comes_first() -> None:
    workload = load_workload("cloud")
    assert (workload.axis, workload.framework, workload.modes, workload.random) == (
        "points",
        "torch",
        ("infer",),
        True,
    )
    assert [variant.name for variant in workload.variants] == ["loop", "grouped", "sort", "exact", "nested"]


@pytest.mark.parametrize("variant", ["grouped", "sort", "exact", "nested"])
def test_every_variant_draws_as_the_loop_does(variant: str) -> None:
    made = verify("cloud", variant=variant, size=SIZE, repeats=8, device="cpu", forecaster=Unforeseen())
    assert [one for one in made.comparisons if not one["ok"]] == []
    assert made.status in ("pass", "inconclusive"), made.reason


class Unforeseen:
    """Peaks are another test's."""

    def predict(self, **_: Any) -> Any:
        raise BadInput("not predicted here", hint="-")


def test_the_originals_prefix_sampling_is_refused() -> None:
    refused = refusal(lambda problem, seed: baseline.prefix(problem.segments, problem.wanted))
    assert "places: " in refused and "taken: seeds" in refused and "off" not in refused


def test_a_permutation_shared_by_all_cells_of_one_count_is_refused() -> None:
    assert "alike: " in refusal(
        lambda problem, seed: baseline.grouped(problem.segments, problem.wanted, shared=True)
    )


def test_the_originals_cache_by_size_is_refused() -> None:
    sampler = baseline.GridSampler()

    def remembered(problem: Problem, seed: int) -> Tensor:
        return baseline.grouped(sampler.cached_segments(baseline.grid_of(problem.segments)), problem.wanted)

    refused = refusal(remembered)
    assert "off_other: " in refused and "taken" not in refused


def test_draws_that_have_the_right_counts_only_on_average_are_refused() -> None:
    assert "off: " in refusal(
        lambda problem, seed: sample_subset(problem.segments, 0.5, method="bernoulli", seed=seed)
    )


def test_a_draw_that_ignores_the_seed_is_refused() -> None:
    assert "taken: seeds" in refusal(
        lambda problem, seed: sample_subset(problem.segments, problem.wanted, seed=0)
    )


def test_the_probe_tells_places_pairs_and_counts_of_a_draw_by_hand() -> None:
    # Two cells of 4 points; the draw takes the first and second place of one, and the second of the other.
    order, offsets = torch.tensor([5, 1, 0, 7, 2, 3, 4, 6]), torch.tensor([0, 4, 8])
    segments = Segments(
        order.int(), offsets.int(), torch.tensor([0] * 4 + [1] * 4).int(), None, 4, empty=False
    )
    problem = Problem(segments, torch.tensor([2, 2]), 4)
    found = probe_of(lambda *_: torch.tensor([5, 1, 3]), problem, problem).outputs
    assert found["taken"].tolist() == [1, 1, 0, 0, 0, 1, 0, 0]
    assert found["off"].tolist() == [0, -1]
    assert found["alike"].tolist() == [1.0]  # one both took, and 2 * 2 / 4 is due
    shares = np.zeros(BINS)
    shares[[0, 4]] = 0.5, 1.0
    assert found["places"].tolist() == shares.tolist()


@pytest.mark.parametrize("variant", ["loop", "grouped", "sort", "exact", "nested"])
def test_every_subset_of_a_small_cell_comes_as_often_as_any_other(variant: str) -> None:
    cells, rounds = 200, 6
    offsets = torch.arange(0, 4 * cells + 1, 4)
    problem = Problem(Segments.from_offsets(offsets), torch.full((cells,), 2, dtype=torch.int32), 2 * cells)
    seen: dict[tuple[int, ...], int] = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    torch.manual_seed(1)
    draw = drawer(variant, seed=3)
    for step in range(rounds):
        for pair in draw(problem, step).reshape(cells, 2).remainder(4).sort(dim=1).values.tolist():
            seen[tuple(pair)] += 1
    due = cells * rounds / 6
    assert sum((count - due) ** 2 / due for count in seen.values()) < 25.7  # chi-square, 5 degrees, p = 1e-4


def test_the_original_sampler_gives_its_cells_points_and_another_scene_of_that_size_the_same() -> None:
    sampler = baseline.GridSampler()
    first, second = (problem_of(400, 20, device="cpu", scene=scene) for scene in (0, 1))
    grids = [baseline.grid_of(one.segments) for one in (first, second)]
    for draw in (sampler.by_loop, sampler.by_count):
        drawn, ratios = draw(grids[0], first.wanted)
        assert not off_by(first, drawn).any() and len(drawn.unique()) == first.total
        assert len(ratios) in (20, first.total) and 0 < float(ratios.min()) <= float(ratios.max()) <= 1
    wrong = off_by(second, sampler.by_count(grids[1], second.wanted)[0])
    assert np.count_nonzero(wrong) > 5


def test_sizes_are_predicted_and_planned_for_any_card() -> None:
    with Forecaster("cloud") as forecaster:

        def peak(variant: str, size: int) -> int:
            return forecaster.predict(size=size, variant=variant).peak_allocated_bytes

        small, large = peak("exact", 40_000), peak("exact", 80_000)
        assert 1.9 < large / small < 2.1
        # What must be there: cells, order and counts, and the indices that are drawn.
        problem = problem_of(80_000, 4_000, device="cpu")
        assert large >= 4 * (2 * 80_000 + 2 * 4_000 + problem.total)
        assert peak("loop", 4_000) > peak("exact", 4_000)
    assert plan("cloud", variant="exact", budget="2GiB", up_to=100_000).size == 100_000


def test_cells_without_points_and_sizes_below_one_are_refused() -> None:
    with pytest.raises(BadInput, match="0 points"):
        load_workload("cloud").case(0, device="cpu", mode="infer")
    with pytest.raises(BadInput, match="cells"):
        problem_of(10, 11, device="cpu")
    with pytest.raises(BadInput, match="occupancy"):
        load_workload("cloud").case(10, device="cpu", mode="infer", settings={"occupancy": "0"})
