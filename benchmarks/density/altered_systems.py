"""Altered training molecules: systems with known errors from which `predict` learns to estimate its own.

Each system is a molecule of the training set of the preset `wide` that was changed at random: atoms are
displaced, a bond is stretched or squeezed, hydrogen is removed or added (as an atom, a proton or a hydride),
an atom is replaced by another element, or a few atoms are put together from nothing. None of the geometries
that the estimate is judged on is used. Letters: A atoms.
"""

from __future__ import annotations

import zlib

import numpy as np
from unfamiliar_systems import System

from pinchpoint.systems.density.data.molecules import RADII_A, VALENCE, WIDE_TRAINING, Molecule, molecule

HEAVY = ("C", "N", "O")
MOST_HEAVY = 3  # heavy atoms of a molecule that is altered: larger ones take minutes
CLOSEST = 0.6  # fraction of the sum of two covalent radii: closer atoms are no test of anything
KINDS = ("displaced", "scaled", "stretched", "cut", "extended", "replaced", "assembled", "paired")


def altered_systems(count: int) -> list[System]:
    """Return the first `count` systems; kinds come in turn, and every system depends on its number only."""
    small = [
        known
        for known in map(molecule, WIDE_TRAINING)
        if sum(symbol != "H" for symbol in known.species) <= MOST_HEAVY
    ]
    systems: list[System] = []
    number = 0
    while len(systems) < count:
        kind = KINDS[number % len(KINDS)]
        draw = np.random.default_rng((zlib.crc32(b"altered"), number))
        system = _alter(small[draw.integers(len(small))], kind, draw, name=f"{kind}-{number:04d}")
        if system is not None:
            systems.append(system)
        number += 1
    return systems


def _alter(known: Molecule, kind: str, draw: np.random.Generator, *, name: str) -> System | None:
    """Return an altered molecule; None if it is not usable."""
    species, positions, change = list(known.species), known.positions.copy(), 0
    if kind == "displaced":
        positions += draw.normal(size=positions.shape) * draw.uniform(0.05, 0.3)
    elif kind == "scaled":
        positions *= draw.choice([draw.uniform(0.85, 0.95), draw.uniform(1.05, 1.3)])
    elif kind == "stretched":
        positions = _stretch(species, positions, draw)
    elif kind == "cut":
        hydrogen = [at for at, symbol in enumerate(species) if symbol == "H"]
        if not hydrogen:
            return None
        gone = draw.choice(hydrogen, size=min(len(hydrogen), int(draw.integers(1, 3))), replace=False)
        kept = [at for at in range(len(species)) if at not in gone]
        species, positions = [species[at] for at in kept], positions[kept]
        change = int(draw.choice([0, 0, -1, 1]))
    elif kind == "extended":
        heavy = [at for at, symbol in enumerate(species) if symbol != "H"]
        if not heavy:
            return None
        at = int(draw.choice(heavy))
        positions = np.vstack([positions, _free_place(species, positions, at, draw)])
        species.append("H")
        change = int(draw.choice([1, 1, 0, -1]))
    elif kind == "replaced":
        at = int(draw.integers(len(species)))
        species[at] = str(draw.choice([symbol for symbol in (*HEAVY, "H") if symbol != species[at]]))
    elif kind == "paired":
        other = positions + draw.normal(size=3) * 0.2
        along = draw.normal(size=3)
        apart = np.ptp(positions @ (along / np.linalg.norm(along))) + draw.uniform(1.2, 2.6)
        positions = np.vstack([positions, other + apart * along / np.linalg.norm(along)])
        species += species
    else:
        species, positions = _assemble(draw)
    return _checked(name, kind, tuple(species), positions - positions.mean(axis=0), change, draw)


def _checked(
    name: str,
    kind: str,
    species: tuple[str, ...],
    positions: np.ndarray,
    charge: int,
    draw: np.random.Generator,
) -> System | None:
    """Return the system; None if atoms coincide, nothing is heavy or everything is too large."""
    radii = np.array([RADII_A[symbol] for symbol in species])
    first, second = np.triu_indices(len(species), 1)
    apart = np.linalg.norm(positions[first] - positions[second], axis=1)
    if len(species) < 2 or len(species) > 10 or (apart < CLOSEST * (radii[first] + radii[second])).any():
        return None
    electrons = sum(VALENCE[symbol] for symbol in species) - charge
    if electrons < 2:
        return None
    unpaired = electrons % 2
    if not unpaired and charge == 0 and len(species) < 4 and draw.random() < 0.2:
        unpaired = 2
    return System(name, kind, charge, unpaired, species, positions, None)


def _stretch(species: list[str], positions: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Move everything on one side of a bond along it."""
    radii = np.array([RADII_A[symbol] for symbol in species])
    apart = np.linalg.norm(positions[:, None] - positions, axis=2)
    bonds = np.argwhere((apart < 1.3 * (radii[:, None] + radii)) & (apart > 0))
    if not len(bonds):
        return positions
    one, other = bonds[draw.integers(len(bonds))]
    along = positions[other] - positions[one]
    side = (positions - (positions[one] + positions[other]) / 2) @ along > 0
    factor = draw.choice([draw.uniform(-0.2, -0.1), draw.uniform(0.1, 0.8)])
    return positions + np.where(side, factor, 0.0)[:, None] * along


def _free_place(species: list[str], positions: np.ndarray, at: int, draw: np.random.Generator) -> np.ndarray:
    """Return a place for a hydrogen atom next to an atom, on the side where it has the fewest neighbours."""
    directions = draw.normal(size=(64, 3))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    places = positions[at] + 1.05 * directions
    others = np.delete(positions, at, axis=0)
    if not len(others):
        return places[0]
    return places[np.linalg.norm(places[:, None] - others, axis=2).min(axis=1).argmax()]


def _assemble(draw: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Return two to five random atoms, each bonded to one before it."""
    count = int(draw.integers(2, 6))
    species = [str(draw.choice(HEAVY))]
    positions = np.zeros((1, 3))
    for _ in range(count - 1):
        species.append(str(draw.choice((*HEAVY, "H", "H"))))
        heavy = [at for at, symbol in enumerate(species[:-1]) if symbol != "H"]
        at = int(draw.choice(heavy))
        length = (RADII_A[species[at]] + RADII_A[species[-1]]) * draw.uniform(0.8, 1.15)
        direction = draw.normal(size=3)
        positions = np.vstack([positions, positions[at] + length * direction / np.linalg.norm(direction)])
    return species, positions
