"""Meshes of invented cars: turned so that their longest side lies along x."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"


@pytest.mark.parametrize("angle", [0.3, 1.4, 2.5])
def test_a_turned_box_is_turned_back_up_to_half_a_turn(angle: float) -> None:
    script = importlib.import_module("mesh")
    box = np.random.default_rng(0).uniform([-0.9, -0.3, -0.2], [0.9, 0.3, 0.2], size=(4000, 3))
    cos, sin = np.cos(angle), np.sin(angle)
    turned = box @ np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
    back = turned @ script.along_x(turned)
    off = min(np.abs(sign * back - box).max() for sign in script.SIGNS)
    assert off < 0.03 < np.abs(turned - box).max()
