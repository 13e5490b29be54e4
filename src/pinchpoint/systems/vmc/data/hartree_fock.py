"""Hartree-Fock orbitals of a system: shipped for molecules with a name and atoms up to Ar, by PySCF for any other.

PySCF is imported only where something must be solved; training on a named molecule never needs it. A small basis is enough:
the orbitals are where pretraining ends and training begins. A file in `orbitals/` is `solve(system_of(NAME)).save(...)`.
"""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.systems.vmc.data.gto import HartreeFock
from pinchpoint.systems.vmc.data.system import SAME_BOHR, System

BASIS = "cc-pvdz"
_CONVERGED = 1e-10  # hartree
_STRAIGHT = 1e-3  # what the cosine of two directions may miss of 1


def orbitals_for(system: System) -> HartreeFock:
    """Shipped orbitals where they fit, else solved by PySCF.

    Shipped ones of two atoms on the z axis serve at any distance, since they move with the nuclei: pretraining needs no more.
    """
    found = shipped(system)
    return solve(system) if found is None else found


def shipped(system: System) -> HartreeFock | None:
    """What comes with the package for this system, if it lies as the stored one does, else None."""
    for path in sorted(Path(__file__).with_name("orbitals").glob("*.npz")):
        field = HartreeFock.load(path)
        if field.fits(system) and _lies_alike(field, system):
            return field
    return None


def solve(system: System, *, basis: str = BASIS) -> HartreeFock:
    """The self-consistent field by PySCF: restricted where all electrons are paired, unrestricted otherwise."""
    field, molecule = _run(system, basis)
    nuclei, powers, exponents, primitives = _primitives(molecule)
    coefficients = np.asarray(field.mo_coeff)
    up, down = (coefficients, coefficients) if coefficients.ndim == 2 else coefficients
    return HartreeFock(
        nuclei=nuclei,
        powers=powers,
        exponents=exponents,
        up=primitives @ up[:, : system.up],
        down=primitives @ down[:, : system.down],
        positions=np.asarray(system.positions),
        charges=np.asarray(system.charges),
        energy_ha=float(field.e_tot),
        basis=basis,
    )


def _run(system: System, basis: str) -> tuple[Any, Any]:
    """The converged field and its molecule, both PySCF's."""
    try:
        from pyscf import gto, scf
    except ImportError as error:
        raise Missing(
            f"no stored Hartree-Fock orbitals for {system.name} as given, and PySCF is not here to make them",
            hint="pip install 'pinchpoint[pyscf]', or train without pretraining",
        ) from error
    atoms = [(symbol, place) for symbol, place in zip(system.symbols, system.positions, strict=True)]
    try:
        molecule = gto.M(
            atom=atoms, unit="Bohr", basis=basis, charge=system.charge, spin=system.spin, verbose=0
        )
    except (KeyError, RuntimeError) as error:
        raise BadInput(
            f"no basis {basis!r} for {system.name}: {error}", hint="give one PySCF knows, such as cc-pvdz"
        ) from error
    if molecule.nao < system.up:
        raise BadInput(
            f"{molecule.nao} functions of {basis} for {system.up} electrons of one spin in {system.name}",
            hint="give a larger basis, such as cc-pvtz",
        )
    field: Any = (scf.RHF if system.spin == 0 else scf.UHF)(molecule)
    field.conv_tol = _CONVERGED
    field.kernel()
    if not field.converged:
        field = field.newton()
        field.kernel()
    if not field.converged:
        raise BadInput(
            f"Hartree-Fock in {basis} does not converge for {system.name}",
            hint="train without pretraining, or try another spin",
        )
    return field, molecule


def _primitives(molecule: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """nuclei (K,), powers (K, 3), exponents (K,) and what each primitive gives to each basis function: (K, N)."""
    from pyscf import gto

    nuclei: list[int] = []
    powers: list[tuple[int, int, int]] = []
    exponents: list[float] = []
    parts: list[tuple[slice, slice, np.ndarray]] = []
    first = 0
    for shell in range(molecule.nbas):
        degree = molecule.bas_angular(shell)
        monomials = [(i, j, degree - i - j) for i in range(degree, -1, -1) for j in range(degree - i, -1, -1)]
        contraction = molecule._libcint_ctr_coeff(shell)  # (primitives, functions), normed
        angular = np.asarray(gto.cart2sph(degree))  # (monomials, 2 degree + 1)
        start = len(exponents)
        for exponent in molecule.bas_exp(shell):
            nuclei += [molecule.bas_atom(shell)] * len(monomials)
            powers += monomials
            exponents += [float(exponent)] * len(monomials)
        block = np.einsum("pc,mf->pmcf", contraction, angular).reshape(len(exponents) - start, -1)
        parts.append((slice(start, len(exponents)), slice(first, first + block.shape[1]), block))
        first += block.shape[1]
    matrix = np.zeros((len(exponents), first))
    for rows, columns, block in parts:
        matrix[rows, columns] = block
    return np.asarray(nuclei), np.asarray(powers), np.asarray(exponents), matrix


def _lies_alike(field: HartreeFock, system: System) -> bool:
    """Whether the orbitals' directions are right: an atom, two atoms on the same line, or the same places but for a shift."""
    stored, given = field.positions, np.asarray(system.positions)
    if len(given) == 1:
        return True
    if len(given) == 2:
        along = [(ends[1] - ends[0]) / math.dist(ends[0], ends[1]) for ends in (stored, given)]
        return bool(along[0] @ along[1] > 1 - _STRAIGHT)
    return all(
        np.allclose(stored[i] - stored[j], given[i] - given[j], rtol=0, atol=SAME_BOHR)
        for i, j in combinations(range(len(given)), 2)
    )
