"""The statistics of draws agree with closed forms and reject draws that are not random."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
stats = pytest.importorskip("scipy.stats", reason="needs scipy")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cloud"


@pytest.fixture
def sampling() -> ModuleType:
    return importlib.import_module("sampling")


@pytest.mark.parametrize(("statistic", "freedom"), [(69.0, 69), (110.0, 69), (923.0, 923), (1100.0, 923)])
def test_the_tail_of_a_chi_square_agrees_with_scipy(
    sampling: ModuleType, statistic: float, freedom: int
) -> None:
    assert sampling.chi_square_tail(statistic, freedom) == pytest.approx(
        stats.chi2.sf(statistic, freedom), rel=0.03
    )


@pytest.mark.parametrize("method", ["exact", "sort", "nested", "bernoulli"])
def test_subsets_are_uniform_by_a_threshold_fixed_in_advance(sampling: ModuleType, method: str) -> None:
    assert sampling.subset_test(method, 8, 4, seed=5, cells=20_000)["p"] >= sampling.LEAST_P


def test_a_prefix_is_not_a_uniform_subset(sampling: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(segments: Any, count: int, **_: Any) -> Any:
        return sampling.baseline.prefix(segments, torch.full((segments.cells,), count))

    monkeypatch.setattr(sampling, "sample_subset", first)
    assert sampling.subset_test("exact", 8, 4, seed=5, cells=2_000)["p"] < sampling.LEAST_P


def test_floor_with_a_minimum_of_one_has_the_bias_of_its_closed_form_and_ours_has_none(
    sampling: ModuleType,
) -> None:
    shares = {row["n"]: row for row in sampling.mean_shares(3, cells=40_000)}
    # r is uniform in 0.3..0.7. For 4 points, floor gives 1 below r = 0.5 and 2 above; for 20, 6 to 13.
    assert shares[4]["floor"] == pytest.approx(1.5 / 4, abs=0.005)
    assert shares[20]["floor"] == pytest.approx(9.5 / 20, abs=0.005)
    assert shares[20]["ours"] == pytest.approx(0.5, abs=0.005)
    # Without the minimum of one, no point of two would be drawn in one of ten cases: (2 * 0.5 + 0.1) / 2.
    assert shares[2]["ours"] == pytest.approx(0.55, abs=0.005)


def test_a_prefix_draws_every_first_place_and_no_last_place(sampling: ModuleType) -> None:
    shares = sampling.prefix_bias(1, cells=2_000)
    assert (shares["prefix"]["first"], shares["prefix"]["last"], shares["prefix_same_every_time"]) == (
        1.0,
        0.0,
        True,
    )
    assert all(share == pytest.approx(0.5, abs=0.06) for share in shares["exact"].values())
