"""Sample: a molecule or crystal with its density at probes; making and storing of molecular samples.

Letters: A atoms, P probes. A file is an .npz with the positions of the atoms, a 16-bit code for each value,
and `about`, a JSON text with everything else: how the sample was made, its quality, its faults, and a sha256
of the contents. Probes are not stored; they are drawn again from the same seed. Codes are linear below
`FLOOR` and logarithmic above it, so that a value of any size is accurate to about 1e-4.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data import sample_file
from pinchpoint.systems.common.data.sample_file import FAILURES, pack_arrays
from pinchpoint.systems.density.data.molecules import VALENCE, Geometry, draw_geometry, key_of, molecule
from pinchpoint.systems.density.data.probes import Probes, draw_probes, grid_probes
from pinchpoint.systems.density.data.quantum import Solution, solve

FLOOR = 2e-4  # e / A^3: codes are linear in the value well below it and in its logarithm well above it
TOP_CODE = 65_535
TOP_SIGNED = 32_767


def encode(values: np.ndarray, top: float) -> np.ndarray:
    """Return the codes (P,) uint16 of values in [0, top]."""
    return np.rint(TOP_CODE * np.log1p(values / FLOOR) / math.log1p(top / FLOOR)).astype(np.uint16)


def decode(codes: np.ndarray, top: float) -> np.ndarray:
    """Return the values (P,) float64 for codes from `encode` or `encode_signed`."""
    if codes.dtype == np.int16:
        return (
            np.sign(codes)
            * FLOOR
            * np.expm1(np.abs(codes.astype(np.float64)) * (math.log1p(top / FLOOR) / TOP_SIGNED))
        )
    return FLOOR * np.expm1(codes.astype(np.float64) * (math.log1p(top / FLOOR) / TOP_CODE))


def encode_signed(values: np.ndarray, top: float) -> np.ndarray:
    """Return the codes (P,) int16 of values in [-top, top], half as fine as those of `encode`."""
    if not top > 0:
        return np.zeros(len(values), np.int16)
    size = np.log1p(np.abs(values) / FLOOR) / math.log1p(top / FLOOR)
    return np.rint(np.sign(values) * TOP_SIGNED * size).astype(np.int16)


def unpack_arrays(data: bytes, *, where: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the JSON of a file; raise BadInput, naming the file, if it is not a sample."""
    try:
        return sample_file.unpack_arrays(data)
    except sample_file.FAILURES as error:
        raise no_sample(where, error) from error


def no_sample(where: str, error: Exception) -> BadInput:
    """Return the error for a file that cannot be read as a sample."""
    return BadInput(
        f"{where} is not a sample of a dataset: {error}.",
        hint="Give a file written by `pinchpoint density data`.",
    )


Kind = Literal["probes", "grid"]
# Incremented with every change to the numbers of a sample; datasets of another generator are not continued.
GENERATOR = 1
CODE_LIMIT, CODE_FROM = 1e-4, 1e-3  # error of the code, relative to the value or to 1e-3 e / A^3 if larger
GRID_LIMIT = 5e-3  # fraction of the electrons that a grid may miss
ATTEMPTS = 3
_GEOMETRY, _PROBES = 0, 1  # part of the key, so that the two use different random numbers


@dataclass(frozen=True)
class Order:
    """One sample to make: everything that determines its numbers."""

    name: str
    molecule: str
    number: int
    kind: Kind
    seed: int
    probes: int  # number of probes, for kind "probes"
    spacing_a: float  # of the grid, for kind "grid"
    padding_a: float
    rattle_a: float
    level: int
    generator: int = GENERATOR


@dataclass(frozen=True, eq=False)
class Sample:
    """A structure with its density at probes.

    positions: (A, 3) and probes: (P, 3) float64, Cartesian; values: (P,) float32 in e/A^3; weights: (P,)
    float64. The sum of weight * |x| estimates the integral of |x| over space, or over the cell of a crystal.
    grid: points along each axis if the probes are a full grid, z fastest.
    """

    name: str
    molecule: str  # the name of a molecule, or the formula of a crystal
    species: tuple[str, ...]
    positions: np.ndarray
    lattice: np.ndarray | None  # (3, 3), vectors are rows; None for a molecule, which has no images
    probes: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    electrons: float
    spin: np.ndarray | None = None  # (P,) float32, up - down; None if it is unknown or all shells are closed
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, eq=False)
class StoredSample:
    """The contents of a sample file."""

    order: Order
    positions: np.ndarray  # (A, 3)
    codes: np.ndarray  # (P,) uint16
    top: float  # value of the highest code
    attempts: int  # geometries drawn; more than 1 if a calculation did not converge
    quality: dict[str, float]
    faults: tuple[str, ...]  # reasons to leave the sample out of the splits; empty for a good sample


