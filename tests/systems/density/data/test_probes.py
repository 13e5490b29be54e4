"""Probes around molecules, points of a crystal's own grid, and the integrals their weights estimate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import molecule
from pinchpoint.systems.density.data.probes import (
    BOX_PADDING_A,
    UNIFORM_SHARE,
    draw_points,
    draw_probes,
    grid_probes,
    likelihood,
    positions_of,
    select_grid,
    shares,
)
from pinchpoint.systems.density.data.sample import decode, encode_signed
from pinchpoint.systems.density.files.volume import grid_points

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
        with pytest.raises(BadInput, match="The spacing"):
            grid_probes(WATER.positions, spacing_a=spacing, padding_a=padding)


def test_weights_of_drawn_points_estimate_integrals_over_the_cell(toy_volume: Any) -> None:
    volume = toy_volume(0, (24, 20, 27), spin=True)
    assert volume.spin is not None
    spin = np.abs(volume.spin).reshape(-1)
    total, voxel = volume.total.reshape(-1), volume.structure.volume / volume.total.size
    found = []
    for number in range(60):
        drawn = draw_points(volume.structure, volume.grid, count=600, key=(3, number))
        assert len(drawn.index) == 600
        found.append(
            [drawn.weights @ total[drawn.index], drawn.weights.sum(), drawn.weights @ spin[drawn.index]]
        )
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(60)
    truth = np.array([16.0, volume.structure.volume, spin.sum() * voxel])
    assert (np.abs(mean - truth) < 4 * error).all() and (error[:1] < 0.01 * truth[:1]).all()


def test_points_are_drawn_where_the_density_is(toy_volume: Any) -> None:
    volume = toy_volume(0, (40, 40, 40))
    total = volume.total.reshape(-1)
    drawn = draw_points(volume.structure, volume.grid, count=2000, key=(0, 1))
    even = np.full(len(total), volume.structure.volume / 2000)
    assert np.std(drawn.weights * total[drawn.index]) < 0.6 * np.std(even * total)
    assert total[drawn.index].mean() > 1.8 * total.mean()


def test_the_key_alone_decides_the_points(toy_structure: Any) -> None:
    structure = toy_structure(0)
    first, again, other = (
        draw_points(structure, (16, 15, 18), count=500, key=key) for key in ((1, 2), (1, 2), (1, 3))
    )
    assert first.sha256 == again.sha256 != other.sha256 and (first.weights == again.weights).all()


def test_a_grid_of_fewer_points_is_taken_whole_in_no_order(toy_structure: Any) -> None:
    structure = toy_structure(0)
    drawn = draw_points(structure, (4, 3, 5), count=60, key=(0,))
    assert sorted(drawn.index) == list(range(60)) and list(drawn.index) != list(range(60))
    assert drawn.weights.sum() == pytest.approx(structure.volume)


def test_a_grid_that_is_too_large_is_thinned_where_it_is_finest_and_keeps_its_integral(
    toy_volume: Any, toy_structure: Any
) -> None:
    structure = toy_structure(0)
    whole = select_grid(structure, (16, 15, 18), most=4320)
    assert whole.stride == (1, 1, 1) and (whole.index == np.arange(4320)).all()
    assert np.allclose(
        positions_of(whole.index, (16, 15, 18), structure.lattice),
        grid_points((16, 15, 18)) @ structure.lattice,
    )
    volume = toy_volume(0, (31, 29, 64))  # primes: no stride divides them
    part = select_grid(structure, volume.grid, most=10_000)
    assert part.stride == (2, 2, 2) and len(part.index) == 16 * 15 * 32
    assert part.weights.sum() == pytest.approx(structure.volume)
    assert part.weights @ volume.total.reshape(-1)[part.index] == pytest.approx(16, rel=2e-3)


def test_signed_codes_are_right_to_two_parts_in_ten_thousand() -> None:
    size = np.concatenate([np.geomspace(1e-3, 9.0, 50_000), np.linspace(0, 1e-3, 1000)])
    values = np.concatenate([size, -size])
    back = decode(encode_signed(values, 9.0), 9.0)
    assert (np.abs(back - values) / np.maximum(np.abs(values), 1e-3)).max() <= 2e-4
    assert (decode(encode_signed(np.zeros(3), 0.0), 0.0) == 0).all()
