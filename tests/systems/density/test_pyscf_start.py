"""The start of PySCF from a predicted density: a better first matrix, fewer iterations, refused input."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
lib = pytest.importorskip("pyscf.lib", reason="calculations are made with PySCF")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.molecules import molecule  # noqa: E402
from pinchpoint.systems.density.pyscf_start import density_with_gradient, initial_matrix  # noqa: E402
from pinchpoint.systems.density.training.weights import load_weights  # noqa: E402


def mol_of(name: str, **options):
    from pyscf import gto

    known = molecule(name)
    atoms = list(zip(known.species, known.positions.tolist(), strict=True))
    return gto.M(atom=atoms, **{"basis": "gth-dzvp", "pseudo": "gth-pbe", "verbose": 0, **options})


def test_the_start_is_close_to_the_ground_state_and_saves_iterations():
    from pyscf import dft

    with lib.with_omp_threads(1):
        mol = mol_of("water")
        matrix = initial_matrix(mol)
        cycles, energies = [], []
        for start in (None, matrix):
            field = dft.RKS(mol, xc="pbe")
            field.grids.level = 1
            energies.append(field.energy_tot(field.get_init_guess() if start is None else start))
            field.kernel(start)
            cycles.append(field.cycles)
    assert np.trace(matrix @ mol.intor("int1e_ovlp")) == pytest.approx(8)
    assert energies[1] - field.e_tot < 0.02 * (energies[0] - field.e_tot)
    assert cycles[1] < cycles[0]


def test_the_gradient_is_that_of_finite_differences():
    model, known = load_weights(), molecule("water")
    points = known.positions[[0, 1]] + [[0.3, 0.4, -0.2], [0.1, -0.5, 0.3]]
    gradient = density_with_gradient(model.double(), known.species, known.positions, points)[1:]
    for axis in range(3):
        shift = np.zeros(3)
        shift[axis] = 1e-3
        high, low = (
            density_with_gradient(model, known.species, known.positions, points + sign * shift)[0]
            for sign in (1, -1)
        )
        assert (high - low) / 2e-3 == pytest.approx(gradient[axis], rel=1e-3, abs=1e-4)


def test_what_has_no_start_is_refused():
    with pytest.raises(BadInput, match="10 electrons without its charge, and the weights describe 8"):
        initial_matrix(mol_of("water", basis="sto-3g", pseudo=None))
    with pytest.raises(BadInput, match="7 electrons and spin 1"):
        initial_matrix(mol_of("water", charge=1, spin=1))
    with pytest.raises(BadInput, match="'b3lyp' needs orbitals"):
        initial_matrix(mol_of("water"), functional="b3lyp", level=0)
