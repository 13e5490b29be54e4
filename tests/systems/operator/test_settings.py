"""Settings of a run: JSON, invalid values, and what may change when it is resumed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.overrides import parse_overrides
from pinchpoint.systems.common.settings import apply_choices, differences
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.settings import Settings


def test_settings_survive_json() -> None:
    settings = Settings(steps=7, model={"lattice": [4, 2, 2]}, chunk=None)
    assert Settings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"steps": 0}, "--steps"),
        ({"accumulate": 0}, "--accumulate"),
        ({"lr": 0.0}, "--lr"),
        ({"lr": math.nan}, "--lr"),
        ({"clip": -1.0}, "--set clip="),
        ({"ema": 1.0}, "below 1"),
        ({"precision": "fp8"}, "fp32, tf32, bf16"),
        ({"memory": "small"}, "flat, eager, checkpoint"),
        ({"loss": "huber"}, "l1, l2"),
        ({"chunk": 0}, "at least 1"),
        ({"validation": -1}, "--set validation="),
        ({"eval_every": -5}, "--set eval_every="),
        ({"batch": 3}, "steps"),
    ],
)
def test_invalid_settings_are_refused_with_a_hint(choice: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as excinfo:
        apply_choices(Settings(), choice)
    assert says in excinfo.value.hint


def test_only_settings_that_change_the_result_count_as_differences() -> None:
    settings = Settings(steps=10, lr=0.1, chunk=5, model={"channels": 8, "mlp": [8]})
    assert (
        differences(
            settings, {"chunk": 9, "device": "cpu", "memory": "eager", "steps": 10, "model": {"channels": 8}}
        )
        == []
    )
    changes = differences(
        settings, {"lr": 0.2, "steps": 20, "model": {"channels": 16, "mlp": [8]}, "data": "other"}
    )
    assert changes == [
        "lr (was 0.1, is 0.2)",
        "steps (was 10, is 20)",
        "channels (was 8, is 16)",
        "data (another dataset)",
    ]


def parse(texts: list[str]) -> dict[str, Any]:
    return parse_overrides(texts, model=OperatorConfig).model


def test_model_settings_are_parsed_by_their_types() -> None:
    values = parse(["lattice=8,4,4", "channels=12", "radii=0.5,1", "geometry=none", "compat=true"])
    assert values == {
        "lattice": (8, 4, 4),
        "channels": 12,
        "radii": (0.5, 1.0),
        "geometry": "none",
        "compat": True,
    }
    assert parse(["mirror=4", "neighbour_cap=none"]) == {
        "mirror": 4,
        "neighbour_cap": None,
    }


@pytest.mark.parametrize(
    "text", ["channels", "colour=3", "channels=many", "compat=yes", "mlp=64,x", "mirror=left"]
)
def test_a_setting_the_model_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse([text])
