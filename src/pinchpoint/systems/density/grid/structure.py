"""Structure: the lattice, species and positions of a crystal, with checks.

Letters: A atoms. Lengths are in angstrom. Lattice vectors are rows; positions are fractions of them and need
not lie in [0, 1). A molecule has to be put into a cell before its density can be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.grid.elements import SYMBOLS

CLOSEST_A = 0.1  # two nuclei of a real structure are never closer than this
SHORTEST_A = 0.5  # no crystal has a shorter lattice vector, at any pressure
LONGEST_A = 1e6  # far longer than any cell with atoms in it
_TINY_A = 1e-6  # squares of shorter vectors are lost in rounding
_FLAT = (
    1e-6  # fraction of the product of the lattice vectors' lengths: a cell with less volume counts as flat
)
_SHORTER = 1e-9  # relative difference of squares: a smaller one is rounding


@dataclass(frozen=True, eq=False)
class Structure:
    """A crystal, or a molecule in a box.

    lattice: (3, 3) float64 in angstrom, one vector per row; species: A symbols; positions: (A, 3) float64,
    fractional; charge: that of the cell, as stated by its source; boxed: whether pinchpoint created the cell,
    for a molecule that had none.
    """

    lattice: np.ndarray
    species: tuple[str, ...]
    positions: np.ndarray
    charge: float = 0.0
    boxed: bool = False

    @property
    def volume(self) -> float:
        """Volume of the cell in cubic angstrom."""
        return cell_volume(self.lattice)

    @property
    def cartesian(self) -> np.ndarray:
        """Cartesian positions (A, 3) in angstrom."""
        return self.positions @ self.lattice

    @property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """The symbol and length of each run of equal species, in the order of the atoms."""
        runs: list[tuple[str, int]] = []
        for symbol in self.species:
            if runs and runs[-1][0] == symbol:
                runs[-1] = (symbol, runs[-1][1] + 1)
            else:
                runs.append((symbol, 1))
        return tuple(runs)

    @property
    def formula(self) -> str:
        return " ".join(f"{symbol}{count}" for symbol, count in self.runs)


def cell_volume(lattice: np.ndarray) -> float:
    """Return the volume of a lattice (3, 3), by the triple product.

    Exact where a library's determinant is not: the determinant of 2 I is not always 8.
    """
    return abs(float(np.cross(lattice[0], lattice[1]) @ lattice[2]))


def reduced_cell(lattice: np.ndarray) -> np.ndarray:
    """Return the same lattice (3, 3) with the shortest possible vectors, the shortest first.

    The volume of the cell must not be zero.
    """
    basis = np.array(lattice, dtype=np.float64)
    near = np.stack(np.meshgrid((-1, 0, 1), (-1, 0, 1), indexing="ij"), axis=-1).reshape(-1, 2)
    while True:
        basis = basis[np.argsort((basis**2).sum(axis=1), kind="stable")]
        first, second, third = basis
        second = second - np.round(second @ first / (first @ first)) * first
        if second @ second < (first @ first) * (1 - _SHORTER):
            basis = np.stack([second, first, third])
            continue
        # If two vectors are the shortest in their plane, its lattice point nearest to the third is one of
        # these.
        plane = np.stack([first, second])
        candidates = third - (np.round(np.linalg.solve(plane @ plane.T, plane @ third)) + near) @ plane
        least = candidates[(candidates**2).sum(axis=1).argmin()]
        basis = np.stack([first, second, least])
        if least @ least >= (second @ second) * (1 - _SHORTER):
            return basis


def check_structure(structure: Structure) -> Structure:
    """Return the structure if it can have a density.

    Raises BadInput otherwise, with the problem and the atom or vector that causes it.
    """
    lattice, positions, count = structure.lattice, structure.positions, len(structure.species)
    if lattice.shape != (3, 3) or not np.isfinite(lattice).all():
        raise BadInput(
            f"The lattice has shape {lattice.shape} or is not finite.",
            hint="Give three lattice vectors in angstrom.",
        )
    lengths = np.abs(lattice).max(axis=1)
    if lengths.max() > LONGEST_A or 0 < lengths.min() < _TINY_A:
        raise BadInput(
            f"The longest lattice vector has a component of {lengths.max():g} angstrom, the shortest one of "
            f"{lengths.min():g}.",
            hint=f"Give lattice vectors in angstrom, from {SHORTEST_A:g} to {LONGEST_A:,.0f}.",
        )
    if structure.volume <= _FLAT * np.linalg.norm(lattice, axis=1).prod():
        raise BadInput(
            f"The cell has a volume of {structure.volume:g} cubic angstrom.",
            hint="Give three lattice vectors that do not lie in one plane; a molecule needs a box around it.",
        )
    if count == 0:
        raise BadInput("The structure has no atoms.", hint="Give at least one atom.")
    if positions.shape != (count, 3):
        raise BadInput(
            f"The positions of {count} atoms have shape {positions.shape}.",
            hint="Give three coordinates for each atom.",
        )
    bad = np.flatnonzero(~np.isfinite(positions).all(axis=1))
    if len(bad):
        raise BadInput(
            f"The position of atom {bad[0] + 1} is NaN or infinite.", hint="Give finite coordinates."
        )
    for at, symbol in enumerate(structure.species):
        if symbol not in SYMBOLS:
            raise BadInput(
                f"Atom {at + 1} is of unknown species {symbol!r}.",
                hint="Give symbols of elements, such as Hf or O.",
            )
    shortest = float(np.linalg.norm(reduced_cell(lattice), axis=1).min())
    if shortest < SHORTEST_A:
        raise BadInput(
            f"Atom 1 and its own image are {shortest:.3f} angstrom apart: a lattice vector is that short.",
            hint="Give lattice vectors in angstrom, or leave out the cell of a molecule.",
        )
    if pair := close_pair(structure, CLOSEST_A):
        first, second, apart = pair
        raise BadInput(
            f"Atoms {first + 1} and {second + 1} are {apart:.3f} angstrom apart.",
            hint="Remove one of them, or check that coordinates are fractional where the file says so.",
        )
    return structure


def close_pair(structure: Structure, within_a: float) -> tuple[int, int, float] | None:
    """Return two atoms closer than `within_a` and their distance, or None.

    Periodic images are included, but an atom is not compared with its own images. Sorts along a vector of the
    reduced cell and compares only neighbours in that order; correct as long as that cell is thicker than
    twice `within_a`.
    """
    lattice = reduced_cell(structure.lattice)
    inverse = np.linalg.inv(lattice)
    fractions = structure.cartesian @ inverse
    wrapped = fractions - np.floor(fractions)
    order = np.argsort(wrapped[:, 0], kind="stable")
    # The distance between lattice planes: shifts along the other two vectors cannot bring atoms closer.
    height = 1 / np.linalg.norm(inverse[:, 0])
    window = within_a / height
    ordered = wrapped[order]
    again = ordered[:, 0] < window
    chain = np.concatenate([ordered, ordered[again] + [1.0, 0.0, 0.0]])
    who = np.concatenate([order, order[again]])
    for shift in range(1, len(structure.species)):
        gap = chain[shift:] - chain[:-shift]
        near = np.flatnonzero(gap[:, 0] < window)
        if len(near) == 0:
            return None
        apart = np.linalg.norm((gap[near] - np.round(gap[near])) @ lattice, axis=1)
        at = int(np.argmin(apart))
        if apart[at] < within_a:
            first, second = sorted((int(who[near[at]]), int(who[near[at] + shift])))
            return first, second, float(apart[at])
    return None
