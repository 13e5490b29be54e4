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
_ORBITAL_CHUNK = 2048  # points per chunk, so that a chunk stays in the caches


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
    store_orbitals(field)
    field.kernel()
    return Solution(
        molecule,
        np.asarray(field.make_rdm1()),
        float(field.e_tot),
        bool(field.converged),
        int(molecule.nelectron),
    )


def store_orbitals(field: Any) -> None:
    """Make a PySCF RKS object evaluate its basis functions on the grid once instead of in every iteration.

    The result is the same to rounding, in half the time for molecules of this size. The values take 32 bytes
    per basis function and grid point: 150 MB for a molecule of six heavy atoms.
    """
    from pyscf.dft import numint

    field.grids.build(with_non0tab=False)
    field.small_rho_cutoff = 0  # or PySCF would leave out grid points after the first iteration
    basis = numint.eval_ao(field.mol, field.grids.coords, deriv=1)  # (4, P, N): values and gradients
    weights = field.grids.weights
    integrator = field._numint

    def integrate(
        mol: Any, grids: Any, functional: str, matrix: Any, *others: Any, **options: Any
    ) -> tuple[float, float, np.ndarray]:
        """Return the electrons, the exchange-correlation energy and its potential (N, N)."""
        electrons = energy = 0.0
        potential = np.zeros((basis.shape[2], basis.shape[2]))
        for start in range(0, basis.shape[1], _ORBITAL_CHUNK):
            part = basis[:, start : start + _ORBITAL_CHUNK]
            volume = weights[start : start + _ORBITAL_CHUNK]
            density = np.einsum("pk,xpk->xp", part[0] @ np.asarray(matrix), part)
            density[1:] *= 2  # the gradient of a product
            per_electron, slope = integrator.eval_xc_eff(functional, density, deriv=1, xctype="GGA")[:2]
            electrons += float(volume @ density[0])
            energy += float(volume @ (density[0] * per_electron))
            slope = volume * slope
            slope[0] /= 2  # the sum with its transpose, below, counts it twice
            potential += part[0].T @ np.einsum("xp,xpk->pk", slope, part)
        return electrons, energy, potential + potential.T

    integrator.nr_rks = integrate
