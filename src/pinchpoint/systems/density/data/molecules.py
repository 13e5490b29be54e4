"""Molecules of H, C, N and O at rest, and random geometries around them.

All have closed shells. The table in this file has at most five heavy atoms and was relaxed with PBE and the
pseudopotentials and basis of `quantum`, to forces below 0.1 eV per angstrom. Its held-out molecules combine
environments of the training molecules: ethanol those of methanol and propane, acetaldehyde those of
formaldehyde and acetone, acetamide those of formamide and acetone.

The table in `molecules.txt` has up to nine heavy atoms: rings, aromatics, triple and cumulated bonds, N-N,
O-O, N-oxides and nitro groups. Its geometries are the best of ten conformers of RDKit's force field (MMFF94);
molecules that the force field gets wrong, such as N2, CO2 and chains of triple bonds, were relaxed like the
first table. The set `WIDE` is both tables; `WIDE_HELD_OUT` was drawn at random from its molecules with at
least three heavy atoms (`draw_held_out`) before any model was trained on the others.

The table in `enumerated.npz` has 1,702 further molecules for training, up to nine heavy atoms. They were not
chosen but enumerated: all molecules of three and four heavy atoms that certain rules allow, and random larger
ones, none of which has the bonds of a molecule of the other tables (`benchmarks/density/
enumerate_molecules.py`). Their names are a formula and a number, and the file has their SMILES.

In a geometry, the atoms are displaced as by zero-point motion, and the molecule is rotated at random. It is
the same on every machine and with every version of numpy: it uses only raw bits of the generator, whose
stream is fixed, and closed forms of them. A geometry with two atoms too close together is rejected and drawn
again. Letters: A atoms.
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput

# Electrons outside the pseudopotentials: of molecules, then of oxides, whose metals keep their outer core.
VALENCE = {"H": 1, "C": 4, "N": 5, "O": 6}
VALENCE |= {"Mg": 10, "Al": 3, "Si": 4, "Ca": 10, "Ti": 12, "Zn": 12, "Zr": 12, "Hf": 12}
RADII_A = {"H": 0.31, "C": 0.76, "N": 0.71, "O": 0.66}  # covalent
HELD_OUT = ("ethanol", "acetaldehyde", "acetamide")
FURTHER = Path(__file__).with_name("molecules.txt")
ENUMERATED = Path(__file__).with_name("enumerated.npz")
RATTLE_A = 0.08  # standard deviation of the displacement along each axis, for an atom of mass 1
CLOSEST = 0.75  # fraction of the sum of two covalent radii; no two atoms may be closer
TRIES = 100
_MASSES = {"H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999}


@dataclass(frozen=True, eq=False)
class Molecule:
    """A molecule at rest. species: A symbols; positions: (A, 3) float64 in angstrom."""

    name: str
    species: tuple[str, ...]
    positions: np.ndarray

    @property
    def electrons(self) -> int:
        """The number of valence electrons."""
        return sum(VALENCE[symbol] for symbol in self.species)


def names() -> tuple[str, ...]:
    """Return the names of all molecules in the first two tables."""
    return tuple(block.split("\n", 1)[0] for block in _blocks())


def enumerated_names() -> tuple[str, ...]:
    """Return the names of the enumerated molecules: the smallest first, then in random order."""
    with np.load(ENUMERATED) as table:
        return tuple(table["names"].tobytes().decode().split("\n"))


def _blocks() -> list[str]:
    return [*_TABLE, *FURTHER.read_text(encoding="utf-8").strip().split("\n\n")]


@cache  # the files are part of the package and do not change
def _molecules() -> dict[str, Molecule]:
    """Return the molecules of all tables by their names."""
    known: list[Molecule] = []
    for block in _blocks():
        name, *lines = block.splitlines()
        atoms = [line.split() for line in lines]
        positions = np.array([atom[1:] for atom in atoms], dtype=np.float64)
        known.append(Molecule(name, tuple(atom[0] for atom in atoms), positions))
    with np.load(ENUMERATED) as table:
        counts, positions = table["atoms"].astype(int), table["positions_milli_a"] / 1000
        symbols = np.array([*RADII_A])[table["species"]].tolist()
    start = 0
    for name, count in zip(enumerated_names(), counts.tolist(), strict=True):
        known.append(Molecule(name, tuple(symbols[start : start + count]), positions[start : start + count]))
        start += count
    return {each.name: each for each in known}


def draw_held_out(pool: Sequence[str], *, count: int, key: int) -> tuple[str, ...]:
    """Return `count` names of the pool, drawn at random with this key, in alphabetical order."""
    order = np.argsort(uniform(len(pool), key), kind="stable")
    return tuple(sorted(sorted(pool)[at] for at in order[:count]))


def molecule(name: str) -> Molecule:
    """Return a molecule by its name; raise BadInput if there is none."""
    if (known := _molecules().get(name)) is not None:
        return replace(known, positions=known.positions.copy())
    few = ", ".join(difflib.get_close_matches(name, names(), n=5, cutoff=0.4) or TRAINING[:5])
    raise BadInput(
        f"There is no molecule {name!r}.",
        hint=f"Choose from the names in systems/density/data/molecules.py and molecules.txt, such as {few}.",
    )


# A name, then one atom per line: symbol and position in angstrom.
_TABLE = """
water
O -0.2487 0.0000 -0.3184
H 0.7286 0.0000 -0.3129
H -0.4799 0.0000 0.6313

