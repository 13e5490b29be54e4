"""Molecules and atoms known by name: their geometries, ground-state spins and reference energies.

Lengths are in bohr; energies are in hartree, non-relativistic and for fixed nuclei. Energies of one and two
electrons are exact to the digits shown; the others are the best published estimates, accurate to a
millihartree or better. Imports no framework.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Position = tuple[float, float, float]

# All electrons are treated explicitly, which is not feasible beyond krypton.
_TABLE = "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr"
SYMBOLS = tuple(_TABLE.split())
CHAIN_BOHR = 1.8  # spacing of a chain of hydrogen atoms
# Capacities of the shells in the order in which they are filled; chromium and copper are exceptions.
_SHELLS = (2, 2, 6, 2, 6, 2, 10, 6)
_EXCEPTIONS = {24: 6, 29: 1}
# Cations of two or more charges: 3d lies below 4s.
_CATION_SHELLS = (2, 2, 6, 2, 6, 10, 2, 6)
# Electrons -> unpaired ones of the cations from Ca+ to Zn+, whose 3d and 4s lie close together: NIST.
_SINGLE_CATIONS = {19: 1, 20: 2, 21: 3, 22: 4, 23: 5, 24: 6, 25: 5, 26: 2, 27: 1, 28: 0, 29: 1}
# Molecules that are not singlets or doublets, by formula: carbon first, then hydrogen, then the alphabet.
_OPEN_SHELLS = {"B2": 2, "CH2": 2, "HN": 2, "O2": 2, "OS": 2, "S2": 2}

# Nuclear charge -> energy of the lowest singlet of two electrons: Frankowski and Pekeris 1966, Drake 1988.
HELIUM_LIKE_HA = {1: -0.527751, 2: -2.903724, 3: -7.279913, 4: -13.655566, 5: -22.030972, 6: -32.406247}
# Neutral atoms in their ground states. Hydrogen and helium: exact; the others: Chakravorty et al. 1993.
ATOMS_HA = {
    "H": -0.5,
    "He": -2.903724,
    "Li": -7.478060,
    "Be": -14.667360,
    "B": -24.653910,
    "C": -37.845000,
    "N": -54.589200,
    "O": -75.067300,
    "F": -99.733900,
    "Ne": -128.937600,
}


# The lowest states of a molecule at its known geometry, each as often as it occurs with as many electrons up
# as down or one more: triplets once. Helium: Drake 2006. The second states of H2 (b 3Sigma_u+, repulsive) and
# LiH (a 3Sigma+) are those of `benchmarks/vmc/excited_references.py`: about 0.005 mHa above the exact energy,
# and within 0.13 mHa of it.
STATES_HA = {
    "H": (-0.5, *(-0.125,) * 4, *(-0.5 / 9,) * 5),
    "He": (-2.903724, -2.175229, -2.145974, *(-2.133164,) * 3, *(-2.123843,) * 3),
    "H2": (-1.174476, -0.784237),
    "LiH": (-8.070548, -7.950241),
}


@dataclass(frozen=True)
class KnownMolecule:
    """A molecule at the geometry of its reference energy. positions: one per symbol; spin: up - down."""

    symbols: tuple[str, ...]
    positions: tuple[Position, ...]
    spin: int = 0
    energy_ha: float | None = None


def pair(
    first: str, second: str, bond: float, *, spin: int = 0, energy_ha: float | None = None
) -> KnownMolecule:
    """Return two nuclei on the z axis, centred at the origin."""
    return KnownMolecule((first, second), ((0.0, 0.0, -bond / 2), (0.0, 0.0, bond / 2)), spin, energy_ha)


def chain(count: int, spacing: float) -> KnownMolecule:
    """Return a chain of hydrogen atoms on the z axis, centred at the origin."""
    return KnownMolecule(
        ("H",) * count, tuple((0.0, 0.0, (i - (count - 1) / 2) * spacing) for i in range(count)), count % 2
    )


def _water() -> KnownMolecule:
    # 0.9572 angstrom and 104.52 degrees. The energy from experiment is -76.438(3) in Luechow et al. 1997 and
    # now -76.4389: Caffarel et al. 2016, whose diffusion Monte Carlo gives -76.43894(12) in the limit of
    # large basis sets.
    length, half = 1.8088, math.radians(104.52 / 2)
    y, z = length * math.sin(half), length * math.cos(half)
    return KnownMolecule(("O", "H", "H"), ((0.0, 0.0, 0.0), (0.0, y, z), (0.0, -y, z)), 0, -76.4389)


def _ammonia() -> KnownMolecule:
    # Geometry and CCSD(T) in the limit of large basis sets: Pfau et al. 2020.
    low, near, far, side = -0.51364, 0.88791, 1.77583, 1.53791
    hydrogens = ((0.0, far, low), (side, -near, low), (-side, -near, low))
    return KnownMolecule(("N", "H", "H", "H"), ((0.0, 0.0, 0.22013), *hydrogens), 0, -56.5644)


def _methane() -> KnownMolecule:
    # Geometry and CCSD(T) in the limit of large basis sets: Pfau et al. 2020.
    a = 1.18886
    return KnownMolecule(
        ("C", "H", "H", "H", "H"),
        ((0.0, 0.0, 0.0), (a, a, a), (-a, -a, a), (a, -a, -a), (-a, a, -a)),
        0,
        -40.5150,
    )


def known_molecules() -> dict[str, KnownMolecule]:
    """Return all named molecules; those without a published energy at this geometry have none."""
    return {
        # Kolos and Wolniewicz 1965, Sims and Hagstrom 2006: -1.17447571
        "H2": pair("H", "H", 1.4, energy_ha=-1.174476),
        "LiH": pair("Li", "H", 3.015, energy_ha=-8.070548),  # Cencek and Rychlewski 2000, Tung et al. 2011
        "Li2": pair("Li", "Li", 5.051, energy_ha=-14.9954),  # Filippi and Umrigar 1996
        "BeH": pair("Be", "H", 2.537, spin=1),
        "BH": pair("B", "H", 2.329),
        # CCSD(T) in the limit of large basis sets: Pfau et al. 2020
        "CO": pair("C", "O", 2.173, energy_ha=-113.3255),
        "N2": pair("N", "N", 2.068, energy_ha=-109.5423),  # Filippi and Umrigar 1996
        "O2": pair("O", "O", 2.282, spin=2),
        "F2": pair("F", "F", 2.668),
        "HF": pair("H", "F", 1.7328),
        # Oxides of transition metals, for pseudopotentials: bond lengths of Huber and Herzberg 1979.
        "ScO": pair("Sc", "O", 3.152, spin=1),
        "TiO": pair("Ti", "O", 3.062, spin=2),
        "VO": pair("V", "O", 3.003, spin=3),
        "CrO": pair("Cr", "O", 3.052, spin=4),
        "MnO": pair("Mn", "O", 3.111, spin=5),
        "FeO": pair("Fe", "O", 3.054, spin=4),
        "H2O": _water(),
        "NH3": _ammonia(),
        "CH4": _methane(),
    }


def spin_of_atom(electrons: int, charge: int = 0) -> int:
    """Return the unpaired electrons in the ground state of an atom or ion, by Hund's rules.

    electrons: 1 to 36, all of them. Cations lose their 4s electrons before those of 3d: iron has 4 unpaired
    electrons, and so has Fe2+ with 3d6.
    """
    if charge == 0 and electrons in _EXCEPTIONS:
        return _EXCEPTIONS[electrons]
    if charge == 1 and electrons in _SINGLE_CATIONS:
        return _SINGLE_CATIONS[electrons]
    remaining = electrons
    for room in _SHELLS if charge < 2 else _CATION_SHELLS:
        if remaining <= room:
            return remaining if remaining <= room // 2 else room - remaining
        remaining -= room
    return remaining % 2


def known_spin(symbols: Sequence[str]) -> int | None:
    """Return the unpaired electrons of a neutral molecule in its ground state if they are known.

    They belong to the formula: the positions of the nuclei are not considered.
    """
    by_formula = {formula(known.symbols): known.spin for known in known_molecules().values()}
    return {**by_formula, **_OPEN_SHELLS}.get(formula(symbols))


def formula(symbols: Sequence[str]) -> str:
    """Return a formula such as `CH2`: carbon first, then hydrogen, then the other elements by alphabet."""
    first = ("C", "H") if "C" in symbols else ()
    order = sorted(set(symbols), key=lambda symbol: (symbol not in first, symbol))
    return "".join(
        f"{symbol}{symbols.count(symbol) if symbols.count(symbol) > 1 else ''}" for symbol in order
    )
