"""Initial orbitals: exponents of atomic shells by Slater's rules, assigned to the electrons of a molecule.

Imports no framework. The exponent is the decay of an orbital with the distance, exp(-zeta r). The values are
rough: training changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Groups of shells from the inside out: number of s orbitals, number of all orbitals, effective principal
# quantum number, and whether it is a d shell.
_GROUPS = ((1, 1, 1.0, False), (1, 4, 2.0, False), (1, 4, 3.0, False), (0, 5, 3.0, True), (1, 4, 3.7, False))
# Electrons per group in the order of filling; 4s is filled before 3d.
_FILLING = ((0, 2), (1, 8), (2, 8), (4, 2), (3, 10), (4, 6))
_NOBLE = (0, 2, 10, 18)  # electrons of a neutral atom above which each shell with an s orbital is occupied


@dataclass(frozen=True)
class Start:
    """An initial orbital: nucleus, exponent, whether it is round (s), and whether it is a valence orbital."""

    nucleus: int
    zeta: float
    round: bool
    valence: bool


def atomic_orbitals(charge: int, *, core: int = 0) -> list[tuple[float, bool]]:
    """Return (exponent, whether s) for each occupied orbital of a neutral atom, innermost first.

    core: electrons that a pseudopotential replaces, whose orbitals are left out.
    """
    inside = [0] * len(_GROUPS)
    remaining = charge
    for group, room in _FILLING:
        inside[group] += min(room, remaining)
        remaining -= min(room, remaining)
    result: list[tuple[float, bool]] = []
    for group, (rounds, orbitals, number, is_d) in enumerate(_GROUPS):
        if not inside[group]:
            continue
        screening = (inside[group] - 1) * (0.30 if group == 0 else 0.35)
        for other in range(group):
            # For an s or p shell, electrons of the shell just below screen 0.85 each, and all deeper ones 1.
            near = not is_d and number - 1.5 < _GROUPS[other][2] < number
            screening += inside[other] * (0.85 if near else 1.0)
        zeta = max(charge - screening, 0.5) / number
        result += [(zeta, index < rounds) for index in range(orbitals)]
    return result[core // 2 :]


def outer_exponent(charge: int) -> float:
    """Return the exponent of the outermost orbitals of an atom."""
    return min(zeta for zeta, _ in atomic_orbitals(charge))


def starts(charges: Sequence[int], count: int, *, cores: Sequence[int] | None = None) -> list[Start]:
    """Return the `count` lowest orbitals of the atoms of a molecule, for the electrons of one spin.

    cores: electrons of each nucleus that a pseudopotential replaces.
    """
    pool = [
        (-(zeta**2), not is_round, rank, nucleus, zeta)
        for nucleus, (charge, core) in enumerate(zip(charges, cores or [0] * len(charges), strict=True))
        for rank, (zeta, is_round) in enumerate(atomic_orbitals(charge, core=core))
    ]
    pool.sort()
    while len(pool) < count:
        # Anions and high spins have more electrons of one spin than the free atoms have orbitals.
        pool += [(level, True, rank, nucleus, 0.8 * zeta) for level, _, rank, nucleus, zeta in pool]
    return [
        Start(nucleus, zeta, not directed, zeta <= 1.01 * outer_exponent(charges[nucleus]))
        for _, directed, _, nucleus, zeta in pool[:count]
    ]


def excited_starts(charge: int, count: int, level: int, *, core: int = 0, ion: int = 0) -> list[Start]:
    """Return `starts` of one atom with the last orbital replaced by the one `level` places above it.

    level: at least 1. Beyond the orbitals of `atomic_orbitals` follow those of the next shell, where an
    electron moves in the field of a charge of one, or of ion + 1 around a positive ion. From wrong exponents
    the training of an excited state may end in another one: 2p of helium is learned from a compact orbital,
    2s is not.
    """
    occupied = starts((charge,), count, cores=(core,))
    shells = [number for rounds, _, number, _ in _GROUPS if rounds]
    highest = max((number for number, electrons in zip(shells, _NOBLE, strict=True) if charge > electrons))
    number = next((shell for shell in shells if shell > highest), highest + 1)
    by_energy = sorted(atomic_orbitals(charge, core=core), key=lambda orbital: (-orbital[0], not orbital[1]))
    above = by_energy[count:] + [((1 + max(ion, 0)) / number, index == 0) for index in range(4)]
    zeta, is_round = above[min(level, len(above)) - 1]
    return [*occupied[:-1], Start(0, zeta, is_round, True)]
