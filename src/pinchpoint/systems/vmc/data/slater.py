"""Where orbitals start: exponents of the shells of atoms by Slater's rules, dealt out to the electrons of a molecule.

No framework. An exponent is the decay of an orbital with the distance, exp(-zeta r). Rough by design: training moves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Groups of shells in order of their distance: orbitals of s kind, all orbitals, the effective principal number, whether d.
_GROUPS = ((1, 1, 1.0, False), (1, 4, 2.0, False), (1, 4, 3.0, False), (0, 5, 3.0, True), (1, 4, 3.7, False))
# Electrons in each group as the atoms are built up: 4s is filled before 3d.
_FILLING = ((0, 2), (1, 8), (2, 8), (4, 2), (3, 10), (4, 6))


@dataclass(frozen=True)
class Start:
    """One orbital to begin with: on which nucleus it sits, its exponent, and whether it is round (s) and of the valence."""

    nucleus: int
    zeta: float
    round: bool
    valence: bool


def atomic_orbitals(charge: int) -> list[tuple[float, bool]]:
    """(exponent, whether s) of each orbital of a neutral atom that holds an electron, the innermost first."""
    inside = [0] * len(_GROUPS)
    left = charge
    for group, room in _FILLING:
        inside[group] += min(room, left)
        left -= min(room, left)
    found: list[tuple[float, bool]] = []
    for group, (rounds, orbitals, number, is_d) in enumerate(_GROUPS):
        if not inside[group]:
            continue
        screened = (inside[group] - 1) * (0.30 if group == 0 else 0.35)
        for other in range(group):
            # Of an s or p shell's own screening, the shell just below counts 0.85 each and all deeper ones in full.
            near = not is_d and number - 1.5 < _GROUPS[other][2] < number
            screened += inside[other] * (0.85 if near else 1.0)
        zeta = max(charge - screened, 0.5) / number
        found += [(zeta, index < rounds) for index in range(orbitals)]
    return found


def outer_exponent(charge: int) -> float:
    """Of the outermost orbitals of an atom."""
    return min(zeta for zeta, _ in atomic_orbitals(charge))


def starts(charges: Sequence[int], count: int) -> list[Start]:
    """The `count` lowest orbitals of a molecule's atoms: for the electrons of one spin."""
    pool = [
        (-(zeta**2), not is_round, rank, nucleus, zeta)
        for nucleus, charge in enumerate(charges)
        for rank, (zeta, is_round) in enumerate(atomic_orbitals(charge))
    ]
    pool.sort()
    while (
        len(pool) < count
    ):  # more electrons of one spin than orbitals of the free atoms: anions and high spins
        pool += [(level, True, rank, nucleus, 0.8 * zeta) for level, _, rank, nucleus, zeta in pool]
    return [
        Start(nucleus, zeta, not directed, zeta <= 1.01 * outer_exponent(charges[nucleus]))
        for _, directed, _, nucleus, zeta in pool[:count]
    ]
