"""Whether the bonds of a structure of H, C, N and O add up to a neutral closed-shell Lewis structure.

Atoms closer than 1.25 times the sum of their covalent radii are bonded. A neutral H has one bond, C four, N
three and O two, where a bond may be single, double or triple. Two neighbours may have opposite charges, as in
nitro groups, isocyanides, azides, ozone and CO. If no such bonds exist, the structure is an ion, a radical or
a carbene, or it is far from any molecule at rest. A Lewis structure proves nothing about the density: O2 has
one and is a triplet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pinchpoint.systems.density.data.molecules import RADII_A, VALENCE
from pinchpoint.systems.density.grid.periodic_images import images_of, pairs_within
from pinchpoint.systems.density.grid.structure import Structure

BONDED = 1.25  # times the sum of two covalent radii
BONDS = {"H": 1, "C": 4, "N": 3, "O": 2}
CATIONS, ANIONS = ("N", "O"), ("C", "N", "O")  # with one bond more, one bond less
MOST_PAIRS = 4  # of neighbours with opposite charges
MOST_TRIES = 2_000
MOST_ATOMS = 200

Bond = tuple[int, int]


@dataclass(frozen=True)
class Valences:
    """atoms: those whose bonds do not add up. radical: only one carbon atom, which misses one bond."""

    atoms: tuple[int, ...]
    radical: bool = False


def check_valences(structure: Structure) -> Valences:
    """Return the atoms whose bonds do not add up; none if they do, or if the search takes too long.

    Large structures and those with other elements have none.
    """
    species = structure.species
    if not set(species) <= set(BONDS) or len(species) > MOST_ATOMS:
        return Valences(())
    bonds = bonds_of(structure)
    atoms = unsatisfied(species, bonds)
    if len(atoms) != 1 or species[atoms[0]] != "C":
        return Valences(atoms)
    partners = sum(atom == atoms[0] for bond in bonds for atom in bond)
    odd = sum(VALENCE[symbol] for symbol in species) % 2 == 1
    return Valences(atoms, radical=odd and partners in (2, 3))


def bonds_of(structure: Structure) -> list[Bond]:
    """Return the bonds, each once; a bond to a periodic image is one to its atom."""
    radii = np.array([RADII_A[symbol] for symbol in structure.species])
    images = images_of(structure, 2 * BONDED * float(radii.max()))
    to, image = pairs_within(images.home, images.positions, 2 * BONDED * float(radii.max()))
    source = images.atom[image]
    apart = np.linalg.norm(images.positions[image] - images.home[to], axis=1)
    near = (apart < BONDED * (radii[to] + radii[source])) & (to <= source)
    pairs = [(int(a), int(b)) for a, b in zip(to[near], source[near], strict=True)]
    own = [pair for pair in pairs if pair[0] == pair[1]]
    return [pair for pair in pairs if pair[0] != pair[1]] + own[::2]  # an atom sees its image on both sides


def unsatisfied(species: Sequence[str], bonds: Sequence[Bond]) -> tuple[int, ...]:
    """Return the atoms whose bonds do not add up, of the attempt that leaves the fewest."""
    missing = [BONDS[symbol] for symbol in species]
    for one, other in bonds:
        missing[one] -= 1
        missing[other] -= 1
    partners = np.bincount(np.array(bonds, dtype=int).reshape(-1), minlength=len(species))
    pairs = [
        (plus, minus)
        for bond in dict.fromkeys(bonds)
        for plus, minus in (bond, bond[::-1])
        # With more than one neighbour, such a carbon atom would be that of a carbene.
        if species[plus] in CATIONS
        and plus != minus
        and species[minus] in ANIONS
        and (species[minus] != "C" or partners[minus] == 1)
    ]
    search = _Search(len(species), bonds)
    fewest = search.fewest(missing)
    for count in range(1, min(MOST_PAIRS, len(pairs)) + 1):
        if not fewest or search.tries > MOST_TRIES:
            break
        for charge_pairs in combinations(pairs, count):
            if len({atom for pair in charge_pairs for atom in pair}) < 2 * count:
                continue
            missing_with_charges = list(missing)
            for plus, minus in charge_pairs:
                missing_with_charges[plus] += 1
                missing_with_charges[minus] -= 1
            fewest = min(fewest, search.fewest(missing_with_charges), key=len)
            if not fewest or search.tries > MOST_TRIES:
                break
    return () if search.tries > MOST_TRIES else fewest


class _Search:
    """Raises the orders of bonds until no atom misses a bond. A bond is raised at most twice."""

    def __init__(self, atoms: int, bonds: Sequence[Bond]) -> None:
        self.tries = 0
        self.neighbours: list[list[tuple[int, int]]] = [[] for _ in range(atoms)]
        for number, (one, other) in enumerate(bonds):
            if one != other:
                self.neighbours[one].append((other, number))
                self.neighbours[other].append((one, number))
        self.bonds = len(bonds)

    def fewest(self, missing: Sequence[int]) -> tuple[int, ...]:
        """Return the atoms that are left with too few or too many bonds, as few as possible."""
        wrong = [atom for atom, count in enumerate(missing) if count < 0]
        self.best = [*wrong, *(atom for atom, count in enumerate(missing) if count > 0)]
        self._raise([max(0, count) for count in missing], [2] * self.bonds, wrong)
        return tuple(sorted(self.best))

    def _raise(self, missing: list[int], room: list[int], left: list[int]) -> None:
        self.tries += 1
        if self.tries > MOST_TRIES or len(left) >= len(self.best):
            return
        waiting = [atom for atom, count in enumerate(missing) if count > 0]
        if not waiting:
            self.best = list(left)
            return
        options = {
            atom: [(to, bond) for to, bond in self.neighbours[atom] if missing[to] > 0 and room[bond] > 0]
            for atom in waiting
        }
        atom = min(waiting, key=lambda at: (len(options[at]), at))
        for other, bond in options[atom]:
            missing[atom] -= 1
            missing[other] -= 1
            room[bond] -= 1
            self._raise(missing, room, left)
            missing[atom] += 1
            missing[other] += 1
            room[bond] += 1
            if not self.best or self.tries > MOST_TRIES:
                return
        count, missing[atom] = missing[atom], 0
        self._raise(missing, room, [*left, atom])
        missing[atom] = count
