"""Molecules and the geometries drawn from them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import (
    CLOSEST,
    ENUMERATED,
    HELD_OUT,
    RADII_A,
    RATTLE_A,
    TRAINING,
    WIDE_HELD_OUT,
    WIDE_TRAINING,
    Molecule,
    draw_geometry,
    draw_held_out,
    enumerated_names,
    molecule,
    names,
    normal,
    too_close,
    uniform,
)

FORMULAS = {
    "water": "H2O",
    "ammonia": "H3N",
    "methane": "CH4",
    "methanol": "CH4O",
    "methylamine": "CH5N",
    "ethane": "C2H6",
    "ethylene": "C2H4",
    "acetylene": "C2H2",
    "formaldehyde": "CH2O",
    "hydrogen-cyanide": "CHN",
    "formic-acid": "CH2O2",
    "formamide": "CH3NO",
    "acetonitrile": "C2H3N",
    "dimethyl-ether": "C2H6O",
    "propane": "C3H8",
    "acetone": "C3H6O",
    "ethanol": "C2H6O",
    "acetaldehyde": "C2H4O",
    "acetamide": "C2H5NO",
}


def bonds(species, positions):
    """Pairs nearer than 1.25 of the sum of their covalent radii."""
    radii = np.array([RADII_A[symbol] for symbol in species])
    apart = np.linalg.norm(positions[:, None] - positions, axis=2)
    first, second = np.nonzero(np.triu(apart < 1.25 * (radii[:, None] + radii), 1))
    return {(int(a), int(b)): float(apart[a, b]) for a, b in zip(first, second, strict=True)}


@pytest.mark.parametrize("name", [*TRAINING, *HELD_OUT])
def test_a_molecule_has_its_formula_and_every_atom_its_valences(name):
    found = molecule(name)
    counts = {symbol: found.species.count(symbol) for symbol in sorted(set(found.species))}
    assert (
        "".join(f"{symbol}{count if count > 1 else ''}" for symbol, count in counts.items()) == FORMULAS[name]
    )
    assert found.electrons % 2 == 0 and sum(symbol != "H" for symbol in found.species) <= 5
    held = bonds(found.species, found.positions)
    for at, symbol in enumerate(found.species):
        partners = sum(at in pair for pair in held)
        assert 1 <= partners <= {"H": 1, "C": 4, "N": 3, "O": 2}[symbol]
    # Connected and, but for double and triple bonds, as many bonds as atoms less one.
    assert len(held) == len(found.species) - 1


def test_bond_lengths_are_those_of_the_bonds_orders():
    lengths = {}
    for name, pair in (
        ("ethane", "CC"),
        ("ethylene", "CC"),
        ("acetylene", "CC"),
        ("formaldehyde", "CO"),
        ("methanol", "CO"),
    ):
        found = molecule(name)
        inner = [
            v
            for (a, b), v in bonds(found.species, found.positions).items()
            if found.species[a] + found.species[b] == pair
        ]
        lengths[name] = inner[0]
    assert lengths == pytest.approx(
        {"ethane": 1.53, "ethylene": 1.33, "acetylene": 1.21, "formaldehyde": 1.21, "methanol": 1.43},
        abs=0.03,
    )


def test_held_out_molecules_are_not_trained_on_and_hold_no_new_element():
    assert not set(TRAINING) & set(HELD_OUT) and set(TRAINING) | set(HELD_OUT) == set(FORMULAS)
    seen = {symbol for name in TRAINING for symbol in molecule(name).species}
    assert {symbol for name in HELD_OUT for symbol in molecule(name).species} <= seen


def bond_code(name):
    """Return a number that two molecules share if their atoms have the same neighbours up to four bonds."""
    known = molecule(name)
    near = {at: [] for at in range(len(known.species))}
    for first, second in bonds(known.species, known.positions):
        near[first].append(second)
        near[second].append(first)
    codes = {at: known.species[at] for at in near}
    for _ in range(4):
        codes = {at: f"{codes[at]}({','.join(sorted(codes[other] for other in near[at]))})" for at in near}
    return hash(tuple(sorted(codes.values())))


def test_no_enumerated_molecule_has_the_bonds_of_another_one():
    held, enumerated = [*WIDE_HELD_OUT, *HELD_OUT], enumerated_names()
    with np.load(ENUMERATED) as table:
        smiles = table["smiles"].tobytes().decode().split("\n")
    assert len(set(enumerated)) == len(enumerated) == len(smiles) >= 1200
    assert not set(enumerated) & set(names())
    codes = {bond_code(name) for name in enumerated}
    assert not codes & {bond_code(name) for name in (*held, *WIDE_TRAINING)}
    assert len(codes) >= 0.99 * len(enumerated)  # the code is not quite unique
    # The code tells isomers apart, and recognises a molecule whatever its geometry.
    assert bond_code("ethanol") != bond_code("dimethyl-ether")
    assert smiles[enumerated.index("C2H4N2-11")] == "CC1N=N1"
    assert dict(Counter(molecule("C2H4N2-11").species)) == {"C": 2, "H": 4, "N": 2}


def test_every_molecule_is_connected_with_closed_shells_and_ordinary_bonds():
    assert len(set(names())) == len(names()) >= 200
    for name in (*names(), *enumerated_names()):
        known = molecule(name)
        pairs = bonds(known.species, known.positions)
        groups = {at: {at} for at in range(len(known.species))}
        for first, second in pairs:
            joined = groups[first] | groups[second]
            for at in joined:
                groups[at] = joined
        partners = [sum(at in pair for pair in pairs) for at in range(len(known.species))]
        most = {"H": 1, "C": 4, "N": 4, "O": 2}
        assert known.electrons % 2 == 0 and not too_close(known.species, known.positions), name
        assert len(groups[0]) == len(known.species), name
        assert all(1 <= n <= most[symbol] for n, symbol in zip(partners, known.species, strict=True)), name


def test_the_wide_held_out_molecules_are_the_drawn_ones():
    pool = [name for name in names() if sum(symbol != "H" for symbol in molecule(name).species) >= 3]
    assert draw_held_out(pool, count=25, key=25) == WIDE_HELD_OUT
    # The order of the list does not matter, and another key draws others.
    assert (
        draw_held_out(pool[::-1], count=25, key=25) == WIDE_HELD_OUT != draw_held_out(pool, count=25, key=1)
    )
    assert set(WIDE_TRAINING) | set(WIDE_HELD_OUT) == set(names())
    assert not set(WIDE_TRAINING) & set(WIDE_HELD_OUT) and len(WIDE_TRAINING) >= 100


def test_an_unknown_molecule_is_refused_with_similar_names():
    with pytest.raises(BadInput, match="no molecule 'benzen'") as caught:
        molecule("benzen")
    assert "such as benzene" in str(caught.value.hint)


def test_drawn_numbers_are_fixed_for_ever():
    # The stream of PCG64 seeded with SeedSequence([7, 1]), its upper 52 bits: must never change, probes come
    # from it.
    raw = np.random.PCG64(np.random.SeedSequence([7, 1])).random_raw(3)
    assert uniform(3, 7, 1).tolist() == [((int(value) >> 12) + 0.5) / 2**52 for value in raw]
    assert uniform(2, 7, 1).tolist() == pytest.approx([0.7701409510, 0.1119272443], abs=1e-9)
    many = normal(100_000, 3)
    assert abs(many.mean()) < 0.015 and abs(many.std() - 1) < 0.01 and abs((many**4).mean() - 3) < 0.15


def test_atoms_move_by_a_quarter_power_of_their_mass():
    # Distances do not feel the rotation: the C to O distance of methanol spreads as both atoms do, along the
    # bond.
    rest = molecule("methanol")
    drawn = [draw_geometry(rest, seed=0, number=number).positions for number in range(400)]
    spread = np.std([np.linalg.norm(positions[0] - positions[1]) for positions in drawn])
    assert spread == pytest.approx(RATTLE_A * np.hypot(12.011**-0.25, 15.999**-0.25), rel=0.12)
    hydrogen = np.std([np.linalg.norm(positions[1] - positions[2]) for positions in drawn])
    assert hydrogen == pytest.approx(RATTLE_A * np.hypot(1, 15.999**-0.25), rel=0.12)


def test_a_geometry_depends_on_seed_number_and_attempt_alone_and_is_turned():
    rest = molecule("water")
    first = draw_geometry(rest, seed=1, number=2)
    assert np.array_equal(first.positions, draw_geometry(rest, seed=1, number=2).positions)
    others = [draw_geometry(rest, seed=2, number=2), draw_geometry(rest, seed=1, number=3)]
    others.append(draw_geometry(rest, seed=1, number=2, attempt=1))
    assert all(np.abs(first.positions - other.positions).max() > 0.01 for other in others)
    assert np.abs(first.positions.mean(axis=0)).max() < 1e-12
    still = draw_geometry(rest, seed=1, number=2, rattle_a=0.0).positions
    apart, turned = (np.linalg.norm(x[:, None] - x, axis=2) for x in (rest.positions, still))
    assert np.allclose(apart, turned, atol=1e-12)
    cross = np.linalg.det(
        np.stack(
            [still[1] - still[0], still[2] - still[0], np.cross(still[1] - still[0], still[2] - still[0])]
        )
    )
    assert cross > 0 and np.abs(still - (rest.positions - rest.positions.mean(axis=0))).max() > 0.1


def test_geometries_with_atoms_too_near_are_drawn_again_or_refused():
    limit = CLOSEST * (RADII_A["H"] + RADII_A["O"])
    assert too_close(("O", "H"), np.array([[0, 0, 0], [0, 0, limit - 1e-6]]))
    assert not too_close(("O", "H"), np.array([[0, 0, 0], [0, 0, limit + 1e-6]]))
    rest = molecule("methane")
    for number in range(30):
        assert not too_close(
            rest.species, draw_geometry(rest, seed=0, number=number, rattle_a=0.25).positions
        )
    with pytest.raises(BadInput, match="too close together"):
        draw_geometry(
            Molecule("close", ("O", "H"), np.array([[0, 0, 0], [0, 0, 0.5]])), seed=0, number=0, rattle_a=0.0
        )
