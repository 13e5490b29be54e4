"""Reference energies of excited states: LiH and H2 by full configuration interaction (FCI) and Gaussians.

    pip install pyscf basis-set-exchange
    python benchmarks/vmc/excited_references.py -o benchmarks/results/vmc_excited_references_cpu.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. All electrons are correlated, at the bonds of
`vmc train LiH` and `vmc train H2`. The record is written after every energy, and energies that it has are not
computed again. LiH with quadruple-zeta basis sets needs most of the time, and 10 GiB. H2 is computed with
explicitly correlated Gaussians too (gaussians.py); on a shared machine, set OMP_NUM_THREADS=1 for them.

The four electrons of LiH are two with spin up, i < j, and two with spin down, k < l. A vector of coefficients
C[ij, kl] has one matrix for each irreducible representation of C2v that the pair ij can have. The Hamiltonian
is a sum over pairs of electrons, so its largest product costs as much as one in coupled cluster, n^6 for n
orbitals; PySCF's FCI, whose cost grows with n^8, checks it (tests/benchmarks/test_vmc_excited_references.py).
With as many electrons up as down, exchanging all spins changes the sign of a triplet only, which separates
triplets from singlets. The Hamiltonian of the two electrons of H2 is a matrix over pairs of orbitals.

The energy of the second state of LiH is the exact one of its ground state plus the extrapolated difference:
of the mean field with (L + 1) exp(-9 sqrt(L)) for the number L of the zeta, and of the correlation energy
with L^-3, both from the two largest basis sets. Its uncertainty is the largest of these: the distances to
three other ways (from the next smaller basis sets, with (L + 1/2)^-4, and with the step beyond the largest
basis scaled by the factor that makes the ground state exact), and the error of the same difference of H2 from
basis sets with the same zeta. The energy of the second state of H2 is the bound from the most Gaussians; its
uncertainty is how much the last of them lowered it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gaussians
import numpy as np
import pyscf
from pyscf import ao2mo, gto, scf
from pyscf.lib import davidson1
from scipy.sparse.linalg import eigsh

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.systems.vmc.data.molecules import known_molecules

WHAT = "energies of excited states by full configuration interaction and explicitly correlated Gaussians"
SOURCES = {
    "basis sets of hydrogen": "Dunning 1989, Kendall, Dunning and Harrison 1992",
    "basis sets of lithium": "Prascher, Woon, Peterson, Dunning and Wilson 2011; C also correlates the core",
    "mean field, (L + 1) exp(-9 sqrt(L))": "Karton and Martin 2006",
    "correlation energy, L^-3": "Helgaker, Klopper, Koch and Noga 1997",
    "correlation energy, (L + 1/2)^-4": "Martin 1996",
    "exact ground state of LiH": "Cencek and Rychlewski 2000, Tung, Pavanello and Adamowicz 2011",
    "exact ground state of H2": "Sims and Hagstrom 2006",
    "earlier second state of H2": "Kolos and Wolniewicz 1965",
}
SINGLET, TRIPLET = 1, -1
FUNCTIONS = (25, 50, 100, 150)  # Gaussians
Row = dict[str, Any]


@dataclass(frozen=True)
class State:
    """A state of a molecule.

    occupation: electrons up and down of the mean field in each irreducible representation; exact_ha: the
    energy if it is known; inversion: the sign of the wave function, for H2.
    """

    molecule: str
    spin: int
    occupation: dict[str, tuple[int, int]]
    exact_ha: float | None = None
    inversion: int = 0


STATES = {
    "H2 X 1Sigma_g+": State("H2", SINGLET, {"Ag": (1, 1)}, -1.17447571, inversion=1),
    "H2 b 3Sigma_u+": State("H2", TRIPLET, {"Ag": (1, 0), "B1u": (1, 0)}, inversion=-1),
    "LiH X 1Sigma+": State("LiH", SINGLET, {"A1": (2, 2)}, known_molecules()["LiH"].energy_ha),
    "LiH a 3Sigma+": State("LiH", TRIPLET, {"A1": (3, 1)}),
}
GROUNDS = {"H2 b 3Sigma_u+": "H2 X 1Sigma_g+", "LiH a 3Sigma+": "LiH X 1Sigma+"}
# Number of the zeta -> basis sets of each element.
BASES: dict[str, dict[int, dict[str, str]]] = {
    "H2": {3: {"H": "aug-cc-pVTZ"}, 4: {"H": "aug-cc-pVQZ"}, 5: {"H": "aug-cc-pV5Z"}},
    "LiH": {
        2: {"Li": "aug-cc-pCVDZ", "H": "aug-cc-pVDZ"},
        3: {"Li": "aug-cc-pCVTZ", "H": "aug-cc-pVTZ"},
        4: {"Li": "aug-cc-pCVQZ", "H": "aug-cc-pVQZ"},
    },
}


@dataclass(frozen=True)
class Orbitals:
    """Integrals over n orbitals, which are sorted by irreducible representation.

    one: (n, n); two: (n (n + 1) / 2, n (n + 1) / 2), in the order of PySCF; of: a slice of orbitals for each
    representation; symmetry: that of the mean field. The number of the product of two representations is
    their exclusive or.
    """

    one: np.ndarray
    two: np.ndarray
    of: tuple[slice, ...]
    repulsion: float
    mean_field_ha: float
    symmetry: int

    @property
    def sizes(self) -> list[int]:
        return [part.stop - part.start for part in self.of]


def orbitals(molecule: gto.Mole, occupation: dict[str, tuple[int, int]]) -> Orbitals:
    """Return the orbitals of restricted Hartree-Fock; open shells if molecule.spin is not 0."""
    closed = molecule.spin == 0
    field: Any = scf.RHF(molecule) if closed else scf.ROHF(molecule)
    field.irrep_nelec = {name: sum(pair) if closed else pair for name, pair in occupation.items()}
    field.conv_tol = 1e-11
    field.kernel()
    assert field.converged
    labels = np.asarray(field.get_orbsym(field.mo_coeff))
    order = np.argsort(labels, kind="stable")
    c = field.mo_coeff[:, order]
    number = 8 if molecule.groupname == "D2h" else 4
    ends = np.searchsorted(labels[order], np.arange(number + 1))
    return Orbitals(
        one=c.T @ field.get_hcore() @ c,
        two=ao2mo.full(field._eri if field._eri is not None else molecule, c),
        of=tuple(slice(int(a), int(b)) for a, b in itertools.pairwise(ends)),
        repulsion=float(molecule.energy_nuc()),
        mean_field_ha=float(field.e_tot),
        symmetry=int(field.get_wfnsym()),
    )


def pair_matrix(basis: Orbitals, product: int, electrons: int) -> np.ndarray:
    """Return the part of the Hamiltonian of each pair of electrons, over all pairs of orbitals (i, k) whose
    representations have this product: the repulsion, and the pair's shares of both one-electron parts.
    """
    count, sizes = len(basis.of), basis.sizes
    share = 1 / (electrons - 1)
    starts = np.cumsum([0, *(sizes[a] * sizes[a ^ product] for a in range(count))])
    matrix = np.empty((starts[-1], starts[-1]))
    for row in range(count):
        for column in range(count):
            first = _packed(basis.of[row], basis.of[column])
            second = _packed(basis.of[row ^ product], basis.of[column ^ product])
            block = basis.two[np.ix_(first.ravel(), second.ravel())].reshape(*first.shape, *second.shape)
            if row == column:
                h, k = (basis.one[part, part] for part in (basis.of[row], basis.of[row ^ product]))
                block += share * np.einsum("ij,kl->ijkl", h, np.eye(len(k)))
                block += share * np.einsum("ij,kl->ijkl", np.eye(len(h)), k)
            shape = sizes[row] * sizes[row ^ product], sizes[column] * sizes[column ^ product]
            block = block.transpose(0, 2, 1, 3).reshape(shape)
            matrix[starts[row] : starts[row + 1], starts[column] : starts[column + 1]] = block
    return matrix


def _packed(rows: slice, columns: slice) -> np.ndarray:
    """Return the numbers of pairs of orbitals in the integrals."""
    i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(columns.start, columns.stop)
    low, high = np.minimum(i, j), np.maximum(i, j)
    return high * (high + 1) // 2 + low


class FourElectrons:
    """The Hamiltonian of two electrons up and two down, for vectors of one symmetry and one spin."""

    def __init__(self, basis: Orbitals, spin: int) -> None:
        self.symmetry, self.spin, self.sizes = basis.symmetry, spin, basis.sizes
        self.irreps = range(len(basis.of))
        self.pairs = [pair_matrix(basis, product, electrons=4) for product in self.irreps]
        # For each pair of representations: the place of each pair of orbitals among those with i < j, and -1
        # for those with i > j, 0 for i = j.
        self.place: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self.same_spin: list[np.ndarray] = []
        for product in self.irreps:
            self.same_spin.append(self._antisymmetric(product))
        self.shapes = [(len(self.same_spin[g]), len(self.same_spin[g ^ self.symmetry])) for g in self.irreps]

    def _antisymmetric(self, product: int) -> np.ndarray:
        """Number the pairs i < j with this product and return their Hamiltonian."""
        straight, crossed, count = [], [], 0
        starts = np.cumsum([0, *(self.sizes[a] * self.sizes[a ^ product] for a in self.irreps)])
        for a in self.irreps:
            b = a ^ product
            if a > b:
                continue
            shape = (self.sizes[a], self.sizes[b])
            i, j = np.indices(shape)
            kept = i < j if a == b else np.ones(shape, bool)
            place = np.zeros(shape, int)
            place[kept] = count + np.arange(kept.sum())
            straight.append((starts[a] + i * shape[1] + j)[kept])
            crossed.append((starts[b] + j * shape[0] + i)[kept])
            count += int(kept.sum())
            if a == b:
                self.place[a, a] = place + place.T, np.where(i < j, 1, np.where(i > j, -1, 0))
            else:
                self.place[a, b] = place, np.ones(shape, int)
                self.place[b, a] = place.T, -np.ones(shape[::-1], int)
        rows, columns = np.concatenate(straight), np.concatenate(crossed)
        matrix = self.pairs[product]
        return matrix[np.ix_(rows, rows)] - matrix[np.ix_(rows, columns)]

    def split(self, vector: np.ndarray) -> list[np.ndarray]:
        """Return views of a vector: a matrix for each product of representations of the electrons up."""
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])
        return [
            part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), self.shapes, strict=True)
        ]

    def project(self, vector: np.ndarray) -> np.ndarray:
        """Return the part of a vector that has the sign of the spin when all spins are exchanged."""
        parts = self.split(vector)
        return np.concatenate(
            [(parts[g] + self.spin * parts[g ^ self.symmetry].T).ravel() / 2 for g in self.irreps]
        )

    def diagonal(self) -> np.ndarray:
        between = np.empty((sum(self.sizes),) * 2)
        ends = np.cumsum([0, *self.sizes])
        orbital = [slice(a, b) for a, b in itertools.pairwise(ends)]
        for product, matrix in enumerate(self.pairs):
            start, values = 0, np.diagonal(matrix)
            for a in self.irreps:
                b = a ^ product
                stop = start + self.sizes[a] * self.sizes[b]
                between[orbital[a], orbital[b]] = values[start:stop].reshape(self.sizes[a], self.sizes[b])
                start = stop
        result = []
        for up in self.irreps:
            down = up ^ self.symmetry
            i, j = self._members(up, ends)
            k, m = self._members(down, ends)
            part = np.diagonal(self.same_spin[up])[:, None] + np.diagonal(self.same_spin[down])
            for one in (i, j):
                for other in (k, m):
                    part = part + between[np.ix_(one, other)]
            result.append(part.ravel())
        return np.concatenate(result)

    def _members(self, product: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        members = np.empty((2, len(self.same_spin[product])), int)
        for a in self.irreps:
            place, sign = self.place[a, a ^ product]
            i, j = np.nonzero(sign > 0)
            members[:, place[i, j]] = ends[a] + i, ends[a ^ product] + j
        return members[0], members[1]

    def apply(self, vector: np.ndarray) -> np.ndarray:
        """Return the Hamiltonian times a vector that project() returned."""
        parts, result = self.split(vector), np.empty_like(vector)
        sums = self.split(result)
        for g, part in enumerate(parts):
            sums[g][:] = self.same_spin[g] @ part + part @ self.same_spin[g ^ self.symmetry]
        for b in self.irreps:
            for d in range(b, len(self.irreps)):  # (d, b) gives the same with all spins exchanged
                self._apply_between(parts, sums, b, d)
        return self.project(result)

    def _apply_between(self, parts: list[np.ndarray], sums: list[np.ndarray], b: int, d: int) -> None:
        """Add the interaction of one electron up and one down while the others stay in representations b, d.

        It is the same for all four choices of these electrons, whose sum is antisymmetric.
        """
        weight = 1 if b == d else 2
        product, n = b ^ d ^ self.symmetry, self.sizes
        choices = [(a, a ^ product) for a in self.irreps]
        rows = []
        for a, c in choices:
            (ij, sign), (kl, other) = self.place[a, b], self.place[c, d]
            block = parts[a ^ b][np.ix_(ij.ravel(), kl.ravel())]
            block *= sign.reshape(-1, 1)
            block *= other.ravel()
            block = block.reshape(n[a], n[b], n[c], n[d]).transpose(0, 2, 1, 3)
            rows.append(block.reshape(n[a] * n[c], n[b] * n[d]))
        ends = np.cumsum([len(block) for block in rows])
        values = np.split(self.pairs[product] @ np.concatenate(rows), ends[:-1])
        del rows
        for (a, c), value in zip(choices, values, strict=True):
            block = value.reshape(n[a], n[c], n[b], n[d]).transpose(0, 2, 1, 3)
            block = block.reshape(n[a] * n[b], n[c] * n[d])
            for up, ij, sign in self._orders(a, b):
                for down, kl, other in self._orders(c, d):
                    sums[a ^ b][np.ix_(ij, kl)] += weight * sign * other * block[np.ix_(up, down)]

    def _orders(self, a: int, b: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        """Yield the pairs i < j, then i > j, with their places and sign; no place occurs twice in either."""
        place, signs = (array.ravel() for array in self.place[a, b])
        for sign in (1, -1):
            pairs = np.flatnonzero(signs == sign)
            if len(pairs):
                yield pairs, place[pairs], sign


def lowest_of_four(basis: Orbitals, spin: int) -> float:
    """Return the lowest energy of two electrons up and two down with the symmetry of the mean field."""
    hamiltonian = FourElectrons(basis, spin)
    diagonal = hamiltonian.diagonal()
    # The lowest determinants may have no part with this spin.
    guesses = (hamiltonian.project(np.eye(1, len(diagonal), i)[0]) for i in np.argsort(diagonal)[:10])
    guess = next(guess for guess in guesses if guess.any())

    def correct(residual: np.ndarray, energy: float, *_: Any) -> np.ndarray:
        below = diagonal - energy
        below[np.abs(below) < 1e-2] = 1e-2
        return residual / below

    def report(variables: dict[str, Any]) -> None:
        energy = variables["e"][0] + basis.repulsion
        print(f"      iteration {variables['icyc'] + 1}: {energy:.7f} Ha", flush=True)

    converged, values, _ = davidson1(
        lambda vectors: [hamiltonian.apply(vector) for vector in vectors],
        [guess / np.linalg.norm(guess)],
        correct,
        tol=1e-8,
        tol_residual=2e-4,  # the error of an energy is of the order of its square
        max_cycle=60,
        max_space=8,
        max_memory=1e6,
        callback=report,
    )
    assert converged[0]
    return float(values[0]) + basis.repulsion


def lowest_of_two(basis: Orbitals) -> float:
    """Return the lowest energy of one electron up and one down with the symmetry of the mean field."""
    matrix = pair_matrix(basis, basis.symmetry, electrons=2)
    values = eigsh(matrix, k=1, which="SA", return_eigenvectors=False)
    return float(values[0]) + basis.repulsion


def energies(state: State, basis: Any) -> Row:
    """Return the mean-field and the FCI energy of a state with one basis set."""
    begin, known = time.monotonic(), known_molecules()[state.molecule]
    molecule = gto.M(
        atom=list(zip(known.symbols, known.positions, strict=True)),
        unit="Bohr",
        basis=basis,
        symmetry="D2h" if state.inversion else "C2v",
        spin=0 if state.spin == SINGLET else 2,
        verbose=0,
    )
    integrals = orbitals(molecule, state.occupation)
    energy = lowest_of_two(integrals) if state.inversion else lowest_of_four(integrals, state.spin)
    return {
        "orbitals": len(integrals.one),
        "mean_field_ha": integrals.mean_field_ha,
        "fci_ha": energy,
        "seconds": time.monotonic() - begin,
    }


def mean_field_limit(low: float, high: float, zeta: int) -> float:
    """Extrapolate from zeta - 1 and zeta to the complete basis."""
    below, at = ((size + 1) * math.exp(-9 * math.sqrt(size)) for size in (zeta - 1, zeta))
    return high + (high - low) * at / (below - at)


def correlation_limit(low: float, high: float, zeta: int, *, power: int = 3, shift: float = 0) -> float:
    """Extrapolate from zeta - 1 and zeta to the complete basis."""
    below, at = ((size + shift) ** -power for size in (zeta - 1, zeta))
    return high + (high - low) * at / (below - at)


def limit(rows: dict[str, Row], zeta: int, **how: Any) -> float:
    """Extrapolate the energies of one state, which are given for each zeta."""
    low, high = rows[str(zeta - 1)], rows[str(zeta)]
    field = mean_field_limit(low["mean_field_ha"], high["mean_field_ha"], zeta)
    below, at = (row["fci_ha"] - row["mean_field_ha"] for row in (low, high))
    return field + correlation_limit(below, at, zeta, **how)


def difference_limit(
    ground: dict[str, Row], excited: dict[str, Row], zeta: int, exact_ground_ha: float
) -> Row:
    """Extrapolate the difference of two states from zeta - 1 and zeta to the complete basis."""
    largest_ground, largest = (rows[str(zeta)]["fci_ha"] for rows in (ground, excited))
    ground_ha = limit(ground, zeta)
    difference = limit(excited, zeta) - ground_ha
    scale = (exact_ground_ha - largest_ground) / (ground_ha - largest_ground)
    steeper: dict[str, Any] = {"power": 4, "shift": 0.5}
    other_ways = {
        "(L + 1/2)^-4": limit(excited, zeta, **steeper) - limit(ground, zeta, **steeper),
        "scaled by the ground state": (1 - scale) * (largest - largest_ground) + scale * difference,
    }
    if str(zeta - 2) in ground:
        other_ways["smaller basis sets"] = limit(excited, zeta - 1) - limit(ground, zeta - 1)
    return {
        "difference_ha": difference,
        "difference_largest_basis_ha": largest - largest_ground,
        "other_ways_ha": other_ways,
        "ground_error_ha": ground_ha - exact_ground_ha,
        "energy_ha": exact_ground_ha + difference,
    }


def differences_of(record: Row, name: str) -> dict[str, Row]:
    """Extrapolate the distance of a state from the ground state as far as the record has the energies."""
    exact = STATES[GROUNDS[name]].exact_ha
    assert exact is not None
    lower, upper = (record["fci"].get(each, {}) for each in (GROUNDS[name], name))
    return {
        str(zeta): difference_limit(lower, upper, zeta, exact)
        for zeta in BASES[STATES[name].molecule]
        if {str(zeta - 1), str(zeta)} <= lower.keys() & upper.keys()
    }


def summarise(record: Row) -> None:
    """Add the differences of states, and the resulting energies, to a record as far as they are known."""
    hydrogen, hydride = GROUNDS
    differences = {name: differences_of(record, name) for name in GROUNDS}
    record |= {"differences": differences, "limits": {}}
    bounds = sorted(row["bound_ha"] for row in record["gaussians"].get(hydrogen, {}).values())
    if len(bounds) < 2:
        return
    record["limits"][hydrogen] = {"energy_ha": bounds[0], "uncertainty_ha": bounds[1] - bounds[0]}
    for row in differences[hydrogen].values():
        row["error_ha"] = row["energy_ha"] - bounds[0]
    zeta = str(max(BASES["LiH"]))
    if zeta in differences[hydrogen] and zeta in differences[hydride]:
        row = differences[hydride][zeta]
        errors = [abs(other - row["difference_ha"]) for other in row["other_ways_ha"].values()]
        record["limits"][hydride] = {
            "energy_ha": row["energy_ha"],
            "uncertainty_ha": max(*errors, abs(differences[hydrogen][zeta]["error_ha"])),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=("fci", "gaussians"), default=("fci", "gaussians"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    record: Row = {"what": WHAT, "commands": [], "created": now(), "machine": describe(), "sources": SOURCES}
    record["machine"]["versions"]["pyscf"] = pyscf.__version__
    record |= {"fci": {}, "gaussians": {}}
    if args.output.exists():
        record = json.loads(args.output.read_text(encoding="utf-8"))
    command = shlex.join(["python", *sys.argv])
    if command not in record["commands"]:
        record["commands"].append(command)

    def write() -> None:
        summarise(record)
        write_text(args.output, json.dumps(record, indent=1) + "\n")

    def add(rows: Row, key: int, row: Row) -> None:
        rows[str(key)] = row
        write()
        print("  ", {name: value for name, value in row.items() if name != "functions"}, flush=True)

    if "fci" in args.parts:
        tasks = [(z, name) for name, state in STATES.items() for z in BASES[state.molecule]]
        for zeta, name in sorted(tasks):
            rows = record["fci"].setdefault(name, {})
            if str(zeta) not in rows:
                basis = BASES[STATES[name].molecule][zeta]
                print(f"{name} {basis}", flush=True)
                add(rows, zeta, {"basis": basis, **energies(STATES[name], basis)})
    if "gaussians" in args.parts:
        for name, state in reversed(STATES.items()):
            rows = record["gaussians"].setdefault(name, {}) if state.inversion else {}
            counts = tuple(count for count in FUNCTIONS if str(count) not in rows)
            if not state.inversion or not counts:
                continue
            print(f"{name} with Gaussians", flush=True)
            known = known_molecules()[state.molecule]
            bond = known.positions[1][2] - known.positions[0][2]
            for bound in gaussians.lowest(
                bond,
                exchange=state.spin,
                inversion=state.inversion,
                counts=counts,
                start=np.array(rows[max(rows, key=int)]["functions"]) if rows else None,
            ):
                row = {"bound_ha": bound.energy_ha, "functions": bound.functions.tolist()}
                add(rows, len(bound.functions), row)
    write()  # with limits by this version also if all energies were there
    for name, values in record["limits"].items():
        print(f"{name}: {values['energy_ha']:.6f} +- {values['uncertainty_ha']:.6f} Ha", flush=True)


if __name__ == "__main__":
    main()
