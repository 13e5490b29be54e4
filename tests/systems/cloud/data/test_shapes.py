"""Points on surfaces: they lie on them, are uniform, and have the right normals and counts per surface."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pinchpoint.systems.cloud.data.shapes import (
    ball,
    box,
    disc,
    drum,
    flat,
    move_surfaces,
    pipe,
    sample_surfaces,
)

COUNT = 40_000


def sample_points(parts, count=COUNT):
    return sample_surfaces(parts, count, np.random.default_rng(7))


def test_areas_equal_the_closed_forms() -> None:
    assert flat((1, 2, 3), (2, 0, 0), (0, 0, 3)).area == pytest.approx(6)
    assert ball((0, 0, 0), 0.5).area == pytest.approx(math.pi)
    assert disc((0, 0, 0), 2).area == pytest.approx(4 * math.pi)
    assert pipe((0, 0, 0), (0, 0, 5), 0.1).area == pytest.approx(math.pi)
    assert pipe((0, 0, 0), (0, 0, 4), 3, 0).area == pytest.approx(15 * math.pi)  # a cone: pi r s
    assert sum(part.area for part in box((0, 0, 0), (1, 2, 3))) == pytest.approx(22)
    assert sum(part.area for part in drum((0, 0, 0), 1, 2)) == pytest.approx(6 * math.pi)


def test_every_surface_receives_points_in_proportion_to_its_area() -> None:
    parts = [*box((0, 0, 0), (1, 2, 3)), ball((9, 9, 9), 1), disc((5, 0, 0), 1)]
    _, _, of = sample_points(parts)
    areas = np.array([part.area for part in parts])
    expected = COUNT * areas / areas.sum()
    assert (np.abs(np.bincount(of, minlength=len(parts)) - expected) < 5 * np.sqrt(expected)).all()


def test_points_of_a_disc_are_uniform_over_its_area() -> None:
    at, normals, _ = sample_points([disc((1, 2, 3), 2)])
    share = ((at - (1, 2, 3)) ** 2).sum(axis=1) / 4  # share of the area within this radius, uniform in 0..1
    assert np.abs(np.sort(share) - (np.arange(COUNT) + 0.5) / COUNT).max() < 1.95 / math.sqrt(
        COUNT
    )  # Kolmogorov, p = 0.001
    assert (at[:, 2] == 3).all() and np.abs(normals[:, 2]).min() == 1


def test_points_of_a_ball_lie_on_it_and_are_uniform_in_height() -> None:
    at, normals, _ = sample_points([ball((0, 0, 1), 0.5)])
    assert np.allclose(np.linalg.norm(at - (0, 0, 1), axis=1), 0.5)
    assert np.allclose((at - (0, 0, 1)) / 0.5, normals)
    share = np.sort(at[:, 2] - 0.5)  # the height is uniform (Archimedes)
    assert np.abs(share - (np.arange(COUNT) + 0.5) / COUNT).max() < 1.95 / math.sqrt(COUNT)


def test_points_of_a_slanted_cone_lie_on_it_with_perpendicular_normals() -> None:
    low, high = np.array((1.0, 0.0, 0.0)), np.array((1.0, 1.0, 1.0))
    at, normals, _ = sample_points([pipe((1, 0, 0), (1, 1, 1), 0.4, 0.1)], 5000)
    axis = (high - low) / np.linalg.norm(high - low)
    along = (at - low) @ axis
    radius = np.linalg.norm(at - low - along[:, None] * axis, axis=1)
    assert np.allclose(radius, 0.4 - 0.3 * along / math.sqrt(2))
    apex = low + axis * 0.4 / 0.3 * math.sqrt(2)  # lines from the apex lie in the surface
    assert np.abs(((at - apex) * normals).sum(axis=1)).max() < 1e-9
    assert np.allclose(np.linalg.norm(normals, axis=1), 1)


def test_surfaces_are_rotated_about_z_and_then_shifted() -> None:
    (part,) = move_surfaces([flat((1, 0, 0), (1, 0, 0), (0, 0, 1))], (5, 5, 1), math.pi / 2)
    assert (
        np.allclose(part.at, (5, 6, 1)) and np.allclose(part.u, (0, 1, 0)) and np.allclose(part.v, (0, 0, 1))
    )
