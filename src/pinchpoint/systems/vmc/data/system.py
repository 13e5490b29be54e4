"""System: the nuclei and electrons of a calculation, from a name or an xyz file, with checks.

Lengths are in bohr (xyz files are in angstrom), energies in hartree. Imports no framework. A System is always
valid: unknown elements, impossible spins, coincident nuclei, and a charge that leaves no electrons raise
BadInput on construction.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices
from pinchpoint.systems.common.config_json import JsonConfig
from pinchpoint.systems.vmc.data.molecules import (
    ATOMS_HA,
    CHAIN_BOHR,
    HELIUM_LIKE_HA,
    STATES_HA,
    SYMBOLS,
    KnownMolecule,
    Position,
    chain,
    known_molecules,
    known_spin,
    pair,
    spin_of_atom,
)
from pinchpoint.systems.vmc.data.pseudopotentials import pseudopotentials
from pinchpoint.systems.vmc.data.xyz import read_xyz

CLOSEST_BOHR = 0.1  # smallest distance between two nuclei
SAME_BOHR = 1e-3  # distances that differ by less than this count as equal
_CHAIN = re.compile(r"H([1-9][0-9]{0,2})")
_LONGEST_CHAIN = 100


@dataclass(frozen=True)
class System(JsonConfig):
    """Nuclei and electrons.

    symbols, charges (atomic numbers), positions: one per nucleus; up, down: electrons of each spin.
    pseudopotential: replaces the core electrons of all nuclei, which up and down do not count; "" for none.
    """

    name: str
    symbols: tuple[str, ...]
    charges: tuple[int, ...]
    positions: tuple[Position, ...]
    up: int
    down: int
    pseudopotential: str = ""

    def __post_init__(self) -> None:
        _check_counts(self)
        # JSON has no tuples, and integer coordinates would make equal systems print differently.
        object.__setattr__(self, "positions", tuple(_position(place) for place in self.positions))
        for name in ("symbols", "charges"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_nuclei(self)
        _ = self.cores  # refuses unknown pseudopotentials

    @property
    def electrons(self) -> int:
        return self.up + self.down

    @property
    def nuclei(self) -> int:
        return len(self.charges)

    @property
    def cores(self) -> tuple[int, ...]:
        """The electrons of each nucleus that a pseudopotential replaces; zeros without one."""
        return _cores(self.pseudopotential, self.symbols)

    @property
    def core_charges(self) -> tuple[int, ...]:
        """The charge of each nucleus, less the electrons that a pseudopotential replaces."""
        return tuple(charge - core for charge, core in zip(self.charges, self.cores, strict=True))

    @property
    def charge(self) -> int:
        """The total charge, in units of the elementary charge."""
        return sum(self.core_charges) - self.electrons

    @property
    def spin(self) -> int:
        """Spin-up minus spin-down electrons."""
        return self.up - self.down

    @property
    def repulsion(self) -> float:
        """The Coulomb energy of the nuclei; 0 for an atom."""
        pairs, charges = combinations(range(self.nuclei), 2), self.core_charges
        return math.fsum(
            charges[i] * charges[j] / math.dist(self.positions[i], self.positions[j]) for i, j in pairs
        )

    @property
    def exact_ha(self) -> float | None:
        """The reference energy of these nuclei and electrons if it is known, else None."""
        if self.pseudopotential:
            return None
        if self.nuclei == 1:
            return _exact_atom(self)
        for known in known_molecules().values():
            if (
                known.energy_ha is not None
                and self.charge == 0
                and self.spin == known.spin
                and _same_shape(self, known)
            ):
                return known.energy_ha
        return None

    @property
    def states_ha(self) -> tuple[float, ...]:
        """The reference energies of the lowest states with these electrons, as far as they are known."""
        name = _known_name(self)
        if name is not None:
            return STATES_HA[name]
        return () if self.exact_ha is None else (self.exact_ha,)


def show_name(name: str, charge: int) -> str:
    """Return `Al+`, `OH-` or `Ca 2+`; the name alone without a charge."""
    sign = "+" if charge > 0 else "-"
    if abs(charge) == 1:
        return name + sign
    return f"{name} {abs(charge)}{sign}" if charge else name


def with_nuclei_at(system: System, positions: Any) -> System:
    """Return the system with its nuclei at positions (M, 3), which may be traced; they are not checked."""
    other = copy.copy(system)
    object.__setattr__(other, "positions", positions)
    return other


def _known_name(system: System) -> str | None:
    """Return the name of the molecule in `STATES_HA` that a system is, in its ground state's spin."""
    if system.pseudopotential or system.charge or system.exact_ha is None:
        return None
    for name in STATES_HA:
        known = known_molecules().get(name) or KnownMolecule((name,), ((0.0, 0.0, 0.0),))
        if system.symbols == known.symbols and _same_shape(system, known):
            return name
    return None


