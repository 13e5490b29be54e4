"""A Settings survives JSON and refuses what cannot be trained."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.model.config import PRESETS, NetConfig
from pinchpoint.systems.vmc.settings import Settings


@pytest.mark.parametrize("net", PRESETS)
@pytest.mark.parametrize("electrons", [1, 2, 4, 14])
def test_every_recipe_survives_json(net: str, electrons: int) -> None:
    settings = Settings.preset(net, electrons=electrons, seed=3)
    assert Settings.from_json(settings.to_json()) == settings
    assert settings.seed == 3


def test_the_medium_network_has_a_recipe_for_a_card() -> None:
    told = Settings.preset("medium", electrons=10)
    assert (told.walkers, told.steps, told.moves, told.burn, told.adam_steps) == (1024, 15_000, 20, 200, 100)
    assert (told.adam_rate, told.spring_rate, told.spring_decay, told.momentum, told.norm_cap) == (
        1e-3,
        0.05,
        2000,
        0.98,
        2e-3,
    )
    net = NetConfig.preset("medium")
    assert (net.one, net.two, net.layers, net.determinants) == (128, 32, 4, 16)


def test_a_step_is_by_adam_up_to_its_last_and_by_spring_after() -> None:
    told = Settings(optimizer="adam+spring", adam_steps=7)
    assert [told.stage_at(step) for step in (0, 6, 7, 99)] == ["adam", "adam", "spring", "spring"]
    assert Settings(optimizer="adam", steps=5).stage_at(99) == "adam"  # a run may be made longer
    assert Settings(optimizer="spring").stage_at(0) == "spring"


@pytest.mark.parametrize(
    "wrong",
    [
        {"walkers": 0},
        {"moves": 0},
        {"steps": 0},
        {"burn": -1},
        {"adam_steps": -1},
        {"kind": "gibbs"},
        {"optimizer": "kfac"},
        {"method": "finite"},
        {"precision": "bf16"},
        {"width": 0.0},
        {"damping": float("nan")},
        {"momentum": 1.0},
        {"acceptance": 1.0},
        {"seed": -1},
        {"seed": 2**32},
        {"chunk": 0},
        {"walkers": 512, "chunk": 100},
        {"walkers": 1},
        {"clip": float("inf")},
    ],
    ids=str,
)
def test_what_cannot_be_trained_is_refused_with_its_hint(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        Settings(**wrong)
    assert caught.value.hint


def test_a_chunk_that_does_not_divide_names_one_that_does() -> None:
    with pytest.raises(BadInput, match="Use a chunk of 64, or 600 walkers"):
        Settings(walkers=512, chunk=100)


def test_the_acceptance_aimed_at_suits_the_moves_unless_it_is_told() -> None:
    assert Settings(kind="metropolis").target == 0.5
    assert Settings(kind="langevin").target > 0.5
    assert Settings(acceptance=0.4).target == 0.4


def test_spring_begins_where_adam_ends() -> None:
    assert Settings(optimizer="adam+spring", adam_steps=7).adam_until == 7
    assert Settings(optimizer="spring", adam_steps=7).adam_until == 0
    assert Settings(optimizer="adam", steps=50, adam_steps=7).adam_until == 50