ammonia
N -0.1107 -0.2320 -0.1507
H 0.9215 -0.2215 -0.1439
H -0.4054 -0.2221 0.8385
H -0.4054 0.6756 -0.5439

methane
C 0.0000 0.0000 0.0000
H 1.1080 0.0000 0.0000
H -0.3693 0.0000 1.0447
H -0.3693 0.9047 -0.5223
H -0.3693 -0.9047 -0.5223

methanol
C -0.3293 0.0000 -0.1420
O 1.1050 0.0000 -0.1559
H 1.3935 0.0000 0.7771
H -0.6598 0.0000 -1.2025
H -0.7546 0.9026 0.3617
H -0.7546 -0.9026 0.3617

methylamine
C -0.5555 0.1134 -0.0717
N 0.9167 0.1216 -0.0789
H 1.2606 0.1128 0.8938
H 1.2604 -0.7566 -0.4979
H -1.0347 -0.7475 0.4604
H -0.9231 1.0418 0.4150
H -0.9244 0.1144 -1.1206

ethane
C -0.7677 0.0000 0.0000
C 0.7677 0.0000 0.0000
H -1.1672 0.0000 1.0369
H -1.1672 0.8980 -0.5185
H -1.1672 -0.8980 -0.5185
H 1.1672 -0.8980 0.5185
H 1.1672 0.0000 -1.0369
H 1.1672 0.8980 0.5185

ethylene
C -0.6762 0.0000 0.0000
C 0.6762 0.0000 0.0000
H -1.2467 0.0000 0.9446
H -1.2467 0.0000 -0.9446
H 1.2467 0.0000 0.9446
H 1.2467 0.0000 -0.9446

acetylene
C 0.0000 0.0000 0.6156
C 0.0000 0.0000 -0.6156
H 0.0000 0.0000 1.6980
H 0.0000 0.0000 -1.6980

formaldehyde
C -0.0062 0.0000 0.0000
O 1.2135 0.0000 0.0000
H -0.6036 0.0000 0.9562
H -0.6036 0.0000 -0.9562

hydrogen-cyanide
C 0.0000 0.0000 -0.0291
N 0.0000 0.0000 1.1467
H 0.0000 0.0000 -1.1176

formic-acid
C 0.0744 0.0000 -0.4154
O 1.2930 0.0000 -0.4135
O -0.7129 0.0000 0.6969
H -0.5698 0.0000 -1.3262
H -0.0847 0.0000 1.4582

formamide
C 0.3869 0.0000 -0.5471
O 1.6175 0.0000 -0.5382
N -0.4051 0.0000 0.5771
H -0.2209 0.0000 -1.4938
H 0.0473 0.0000 1.4970
H -1.4257 0.0000 0.5049

acetonitrile
C 0.0000 0.0000 0.9681
N 0.0000 0.0000 2.1475
C 0.0000 0.0000 -0.4979
H 1.0437 0.0000 -0.8726
H -0.5219 0.9039 -0.8726
H -0.5219 -0.9039 -0.8726

dimethyl-ether
O -0.4850 0.0000 -0.7123
C 0.9347 0.0000 -0.6970
C -0.9911 0.0000 0.6142
H 1.2657 0.0000 -1.7532
H 1.3404 -0.9034 -0.1760
H 1.3404 0.9034 -0.1760
H -2.0952 0.0000 0.5351
H -0.6550 0.9034 1.1826
H -0.6550 -0.9034 1.1826

propane
C -0.3449 0.0000 -0.5156
C 1.1904 0.0000 -0.5178
C -0.9327 0.0000 0.9022
H -0.7160 0.8925 -1.0676
H -0.7160 -0.8925 -1.0676
H 1.5901 0.0000 -1.5542
H 1.5877 -0.8985 0.0050
H 1.5877 0.8985 0.0050
H -2.0430 0.0000 0.8737
H -0.6016 0.8988 1.4684
H -0.6016 -0.8988 1.4684

acetone
C 0.6458 0.0000 0.0000
O 1.8762 0.0000 0.0000
C -0.1563 0.0000 1.2945
C -0.1563 0.0000 -1.2945
H 0.5290 0.0000 2.1624
H -0.8168 0.8934 1.3350
H -0.8168 -0.8934 1.3350
H 0.5290 0.0000 -2.1624
H -0.8168 -0.8934 -1.3350
H -0.8168 0.8934 -1.3350

