"""Errors and statistics against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.metrics import middle_of, relative_errors, statistics_of


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def test_errors_are_integrals_over_the_surface() -> None:
    found = relative_errors(column(1.0, 2.0), column(2.0, -2.0), torch.tensor([1.0, 3.0]))
    assert found.l1 == pytest.approx((1 * 1 + 3 * 4) / (1 * 2 + 3 * 2))
    assert found.l2 == pytest.approx(math.sqrt((1 * 1 + 3 * 16) / (1 * 4 + 3 * 4)))


def test_a_finer_mesh_of_the_same_field_has_the_same_error() -> None:
    predicted, true, areas = column(1.0, 2.0, 0.5), column(2.0, -2.0, 1.0), torch.tensor([1.0, 3.0, 2.0])
    whole = relative_errors(predicted, true, areas)
    halves = relative_errors(predicted.repeat(2, 1), true.repeat(2, 1), areas.repeat(2) / 2)
    assert (halves.l1, halves.l2) == pytest.approx((whole.l1, whole.l2))


def test_the_truth_has_no_error_and_zero_has_all_of_it() -> None:
    true, areas = column(1.0, -3.0), torch.tensor([0.5, 0.7])
    assert relative_errors(true, true, areas).l1 == 0
    zero = relative_errors(torch.zeros_like(true), true, areas)
    assert (zero.l1, zero.l2) == pytest.approx((1.0, 1.0))


def test_statistics_weigh_by_area_over_all_bodies() -> None:
    def body(targets: list[float], areas: list[float], feature: float) -> Sample:
        count = len(targets)
        return Sample(
            "b", torch.zeros(count, 3), torch.full((count, 1), feature), column(*targets), torch.tensor(areas)
        )

    found = statistics_of([body([1.0, 2.0], [1.0, 3.0], 5.0), body([4.0], [4.0], 5.0)])
    mean = (1 * 1 + 3 * 2 + 4 * 4) / 8
    spread = math.sqrt((1 * 1 + 3 * 4 + 4 * 16) / 8 - mean**2)
    assert found.target_mean == pytest.approx((mean,))
    assert found.target_std == pytest.approx((spread,))
    assert found.feature_mean == pytest.approx((5.0,))
    assert found.feature_std == (1.0,), "a feature that does not vary must not be divided by nothing"
    assert (found.feature_low, found.feature_high) == ((5.0,), (5.0,))
    assert found.panel_side == pytest.approx(math.sqrt(8 / 3))


def test_the_middle_of_few_bodies_spans_their_whole_range() -> None:
    found = middle_of([0.3, 0.1, 0.2])
    assert (found.median, found.low, found.high) == (0.2, 0.1, 0.3)
