"""Densities by PySCF, compared with a dense grid, with symmetry and with an independent sum over orbitals."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.data.molecules import molecule
from pinchpoint.systems.density.data.probes import draw_probes, grid_probes
from pinchpoint.systems.density.data.quantum import CONVERGED, FUNCTIONAL, solve


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """PySCF's threads wait for each other by spinning: on a busy machine two are ten times slower than
    one.
    """
    lib = pytest.importorskip("pyscf.lib", reason="densities are computed with PySCF")
    with lib.with_omp_threads(1):
        yield


@pytest.fixture(scope="module")
def water():
    found = molecule("water")
    return found, solve(found.species, found.positions)


def test_the_density_integrates_to_the_valence_electrons_on_a_grid_and_by_probes(water):
    found, solution = water
    assert solution.converged and solution.electrons == found.electrons == 8
    grid = grid_probes(found.positions, spacing_a=0.15, padding_a=4.0)
    on_grid = grid.weights @ solution.density(grid.points)
    assert on_grid == pytest.approx(8, rel=2e-4)
    drawn = draw_probes(found.species, found.positions, count=20_000, key=(0,))
    parts = drawn.weights * solution.density(drawn.points)
    assert parts.sum() == pytest.approx(8, abs=4 * parts.std() * len(parts) ** 0.5)
    assert parts.std() * len(parts) ** 0.5 < 0.1


def test_the_density_is_the_sum_of_squared_orbitals(water):
    found, solution = water
    points = found.positions[[0, 1]] + [[0.3, 0.2, -0.1], [0.0, -0.5, 0.4]]
    basis = solution.molecule.eval_gto("GTOval", points / BOHR_A)
    filled, directions = np.linalg.eigh(solution.matrix)
    slow = [
        sum(n * float(row @ vector) ** 2 for n, vector in zip(filled, directions.T, strict=True))
        for row in basis
    ]
    assert solution.density(points) == pytest.approx(np.array(slow) / BOHR_A**3, rel=1e-9)


def test_the_density_has_the_symmetry_of_water(water):
    found, solution = water
    oxygen, first, second = found.positions
    points = draw_probes(found.species, found.positions, count=200, key=(3,)).points
    # Reflected in the plane of the molecule.
    normal = np.cross(first - oxygen, second - oxygen)
    normal /= np.linalg.norm(normal)
    mirrored = points - 2 * ((points - oxygen) @ normal)[:, None] * normal
    assert solution.density(mirrored) == pytest.approx(solution.density(points), rel=1e-6, abs=1e-9)
    assert solution.density(points).min() >= -1e-12 and solution.density(np.zeros((0, 3))).shape == (0,)


def test_stored_orbitals_do_not_change_the_result(water):
    from pyscf import dft

    field = dft.RKS(water[1].molecule, xc=FUNCTIONAL)
    field.grids.level, field.conv_tol = 1, CONVERGED
    field.kernel()
    assert water[1].energy == pytest.approx(field.e_tot, abs=1e-8)
    assert np.abs(water[1].matrix - field.make_rdm1()).max() < 1e-5


def test_an_open_shell_is_refused():
    with pytest.raises(BadInput, match="O H has 7 valence electrons, so it has an open shell"):
        solve(("O", "H"), np.array([[0.0, 0, 0], [0, 0, 0.97]]))


def test_without_pyscf_the_hint_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyscf", None)
    with pytest.raises(Missing) as caught:
        solve(("H", "H"), np.array([[0.0, 0, 0], [0, 0, 0.74]]))
    assert caught.value.hint == "Install it: pip install 'pinchpoint[pyscf]'."
