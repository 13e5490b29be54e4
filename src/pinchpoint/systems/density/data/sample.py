"""Sample: a molecule with its density at probes; how it is made from a seed and what its file holds.

Letters: A atoms, P probes. A file is an .npz with the positions of the atoms, a 16-bit code of each value and `about`, a JSON
text with the rest: what the sample was made from, its quality, its faults and a sha256 of all it holds. Probes are not
stored: they are drawn again from the same seed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common import sample_file
from pinchpoint.systems.common.sample_file import FAILURES, packed
from pinchpoint.systems.density.data.molecules import VALENCE, Geometry, draw_geometry, key_of, molecule
from pinchpoint.systems.density.data.probes import Probes, draw_probes, grid_probes
from pinchpoint.systems.density.data.quantum import Solution, solve

FLOOR = 2e-4  # e / A^3: well below it codes are spaced evenly, well above it their logarithms are
TOP_CODE = 65_535
TOP_SIGNED = 32_767


def encode(values: np.ndarray, top: float) -> np.ndarray:
    """(P,) uint16 of values in [0, top]."""
    return np.rint(TOP_CODE * np.log1p(values / FLOOR) / math.log1p(top / FLOOR)).astype(np.uint16)


def decode(codes: np.ndarray, top: float) -> np.ndarray:
    """(P,) float64 of what `encode` or `encode_signed` gave."""
    if codes.dtype == np.int16:
        return (
            np.sign(codes)
            * FLOOR
            * np.expm1(np.abs(codes.astype(np.float64)) * (math.log1p(top / FLOOR) / TOP_SIGNED))
        )
    return FLOOR * np.expm1(codes.astype(np.float64) * (math.log1p(top / FLOOR) / TOP_CODE))


def encode_signed(values: np.ndarray, top: float) -> np.ndarray:
    """(P,) int16 of values in [-top, top]: half as fine as `encode`."""
    if not top > 0:
        return np.zeros(len(values), np.int16)
    size = np.log1p(np.abs(values) / FLOOR) / math.log1p(top / FLOOR)
    return np.rint(np.sign(values) * TOP_SIGNED * size).astype(np.int16)


def opened(data: bytes, *, where: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the text of a file; BadInput names it where it is none, or not as it was written."""
    try:
        return sample_file.opened(data)
    except sample_file.FAILURES as error:
        raise no_sample(where, error) from error


def no_sample(where: str, error: Exception) -> BadInput:
    """The error for a file that cannot be read as a sample."""
    return BadInput(
        f"{where} is not a sample of a data set: {error}",
        hint="name a file made by `pinchpoint density data`",
    )


Kind = Literal["probes", "grid"]
# Rises with every change that gives a sample other numbers; a data set of another generator is not continued.
GENERATOR = 1
CODE_LIMIT, CODE_FROM = 1e-4, 1e-3  # the code's error: of a value above 1e-3 e / A^3, of 1e-3 below it
GRID_LIMIT = 5e-3  # of the electrons: what may lie beyond the box or between the points of a grid
ATTEMPTS = 3
_GEOMETRY, _PROBES = 0, 1  # of the key: the two draw different numbers


@dataclass(frozen=True)
class Order:
    """One sample to make: all that decides its numbers."""

    name: str
    molecule: str
    number: int
    kind: Kind
    seed: int
    probes: int  # of a sample of probes
    spacing_a: float  # of a grid
    padding_a: float
    rattle_a: float
    level: int
    generator: int = GENERATOR


@dataclass(frozen=True, eq=False)
class Sample:
    """positions: (A, 3) and probes: (P, 3) float64, cartesian; values: (P,) float32 in e/A^3; weights: (P,) float64.

    The sum of weight * |x| estimates the integral of |x| over space, or over the cell. `grid`: the counts of a full grid, z
    fastest.
    """

    name: str
    molecule: str  # or the formula of a crystal
    species: tuple[str, ...]
    positions: np.ndarray
    lattice: np.ndarray | None  # (3, 3) rows; None for a molecule: it has no images
    probes: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    electrons: float
    spin: np.ndarray | None = (
        None  # (P,) float32, up less down; None where it is not known, or every shell is closed
    )
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, eq=False)
class Made:
    """What a file holds."""

    order: Order
    positions: np.ndarray  # (A, 3)
    codes: np.ndarray  # (P,) uint16
    top: float  # value of the highest code
    attempts: int  # how many geometries were drawn: more than 1 where a field did not converge
    quality: dict[str, float]
    faults: tuple[str, ...]  # why it is left out of the splits; empty for a good sample


def make_sample(order: Order) -> Made:
    """Draw a geometry, solve it and measure its density at the probes; a geometry without a solution is drawn again."""
    known = molecule(order.molecule)
    for attempt in range(ATTEMPTS):
        drawn = draw_geometry(
            known,
            seed=order.seed,
            number=2 * order.number + _GEOMETRY,
            attempt=attempt,
            rattle_a=order.rattle_a,
        )
        solution = solve(drawn.species, drawn.positions, level=order.level)
        if solution.converged:
            return _measure(order, drawn, solution, attempts=attempt + 1)
    faults = (f"{ATTEMPTS} geometries did not converge",)
    return Made(order, known.positions, np.zeros(0, np.uint16), 0.0, ATTEMPTS, {}, faults)


def sample_of(made: Made) -> Sample:
    """The sample with its probes drawn again."""
    species = molecule(made.order.molecule).species
    probes = _probes(made.order, species, made.positions)
    if len(probes.points) != len(made.codes):
        raise BadInput(
            f"{made.order.name} holds {len(made.codes):,} values for {len(probes.points):,} probes",
            hint="leave out samples with faults; a data set of another version is made again",
        )
    return Sample(
        made.order.name,
        made.order.molecule,
        species,
        made.positions,
        None,
        probes.points,
        decode(made.codes, made.top).astype(np.float32),
        probes.weights,
        float(sum(VALENCE[symbol] for symbol in species)),
        grid=probes.grid,
    )


def pack(made: Made) -> bytes:
    """The bytes of a file: the same for the same sample."""
    about = {key: getattr(made, key) for key in ("top", "attempts", "quality", "faults")} | {
        "order": asdict(made.order)
    }
    return packed({"positions": made.positions, "codes": made.codes}, about)


def unpack(data: bytes, *, where: str) -> Made:
    """What the bytes of a file hold; BadInput names the file where they are none, or not as they were written."""
    arrays, about = opened(data, where=where)
    try:
        return Made(
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


def _measure(order: Order, drawn: Geometry, solution: Solution, *, attempts: int) -> Made:
    probes = _probes(order, drawn.species, drawn.positions)
    # A density is nowhere below zero; rounding may be.
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
    return Made(order, drawn.positions, codes, top, attempts, quality, tuple(faults))


def _probes(order: Order, species: tuple[str, ...], positions: np.ndarray) -> Probes:
    if order.kind == "grid":
        return grid_probes(positions, spacing_a=order.spacing_a, padding_a=order.padding_a)
    key = (order.seed, key_of(order.molecule), 2 * order.number + _PROBES)
    return draw_probes(species, positions, count=order.probes, key=key)
