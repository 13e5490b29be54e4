"""The schedule every run follows."""

from __future__ import annotations

import math

import pytest

from pinchpoint.workloads.training.settings import Common


def test_the_rate_rises_in_a_line_and_falls_by_half_a_cosine_to_a_hundredth() -> None:
    told = Common(steps=110, warmup=10, lr=2.0)
    assert [told.rate(step) for step in (1, 5, 10)] == pytest.approx([0.2, 1.0, 2.0])
    assert told.rate(60) == pytest.approx(2.0 * (0.01 + 0.99 / 2))
    assert told.rate(35) == pytest.approx(2.0 * (0.01 + 0.99 * (1 + math.cos(math.pi / 4)) / 2))
    assert told.rate(110) == pytest.approx(0.02)


def test_a_run_of_one_step_has_a_rate() -> None:
    assert Common(steps=1, lr=0.5).rate(1) == 0.5
