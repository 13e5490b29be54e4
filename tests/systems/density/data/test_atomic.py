"""Single atoms and their superposition."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.atomic import AtomTable, load_table, make_table, radial_tables, superpose
from pinchpoint.systems.density.data.molecules import VALENCE, molecule
from pinchpoint.systems.density.data.probes import grid_probes


def shells(radii, density):
    """The integral over space of a spherical density."""
    return float((4 * np.pi * radii**2 * density).sum() * (radii[1] - radii[0]))


def gaussian_table(width=0.5):
    """An atom whose density is a Gaussian of integral 1."""
    radii = np.linspace(0, 8, 8001)
    return AtomTable(
        ("X",), radii, np.exp(-(radii**2) / (2 * width**2))[None] / (2 * np.pi * width**2) ** 1.5
    )


@pytest.mark.parametrize("symbol", sorted(VALENCE))
def test_the_table_of_an_atom_integrates_to_its_valence_electrons(symbol):
    table = load_table()
    assert shells(table.radii, table.row(symbol)) == pytest.approx(VALENCE[symbol], rel=1e-5)
    assert table.row(symbol)[-1] == 0 and table.row(symbol).min() >= 0


def test_the_packaged_table_is_what_make_table_writes(tmp_path):
    lib = pytest.importorskip("pyscf.lib", reason="atoms are solved with PySCF")
    with lib.with_omp_threads(1):
        made, packaged = load_table(make_table(tmp_path / "atoms.npz", ("H", "O"))), load_table()
    assert made.species == ("H", "O") and np.array_equal(made.radii, packaged.radii)
    for symbol in made.species:
        assert np.abs(made.row(symbol) - packaged.row(symbol)).max() < 1e-5 * packaged.row(symbol).max()


def test_the_superposition_of_a_molecule_holds_its_electrons():
    found = molecule("formamide")
    grid = grid_probes(found.positions, spacing_a=0.15, padding_a=4.0)
    assert grid.weights @ superpose(found.species, found.positions, grid.points) == pytest.approx(
        found.electrons, rel=1e-3
    )


def test_superposition_is_the_slow_sum_over_atoms_and_images():
    table = gaussian_table()
    rng = np.random.default_rng(0)
    lattice = np.array([[3.0, 0, 0], [1.0, 2.5, 0], [-0.7, 0.4, 2.8]])
    positions, points = rng.uniform(-4, 4, (2, 3)), rng.uniform(-6, 6, (40, 3))
    slow = np.zeros(40)
    for i in range(-9, 10):
        for j in range(-9, 10):
            for k in range(-9, 10):
                for atom in positions + np.array([i, j, k]) @ lattice:
                    apart = np.linalg.norm(points - atom, axis=1)
                    slow += np.exp(-(apart**2) / 0.5) / (np.pi * 0.5) ** 1.5
    assert superpose(("X", "X"), positions, points, lattice, table=table) == pytest.approx(slow, rel=1e-5)
    single = np.exp(-(np.linalg.norm(points - positions[0], axis=1) ** 2) / 0.5) / (np.pi * 0.5) ** 1.5
    assert superpose(("X",), positions[:1], points, table=table) == pytest.approx(single, rel=1e-5, abs=1e-9)


def test_radial_tables_are_the_atoms_within_the_fade_and_go_smoothly_to_zero():
    tables, table = radial_tables(("O", "H"), 4.0, 1001), load_table()
    radii = np.linspace(0, 4.0, 1001)
    assert tables.shape == (2, 1001) and tables.dtype == np.float32
    for row, symbol in zip(tables, ("O", "H"), strict=True):
        near = radii <= 3.0
        assert row[near] == pytest.approx(
            np.interp(radii[near], table.radii, table.row(symbol)), rel=1e-5, abs=1e-9
        )
        assert row[-1] == 0 and (row[~near] >= 0).all() and abs(row[-1] - row[-2]) < 1e-9
        assert shells(radii, row.astype(float)) == pytest.approx(VALENCE[symbol], rel=1e-3)


def test_atoms_without_a_table_and_cutoffs_of_nothing_are_refused():
    with pytest.raises(BadInput, match="no density for the atom U"):
        superpose(("U",), np.zeros((1, 3)), np.zeros((1, 3)))
    for cutoff, knots in ((0.0, 10), (4.0, 1), (float("nan"), 10)):
        with pytest.raises(BadInput, match="knots"):
            radial_tables(("H",), cutoff, knots)
