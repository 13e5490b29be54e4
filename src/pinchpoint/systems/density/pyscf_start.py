"""A start for PySCF: the first density matrix of a Kohn-Sham calculation, from a predicted density.

`initial_matrix(mol)` evaluates the model on two integration grids, builds the Kohn-Sham matrix of that
density, and fills the lowest orbitals. The molecule must use the pseudopotentials that the weights were
trained with: the packaged ones are valence densities with GTH pseudopotentials. Letters: A atoms, P points,
N basis functions. Lengths are in angstrom unless the name ends in `_bohr`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.data.batches import batch_of, item_of
from pinchpoint.systems.density.data.domain import valence_electrons
from pinchpoint.systems.density.data.quantum import FUNCTIONAL, LEVEL, require_pyscf
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.training.weights import for_inference

if TYPE_CHECKING:
    from pinchpoint.systems.density.model.model import DensityModel

COULOMB_LEVEL = 0  # of the grid of the Coulomb integrals, which cost far more per point than the others
_CHUNK = 2048  # points per chunk


def initial_matrix(
    mol: Any,
    *,
    weights: str | Path | DensityModel | None = None,
    functional: str = FUNCTIONAL,
    level: int = LEVEL,
) -> np.ndarray:
    """Return the density matrix (N, N) to give to `RKS.kernel`, for a closed-shell PySCF molecule.

    weights: as for `predict`. functional: an LDA or GGA of PySCF. level: of the exchange-correlation grid.
    """
    require_pyscf()
    from pyscf.dft import gen_grid, numint
    from pyscf.scf import hf

    species, positions = _atoms(mol)
    model = for_inference(weights, "cpu")
    model.config.index_of(species)
    grids: Any = gen_grid.Grids(mol)
    grids.level = level
    grids.build(with_non0tab=False)
    values = density_with_gradient(model, species, positions, grids.coords * BOHR_A)
    # From angstrom to bohr: a density, then the components of its gradient.
    values *= np.array([1, BOHR_A, BOHR_A, BOHR_A])[:, None] * BOHR_A**3
    values *= mol.nelectron / float(grids.weights @ values[0])
    values[0] = np.maximum(values[0], 0.0)
    integrator = numint.NumInt()
    if integrator.libxc.is_hybrid_xc(functional) or integrator.libxc.xc_type(functional) not in (
        "LDA",
        "GGA",
    ):
        raise BadInput(
            f"The functional {functional!r} needs orbitals, which a density alone does not have.",
            hint="Start with functional='pbe': any functional can continue from its density matrix.",
        )
    kind = integrator.libxc.xc_type(functional)
    slope = integrator.eval_xc_eff(functional, values if kind == "GGA" else values[:1], deriv=1, xctype=kind)[
        1
    ]
    matrix = hf.get_hcore(mol) + _coulomb(mol, model, species, positions)
    for start in range(0, len(grids.coords), _CHUNK):
        basis = numint.eval_ao(mol, grids.coords[start : start + _CHUNK], deriv=1 if kind == "GGA" else 0)
        basis = basis if kind == "GGA" else basis[None]
        part = (grids.weights * slope)[:, start : start + _CHUNK]
        part[0] /= 2  # the sum with its transpose counts it twice
        half = basis[0].T @ np.einsum("xp,xpk->pk", part, basis)
        matrix += half + half.T
    energies, orbitals = hf.eig(matrix, mol.intor_symmetric("int1e_ovlp"))
    occupied = orbitals[:, np.argsort(energies)[: mol.nelectron // 2]]
    return 2 * occupied @ occupied.T


def density_with_gradient(
    model: DensityModel, species: tuple[str, ...], positions: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Return (4, P) float64: the density at points (P, 3) and its gradient, of a molecule without a cell."""
    electrons = float(valence_electrons(species) or 1)
    dtype = next(model.parameters()).dtype
    parts = []
    for start in range(0, len(points), _CHUNK):
        part = points[start : start + _CHUNK]
        sample = Sample(
            "points", "", species, positions, None, part, np.zeros(len(part)), np.ones(len(part)), electrons
        )
        item = item_of(sample, model.config, device="cpu", dtype=dtype)
        batch = batch_of([item], model.config)
        with torch.no_grad():
            fields = model.fields(item.atoms)
        moved = torch.zeros(len(part), 3, dtype=dtype, requires_grad=True)
        shifted = batch.vectors + moved.view(batch.vectors.shape[0], -1, 1, 3)
        density = model(fields, item.atoms.species, batch.neighbours, shifted)[..., 0].reshape(-1)
        (gradient,) = torch.autograd.grad(density.sum(), moved)
        parts.append(torch.cat([density.detach()[None], gradient.T]).double().numpy())
    return np.concatenate(parts, axis=1)


def _coulomb(mol: Any, model: DensityModel, species: tuple[str, ...], positions: np.ndarray) -> np.ndarray:
    """Return the Coulomb potential (N, N) of the predicted density, as that of point charges on a grid."""
    from pyscf.dft import gen_grid

    grids: Any = gen_grid.Grids(mol)
    grids.level = COULOMB_LEVEL
    grids.build(with_non0tab=False)
    charges = grids.weights * density_with_gradient(model, species, positions, grids.coords * BOHR_A)[0]
    charges *= mol.nelectron / charges.sum()
    matrix = np.zeros((mol.nao, mol.nao))
    step = max(1, (1 << 24) // mol.nao**2)
    for start in range(0, len(charges), step):
        integrals = mol.intor("int1e_grids", hermi=1, grids=grids.coords[start : start + step])
        matrix += np.einsum("p,pij->ij", charges[start : start + step], integrals)
    return matrix


def _atoms(mol: Any) -> tuple[tuple[str, ...], np.ndarray]:
    if mol.nelectron % 2 or mol.spin:
        raise BadInput(
            f"The molecule has {mol.nelectron} electrons and spin {mol.spin}.",
            hint="Give a closed-shell molecule.",
        )
    species = tuple(mol.atom_pure_symbol(at) for at in range(mol.natm))
    count = valence_electrons(species)
    if count is not None and mol.nelectron + mol.charge != count:
        raise BadInput(
            f"The molecule has {mol.nelectron + mol.charge} electrons without its charge, and the weights "
            f"describe {count}.",
            hint="Build it with basis='gth-dzvp' and pseudo='gth-pbe'.",
        )
    return species, mol.atom_coords() * BOHR_A
