"""Molecules by name and file: what they are, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.molecules import known_molecules
from pinchpoint.systems.vmc.data.slater import atomic_orbitals, excited_starts, starts
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import PRESETS, NetConfig

WATER = "3\nwater\nO 0 0 0\nH 0 0.757 0.586\nH 0 -0.757 0.586\n"


@pytest.fixture
def xyz(tmp_path: Path) -> Path:
    path = tmp_path / "water.xyz"
    path.write_text(WATER)
    return path


@pytest.mark.parametrize(
    ("name", "spin"),
    [
        ("H", 1),
        ("He", 0),
        ("Li", 1),
        ("B", 1),
        ("C", 2),
        ("N", 3),
        ("O", 2),
        ("F", 1),
        ("Ne", 0),
        ("Cr", 6),
        ("Fe", 4),
        ("Cu", 1),
    ],
)
def test_atoms_take_the_spin_of_their_ground_state(name: str, spin: int) -> None:
    assert system_of(name).spin == spin


# Ground states of the ions in NIST's tables of atomic spectra.
@pytest.mark.parametrize(
    ("name", "charge", "spin"),
    [
        ("Sc", 1, 2),
        ("V", 1, 4),
        ("Cr", 1, 5),
        ("Mn", 1, 6),
        ("Fe", 1, 5),
        ("Co", 1, 2),
        ("Cu", 1, 0),
        ("Ti", 2, 2),
        ("Mn", 2, 5),
        ("Fe", 2, 4),
        ("Fe", 3, 5),
        ("Co", 3, 4),
        ("Ni", 2, 2),
        ("Cu", 2, 1),
        ("Zn", 2, 0),
        ("Ga", 3, 0),
        ("C", 1, 1),
        ("O", 1, 3),
        ("Cl", -1, 0),
        ("V", -1, 4),
        ("Fe", -1, 3),
    ],
)
def test_ions_have_the_spin_of_their_own_shells_and_not_of_the_atom_with_as_many_electrons(
    name: str, charge: int, spin: int
) -> None:
    assert system_of(name, charge=charge).spin == spin


def test_the_repulsion_of_nitrogen_is_49_over_its_bond() -> None:
    assert system_of("N2").repulsion == pytest.approx(49 / 2.068)
    assert system_of("N").repulsion == 0.0


def test_references_belong_to_the_geometry_the_charge_and_the_spin() -> None:
    assert system_of("H2").exact_ha == pytest.approx(-1.174476)
    assert system_of("H2", bond=1.5).exact_ha is None
    assert system_of("H2", spin=2).exact_ha is None
    assert system_of("H2", charge=1).exact_ha is None
    assert system_of("He", charge=1).exact_ha == -2.0
    assert system_of("H", charge=-1).exact_ha == pytest.approx(-0.527751)
    assert system_of("Be").exact_ha == pytest.approx(-14.66736)


# Kilocalories per mole to take a molecule apart into atoms, from experiment, the motion of its nuclei aside.
@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("H2", 109.5),
        ("LiH", 58.0),
        ("Li2", 24.4),
        ("N2", 228.5),
        ("CO", 259.6),
        ("H2O", 232.8),
        ("NH3", 298.0),
        ("CH4", 420.2),
    ],
)
def test_references_of_molecules_lie_below_their_atoms_by_the_energy_that_takes_them_apart(
    name: str, apart: float
) -> None:
    molecule = system_of(name)
    atoms = sum(system_of(symbol).exact_ha or 0.0 for symbol in molecule.symbols)
    assert molecule.exact_ha == pytest.approx(atoms - apart / 627.5, abs=1.6e-3)


def test_a_bond_sets_the_distance_of_two_atoms_and_the_spacing_of_a_chain() -> None:
    ends = system_of("LiH", bond=4.0).positions
    assert math.dist(*ends) == pytest.approx(4.0)
    chain = system_of("H6", bond=2.0)
    assert [
        math.dist(a, b) for a, b in zip(chain.positions, chain.positions[1:], strict=False)
    ] == pytest.approx([2.0] * 5)
    assert math.dist(*system_of(system_of("H2"), bond=3.0).positions) == pytest.approx(3.0)


def test_an_xyz_file_is_read_in_angstrom(xyz: Path) -> None:
    water = system_of(xyz)
    assert (water.name, water.symbols, water.up, water.down) == ("water", ("O", "H", "H"), 5, 5)
    assert math.dist(water.positions[0], water.positions[1]) * 0.529177 == pytest.approx(
        math.hypot(0.757, 0.586), abs=1e-5
    )


@pytest.mark.parametrize("name", ["H", "He", "H2O", "H10"])
def test_a_system_survives_json(name: str) -> None:
    assert System.from_json(system_of(name).to_json()) == system_of(name)


def test_every_known_molecule_is_sound() -> None:
    for name in known_molecules():
        assert system_of(name).charge == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"molecule": "Xx"}, "no element or molecule 'Xx'"),
        ({"molecule": "lih"}, "no element or molecule 'lih'"),
        ({"molecule": "H2", "spin": 1}, "spin"),
        ({"molecule": "He", "spin": 4}, "spin"),
        ({"molecule": "Li", "spin": -1}, "spin"),
        ({"molecule": "H2", "charge": 2}, "leaves 0 of the 2 electrons"),
        ({"molecule": "H", "charge": 3}, "leaves 0 of the 1 electrons"),
        ({"molecule": "H2O", "bond": 1.0}, "3 nuclei"),
        ({"molecule": "He", "bond": 1.0}, "atom He"),
        ({"molecule": "H2", "bond": 0.0}, "bond of 0"),
        ({"molecule": "H2", "bond": math.nan}, "bond of nan"),
        ({"molecule": "nowhere.xyz"}, "nowhere.xyz cannot be read"),
    ],
)
def test_impossible_systems_are_refused_with_a_hint(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        system_of(**arguments)  # pyright: ignore[reportArgumentType]
    assert caught.value.hint


def test_the_hint_of_a_wrong_case_is_the_right_one() -> None:
    with pytest.raises(BadInput, match="Write LiH"):
        system_of("lih")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("3\n", "4\n", "has 3 atoms, but its first line says 4"),
        ("3\n", "two\n", "instead of the number of atoms"),
        ("O 0 0 0", "Oo 0 0 0", "'Oo' is not an element"),
        ("O 0 0 0", "o 0 0 0", "'o' is not an element"),
        ("O 0 0 0", "O 0 0", "is not an atom"),
        ("O 0 0 0", "O 0 zero 0", "is not a position"),
        ("O 0 0 0", "O 0 nan 0", "is not finite"),
        ("H 0 -0.757", "H 0 0.757", "Nuclei 2 .H. and 3 .H. of water are only 0 bohr apart"),
    ],
)
def test_a_wrong_xyz_file_is_refused_with_what_is_wrong(xyz: Path, old: str, new: str, said: str) -> None:
    xyz.write_text(WATER.replace(old, new, 1))
    with pytest.raises(BadInput, match=said):
        system_of(xyz)


def test_a_system_made_by_hand_is_checked_too() -> None:
    with pytest.raises(BadInput, match="charge 3"):
        System("odd", ("H",), (3,), ((0.0, 0.0, 0.0),), 1, 0)
    with pytest.raises(BadInput, match="has no electrons"):
        System("bare", ("H",), (1,), ((0.0, 0.0, 0.0),), 0, 0)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name: str) -> None:
    assert NetConfig.from_json(NetConfig.preset(name).to_json()) == NetConfig.preset(name)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "net"}, "kind"),
        ({"one": 0}, "one = 0"),
        ({"layers": 1.5}, "layers"),
        ({"full": 1}, "full"),
        ({"heads": 3}, "heads"),
    ],
)
def test_impossible_networks_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        NetConfig.preset("psiformer", **changes)


def test_exponents_follow_slaters_rules() -> None:
    # By hand: nitrogen 1s (7 - 0.30) / 1, its second shell (7 - 4 x 0.35 - 2 x 0.85) / 2; iron 4s (26 -
    # 22.25) / 3.7.
    assert [zeta for zeta, _ in atomic_orbitals(7)[:2]] == pytest.approx([6.7, 1.95])
    assert atomic_orbitals(26)[-1][0] == pytest.approx(3.75 / 3.7)


def test_lithium_hydride_starts_in_both_atoms_lowest_orbitals() -> None:
    assert [(start.nucleus, start.round) for start in starts((3, 1), 2)] == [(0, True), (1, True)]
    assert len(starts((1,), 6)) == 6


def test_an_excited_orbital_is_the_next_of_the_atom_or_of_the_next_shell() -> None:
    last = [
        excited_starts(4, 2, level)[-1] for level in (1, 3, 4, 5, 99)
    ]  # beryllium: 2p thrice, then 3s and 3p
    assert [(start.zeta, start.round) for start in last] == [
        (pytest.approx(0.975), False),
        (pytest.approx(0.975), False),
        (pytest.approx(1 / 3), True),
        (pytest.approx(1 / 3), False),
        (pytest.approx(1 / 3), False),
    ]
    assert excited_starts(2, 1, 1, ion=1)[0].zeta == pytest.approx(1.0)  # 2s of He+


def test_a_pseudopotential_leaves_the_valence_electrons() -> None:
    iron = system_of("FeO", pseudopotential="ccecp")
    assert iron.cores == (10, 2) and iron.core_charges == (16, 6) and iron.charge == 0
    assert (iron.up, iron.down) == (13, 9) and iron.exact_ha is None
    assert iron.repulsion == pytest.approx(16 * 6 / 3.054)
    ion = system_of("Si", charge=1, pseudopotential="ccecp")
    assert (ion.up, ion.down, ion.charge) == (2, 1, 1)
    assert system_of(iron, charge=1).electrons == 21 and System.from_json(iron.to_json()) == iron
    assert [start.round for start in starts((14,), 4, cores=(10,))] == [True, False, False, False]
    with pytest.raises(BadInput, match="no pseudopotential 'bfd'"):
        system_of("Si", pseudopotential="bfd")
    with pytest.raises(BadInput, match="leaves 0 of the 4 electrons of Si"):
        system_of("Si", charge=4, pseudopotential="ccecp")
