"""The learning rate schedule of all runs."""

from __future__ import annotations

import math

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import LARGEST_SEED, TrainSettings
from pinchpoint.systems.common.training.sample_order import at_turn


def test_the_learning_rate_rises_linearly_and_falls_by_a_cosine_to_a_hundredth() -> None:
    settings = TrainSettings(steps=110, warmup=10, lr=2.0)
    assert [settings.rate(step) for step in (1, 5, 10)] == pytest.approx([0.2, 1.0, 2.0])
    assert settings.rate(60) == pytest.approx(2.0 * (0.01 + 0.99 / 2))
    assert settings.rate(35) == pytest.approx(2.0 * (0.01 + 0.99 * (1 + math.cos(math.pi / 4)) / 2))
    assert settings.rate(110) == pytest.approx(0.02)


def test_an_invalid_seed_is_refused() -> None:
    TrainSettings(seed=LARGEST_SEED).check()
    at_turn(["a", "b"], seed=LARGEST_SEED, turn=10**9)
    with pytest.raises(BadInput, match="--seed 4294967296 is out of range"):
        TrainSettings(seed=LARGEST_SEED + 1).check()


def test_a_run_of_one_step_has_a_learning_rate() -> None:
    assert TrainSettings(steps=1, lr=0.5).rate(1) == 0.5