def system_of(
    molecule: str | Path | System,
    *,
    spin: int | None = None,
    charge: int = 0,
    bond: float | None = None,
    pseudopotential: str | None = None,
) -> System:
    """Return the system with a name, or the one in an .xyz file in angstrom.

    Names are elements from `H` to `Kr`, molecules such as `H2`, `LiH` or `H2O`, and chains such as `H10`.
    spin: up minus down; by default that of Hund's rules for an atom or ion, that of the ground state for a
    molecule whose formula is known, and otherwise the lowest possible (`spins.ground_state` asks Hartree-Fock
    instead). bond: the distance in bohr between the two atoms of a molecule, or the spacing of a chain.
    pseudopotential: "ccecp" replaces the core electrons of all nuclei. A System is returned unchanged unless
    spin, charge, bond or pseudopotential is set.
    """
    if isinstance(molecule, System):
        potential = molecule.pseudopotential if pseudopotential is None else pseudopotential
        if spin is None and charge == 0 and bond is None and potential == molecule.pseudopotential:
            return molecule
        known = KnownMolecule(molecule.symbols, molecule.positions, molecule.spin)
        name, stored = molecule.name, molecule.spin if charge == 0 else None
        if bond is not None:
            known = _stretch(name, known, bond)
        return _build(
            name,
            known,
            spin=stored if spin is None else spin,
            charge=molecule.charge + charge,
            pseudopotential=potential,
        )
    if isinstance(molecule, Path) or str(molecule).lower().endswith(".xyz"):
        symbols, positions = read_xyz(molecule)
        name, known = Path(molecule).stem, KnownMolecule(symbols, positions, -1)
    else:
        name, known = molecule, _by_name(molecule, bond)
    if bond is not None and not _is_chain(name):  # a chain has its spacing already
        known = _stretch(name, known, bond)
    return _build(name, known, spin=spin, charge=charge, pseudopotential=pseudopotential or "")


def _build(name: str, known: KnownMolecule, *, spin: int | None, charge: int, pseudopotential: str) -> System:
    charges = tuple(SYMBOLS.index(symbol) + 1 for symbol in known.symbols)
    core = sum(_cores(pseudopotential, known.symbols))
    neutral = sum(charges) - core
    electrons = neutral - charge
    if electrons < 1:
        raise BadInput(
            f"A charge of {charge:+d} leaves {max(electrons, 0)} of the {neutral} electrons of {name}.",
            hint=f"Use a charge of at most {neutral - 1:+d}.",
        )
    if spin is None:
        spin = _default_spin(known, electrons + core, charge)
    if spin < 0 or spin > electrons or (electrons - spin) % 2:
        possible = range(electrons % 2, electrons + 1, 2)
        spins_text = ", ".join(map(str, possible[:4])) + (
            f", ... {possible[-1]}" if len(possible) > 4 else ""
        )
        raise BadInput(
            f"A spin (up minus down) of {spin} is impossible with the {electrons} electrons of {name}.",
            hint=f"Use one of these spins: {spins_text}.",
        )
    return System(
        name,
        known.symbols,
        charges,
        known.positions,
        (electrons + spin) // 2,
        (electrons - spin) // 2,
        pseudopotential,
    )


def _cores(pseudopotential: str, symbols: tuple[str, ...]) -> tuple[int, ...]:
    """Return the core electrons of each nucleus that a pseudopotential replaces."""
    if not pseudopotential:
        return (0,) * len(symbols)
    return tuple(core.core for core in pseudopotentials(pseudopotential, symbols))


def _default_spin(known: KnownMolecule, electrons: int, charge: int) -> int:
    """Return the spin of a molecule for which none is set. electrons: all of them, those of cores too."""
    if len(known.symbols) == 1:
        return spin_of_atom(electrons, charge)
    if charge == 0:
        spin = known.spin if known.spin >= 0 else known_spin(known.symbols)
        if spin is not None:
            return spin
    return electrons % 2