ethanol
C -0.5155 0.0000 -0.1843
C 1.0063 0.0000 -0.1864
O -0.9438 0.0000 1.1924
H -1.9205 0.0000 1.1861
H -0.8967 0.9011 -0.7251
H -0.8967 -0.9011 -0.7251
H 1.3891 0.0000 -1.2283
H 1.3888 -0.9014 0.3354
H 1.3888 0.9014 0.3354

acetaldehyde
C 0.4855 0.0000 -0.7061
O 1.7106 0.0000 -0.7070
C -0.3596 0.0000 0.5477
H -0.0892 0.0000 -1.6829
H 0.2939 0.0000 1.4403
H -1.0206 0.8948 0.5540
H -1.0206 -0.8948 0.5540

acetamide
C 0.6032 0.0000 -0.1855
O 1.8395 0.0000 -0.1973
C -0.2243 0.0000 1.0973
N -0.1397 0.0000 -1.3542
H 0.3722 0.0000 -2.2409
H -1.1626 0.0000 -1.3577
H 0.4631 0.0000 1.9622
H -0.8756 0.8976 1.1380
H -0.8756 -0.8976 1.1380
""".strip().split("\n\n")

TRAINING = tuple(name for name in (block.split("\n", 1)[0] for block in _TABLE) if name not in HELD_OUT)
WIDE_HELD_OUT = (
    "1,2,3-triazole",
    "1,2-dimethylhydrazine",
    "N-nitrosodimethylamine",
    "acetic-anhydride",
    "acetohydrazide",
    "acetonitrile",
    "acrolein",
    "aniline",
    "benzonitrile",
    "but-2-yne",
    "cyclohexene",
    "cyclopentane",
    "cyclopentanone",
    "diazirine",
    "formyl-cyanide",
    "glyoxal",
    "imidazole",
    "isopropylamine",
    "lactic-acid",
    "methyl-isocyanate",
    "methyldiazene",
    "methylurea",
    "nitroethene",
    "propylamine",
    "urea",
)
WIDE_TRAINING = tuple(name for name in names() if name not in WIDE_HELD_OUT)


@dataclass(frozen=True, eq=False)
class Geometry:
    """A displaced molecule.

    species: A symbols; positions: (A, 3) float64 in angstrom, their mean at the origin.
    """

    species: tuple[str, ...]
    positions: np.ndarray


def uniform(count: int, *key: int) -> np.ndarray:
    """Return (count,) float64 in (0, 1), determined by the key; never 0, so that logarithms are finite."""
    raw = np.random.PCG64(np.random.SeedSequence([*key])).random_raw(count)
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normal(count: int, *key: int) -> np.ndarray:
    """Return (count,) float64 with mean 0 and standard deviation 1, determined by the key."""
    radius, angle = uniform(2 * count, *key).reshape(2, count)
    return np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)


def key_of(molecule: str) -> int:
    """Return a number for a name, the same on every machine.

    Because it depends on nothing else, a new molecule does not change the geometries of the others.
    """
    return zlib.crc32(molecule.encode())


def draw_geometry(
    molecule: Molecule, *, seed: int, number: int, attempt: int = 0, rattle_a: float = RATTLE_A
) -> Geometry:
    """Return the geometry with this number; another `attempt` gives a replacement."""
    count = len(molecule.species)
    # Zero-point motion of a harmonic bond scales with the mass to the power of -1/4.
    spread = rattle_a * np.array([_MASSES[symbol] for symbol in molecule.species]) ** -0.25
    for again in range(TRIES):
        numbers = normal(3 * count + 4, seed, key_of(molecule.name), number, attempt, again)
        displaced = molecule.positions + spread[:, None] * numbers[4:].reshape(count, 3)
        if not too_close(molecule.species, displaced):
            rotated = displaced @ _rotation(numbers[:4]).T
            return Geometry(molecule.species, rotated - rotated.mean(axis=0))
    raise BadInput(
        f"All {TRIES} geometries of {molecule.name} with a rattle of {rattle_a:g} angstrom have atoms too "
        "close together.",
        hint=f"Use a smaller rattle; the default is {RATTLE_A:g}.",
    )


def too_close(species: tuple[str, ...], positions: np.ndarray) -> bool:
    """Return whether two atoms are closer than `CLOSEST` times the sum of their covalent radii.

    positions: (A, 3).
    """
    radii = np.array([RADII_A[symbol] for symbol in species])
    first, second = np.triu_indices(len(species), 1)
    apart = np.linalg.norm(positions[first] - positions[second], axis=1)
    return bool((apart < CLOSEST * (radii[first] + radii[second])).any())


def _rotation(quaternion: np.ndarray) -> np.ndarray:
    """Return a rotation (3, 3) from four normal random numbers; all rotations are equally likely."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
