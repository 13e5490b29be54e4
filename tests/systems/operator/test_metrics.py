"""Errors and statistics compared with numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.metrics import middle_of, relative_errors, statistics_of


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def test_errors_are_integrals_over_the_surface() -> None:
    errors = relative_errors(column(1.0, 2.0), column(2.0, -2.0), torch.tensor([1.0, 3.0]))
    assert errors.l1 == pytest.approx((1 * 1 + 3 * 4) / (1 * 2 + 3 * 2))
    assert errors.l2 == pytest.approx(math.sqrt((1 * 1 + 3 * 16) / (1 * 4 + 3 * 4)))


def test_a_finer_mesh_of_the_same_field_has_the_same_error() -> None:
    prediction, true, areas = column(1.0, 2.0, 0.5), column(2.0, -2.0, 1.0), torch.tensor([1.0, 3.0, 2.0])
    whole = relative_errors(prediction, true, areas)
    halves = relative_errors(prediction.repeat(2, 1), true.repeat(2, 1), areas.repeat(2) / 2)
    assert (halves.l1, halves.l2) == pytest.approx((whole.l1, whole.l2))


def test_the_truth_has_an_error_of_zero_and_zero_has_an_error_of_one() -> None:
    true, areas = column(1.0, -3.0), torch.tensor([0.5, 0.7])
    assert relative_errors(true, true, areas).l1 == 0
    zero = relative_errors(torch.zeros_like(true), true, areas)
    assert (zero.l1, zero.l2) == pytest.approx((1.0, 1.0))


def test_statistics_are_weighted_by_area_over_all_bodies() -> None:
    def body(targets: list[float], areas: list[float], feature: float) -> Sample:
        count = len(targets)
        return Sample(
            "b", torch.zeros(count, 3), torch.full((count, 1), feature), column(*targets), torch.tensor(areas)
        )

    statistics = statistics_of([body([1.0, 2.0], [1.0, 3.0], 5.0), body([4.0], [4.0], 5.0)])
    mean = (1 * 1 + 3 * 2 + 4 * 4) / 8
    spread = math.sqrt((1 * 1 + 3 * 4 + 4 * 16) / 8 - mean**2)
    assert statistics.target_mean == pytest.approx((mean,))
    assert statistics.target_std == pytest.approx((spread,))
    assert statistics.feature_mean == pytest.approx((5.0,))
    assert statistics.feature_std == (1.0,), "a constant feature must not be divided by zero"
    assert (statistics.feature_low, statistics.feature_high) == ((5.0,), (5.0,))
    assert statistics.panel_side == pytest.approx(math.sqrt(8 / 3))


def test_the_interval_of_few_bodies_spans_their_whole_range() -> None:
    middle = middle_of([0.3, 0.1, 0.2])
    assert (middle.median, middle.low, middle.high) == (0.2, 0.1, 0.3)
