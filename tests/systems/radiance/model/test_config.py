"""The configuration of a field: it survives JSON, and invalid values are refused."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.model.config import PRESETS, FieldConfig


@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_survives_json(name: str) -> None:
    config = FieldConfig.preset(name, z_app=12)
    assert FieldConfig.from_json(config.to_json()) == config and config.z_app == 12


def test_graf_has_the_published_number_of_parameters() -> None:
    config = FieldConfig.preset("graf")
    assert (config.parameters, config.encoded_point, config.encoded_direction) == (677_764, 63, 27)


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": 0},
        {"width": 33},
        {"skip": 7},
        {"skip": -1},
        {"point_octaves": 17},
        {"point_octaves": -1},
        {"direction_octaves": -2},
        {"z_shape": 0},
        {"depth": 1, "skip": 0},
    ],
)
def test_invalid_configurations_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        FieldConfig.preset("graf", **wrong)


def test_unknown_presets_and_fields_are_refused() -> None:
    with pytest.raises(BadInput, match="preset 'huge' is unknown"):
        FieldConfig.preset("huge")
    with pytest.raises(BadInput, match="unknown fields"):
        FieldConfig.from_json('{"layers": 3}')
