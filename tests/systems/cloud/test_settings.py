"""Settings of a run: defaults that make one, and what is refused with its hint."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.settings import apply_choices


def test_the_defaults_are_a_run_at_one_density_drawn_anew_for_each_scene() -> None:
    Settings().check()
    assert Settings().views == ["log-uniform:0.05:1"] and Settings().consistency == "none"


@pytest.mark.parametrize(
    ("choices", "what", "hint"),
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
        ({"scenes": 0}, "--scenes 0", "at least 1"),
        ({"points": 0}, "--points 0", "at least 1"),
        ({"views": []}, "The list of views is empty.", "--views"),
        ({"views": ["dense", "dense"]}, "`dense` is listed twice", "Leave one out"),
        ({"density": 1}, "no setting density", "views"),
    ],
)
def test_choices_that_make_no_run_are_refused(choices: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(BadInput) as caught:
        apply_choices(Settings(), choices)
    assert what in caught.value.what and hint in caught.value.hint
