"""Configurations of models as JSON: they survive the round trip, and other fields are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig


@dataclass(frozen=True)
class Config(JsonConfig):
    width: int
    layers: tuple[int, ...] = (8, 4)
    name: str | None = None

    def __post_init__(self) -> None:
        assert round(sum(self.layers) / self.layers[0]) > 0


def test_a_configuration_survives_the_round_trip_with_its_tuples() -> None:
    config = Config(3, (5,), "small")
    assert json.loads(config.to_json()) == {"width": 3, "layers": [5], "name": "small"}
    assert Config.from_json(config.to_json()) == config
    assert Config.from_json('{"width": 2}') == Config(2)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", r"The configuration is damaged: it is not JSON \(line 1, column 2\)\."),
        ('{"width": 1, "depth": 2}', r"unknown fields: \['depth'\]"),
        ("[1]", "unknown fields: list"),
        ("{}", "The configuration lacks fields: .*width"),
        ('{"width": 1, "layers": [NaN]}', "layers.0. should be a whole number"),
        ('{"width": "x"}', "width should be a whole number, not 'x'"),
        ('{"width": 1, "name": 3}', "name should be text, not 3"),
        ('{"width": 1, "layers": [0]}', "a wrong value: division by zero"),
        ('{"width": 1, "layers": []}', "a wrong value"),
    ],
)
def test_text_that_is_not_such_a_configuration_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        Config.from_json(text)


def test_a_value_that_json_cannot_hold_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Config(float("nan")).to_json()  # pyright: ignore[reportArgumentType]
