"""Pictures of a mesh: a square covers the pixels it should, from above and almost from the side."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from pinchpoint.systems.radiance.rendering.rays import Camera  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"
SQUARE = np.array([[-0.5, -0.5, 0.0], [0.5, -0.5, 0.0], [0.5, 0.5, 0.0], [-0.5, 0.5, 0.0]])
FACES = np.array([[0, 1, 2], [0, 2, 3]])


def test_a_square_seen_from_above_fills_the_pixels_it_covers() -> None:
    script = importlib.import_module("mesh_images")
    red, side = np.array([1.0, 0.0, 0.0]), 32
    image = script.draw(SQUARE, FACES, red, 0.0, 0.0, side, Camera())
    covered = (image < 1).any(axis=2)
    half = 0.5 / (4 * np.tan(np.radians(15))) * side / 2  # in pixels
    assert (2 * half) ** 2 <= covered.sum() <= (2 * half + 2) ** 2, "pixels at its edges are covered in part"
    assert covered[16 - 6 : 16 + 6, 16 - 6 : 16 + 6].all() and not covered[0].any()
    assert image[16, 16, 0] > image[16, 16, 1] + 0.3, "red"
    both = np.concatenate([SQUARE, 0.2 * SQUARE + [0, 0, 0.5]])
    shaded = script.draw(both, np.concatenate([FACES, FACES + 4]), red, 0.0, 0.45, side, Camera())
    assert (shaded < 1).any(axis=2).sum() < covered.sum() / 2, "almost from the side"
    pixels = script.picture(SQUARE, FACES, 3, seed=0, size=16, supersample=2)
    assert pixels.shape == (16, 16, 3) and pixels.dtype == np.uint8 and (pixels[0] == 255).all()
    assert np.array_equal(pixels, script.picture(SQUARE, FACES, 3, seed=0, size=16, supersample=2))
    assert not np.array_equal(pixels, script.picture(SQUARE, FACES, 4, seed=0, size=16, supersample=2))
