"""Valence electron densities of molecules from PySCF: PBE, GTH pseudopotentials, closed shell.

Letters: A atoms, P points, N basis functions. Lengths are in angstrom, densities in electrons per cubic
angstrom. PySCF is imported only when a density is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.units import BOHR_A

BASIS, PSEUDO, FUNCTIONAL = "gth-dzvp", "gth-pbe", "pbe"
CONVERGED = 1e-8  # hartree
# Level of the exchange-correlation grid. Level 1 takes half the time of level 2; the density of ethanol
# differs by 2e-5.
LEVEL = 1
_CHUNK = 8192  # points per chunk, each with N values


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of a self-consistent calculation; `density` evaluates it."""

    molecule: Any  # pyscf.gto.Mole
    matrix: np.ndarray  # (N, N) density matrix
    energy: float  # hartree
    converged: bool
    electrons: int

    def density(self, points: np.ndarray) -> np.ndarray:
        """Return the density (P,) float64 at points (P, 3)."""
        from pyscf.dft import numint

        parts = []
        for start in range(0, len(points), _CHUNK):
            orbitals = numint.eval_ao(self.molecule, points[start : start + _CHUNK] / BOHR_A)
            parts.append(numint.eval_rho(self.molecule, orbitals, self.matrix))
        return np.concatenate(parts or [np.zeros(0)]) / BOHR_A**3


def require_pyscf() -> None:
    """Raise Missing if PySCF is not installed."""
    try:
        import pyscf  # noqa: F401
    except ImportError as error:
        raise Missing(
            "Densities are computed with PySCF, which is not installed.",
            hint="Install it: pip install 'pinchpoint[pyscf]'.",
        ) from error


def solve(species: tuple[str, ...], positions: np.ndarray, *, level: int = LEVEL) -> Solution:
    """Compute the ground state of a neutral closed-shell molecule.

    positions: (A, 3). Check `converged` before using the result.
    """
    require_pyscf()
    from pyscf import dft, gto

    atoms = [(symbol, tuple(place)) for symbol, place in zip(species, positions.tolist(), strict=True)]
    molecule = gto.Mole(atom=atoms, unit="angstrom", basis=BASIS, pseudo=PSEUDO, verbose=0, spin=None)
    molecule.build(parse_arg=False, dump_input=False)
    if molecule.nelectron % 2:
        raise BadInput(
            f"{' '.join(species)} has {molecule.nelectron} valence electrons, so it has an open shell.",
            hint="Give a closed-shell molecule.",
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
