"""The plane-wave code: silicon beside PySCF's Gaussians, and what must not change a density."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.crystals.gth import Channel, Potential, read_potentials  # noqa: E402
from pinchpoint.systems.density.data.crystals.plane_waves import (  # noqa: E402
    kpoints,
    mesh_of,
    solve_crystal,
)
from pinchpoint.systems.density.grid.structure import Structure  # noqa: E402

FCC = np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])
# The published GTH-PBE parameters of silicon with four electrons.
SILICON = """Si GTH-PBE-q4
2 2
0.44 1 -6.26928833
2
0.43563383 2 8.95174150 -2.70627082
3.49378060
0.49794218 1 2.43127673
"""
# Of PySCF 2.14, `pbc.dft.RKS` with gth-dzvp, at the gamma point of Si2 with a = 5.43 angstrom, in hartree.
PYSCF_ENERGY, PYSCF_BANDS = 1.18077, [-0.17638, 0.27107, 0.27107, 0.27107]


def silicon(tmp_path: Path) -> dict[str, Potential]:
    (tmp_path / "potentials").write_text(SILICON)
    return read_potentials(tmp_path / "potentials", {"Si"})


def test_silicon_has_the_bands_of_pyscf_and_a_lower_energy(tmp_path):
    crystal = Structure(5.43 * FCC, ("Si", "Si"), np.array([[0.0, 0, 0], [0.25, 0.25, 0.25]]))
    solution = solve_crystal(crystal, silicon(tmp_path), cutoff_hartree=10, grid_factor=2, mesh=(1, 1, 1))
    assert solution.converged and solution.occupied == 4
    assert solution.volume.electrons == pytest.approx(8)
    assert np.allclose(solution.bands[0][:4], PYSCF_BANDS, atol=6e-3)  # the Gaussians' basis is incomplete
    assert np.allclose(np.diff(solution.bands[0][:4]), np.diff(PYSCF_BANDS), atol=2e-3)
    # Plane waves are the more complete basis.
    assert PYSCF_ENERGY - 0.04 < solution.energy < PYSCF_ENERGY


def test_the_density_does_not_depend_on_the_origin(tmp_path):
    potentials = silicon(tmp_path)
    atoms = np.array([[0.0, 0, 0], [0.27, 0.25, 0.22]])
    cell = 5.0 * FCC
    options = {"cutoff_hartree": 4.0, "grid_factor": 2.0, "mesh": (1, 1, 2)}
    here = solve_crystal(Structure(cell, ("Si", "Si"), atoms), potentials, **options)
    n = here.volume.grid[0]
    moved = Structure(cell, ("Si", "Si"), atoms + np.array([2 / n, 0, 0]))
    there = solve_crystal(moved, potentials, **options)
    difference = np.abs(np.roll(here.volume.total, 2, axis=0) - there.volume.total)
    # The functional is not invariant on a grid, except for shifts by whole points.
    assert difference.sum() < 1e-4 * here.volume.total.sum()


def test_projectors_without_strength_change_nothing(tmp_path):
    plain = silicon(tmp_path)["Si"]
    more = Potential(
        "Si", 4, plain.radius, plain.coefficients, (*plain.channels, Channel(2, 0.4, np.zeros((2, 2))))
    )
    crystal = Structure(5.0 * FCC, ("Si", "Si"), np.array([[0.0, 0, 0], [0.25, 0.25, 0.25]]))
    energies = [
        solve_crystal(crystal, {"Si": each}, cutoff_hartree=3, mesh=(1, 1, 1)).energy
        for each in (plain, more)
    ]
    assert energies[0] == pytest.approx(energies[1], abs=1e-9)


def test_an_odd_number_of_electrons_is_refused():
    crystal = Structure(5.0 * np.eye(3), ("X",), np.zeros((1, 3)))
    with pytest.raises(BadInput, match="open shell"):
        solve_crystal(crystal, {"X": Potential("X", 3, 0.4, (-1.0,), ())})


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2), (3, 3, 2), (1, 4, 3)])
def test_the_mesh_sums_to_one_and_integrates_waves_that_it_resolves(mesh):
    points = kpoints(mesh)
    assert sum(weight for _, weight in points) == pytest.approx(1)
    # With time reversal, cos(2 pi k n) averages to zero unless n is a multiple of the mesh.
    for shift in np.ndindex(*mesh):
        total = sum(weight * np.cos(2 * np.pi * k @ np.array(shift)) for k, weight in points)
        assert total == pytest.approx(1.0 if not any(shift) else 0.0, abs=1e-12)


def test_small_cells_get_more_points():
    assert mesh_of(np.diag([3.6, 5.1, 9.0])) == (3, 2, 1)
