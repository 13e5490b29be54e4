"""CloudConfig survives JSON and rejects invalid configurations."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.model.config import PRESETS, CloudConfig


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_json(name: str) -> None:
    config = CloudConfig.preset(
        name, in_features=3, classes=8, feature_shift=(0.5,) * 3, feature_scale=(0.3,) * 3
    )
    assert CloudConfig.from_json(config.to_json()) == config


def test_a_change_to_a_preset_replaces_one_field_and_keeps_the_others() -> None:
    plain, changed = (
        CloudConfig.preset("small", in_features=0, classes=2, **more) for more in ({}, {"cell": 0.5})
    )
    assert changed.cell == 0.5 and changed.widths == plain.widths
    assert (
        plain.point_inputs == 4
        and CloudConfig.preset("small", in_features=5, classes=2, height=False).point_inputs == 8
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_features": -1}, "in_features"),
        ({"classes": 1}, "classes"),
        ({"cell": 0.0}, "cell"),
        ({"cell": float("nan")}, "cell"),
        ({"window": 0}, "window"),
        ({"norm": "group"}, "norm"),
        ({"views": 2}, "views"),
        ({"widths": ()}, "widths"),
        ({"widths": (8, 16)}, "blocks"),
        ({"attention": (0, 0, 0)}, "attention"),
        ({"attention": (0, 0, 0, 1), "heads": 7}, "heads"),
        ({"feature_shift": (1.0,)}, "feature_shift"),
        ({"feature_shift": (1.0, 1.0, 1.0)}, "feature_s"),
        ({"feature_shift": (1.0,) * 3, "feature_scale": (0.0,) * 3}, "feature_scale"),
    ],
)
def test_an_invalid_configuration_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CloudConfig(**{"in_features": 3, "classes": 8, **changes})


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput) as error:
        CloudConfig.preset("huge", in_features=3, classes=8)
    assert "small" in error.value.hint
