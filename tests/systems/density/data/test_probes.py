"""Probes: a law known in closed form, and grids."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import molecule
from pinchpoint.systems.density.data.probes import (
    BOX_PADDING_A,
    UNIFORM_SHARE,
    draw_probes,
    grid_probes,
    likelihood,
    shares,
)

WATER = molecule("water")


def gaussians(points, positions, width=0.6):
    """A sum of Gaussians of integral 1 each."""
    apart = ((points[:, None] - positions) ** 2).sum(axis=2)
    return (np.exp(-apart / (2 * width**2)) / (2 * np.pi * width**2) ** 1.5).sum(axis=1)


def test_the_law_integrates_to_one():
    half = 12.0
    axis = np.linspace(-half, half, 121)
    points = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    # The cusps at the nuclei and the walls of the box are what the grid gets wrong.
    assert likelihood(WATER.species, WATER.positions, points).sum() * (
        axis[1] - axis[0]
    ) ** 3 == pytest.approx(1, abs=0.01)


def test_probes_follow_the_law():
    found = draw_probes(WATER.species, WATER.positions, count=40_000, key=(0, 1))
    # The law is a density: the mean of 1 / law over probes in a region is the region's volume.
    ball = np.linalg.norm(found.points - WATER.positions[0], axis=1) < 0.8
    assert found.weights[ball].sum() == pytest.approx(4 / 3 * np.pi * 0.8**3, rel=0.03)
    low, high = WATER.positions.min(axis=0) - BOX_PADDING_A, WATER.positions.max(axis=0) + BOX_PADDING_A
    inside = ((found.points >= low) & (found.points <= high)).all(axis=1)
    assert found.weights[inside].sum() == pytest.approx(np.prod(high - low), rel=0.05)
    assert shares(WATER.species).sum() == pytest.approx(1 - UNIFORM_SHARE)


def test_weighted_sums_estimate_integrals_without_bias_and_agree_with_the_grid():
    estimates = []
    for number in range(20):
        found = draw_probes(WATER.species, WATER.positions, count=4_000, key=(5, number))
        estimates.append(found.weights @ gaussians(found.points, WATER.positions))
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert np.mean(estimates) == pytest.approx(3, abs=4 * error) and error < 0.02
    grid = grid_probes(WATER.positions, spacing_a=0.25, padding_a=4.0)
    assert grid.weights @ gaussians(grid.points, WATER.positions) == pytest.approx(3, rel=1e-5)


def test_probes_are_the_same_for_the_same_key_and_the_first_do_not_depend_on_the_molecule_being_moved():
    first, again = (draw_probes(WATER.species, WATER.positions, count=50, key=(1, 2)) for _ in range(2))
    assert np.array_equal(first.points, again.points) and np.array_equal(first.weights, again.weights)
    moved = draw_probes(WATER.species, WATER.positions + 5.0, count=50, key=(1, 2))
    assert np.allclose(moved.points, first.points + 5.0) and np.allclose(moved.weights, first.weights)
    assert not np.allclose(
        first.points, draw_probes(WATER.species, WATER.positions, count=50, key=(1, 3)).points
    )


def test_a_grid_covers_its_padding_with_z_fastest():
    grid = grid_probes(WATER.positions, spacing_a=0.3, padding_a=2.0)
    nx, ny, nz = grid.grid
    points = grid.points.reshape(nx, ny, nz, 3)
    assert np.allclose(np.diff(points, axis=2), [0, 0, 0.3]) and np.allclose(
        np.diff(points, axis=0), [0.3, 0, 0]
    )
    low, high = WATER.positions.min(axis=0) - 2.0, WATER.positions.max(axis=0) + 2.0
    assert (grid.points.min(axis=0) <= low + 1e-9).all() and (grid.points.max(axis=0) >= high - 1e-9).all()
    assert (grid.points.min(axis=0) > low - 0.3).all() and (grid.weights == 0.3**3).all()


def test_no_probes_and_no_spacing_are_refused():
    with pytest.raises(BadInput, match="0 probes"):
        draw_probes(WATER.species, WATER.positions, count=0, key=(0,))
    for spacing, padding in ((0.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (0.2, -1.0)):
        with pytest.raises(BadInput, match="a grid of spacing"):
            grid_probes(WATER.positions, spacing_a=spacing, padding_a=padding)
