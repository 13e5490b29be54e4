"""Valence electron densities of molecules by PySCF: PBE, GTH pseudopotentials, closed shell.

Letters: A atoms, P points, N basis functions. Lengths in angstrom, densities in electrons per cubic angstrom. PySCF is
imported when a density is asked for, not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.units import BOHR_A

BASIS, PSEUDO, FUNCTIONAL = "gth-dzvp", "gth-pbe", "pbe"
CONVERGED = 1e-8  # hartree
# Points of the exchange-correlation grid: level 1 differs from level 2 by 2e-5 of the density of ethanol, at half its time.
LEVEL = 1
_CHUNK = 8192  # points; (P, N) values at one time


@dataclass(frozen=True, eq=False)
class Solution:
    """A self-consistent field: ask it for densities."""

    molecule: Any  # pyscf.gto.Mole
    matrix: np.ndarray  # (N, N) density matrix
    energy: float  # hartree
    converged: bool
    electrons: int

    def density(self, points: np.ndarray) -> np.ndarray:
        """(P,) float64 at points: (P, 3)."""
        from pyscf.dft import numint

        parts = []
        for start in range(0, len(points), _CHUNK):
            orbitals = numint.eval_ao(self.molecule, points[start : start + _CHUNK] / BOHR_A)
            parts.append(numint.eval_rho(self.molecule, orbitals, self.matrix))
        return np.concatenate(parts or [np.zeros(0)]) / BOHR_A**3


def require_pyscf() -> None:
    """Missing, with its hint, where PySCF is not installed."""
    try:
        import pyscf  # noqa: F401
    except ImportError as error:
        raise Missing(
            "densities are computed with PySCF, which is not installed",
            hint="pip install 'pinchpoint[pyscf]'",
        ) from error


def solve(species: tuple[str, ...], positions: np.ndarray, *, level: int = LEVEL) -> Solution:
    """The ground state of a neutral closed-shell molecule. positions: (A, 3). Look at `converged` before use."""
    require_pyscf()
    from pyscf import dft, gto

    atoms = [(symbol, tuple(place)) for symbol, place in zip(species, positions.tolist(), strict=True)]
    molecule = gto.Mole(atom=atoms, unit="angstrom", basis=BASIS, pseudo=PSEUDO, verbose=0, spin=None)
    molecule.build(parse_arg=False, dump_input=False)
    if molecule.nelectron % 2:
        raise BadInput(
            f"{' '.join(species)} has {molecule.nelectron} valence electrons: an open shell",
            hint="give a closed-shell molecule",
        )
    field = dft.RKS(molecule, xc=FUNCTIONAL)
    field.grids.level = level
    field.conv_tol = CONVERGED
    field.kernel()
    return Solution(
        molecule,
        np.asarray(field.make_rdm1()),
        float(field.e_tot),
        bool(field.converged),
        int(molecule.nelectron),
    )