def make_sample(order: Order) -> StoredSample:
    """Draw a geometry and compute its density at the probes.

    If the calculation does not converge, another geometry is drawn.
    """
    known = molecule(order.molecule)
    for attempt in range(ATTEMPTS):
        geometry = draw_geometry(
            known,
            seed=order.seed,
            number=2 * order.number + _GEOMETRY,
            attempt=attempt,
            rattle_a=order.rattle_a,
        )
        solution = solve(geometry.species, geometry.positions, level=order.level)
        if solution.converged:
            return _measure(order, geometry, solution, attempts=attempt + 1)
    faults = (f"{ATTEMPTS} geometries did not converge",)
    return StoredSample(order, known.positions, np.zeros(0, np.uint16), 0.0, ATTEMPTS, {}, faults)


def sample_of(contents: StoredSample) -> Sample:
    """Return the sample with its probes drawn again."""
    species = molecule(contents.order.molecule).species
    probes = _probes(contents.order, species, contents.positions)
    if len(probes.points) != len(contents.codes):
        raise BadInput(
            f"{contents.order.name} has {len(contents.codes):,} values for {len(probes.points):,} probes.",
            hint="Leave out samples with faults, or make the dataset again if another version wrote it.",
        )
    return Sample(
        contents.order.name,
        contents.order.molecule,
        species,
        contents.positions,
        None,
        probes.points,
        decode(contents.codes, contents.top).astype(np.float32),
        probes.weights,
        float(sum(VALENCE[symbol] for symbol in species)),
        grid=probes.grid,
    )


def pack(contents: StoredSample) -> bytes:
    """Return the bytes of a sample file. They are the same for the same sample."""
    about = {key: getattr(contents, key) for key in ("top", "attempts", "quality", "faults")} | {
        "order": asdict(contents.order)
    }
    return pack_arrays({"positions": contents.positions, "codes": contents.codes}, about)


def unpack(data: bytes, *, where: str) -> StoredSample:
    """Return the contents of a sample file; raise BadInput, naming the file, if it is not a sample."""
    arrays, about = unpack_arrays(data, where=where)
    try:
        return StoredSample(
            Order(**about["order"]),
            arrays["positions"],
            arrays["codes"],
            about["top"],
            about["attempts"],
            about["quality"],
            tuple(about["faults"]),
        )
    except FAILURES as error:
        raise no_sample(where, error) from error


def _measure(order: Order, geometry: Geometry, solution: Solution, *, attempts: int) -> StoredSample:
    probes = _probes(order, geometry.species, geometry.positions)
    # A density is never negative, except for rounding errors.
    values = np.maximum(solution.density(probes.points), 0.0)
    top = float(values.max())
    codes = encode(values, top)
    parts = probes.weights * values
    integral = float(parts.sum())
    quality = {
        "energy_hartree": solution.energy,
        "electrons": float(solution.electrons),
        "integral": integral,
        "code_error": float((np.abs(decode(codes, top) - values) / np.maximum(values, CODE_FROM)).max()),
    }
    faults = []
    if order.kind == "grid":
        allowed = GRID_LIMIT * solution.electrons
    else:
        quality["integral_error"] = float(parts.std() * math.sqrt(len(parts)))  # one standard deviation
        allowed = 5 * quality["integral_error"]
    if not abs(integral - solution.electrons) <= allowed:
        faults.append(f"the integral is {integral:.4f} for {solution.electrons} electrons")
    if not quality["code_error"] <= CODE_LIMIT:
        faults.append(f"the 16-bit code is wrong by {quality['code_error']:.2e}")
    return StoredSample(order, geometry.positions, codes, top, attempts, quality, tuple(faults))


def _probes(order: Order, species: tuple[str, ...], positions: np.ndarray) -> Probes:
    if order.kind == "grid":
        return grid_probes(positions, spacing_a=order.spacing_a, padding_a=order.padding_a)
    key = (order.seed, key_of(order.molecule), 2 * order.number + _PROBES)
    return draw_probes(species, positions, count=order.probes, key=key)