def _by_name(name: str, bond: float | None) -> KnownMolecule:
    molecules = known_molecules()
    if name in molecules:
        return molecules[name]
    if name in SYMBOLS:
        if bond is not None:
            raise BadInput(
                f"The atom {name} has no bond, but a bond of {bond:g} bohr was set.",
                hint="Leave out the bond, or name a molecule of two atoms, such as H2 or LiH.",
            )
        return KnownMolecule((name,), ((0.0, 0.0, 0.0),))
    if _is_chain(name):
        return chain(int(name[1:]), CHAIN_BOHR if bond is None else _length(bond))
    near = [other for other in (*molecules, *SYMBOLS) if other.lower() == str(name).lower()]
    if near:
        raise BadInput(
            f"There is no element or molecule {name!r}.",
            hint=f"Write {show_choices(near)}: upper and lower case matter.",
        )
    raise BadInput(
        f"There is no element or molecule {name!r}.",
        hint=f"Name an element from H to Kr, one of {', '.join(molecules)}, a chain such as H10, "
        "or an .xyz file in angstrom.",
    )


def _is_chain(name: str) -> bool:
    match = _CHAIN.fullmatch(name)
    return match is not None and 3 <= int(match.group(1)) <= _LONGEST_CHAIN


def _stretch(name: str, known: KnownMolecule, bond: float) -> KnownMolecule:
    if len(known.symbols) != 2:
        raise BadInput(
            f"A bond of {bond:g} bohr cannot be set in {name}, which has {len(known.symbols)} nuclei.",
            hint="Name a molecule of two atoms, such as H2 or LiH, or give the geometry as an .xyz file.",
        )
    return pair(*known.symbols, _length(bond), spin=known.spin)


def _length(bond: float) -> float:
    if not (math.isfinite(bond) and bond >= CLOSEST_BOHR):
        raise BadInput(
            f"A bond of {bond:g} bohr is too short or not finite.",
            hint=f"Use a finite length of at least {CLOSEST_BOHR:g} bohr, such as 1.4.",
        )
    return float(bond)


def _position(place: Any) -> Position:
    try:
        x, y, z = (float(value) for value in place)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"The position of a nucleus is {place!r:.60}, not three numbers.",
            hint="Give three coordinates in bohr.",
        ) from error
    if not all(map(math.isfinite, (x, y, z))):
        raise BadInput(
            f"The position of a nucleus is {place!r:.60}, which is not finite.",
            hint="Give finite coordinates in bohr.",
        )
    return x, y, z


def _check_counts(system: System) -> None:
    counts = {len(system.symbols), len(system.charges), len(system.positions)}
    if len(counts) != 1 or 0 in counts:
        raise BadInput(
            f"There are {len(system.symbols)} symbols, {len(system.charges)} charges and "
            f"{len(system.positions)} positions.",
            hint="Give one of each for every nucleus, and at least one nucleus.",
        )
    if type(system.up) is not int or type(system.down) is not int or min(system.up, system.down) < 0:
        raise BadInput(
            f"{system.up!r} up and {system.down!r} down electrons are not whole numbers of at least 0.",
            hint="Give whole numbers of at least 0.",
        )
    if system.electrons < 1:
        raise BadInput(
            "The system has no electrons.", hint="Lower the charge, so that at least one electron remains."
        )


def _check_nuclei(system: System) -> None:
    for symbol, charge in zip(system.symbols, system.charges, strict=True):
        if symbol not in SYMBOLS or charge != SYMBOLS.index(symbol) + 1:
            raise BadInput(
                f"The nucleus {symbol!r} cannot have the charge {charge!r}.",
                hint="Give elements from H to Kr with their atomic numbers.",
            )
    for i, j in combinations(range(system.nuclei), 2):
        apart = math.dist(system.positions[i], system.positions[j])
        if apart < CLOSEST_BOHR:
            first, second = (f"{k + 1} ({system.symbols[k]})" for k in (i, j))
            raise BadInput(
                f"Nuclei {first} and {second} of {system.name} are only {apart:.3g} bohr apart.",
                hint=f"Move them at least {CLOSEST_BOHR:g} bohr apart; xyz files are in angstrom.",
            )


def _exact_atom(system: System) -> float | None:
    charge = system.charges[0]
    if system.electrons == 1:
        return -(charge**2) / 2
    if system.electrons == 2 and system.spin == 0:
        return HELIUM_LIKE_HA.get(charge)
    return (
        ATOMS_HA.get(system.symbols[0])
        if system.charge == 0 and system.spin == spin_of_atom(charge)
        else None
    )


def _same_shape(system: System, known: KnownMolecule) -> bool:
    """Return whether the nuclei are the same, in the same order and at the same distances."""
    return system.symbols == known.symbols and all(
        abs(
            math.dist(system.positions[i], system.positions[j])
            - math.dist(known.positions[i], known.positions[j])
        )
        < SAME_BOHR
        for i, j in combinations(range(system.nuclei), 2)
    )
