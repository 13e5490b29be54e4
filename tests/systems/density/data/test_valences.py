"""Bonds that add up to a neutral molecule with closed shells, and those of ions, radicals and carbenes."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.systems.density.data.molecules import WIDE_HELD_OUT, WIDE_TRAINING, molecule
from pinchpoint.systems.density.data.valences import Valences, bonds_of, check_valences, unsatisfied
from pinchpoint.systems.density.grid.structure import Structure


def boxed(species: tuple[str, ...], positions: np.ndarray) -> Structure:
    lattice = np.diag(np.ptp(positions, axis=0) + 8.0)
    return Structure(lattice, species, positions @ np.linalg.inv(lattice))


def without(name: str, *atoms: int) -> Structure:
    known = molecule(name)
    kept = [at for at in range(len(known.species)) if at not in atoms]
    return boxed(tuple(known.species[at] for at in kept), known.positions[kept])


def test_the_bonds_of_every_molecule_of_the_tables_add_up() -> None:
    names = (*WIDE_TRAINING, *WIDE_HELD_OUT)
    known = (molecule(name) for name in names[::3])  # rings, nitro groups, N-oxides, isocyanides, CO
    wrong = [one.name for one in known if check_valences(boxed(one.species, one.positions)).atoms]
    assert wrong == []


def test_a_missing_hydrogen_atom_leaves_an_atom_without_a_bond() -> None:
    assert check_valences(without("methane", 1)) == Valences((0,), radical=True)
    assert check_valences(without("methane", 1, 2)) == Valences((0,))  # a carbene
    assert check_valences(without("water", 1)) == Valences((0,))  # OH, a radical or an ion
    assert check_valences(without("hydrogen-cyanide", 2)) == Valences((0,))  # CN: not one of three bonds
    # CH2CH2NO2: with opposite charges in the nitro group, only the carbon atom is left.
    assert check_valences(without("nitroethane", 5)) == Valences((0,), radical=True)


@pytest.mark.parametrize(
    ("species", "bonds", "left"),
    [
        ("CO", [(0, 1)], 0),
        ("OOO", [(0, 1), (1, 2)], 0),
        ("HCNO", [(0, 1), (1, 2), (2, 3)], 0),
        ("HNNN", [(0, 1), (1, 2), (2, 3)], 0),
        ("COOO", [(0, 1), (0, 2), (0, 3)], 2),  # carbonate
        ("NHHHH", [(0, at) for at in range(1, 5)], 1),  # ammonium
        ("NOOO", [(0, 1), (0, 2), (0, 3)], 1),  # nitrate
        ("NNN", [(0, 1), (1, 2)], 1),  # azide
        ("CCOOOO", [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)], 2),  # oxalate
        ("HCOH", [(0, 1), (1, 2), (2, 3)], 1),  # hydroxycarbene
    ],
)
def test_opposite_charges_of_neighbours_are_allowed_and_others_are_not(
    species: str, bonds: list[tuple[int, int]], left: int
) -> None:
    assert len(unsatisfied(tuple(species), bonds)) == left


def test_bonds_to_periodic_images_count_and_other_elements_are_not_checked() -> None:
    a = 3.567
    lattice = np.array([[0, a / 2, a / 2], [a / 2, 0, a / 2], [a / 2, a / 2, 0]])
    diamond = Structure(lattice, ("C", "C"), np.array([[0.0, 0, 0], [0.25, 0.25, 0.25]]))
    assert len(bonds_of(diamond)) == 4 and check_valences(diamond).atoms == ()
    chain = Structure(np.diag([8.0, 8.0, 1.5]), ("C",), np.zeros((1, 3)))
    assert bonds_of(chain) == [(0, 0)]
    assert (
        check_valences(Structure(np.eye(3) * 8, ("Mg", "H"), np.array([[0.0, 0, 0], [0.2, 0, 0]]))).atoms
        == ()
    )
