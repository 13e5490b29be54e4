"""Only points that a space group tells apart are computed: the same density, and grids it does not map are
refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.files.volume import grid_points
from pinchpoint.systems.density.grid.bricks import Bricks
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.grid.symmetry import check_on_grid, grid_for, on_grid, orbits, symmetry_of
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.predict import predict

pytest.importorskip("spglib", reason="space groups are spglib's")
SPECIES = ("C", "O", "Hf")


def monoclinic() -> Structure:
    """HfO2, P2_1/c: 12 atoms."""
    beta = np.radians(99.18)
    lattice = np.array([[5.1156, 0, 0], [0, 5.1722, 0], [5.2948 * np.cos(beta), 0, 5.2948 * np.sin(beta)]])
    sites = (
        ("Hf", (0.2759, 0.0404, 0.2081)),
        ("O", (0.0742, 0.3313, 0.3447)),
        ("O", (0.4496, 0.7573, 0.4798)),
    )
    rows = [
        (symbol, image)
        for symbol, (x, y, z) in sites
        for image in ((x, y, z), (-x, -y, -z), (-x, y + 0.5, 0.5 - z), (x, 0.5 - y, z + 0.5))
    ]
    return Structure(lattice, tuple(symbol for symbol, _ in rows), np.array([place for _, place in rows]))


def diamond() -> Structure:
    """Two atoms in the skewed primitive cell, the origin on an atom."""
    return Structure(3.567 / 2 * (1 - np.eye(3)), ("C", "C"), np.array([[0.0, 0, 0], [0.25, 0.25, 0.25]]))


def cubic_diamond() -> Structure:
    """Eight atoms: shifts of the lattice are operations too."""
    corner = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    return Structure(3.567 * np.eye(3), ("C",) * 8, np.concatenate([corner, corner + 0.25]))


def triclinic() -> Structure:
    """Nothing but an inversion, in a skewed cell."""
    half = np.array([[0.11, 0.23, 0.31], [0.37, 0.05, 0.44]])
    lattice = np.array([[4.1, 0.0, 0.0], [1.7, 4.4, 0.0], [-1.3, 0.9, 3.9]])
    return Structure(lattice, ("O", "C", "O", "C"), np.concatenate([half, -half]))


def hexagonal() -> Structure:
    """Graphite's layers, P6_3/mmc: operations mix the first two axes."""
    lattice = np.array([[2.464, 0, 0], [-1.232, 2.464 * 3**0.5 / 2, 0], [0, 0, 6.711]])
    third = 1 / 3
    places = np.array([[0, 0, 0.25], [0, 0, 0.75], [third, 2 * third, 0.25], [2 * third, third, 0.75]])
    return Structure(lattice, ("C",) * 4, places)


CASES = {
    "P2_1/c (14)": (monoclinic, (12, 14, 10)),
    "Fd-3m (227)": (diamond, (12, 12, 12)),
    "P-1 (2)": (triclinic, (9, 10, 11)),
    "P6_3/mmc (194)": (hexagonal, (12, 12, 20)),
}


@pytest.mark.parametrize("group", CASES)
def test_computing_distinct_points_only_gives_the_whole_density(group: str) -> None:
    make, grid = CASES[group]
    model = DensityModel(DensityConfig(SPECIES, mul=8, lmax=2, gaussians=6, hidden=8, cutoff_a=3.0), seed=1)
    whole = predict(make(), weights=model, grid=grid, device="cpu")
    part = predict(make(), weights=model, grid=grid, device="cpu", symmetry=True)
    assert part.symmetry == group and part.irreducible < 0.6 * whole.probes
    scale = np.abs(whole.volume.total).max()
    assert scale > 0 and np.ptp(whole.volume.total) > 0.1 * scale
    assert np.abs(whole.volume.total - part.volume.total).max() <= 1e-5 * scale


def test_shifts_of_a_larger_cell_are_used_and_save_bricks() -> None:
    model = DensityModel(DensityConfig(SPECIES, mul=8, lmax=2, gaussians=6, hidden=8, cutoff_a=2.5), seed=1)
    whole = predict(cubic_diamond(), weights=model, grid=(24, 24, 24), device="cpu")
    part = predict(cubic_diamond(), weights=model, grid=(24, 24, 24), device="cpu", symmetry=True)
    assert part.computed < whole.computed / 8
    np.testing.assert_allclose(
        part.volume.total, whole.volume.total, rtol=0, atol=1e-5 * np.abs(whole.volume.total).max()
    )


@pytest.mark.parametrize("group", CASES)
def test_equal_points_are_those_that_an_operation_brings_together(group: str) -> None:
    make, grid = CASES[group]
    symmetry, bricks = symmetry_of(make()), Bricks(grid, (4, 4, 4))
    found = orbits(symmetry, bricks, device="cpu")
    points = grid_points(grid)
    # A wave summed over all operations is the same on equal points, and hardly ever on others.
    wave = np.zeros(len(points))
    for turn, move in zip(symmetry.rotations, symmetry.translations, strict=True):
        image = points @ turn.T + move
        wave += (
            np.cos(2 * np.pi * image @ [1, 2, 3])
            + 0.7 * np.sin(2 * np.pi * image @ [2, -1, 1])
            + 0.3 * np.cos(6.28318530718 * image @ [3, 1, -2])
        )
    first = {}
    for source, value in zip(found.source.tolist(), wave, strict=True):
        assert abs(first.setdefault(source, value) - value) < 1e-6
    assert len(first) == found.points
    assert len(found.source) == np.prod(grid) and found.bricks.max() < bricks.count


@pytest.mark.parametrize(
    ("make", "grid", "works"),
    [
        (monoclinic, (15, 15, 15), (15, 16, 16)),
        (diamond, (12, 12, 16), (16, 16, 16)),
        (hexagonal, (10, 12, 21), (12, 12, 24)),
    ],
)
def test_a_grid_that_the_group_does_not_map_is_refused_with_one_that_works(make, grid, works) -> None:
    symmetry = symmetry_of(make())
    assert on_grid(symmetry, grid) is None and on_grid(symmetry, works) is not None
    with pytest.raises(BadInput, match="does not map a grid of") as caught:
        check_on_grid(symmetry, grid)
    assert f"--grid {','.join(map(str, works))}" in caught.value.hint
    assert grid_for(symmetry, works) == works


def test_a_centre_that_lies_on_no_grid_point_is_refused_with_a_way_out() -> None:
    made = triclinic()
    moved = Structure(made.lattice, made.species, made.positions + np.array([0.1234, 0.0567, 0.0]))
    with pytest.raises(BadInput, match="P-1") as caught:
        check_on_grid(symmetry_of(moved), (12, 12, 12))
    assert "Leave --symmetry out" in caught.value.hint


def test_a_spacing_is_refined_until_the_group_maps_the_grid() -> None:
    model = DensityModel(DensityConfig(SPECIES, mul=8, lmax=1, gaussians=4, hidden=8, cutoff_a=2.5))
    made = predict(hexagonal(), weights=model, spacing_a=0.5, device="cpu", symmetry=True)
    assert made.volume.grid[0] == made.volume.grid[1] and made.symmetry == "P6_3/mmc (194)"
