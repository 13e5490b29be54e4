"""Oxides at rest, from published lattice parameters, and random cells around them.

The lattice parameters and positions are measured ones (room temperature, or the temperature at which the
phase exists). A cell is strained at random, its atoms are displaced at random, and some have a species
replaced, an oxygen atom removed, or a surface. Cells are the same on every machine, as geometries of
molecules are.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import key_of, normal
from pinchpoint.systems.density.grid.structure import Structure, close_pair

STRAIN = 0.015  # standard deviation of each component of the strain
RATTLE_A = 0.06  # standard deviation of the displacement along each axis
CLOSEST_A = 1.3  # no two atoms of a cell may be closer
TRIES = 100
VACUUM_A = 7.0  # between the two sides of a surface


@dataclass(frozen=True)
class Polymorph:
    """A crystal at rest: lattice parameters in angstrom and degrees, symmetry operations, and sites.

    centring: the lattice vectors of the cell that is used, in vectors of the conventional one.
    """

    lengths: tuple[float, float, float]
    sites: tuple[str, ...]  # "Hf 0 0 0"
    operations: str = "x,y,z"
    angles: tuple[float, float, float] = (90.0, 90.0, 90.0)
    centring: str = ""  # "", "I", "F": the primitive cell of such a lattice


def polymorph(name: str) -> Structure:
    """Return a crystal at rest by its name; raise BadInput if there is none."""
    base, *changes = name.split("+")
    if base not in TABLE:
        raise BadInput(f"There is no oxide {base!r}.", hint=f"Choose from {', '.join(TABLE)}.")
    structure = _build(TABLE[base])
    for change in changes:
        structure = _change(structure, change)
    return structure


def draw_cell(name: str, *, seed: int, number: int) -> Structure:
    """Return a strained and rattled cell of a polymorph; number 0 is the crystal at rest.

    A cell with two atoms too close together is drawn again.
    """
    rest = polymorph(name)
    if number == 0:
        return rest
    for attempt in range(TRIES):
        key = (seed, key_of(name), number, attempt)
        random = normal(6 + 3 * len(rest.species), *key)
        strain = np.zeros((3, 3))
        strain[np.triu_indices(3)] = STRAIN * random[:6]
        lattice = rest.lattice @ (np.eye(3) + (strain + strain.T) / 2)
        moves = RATTLE_A * random[6:].reshape(-1, 3)
        cell = Structure(lattice, rest.species, rest.positions + moves @ np.linalg.inv(lattice))
        if close_pair(cell, CLOSEST_A) is None:
            return cell
    raise BadInput(
        f"{TRIES} cells of {name} all have atoms closer than {CLOSEST_A:g} angstrom.",
        hint="Choose another polymorph.",
    )


def _change(structure: Structure, change: str) -> Structure:
    """Apply "vacancy", "surface", "2x1x1", or "Zr" in place of every second Hf."""
    lattice, species, positions = structure.lattice, structure.species, structure.positions
    if re.fullmatch(r"\d+x\d+x\d+", change):
        counts = [int(count) for count in change.split("x")]
        shifts = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), axis=-1).reshape(-1, 1, 3)
        many = (positions + shifts).reshape(-1, 3) / counts
        return Structure(lattice * np.array(counts)[:, None], species * len(shifts), many)
    if change == "vacancy":
        gone = len(species) - 1 - species[::-1].index("O")
        kept = [atom for atom in range(len(species)) if atom != gone]
        return Structure(lattice, tuple(species[atom] for atom in kept), positions[kept])
    if change == "surface":
        height = np.linalg.norm(lattice[2])
        taller = lattice * np.array([[1.0], [1.0], [1 + VACUUM_A / height]])
        inside = positions - np.floor(positions + 1e-9)
        return Structure(taller, species, inside @ lattice @ np.linalg.inv(taller))
    old = {"Zr": "Hf", "Hf": "Zr"}[change]
    places = [atom for atom, symbol in enumerate(species) if symbol == old][::2]
    mixed = tuple(change if atom in places else symbol for atom, symbol in enumerate(species))
    return Structure(lattice, mixed, positions)


def _build(crystal: Polymorph) -> Structure:
    a, b, c = crystal.lengths
    alpha, beta, gamma = (math.radians(angle) for angle in crystal.angles)
    x = c * math.cos(beta)
    y = c * (math.cos(alpha) - math.cos(beta) * math.cos(gamma)) / math.sin(gamma)
    lattice = np.array(
        [
            [a, 0, 0],
            [b * math.cos(gamma), b * math.sin(gamma), 0],
            [x, y, math.sqrt(c * c - x * x - y * y)],
        ]
    )
    lattice[np.abs(lattice) < 1e-12] = 0.0
    species: list[str] = []
    positions: list[np.ndarray] = []
    change = _CENTRINGS[crystal.centring]
    inverse = np.linalg.inv(change)
    for site in crystal.sites:
        symbol, *numbers = site.split()
        place = np.array([_number(number) for number in numbers])
        own: list[np.ndarray] = []
        for operation in crystal.operations.split(";"):
            image = (_apply(operation, place) @ inverse) % 1.0
            if all(np.abs((image - other) - np.round(image - other)).max() > 1e-4 for other in own):
                own.append(image)
        species += [symbol] * len(own)
        positions += own
    return Structure(change @ lattice, tuple(species), np.array(positions))


def _number(text: str) -> float:
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom or 1)


def _apply(operation: str, place: np.ndarray) -> np.ndarray:
    """Apply an operation such as "-x,y+1/2,-z+1/2" to a position."""
    result = []
    for part in operation.replace(" ", "").split(","):
        total = 0.0
        for sign, term in re.findall(r"([+-]?)([xyz]|\d+(?:/\d+)?)", part):
            value = place["xyz".index(term)] if term in "xyz" else _number(term)
            total += -value if sign == "-" else value
        result.append(total)
    return np.array(result)


_CENTRINGS = {
    "": np.eye(3),
    "I": np.array([[-0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.5, 0.5, -0.5]]),
    "F": np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]]),
}
_FACES = "x,y,z; x,y+1/2,z+1/2; x+1/2,y,z+1/2; x+1/2,y+1/2,z"
_P21C = "x,y,z; -x,y+1/2,-z+1/2; -x,-y,-z; x,-y+1/2,z+1/2"
_PBC21 = "x,y,z; -x,-y,z+1/2; -x,y+1/2,z; x,-y+1/2,z+1/2"
_PBCA = (
    "x,y,z; -x+1/2,-y,z+1/2; -x,y+1/2,-z+1/2; x+1/2,-y+1/2,-z;"
    "-x,-y,-z; x+1/2,y,-z+1/2; x,-y+1/2,z+1/2; -x+1/2,y+1/2,z"
)
_PBNM = (
    "x,y,z; x+1/2,-y+1/2,-z; -x,-y,z+1/2; -x+1/2,y+1/2,-z+1/2;"
    "-x,-y,-z; -x+1/2,y+1/2,z; x,y,-z+1/2; x+1/2,-y+1/2,z+1/2"
)
_P42MNM = "x,y,z; -x,-y,z; -y+1/2,x+1/2,z+1/2; y+1/2,-x+1/2,z+1/2"
_P3221 = "x,y,z; -y,x-y,z+2/3; -x+y,-x,z+1/3; y,x,-z; x-y,-y,-z+1/3; -x,-x+y,-z+2/3"
_P41212 = (
    "x,y,z; -x,-y,z+1/2; -y+1/2,x+1/2,z+1/4; y+1/2,-x+1/2,z+3/4;"
    "-x+1/2,y+1/2,-z+1/4; x+1/2,-y+1/2,-z+3/4; y,x,-z; -y,-x,-z+1/2"
)
_R3C = "x,y,z; z,x,y; y,z,x; -x,-y,-z; -z,-x,-y; -y,-z,-x; 1/2-y,1/2-x,1/2-z; 1/2+y,1/2+x,1/2+z"
_I41AMD = "x,y,z; -x,-y,z; y,x,-z; -y,-x,-z; -x,-y+1/2,-z+1/4; x,y+1/2,-z+1/4; -y,-x+1/2,z+1/4; y,x+1/2,z+1/4"
_WURTZITE = "x,y,z; -x,-y,z+1/2"


def _fluorite(metal: str, a: float) -> Polymorph:
    return Polymorph((a, a, a), (f"{metal} 0 0 0", "O 1/4 1/4 1/4", "O 3/4 3/4 3/4"), _FACES)


def _rocksalt(metal: str, a: float) -> Polymorph:
    return Polymorph((a, a, a), (f"{metal} 0 0 0", "O 1/2 1/2 1/2"), _FACES)


def _tetragonal(metal: str, a: float, c: float, z: float) -> Polymorph:
    other = 0.5 - z
    places = (f"0 1/2 {z}", f"0 1/2 {0.5 + z}", f"1/2 0 {-z}", f"1/2 0 {other}")
    sites = (f"{metal} 0 0 0", f"{metal} 1/2 1/2 1/2", *(f"O {place}" for place in places))
    return Polymorph((a, a, c), sites)


def _rutile(metal: str, a: float, c: float, u: float) -> Polymorph:
    return Polymorph((a, a, c), (f"{metal} 0 0 0", f"O {u} {u} 0"), _P42MNM)


def _perovskite(large: str, small: str, a: float) -> Polymorph:
    return Polymorph(
        (a, a, a), (f"{large} 1/2 1/2 1/2", f"{small} 0 0 0", "O 1/2 0 0", "O 0 1/2 0", "O 0 0 1/2")
    )


def _zircon(metal: str, a: float, c: float, u: float, v: float) -> Polymorph:
    return Polymorph((a, a, c), (f"{metal} 0 0 0", "Si 0 0 1/2", f"O 0 {u} {v}"), _I41AMD, centring="I")


TABLE: dict[str, Polymorph] = {
    "hfo2-monoclinic": Polymorph(
        (5.1156, 5.1722, 5.2948),
        ("Hf 0.2759 0.0404 0.2081", "O 0.0742 0.3313 0.3447", "O 0.4496 0.7573 0.4798"),
        _P21C,
        (90, 99.18, 90),
    ),
    "hfo2-tetragonal": _tetragonal("Hf", 3.578, 5.20, 0.195),
    "hfo2-cubic": _fluorite("Hf", 5.08),
    "hfo2-orthorhombic": Polymorph(
        (5.010, 5.234, 5.043),
        ("Hf 0.267 0.030 0.250", "O 0.068 0.361 0.106", "O 0.537 0.229 0.000"),
        _PBC21,
    ),
    "zro2-monoclinic": Polymorph(
        (5.1505, 5.2116, 5.3173),
        ("Zr 0.2754 0.0395 0.2083", "O 0.0700 0.3317 0.3447", "O 0.4496 0.7569 0.4792"),
        _P21C,
        (90, 99.23, 90),
    ),
    "zro2-tetragonal": _tetragonal("Zr", 3.640, 5.270, 0.185),
    "zro2-cubic": _fluorite("Zr", 5.09),
    "tio2-rutile": _rutile("Ti", 4.5937, 2.9587, 0.3053),
    "tio2-anatase": Polymorph((3.7845, 3.7845, 9.5143), ("Ti 0 0 0", "O 0 0 0.2081"), _I41AMD, centring="I"),
    "tio2-brookite": Polymorph(
        (9.184, 5.447, 5.145),
        ("Ti 0.1289 0.0972 0.8628", "O 0.0095 0.1491 0.1835", "O 0.2314 0.1110 0.5366"),
        _PBCA,
    ),
    "sio2-quartz": Polymorph(
        (4.9134, 4.9134, 5.4052), ("Si 0.4697 0 2/3", "O 0.4135 0.2669 0.7858"), _P3221, (90, 90, 120)
    ),
    "sio2-cristobalite": Polymorph(
        (4.9717, 4.9717, 6.9223), ("Si 0.3003 0.3003 0", "O 0.2392 0.1044 0.1787"), _P41212
    ),
    "sio2-stishovite": _rutile("Si", 4.1801, 2.6678, 0.3067),
    "al2o3-corundum": Polymorph(
        (5.128, 5.128, 5.128),
        ("Al 0.3522 0.3522 0.3522", "O 0.5563 0.9437 1/4"),
        _R3C,
        (55.28, 55.28, 55.28),
    ),
    "mgo-rocksalt": _rocksalt("Mg", 4.2112),
    "cao-rocksalt": _rocksalt("Ca", 4.8105),
    "zno-wurtzite": Polymorph(
        (3.2495, 3.2495, 5.2069), ("Zn 1/3 2/3 0", "O 1/3 2/3 0.3820"), _WURTZITE, (90, 90, 120)
    ),
    "zno-zincblende": Polymorph((4.62, 4.62, 4.62), ("Zn 0 0 0", "O 1/4 1/4 1/4"), _FACES),
    "mgal2o4-spinel": Polymorph(
        (8.0832, 8.0832, 8.0832),
        (
            "Mg 1/8 1/8 1/8",
            "Al 1/2 1/2 1/2",
            "O 0.2624 0.2624 0.2624",
        ),
        "x,y,z; x,1/4-y,1/4-z; 1/4-x,y,1/4-z; 1/4-x,1/4-y,z; -x,-y,-z; -x,3/4+y,3/4+z; 3/4+x,-y,3/4+z;"
        "3/4+x,3/4+y,-z",
        centring="F",
    ),
    "catio3-cubic": _perovskite("Ca", "Ti", 3.84),
    "catio3-orthorhombic": Polymorph(
        (5.3796, 5.4423, 7.6401),
        ("Ca 0.9935 0.0359 1/4", "Ti 0 1/2 0", "O 0.0714 0.4838 1/4", "O 0.7108 0.2888 0.0371"),
        _PBNM,
    ),
    "cazro3-cubic": _perovskite("Ca", "Zr", 4.11),
    "zrsio4-zircon": _zircon("Zr", 6.607, 5.982, 0.1839, 0.3203),
    "hfsio4-zircon": _zircon("Hf", 6.5725, 5.9632, 0.1839, 0.3203),
}
