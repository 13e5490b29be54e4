"""Points of a cell's own grid: drawn without bias, dense near atoms, the same for the same key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pinchpoint.systems.density.data.grid_points import draw_points, grid_part, places
from pinchpoint.systems.density.data.packing import decode, encode_signed
from pinchpoint.systems.density.files.volume import grid_points


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
    whole = grid_part(structure, (16, 15, 18), most=4320)
    assert whole.stride == (1, 1, 1) and (whole.index == np.arange(4320)).all()
    assert np.allclose(
        places(whole.index, (16, 15, 18), structure.lattice), grid_points((16, 15, 18)) @ structure.lattice
    )
    volume = toy_volume(0, (31, 29, 64))  # primes: no stride divides them
    part = grid_part(structure, volume.grid, most=10_000)
    assert part.stride == (2, 2, 2) and len(part.index) == 16 * 15 * 32
    assert part.weights.sum() == pytest.approx(structure.volume)
    assert part.weights @ volume.total.reshape(-1)[part.index] == pytest.approx(16, rel=2e-3)


def test_signed_codes_are_right_to_two_parts_in_ten_thousand() -> None:
    size = np.concatenate([np.geomspace(1e-3, 9.0, 50_000), np.linspace(0, 1e-3, 1000)])
    values = np.concatenate([size, -size])
    back = decode(encode_signed(values, 9.0), 9.0)
    assert (np.abs(back - values) / np.maximum(np.abs(values), 1e-3)).max() <= 2e-4
    assert (decode(encode_signed(np.zeros(3), 0.0), 0.0) == 0).all()
