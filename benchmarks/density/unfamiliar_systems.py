"""Reference densities of radicals, ions, crystals and unusual molecules, to test the notes of `predict`.

`unfamiliar.txt` lists the systems: a line with the name, the kind, the charge, the number of unpaired
electrons and, for a crystal, its nine lattice components; then a line per atom. Molecules are computed like
the data of `density data`, with unrestricted orbitals for open shells; crystals with two k-points along every
lattice vector shorter than 5.5 angstrom.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.data.probes import Probes, draw_probes
from pinchpoint.systems.density.data.quantum import BASIS, CONVERGED, FUNCTIONAL, LEVEL, PSEUDO

TABLE = Path(__file__).with_name("unfamiliar.txt")
PROBES = 6000
LONG_A = 5.5  # a lattice vector this long needs one k-point only


@dataclass(frozen=True, eq=False)
class System:
    """A molecule or crystal. positions: (A, 3) in angstrom; lattice: (3, 3) or None."""

    name: str
    kind: str  # radical, ion, strange, larger or crystal
    charge: int
    unpaired: int
    species: tuple[str, ...]
    positions: np.ndarray
    lattice: np.ndarray | None


def systems() -> list[System]:
    """Return all systems of the table."""
    rows = []
    for block in TABLE.read_text(encoding="utf-8").strip().split("\n\n"):
        head, *lines = block.splitlines()
        name, kind, charge, unpaired, *cell = head.split()
        atoms = [line.split() for line in lines]
        rows.append(
            System(
                name,
                kind,
                int(charge),
                int(unpaired),
                tuple(atom[0] for atom in atoms),
                np.array([atom[1:] for atom in atoms], dtype=float),
                np.array(cell, dtype=float).reshape(3, 3) if cell else None,
            )
        )
    return rows


def probes_of(system: System, *, count: int = PROBES) -> Probes:
    """Return the points around a molecule at which its reference is stored."""
    key = (zlib.crc32(system.name.encode()),)
    return draw_probes(system.species, system.positions, count=count, key=key)


def solve(system: System) -> tuple[np.ndarray, bool]:
    """Return the density in e/A^3 and whether the calculation converged.

    (PROBES,) at the probes of a molecule; (nx, ny, nz) on the grid of a crystal.
    """
    if system.lattice is None:
        return solve_molecule(system)
    return _solve_crystal(system)


def solve_molecule(
    system: System, *, probes: int = PROBES, level: int = LEVEL, converged: float = CONVERGED
) -> tuple[np.ndarray, bool]:
    """Return the density (probes,) and whether the calculation converged. level: of the integration grid."""
    from pyscf import dft, gto
    from pyscf.dft import numint

    mol = gto.Mole(
        atom=list(zip(system.species, system.positions.tolist(), strict=True)),
        unit="angstrom",
        basis=BASIS,
        pseudo=PSEUDO,
        charge=system.charge,
        spin=system.unpaired,
        verbose=0,
    )
    mol.build(parse_arg=False, dump_input=False)
    field = (dft.UKS if system.unpaired else dft.RKS)(mol, xc=FUNCTIONAL)
    field.grids.level = level
    field.conv_tol = converged
    field.max_cycle = 100
    field.kernel()
    matrix = np.asarray(field.make_rdm1())
    matrix = matrix.sum(axis=0) if matrix.ndim == 3 else matrix
    points = probes_of(system, count=probes).points / BOHR_A
    density = numint.eval_rho(mol, numint.eval_ao(mol, points), matrix) / BOHR_A**3
    return density.astype(np.float32), bool(field.converged)


def _solve_crystal(system: System) -> tuple[np.ndarray, bool]:
    from pyscf.pbc import dft, gto

    assert system.lattice is not None
    cell = gto.Cell(
        atom=list(zip(system.species, system.positions.tolist(), strict=True)),
        a=system.lattice,
        unit="angstrom",
        basis=BASIS,
        pseudo=PSEUDO,
        ke_cutoff=100,  # hartree
        precision=1e-6,
        verbose=0,
    )
    cell.build(parse_arg=False, dump_input=False)
    points: Any = cell.make_kpts(
        [1 if length > LONG_A else 2 for length in np.linalg.norm(system.lattice, axis=1)]
    )
    field = dft.KRKS(cell, xc=FUNCTIONAL, kpts=points)
    field.conv_tol = 1e-6
    field.kernel()
    coordinates = cell.get_uniform_grids()
    matrices = field.make_rdm1()
    density = np.zeros(len(coordinates))
    for start in range(0, len(coordinates), 4096):
        values = field._numint.eval_ao(cell, coordinates[start : start + 4096], points)
        for orbitals, matrix in zip(values, matrices, strict=True):
            density[start : start + 4096] += np.einsum(
                "pi,ij,pj->p", orbitals, matrix, orbitals.conj(), optimize=True
            ).real / len(points)
    return (density / BOHR_A**3).reshape(cell.mesh).astype(np.float32), bool(field.converged)
