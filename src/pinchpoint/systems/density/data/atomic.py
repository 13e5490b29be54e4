"""Spherical valence densities of single atoms and their superposition, the baseline of predicted densities.

Letters: A atoms, P points, S species, R radii, I periodic images. Lengths are in angstrom, densities in
e/A^3. The packaged table `atomic.npz` was written by `make_table` with the pseudopotentials, functional and
basis of the datasets; for metals and silicon, which the datasets compute with plane waves, the basis is a
large even-tempered one. Shells are filled evenly, with half of each orbital up and half down.
"""

from __future__ import annotations

import io
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.data.molecules import VALENCE
from pinchpoint.systems.density.data.quantum import BASIS, FUNCTIONAL, PSEUDO, require_pyscf

REACH_A = 8.0  # fewer than 1e-6 electrons are farther from the nucleus
SPACING_A = 0.005  # between the radii of the table; linear interpolation is then accurate to 1e-4
PACKAGED = Path(__file__).with_name("atomic.npz")
# Electrons of each angular momentum, where they are not 2 in s and the rest in p.
_SHELLS = {"Mg": (4, 6), "Ca": (4, 6), "Ti": (4, 6, 2), "Zr": (4, 6, 2), "Hf": (4, 6, 2), "Zn": (2, 0, 10)}
_SMALLEST_EXPONENT, _EXPONENTS = 0.02, {0: 14, 1: 13, 2: 12}  # even-tempered with a ratio of 2, by degree
_FADE = 0.75  # fraction of the cutoff at which a table starts to fade to zero
_CHUNK = 1 << 20  # pairs of a point and an atom per chunk


@dataclass(frozen=True, eq=False)
class AtomTable:
    """Densities of spherical atoms.

    radii: (R,), evenly spaced from 0; densities: (S, R) float64, zero at the end.
    """

    species: tuple[str, ...]
    radii: np.ndarray
    densities: np.ndarray

    def row(self, symbol: str) -> np.ndarray:
        """Return the density of one element, (R,)."""
        if symbol not in self.species:
            raise BadInput(
                f"The table has no density for the atom {symbol}.",
                hint=f"Use only these atoms: {', '.join(self.species)}.",
            )
        return self.densities[self.species.index(symbol)]


def load_table(path: str | Path = PACKAGED) -> AtomTable:
    """Read a table written by `make_table`."""
    with np.load(path, allow_pickle=False) as arrays:
        return AtomTable(
            tuple(str(symbol) for symbol in arrays["species"]),
            arrays["radii"].astype(np.float64),
            arrays["densities"].astype(np.float64),
        )


def make_table(path: str | Path, species: tuple[str, ...] = tuple(VALENCE)) -> Path:
    """Solve the atoms with PySCF and write the table of their densities."""
    radii = np.linspace(0, REACH_A, round(REACH_A / SPACING_A) + 1)
    rows = [_atom_density(symbol, radii) for symbol in species]
    arrays: dict[str, Any] = {
        "species": np.array(species),
        "radii": radii,
        "densities": np.array(rows, dtype=np.float32),
    }
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return write_bytes(path, stream.getvalue())


def radial_tables(
    species: tuple[str, ...], cutoff_a: float, knots: int, *, table: AtomTable | None = None
) -> np.ndarray:
    """Return the density of each atom on linspace(0, cutoff_a, knots), as (S, knots) float32.

    Each fades smoothly to zero at the cutoff.
    """
    if not cutoff_a > 0 or knots < 2:
        raise BadInput(
            f"A radial table cannot have {knots} knots up to {cutoff_a:g} angstrom.",
            hint="Use a cutoff above 0 and at least 2 knots.",
        )
    table = table or load_table()
    radii = np.linspace(0, cutoff_a, knots)
    way = np.clip((radii / cutoff_a - _FADE) / (1 - _FADE), 0, 1)
    fade = 1 - way**3 * (10 - 15 * way + 6 * way**2)  # value, slope and curvature reach zero together
    return np.stack([np.interp(radii, table.radii, table.row(symbol)) * fade for symbol in species]).astype(
        np.float32
    )


