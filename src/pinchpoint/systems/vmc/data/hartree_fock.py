"""Hartree-Fock orbitals of a system: packaged for common atoms and molecules, else computed by PySCF.

Packaged with all electrons: He to Ar, and the named molecules except oxides of transition metals. With ccECP:
Li to Fe, the same molecules except H2, BeH and BH, and ScO, TiO, VO and FeO. PySCF is imported only to solve
others. A small basis is enough, because the orbitals are only the starting point of training. A file in
`orbitals/` was written by `solve(system_of(NAME)).save(...)`; the names of those with pseudopotentials begin
with that of the potential.
"""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing, NotConverged
from pinchpoint.systems.vmc.data.gto import HartreeFock
from pinchpoint.systems.vmc.data.system import SAME_BOHR, System

BASIS = "cc-pvdz"
BASES = {"": BASIS, "ccecp": "ccecp-cc-pvdz"}  # the default basis with each pseudopotential
_CONVERGED = 1e-10  # hartree
SPIN_BASIS = "def2-svp"  # for comparing spins; it has all elements up to krypton
_SPIN_CONVERGED = 1e-8  # hartree
_MOST_RESTARTS = 4  # from a solution that is not a minimum
_STRAIGHT = 1e-3  # how far the cosine of two directions may be below 1


def orbitals_for(system: System) -> HartreeFock:
    """Return the packaged orbitals if they fit the system, else those computed by PySCF.

    Packaged orbitals of two atoms on the z axis are used at any distance: they move with the nuclei, which is
    good enough for pretraining.
    """
    field = included(system)
    return solve(system) if field is None else field


def included(system: System) -> HartreeFock | None:
    """Return the packaged orbitals of this system if it has the same orientation, else None."""
    start = f"{system.pseudopotential}-" if system.pseudopotential else "[!a-z]"
    for path in sorted(Path(__file__).with_name("orbitals").glob(f"{start}*.npz")):
        field = HartreeFock.load(path)
        if field.fits(system) and _same_orientation(field, system):
            return field
    return None


def solve(system: System, *, basis: str | None = None) -> HartreeFock:
    """Run Hartree-Fock with PySCF: restricted if all electrons are paired, unrestricted otherwise.

    basis: by default `BASES` of the pseudopotential.
    """
    basis = basis or BASES[system.pseudopotential]
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
        pseudopotential=system.pseudopotential,
    )


def energy_by_hartree_fock(system: System) -> float:
    """Return the lowest unrestricted Hartree-Fock energy of a system, for comparing its spins.

    Up and down electrons may have different orbitals even if there are as many of each: a restricted
    singlet of a stretched bond would lie far above the triplet.
    """
    basis = BASES[system.pseudopotential] if system.pseudopotential else SPIN_BASIS
    molecule, scf = _molecule(system, basis)
    field: Any = scf.UHF(molecule)
    field.conv_tol = _SPIN_CONVERGED
    field.kernel()
    for _ in range(_MOST_RESTARTS):
        orbitals, _, is_stable, _ = field.stability(return_status=True)
        if is_stable:
            break
        field.kernel(field.make_rdm1(orbitals, field.mo_occ))
    if not field.converged:
        raise _not_converged(system, basis)
    return float(field.e_tot)


def _not_converged(system: System, basis: str) -> NotConverged:
    return NotConverged(
        f"Hartree-Fock in the basis {basis} did not converge for {system.name}.",
        hint="Train without pretraining, or try another spin.",
    )


def _run(system: System, basis: str) -> tuple[Any, Any]:
    """Return the converged solution and its molecule as PySCF objects."""
    molecule, scf = _molecule(system, basis)
    field: Any = (scf.RHF if system.spin == 0 else scf.UHF)(molecule)
    field.conv_tol = _CONVERGED
    field.kernel()
    if not field.converged:
        field = field.newton()
        field.kernel()
    if not field.converged:
        raise _not_converged(system, basis)
    return field, molecule


def _molecule(system: System, basis: str) -> tuple[Any, Any]:
    """Return the molecule as a PySCF object, and the module that solves it."""
    try:
        from pyscf import gto, scf
    except ImportError as error:
        raise Missing(
            f"No Hartree-Fock orbitals are packaged for this {system.name}, and PySCF is not installed.",
            hint="Run pip install 'pinchpoint[pyscf]', or train without pretraining.",
        ) from error
    atoms = [(symbol, place) for symbol, place in zip(system.symbols, system.positions, strict=True)]
    try:
        molecule = gto.M(
            atom=atoms,
            unit="Bohr",
            basis=basis,
            ecp=system.pseudopotential,
            charge=system.charge,
            spin=system.spin,
            verbose=0,
        )
    except (KeyError, RuntimeError) as error:
        raise BadInput(
            f"PySCF has no basis {basis!r} for {system.name}: {error}.",
            hint=f"Use a basis that PySCF has, such as {BASES[system.pseudopotential]}.",
        ) from error
    if molecule.nao < system.up:
        raise BadInput(
            f"The basis {basis} has {molecule.nao} functions, too few for {system.up} electrons of one spin.",
            hint="Use a larger basis, such as cc-pvtz.",
        )
    return molecule, scf


def _primitives(molecule: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return nuclei (K,), powers (K, 3), exponents (K,), and coefficients (K, N).

    The coefficients are those of each primitive in each of N basis functions.
    """
    from pyscf import gto

    nuclei: list[int] = []
    powers: list[tuple[int, int, int]] = []
    exponents: list[float] = []
    parts: list[tuple[slice, slice, np.ndarray]] = []
    first = 0
    for shell in range(molecule.nbas):
        degree = molecule.bas_angular(shell)
        monomials = [(i, j, degree - i - j) for i in range(degree, -1, -1) for j in range(degree - i, -1, -1)]
        contraction = molecule._libcint_ctr_coeff(shell)  # (primitives, functions), normalised
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


def _same_orientation(field: HartreeFock, system: System) -> bool:
    """Return whether the orbitals have the orientation of the system.

    That is so for an atom, for two atoms with parallel bonds, and for a shifted molecule.
    """
    stored, own = field.positions, np.asarray(system.positions)
    if len(own) == 1:
        return True
    if len(own) == 2:
        along = [(ends[1] - ends[0]) / math.dist(ends[0], ends[1]) for ends in (stored, own)]
        return bool(along[0] @ along[1] > 1 - _STRAIGHT)
    return all(
        np.allclose(stored[i] - stored[j], own[i] - own[j], rtol=0, atol=SAME_BOHR)
        for i, j in combinations(range(len(own)), 2)
    )
