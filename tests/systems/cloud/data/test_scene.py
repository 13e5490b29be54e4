"""Scenes are validated before use: errors name each fault and count the affected points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.scene import Scene, check_scene

GOOD = Scene(
    "room",
    np.arange(12, dtype=np.float32).reshape(4, 3),
    np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2),
    np.array([0, 1, -1, 1], dtype=np.int16),
    ("red", "green"),
    ("floor", "wall"),
)


def with_bad(values: np.ndarray, bad: float) -> np.ndarray:
    values = values.copy()
    values[1:3, 0] = bad
    return values


def test_a_valid_scene_is_returned_unchanged() -> None:
    assert check_scene(GOOD) is GOOD
    assert (
        check_scene(replace(GOOD, features=np.zeros((4, 0), np.float32), names=(), labels=None)).labels
        is None
    )


def test_take_returns_the_rows_in_the_requested_order() -> None:
    subset = GOOD.take(np.array([3, 0]))
    assert subset.xyz.tolist() == [[9, 10, 11], [0, 1, 2]]
    assert subset.labels is not None and subset.labels.tolist() == [1, 0]
    assert subset.features.tolist() == GOOD.features[[3, 0]].tolist()
    assert subset.names == GOOD.names and subset.points == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xyz": np.zeros((0, 3), np.float32)}, "has no points"),
        ({"xyz": np.zeros((4, 2), np.float32)}, "shape (4, 2)"),
        ({"xyz": with_bad(GOOD.xyz, np.nan)}, "2 of 4 points of room have coordinates that are NaN"),
        ({"xyz": with_bad(GOOD.xyz, np.inf)}, "NaN or infinite"),
        ({"features": with_bad(GOOD.features, np.nan)}, "2 of 4 points of room have features that are NaN"),
        ({"features": np.zeros((3, 2), np.float32)}, "4 points, but features of shape (3, 2)"),
        ({"names": ("red",)}, "2 features, but 1 names"),
        ({"labels": np.zeros(5, np.int16)}, "4 points, but labels of shape (5,)"),
        ({"labels": np.zeros(4, np.float32)}, "labels of room are float32"),
        ({"labels": np.array([0, 1, -2, 0], np.int16)}, "the label -2"),
        ({"labels": np.array([0, 1, 2, 0], np.int16)}, "the label 2, but there are 2 classes"),
    ],
)
def test_an_invalid_scene_is_rejected_with_the_reason(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as error:
        check_scene(replace(GOOD, **change))
    assert message in error.value.what and error.value.hint
