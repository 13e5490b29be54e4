"""Settings of a run: defaults are valid, and invalid values are rejected with a hint."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.settings import apply_choices


def test_by_default_each_scene_has_one_view_at_a_random_density() -> None:
    Settings().check()
    assert Settings().views == ["log-uniform:0.05:1"] and Settings().consistency == "none"


@pytest.mark.parametrize(
    ("changes", "what", "hint"),
    [
        ({"consistency": "l1"}, "The consistency 'l1' is unknown.", "none, cos, mse, kl"),
        ({"views_mode": "both"}, "The views_mode 'both' is unknown.", "auto, batched, accumulate"),
        (
            {"consistency": "kl"},
            "--consistency kl cannot be used with the views log-uniform",
            "--views dense,",
        ),
        ({"consistency": "cos", "views": ["dense"]}, "with the views dense", "--views dense,"),
        ({"consistency_weight": 0.0}, "--set consistency_weight=0", "above 0"),
        ({"cell": 0.0}, "--cell 0", "above 0"),
        ({"cell": float("nan")}, "--cell nan", "above 0"),
        ({"cell": (0.1, 0.2)}, "The cell size is (0.1, 0.2)", "x, y and z"),
        ({"cell": [0.1, 0.1, -1.0]}, "The cell size is [0.1, 0.1, -1.0]", "x, y and z"),
        ({"schedule": "alternate"}, "there is only the view log-uniform", "--views dense,"),
        (
            {"schedule": "alternate", "consistency": "kl", "views": ["dense", "one-per-cell"]},
            "has nothing to compare",
            "no --consistency",
        ),
        ({"scenes": 0}, "--scenes 0", "at least 1"),
        ({"points": 0}, "--points 0", "at least 1"),
        ({"views": []}, "The list of views is empty.", "--views"),
        ({"views": ["dense", "dense"]}, "`dense` is listed twice", "Leave one out"),
        ({"density": 1}, "no setting density", "views"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(BadInput) as error:
        apply_choices(Settings(), changes)
    assert what in error.value.what and hint in error.value.hint
