"""Geometries drawn from a seed: atoms displaced from rest as by their zero-point motion, then turned at random.

Letters: A atoms. The same numbers on every machine and with every numpy: only raw bits of the generator are used, whose
stream is fixed, and closed forms of them. A drawing that brings two atoms too near is refused and drawn again.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import RADII_A, Molecule

RATTLE_A = 0.08  # displacement of an atom of mass 1 along each axis, one standard deviation
CLOSEST = 0.75  # of the sum of two covalent radii: nearer atoms are no molecule at rest or in motion
TRIES = 100
_MASSES = {"H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999}


@dataclass(frozen=True, eq=False)
class Geometry:
    """species: A symbols; positions: (A, 3) float64 in angstrom, their mean at the origin."""

    species: tuple[str, ...]
    positions: np.ndarray


def uniform(count: int, *key: int) -> np.ndarray:
    """(count,) float64 in (0, 1), decided by the numbers of the key: never 0, so that its logarithm is finite."""
    raw = np.random.PCG64(np.random.SeedSequence([*key])).random_raw(count)
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normal(count: int, *key: int) -> np.ndarray:
    """(count,) float64 of mean 0 and standard deviation 1."""
    radius, angle = uniform(2 * count, *key).reshape(2, count)
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)


def key_of(molecule: str) -> int:
    """A number for a name, the same everywhere: molecules added later do not change what is drawn for the others."""
    return zlib.crc32(molecule.encode())


def draw_geometry(
    molecule: Molecule, *, seed: int, number: int, attempt: int = 0, rattle_a: float = RATTLE_A
) -> Geometry:
    """The geometry of this number; another `attempt` gives another one in its place."""
    count = len(molecule.species)
    # Zero-point motion of a harmonic bond goes with the mass to the power of -1/4.
    spread = rattle_a * np.array([_MASSES[symbol] for symbol in molecule.species]) ** -0.25
    for again in range(TRIES):
        numbers = normal(3 * count + 4, seed, key_of(molecule.name), number, attempt, again)
        moved = molecule.positions + spread[:, None] * numbers[4:].reshape(count, 3)
        if not too_close(molecule.species, moved):
            turned = moved @ _rotation(numbers[:4]).T
            return Geometry(molecule.species, turned - turned.mean(axis=0))
    raise BadInput(
        f"{TRIES} drawings of {molecule.name} with a rattle of {rattle_a:g} angstrom all brought atoms too near",
        hint=f"rattle less: {RATTLE_A:g} is the default",
    )


def too_close(species: tuple[str, ...], positions: np.ndarray) -> bool:
    """Whether two atoms are nearer than `CLOSEST` of the sum of their covalent radii. positions: (A, 3)."""
    radii = np.array([RADII_A[symbol] for symbol in species])
    first, second = np.triu_indices(len(species), 1)
    apart = np.linalg.norm(positions[first] - positions[second], axis=1)
    return bool((apart < CLOSEST * (radii[first] + radii[second])).any())


def _rotation(quaternion: np.ndarray) -> np.ndarray:
    """(3, 3): four normal numbers make every rotation equally likely."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