def superpose(
    species: tuple[str, ...],
    positions: np.ndarray,
    points: np.ndarray,
    lattice: np.ndarray | None = None,
    *,
    table: AtomTable | None = None,
) -> np.ndarray:
    """Return the sum of the atoms' densities at points (P, 3), as (P,) float64.

    positions: (A, 3), Cartesian like the points; lattice: (3, 3), vectors as rows, to include all images of a
    crystal.
    """
    table = table or load_table()
    density = np.zeros(len(points))
    shifts = np.zeros((1, 3)) if lattice is None else _shifts(lattice, positions, points)
    step, reach = max(1, _CHUNK // len(shifts)), table.radii[-1]
    for start in range(0, len(points), step):
        part = points[start : start + step]
        centre = part.mean(axis=0)
        farthest = reach + np.linalg.norm(part - centre, axis=1).max()
        for symbol, place in zip(species, positions, strict=True):
            images = place + shifts
            images = images[np.linalg.norm(images - centre, axis=1) < farthest]
            apart = np.linalg.norm(part[:, None] - images, axis=2)
            point, image = np.nonzero(apart < reach)
            values = np.interp(apart[point, image], table.radii, table.row(symbol))
            density[start : start + step] += np.bincount(point, values, minlength=len(part))
    return density


def _shifts(lattice: np.ndarray, positions: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the lattice translations (I, 3) that can bring an atom within reach of a point."""
    inverse = np.linalg.inv(lattice)
    where, probes = positions @ inverse, points @ inverse
    # Lattice planes are 1 / |column| apart: this many of them lie within reach.
    planes = REACH_A * np.linalg.norm(inverse, axis=0)
    low = np.floor(probes.min(axis=0) - where.max(axis=0) - planes).astype(int)
    high = np.ceil(probes.max(axis=0) - where.min(axis=0) + planes).astype(int)
    ranges = [range(first, last + 1) for first, last in zip(low, high, strict=True)]
    return np.array(list(itertools.product(*ranges)), dtype=float) @ lattice


def _atom_density(symbol: str, radii: np.ndarray) -> np.ndarray:
    """Return the density (R,) of an atom, averaged over directions.

    Uses a restricted calculation with evenly filled shells.
    """
    require_pyscf()
    from pyscf import gto
    from pyscf.dft import gen_grid, numint, rks

    electrons = VALENCE[symbol]
    shells = _SHELLS.get(symbol, (min(2, electrons), max(0, electrons - 2)))
    basis = BASIS if symbol in ("H", "C", "N", "O") else {symbol: _even_tempered()}
    atom = gto.M(atom=[(symbol, (0, 0, 0))], basis=basis, pseudo=PSEUDO, verbose=0, spin=None)
    field = rks.RKS(atom, xc=FUNCTIONAL)  # `dft.RKS` would return another class for an open shell
    field.grids.level = 5
    field.conv_tol = 1e-11
    degrees = np.array([atom.bas_angular(int(label[0])) for label in _functions(atom)])

    def occupations(mo_energy: Any = None, mo_coeff: Any = None) -> np.ndarray:
        counts = np.zeros(len(mo_energy))
        weights = np.asarray(mo_coeff) ** 2
        own = np.stack([weights[degrees == degree].sum(axis=0) for degree in range(3)]).argmax(axis=0)
        for degree, count in enumerate(shells):
            orbitals = np.flatnonzero(own == degree)
            orbitals = orbitals[np.argsort(mo_energy[orbitals], kind="stable")]
            size = 2 * degree + 1
            for shell in range(0, len(orbitals), size):
                counts[orbitals[shell : shell + size]] = min(2.0, max(0.0, count / size - 2 * shell / size))
        return counts

    field.get_occ = occupations
    field.kernel()
    if not field.converged:
        raise BadInput(
            f"The calculation of the atom {symbol} did not converge.",
            hint="Choose another element.",
        )
    directions = gen_grid.MakeAngularGrid(50)  # (50, 4): a direction and its weight
    points = (radii[:, None, None] * directions[:, :3] / BOHR_A).reshape(-1, 3)
    density = numint.eval_rho(atom, numint.eval_ao(atom, points), field.make_rdm1())
    density = density.reshape(len(radii), -1) @ directions[:, 3] / BOHR_A**3
    density = density - density[-1]  # zero at the reach, where it is below 1e-7, or 1e-5 for a metal
    if basis is not BASIS:
        # The outermost shell of a metal reaches farther than the table.
        density *= electrons / np.trapezoid(4 * np.pi * radii**2 * density, radii)
    return density


def _even_tempered() -> list[list[Any]]:
    """Return a basis that is complete enough for any atom of the table, in PySCF's form."""
    return [
        [degree, [_SMALLEST_EXPONENT * 2.0**step, 1.0]]
        for degree, count in _EXPONENTS.items()
        for step in range(count)
    ]


def _functions(atom: Any) -> list[tuple[int, int]]:
    """Return the shell of each basis function and its number in the shell."""
    return [
        (shell, number)
        for shell in range(atom.nbas)
        for number in range(atom.bas_nctr(shell) * (2 * atom.bas_angular(shell) + 1))
    ]
