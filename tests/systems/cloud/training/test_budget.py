"""Budgets: the way views pass is the first that fits, and what is predicted is what a step holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pinchpoint.backends.torch import measurement
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model import convolution
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training import budget
from pinchpoint.systems.cloud.training.budget import way_for, ways_of
from pinchpoint.systems.cloud.training.training_step import Stepper

CONFIG = CloudConfig(
    in_features=0, classes=2, cell=0.1, widths=(16, 16), blocks=(1, 1), attention=(0, 0), point_width=32
)
TOLD = Settings(views=["dense", "log-uniform:0.5:1", "uniform:0.2:0.9"], points=4000, scenes=1)


def scene(points: int = 4000) -> Scene:
    rng = np.random.default_rng(0)
    flat = rng.uniform(size=(points, 3)) * (4, 4, 0.05)
    return Scene(
        "flat", flat.astype(np.float32), np.zeros((points, 0), np.float32), rng.integers(0, 2, points)
    )


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds nothing yet: its own bytes differ from run to run."""
    monkeypatch.setattr(budget, "resident_bytes", lambda: 0)


def need(**changes: Any) -> int:
    return way_for(CONFIG, replace(TOLD, **changes), [scene()], budget="1TB", device="cpu").predicted_bytes


@pytest.mark.usefixtures("alone")
def test_views_pass_together_where_that_fits_and_else_one_after_another() -> None:
    together, apart = need(views_mode="batched"), need(views_mode="accumulate")
    assert apart < 0.7 * together, "the activations of one view of three"
    for within, mode in ((together, "batched"), (together - 1, "accumulate"), (apart, "accumulate")):
        found = way_for(CONFIG, TOLD, [scene()], budget=within, device="cpu")
        assert found.views_mode == mode and found.predicted_bytes <= within
    with pytest.raises(DoesNotFit) as caught:
        way_for(CONFIG, TOLD, [scene()], budget=apart - 1, device="cpu")
    assert caught.value.need_bytes == apart and "fewer --points or --scenes" in caught.value.hint
    with pytest.raises(DoesNotFit):  # the way that was chosen, and no other
        way_for(CONFIG, replace(TOLD, views_mode="batched"), [scene()], budget=apart, device="cpu")


@pytest.mark.usefixtures("alone")
def test_no_step_holds_more_than_was_predicted() -> None:
    predicted = need(views_mode="batched")
    stepper = Stepper(CONFIG, replace(TOLD, views_mode="batched"), "cpu")

    def steps() -> None:
        for number in (1, 2, 3):
            stepper.step([scene()], number=number)

    held = measurement.account(steps) or 0
    assert 0.6 * predicted < held <= predicted


@pytest.mark.usefixtures("alone")
def test_a_straight_line_from_parts_of_a_scene_tells_what_the_whole_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = need(views_mode="batched")
    monkeypatch.setattr(budget, "WHOLE", 3000)
    assert whole <= need(views_mode="batched") < 1.3 * whole


def test_a_card_has_its_context_beside_the_step() -> None:
    on_card = way_for(CONFIG, TOLD, [scene()], budget="h200", device="cuda").predicted_bytes
    assert on_card > 2**28 and ways_of(replace(CONFIG, norm="batch"), TOLD) == ("batched",)


def test_on_a_card_a_convolution_reads_more_at_a_time_and_that_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, config = replace(TOLD, views=["dense"]), replace(CONFIG, cell=0.05, widths=(32, 16))
    on_card = way_for(config, told, [scene()], budget="h200", device="cuda").predicted_bytes
    h200 = budget.budget_of("h200")
    monkeypatch.setattr(
        convolution, "CPU_BYTES", convolution.GPU_BYTES
    )  # counted here in the parts that a card takes
    stepper = Stepper(config, told, "cpu")
    held = measurement.account(lambda: [stepper.step([scene()], number=number) for number in (1, 2)]) or 0
    found = (on_card - h200.cublas_workspace_bytes - h200.context_bytes) / budget.ROUNDED
    assert held <= found < 2 * held
