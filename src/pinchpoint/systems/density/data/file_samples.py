"""Samples of density files: a crystal with its density, and spin density, at points of the file's own grid.

Letters: A atoms, P probes. Training samples hold points drawn by a known law, test samples the whole grid, or every so manyth
point of one that is too large. A sample's file holds the crystal and a 16-bit code of each value; which points they belong to
follows from the seed, and a sha256 of them is compared whenever they are drawn again.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.sample_file import FAILURES, packed
from pinchpoint.systems.density.data.probes import Grid, Picked, draw_points, grid_part, places
from pinchpoint.systems.density.data.sample import (
    Kind,
    Sample,
    decode,
    encode,
    encode_signed,
    no_sample,
    opened,
)
from pinchpoint.systems.density.files.file_io import read_blob
from pinchpoint.systems.density.files.formats import read_volume
from pinchpoint.systems.density.files.volume import Volume, check_volume
from pinchpoint.systems.density.grid.structure import Structure

# Another word than the number of the molecules' generator: neither kind of set is continued as the other.
GENERATOR = "files 1"
NEGATIVE = 0.1  # of the electrons: what may lie below zero, by the ripples of plane waves
FEWEST = 0.01  # electrons
CODE_LIMIT, CODE_FROM = 5e-4, 1e-3  # the code's error: of a value above 1e-3 e / A^3, of 1e-3 below it
_ALIKE = 5  # decimals to which two structures are the same


@dataclass(frozen=True)
class FileOrder:
    """One sample to make of a file."""

    name: str
    source: str  # path of the file; not kept, so that a sample does not depend on where the file lay
    content: str  # sha256 of the file's bytes, unpacked
    kind: Kind
    seed: int
    probes: int  # of a sample of probes
    grid_points: int  # the most of a grid
    generator: str = GENERATOR


@dataclass(frozen=True, eq=False)
class Imported:
    """What a sample's file holds. codes, spin_codes: (P,) uint16, or int16 where values lie below zero."""

    order: FileOrder
    structure: Structure
    grid: Grid  # of the file
    codes: np.ndarray
    top: float
    spin_codes: np.ndarray | None
    spin_top: float
    electrons: float
    stride: Grid | None
    points_sha256: str
    quality: dict[str, float]
    faults: tuple[str, ...]


def import_sample(order: FileOrder) -> Imported:
    """Read the file, refuse it where it is no density, and keep some of its points."""
    if hashlib.sha256(read_blob(order.source)).hexdigest() != order.content:
        raise BadInput(
            f"{order.source} changed while it was read",
            hint="wait until it is whole, then run the command again",
        )
    try:
        volume = check_volume(read_volume(order.source))
        _check_density(volume)
    except BadInput as error:
        what = error.what if order.source in error.what else f"{order.source}: {error.what}"
        raise BadInput(what, hint=error.hint) from error
    picked = _picked(order, volume.structure, volume.grid)
    values = volume.total.reshape(-1)[picked.index]
    codes, top = _coded(values)
    spin = None if volume.spin is None else volume.spin.reshape(-1)[picked.index]
    spin_codes, spin_top = (None, 0.0) if spin is None else _coded(spin, signed=True)
    quality = {
        "electrons": volume.electrons,
        "integral": float((picked.weights * values).sum()),
        "code_error": _code_error(codes, top, values),
    }
    if order.kind == "probes":
        quality["integral_error"] = float(
            (picked.weights * values).std() * np.sqrt(len(values))
        )  # one standard deviation
    if spin is not None and spin_codes is not None:
        quality |= {"moment": volume.moment, "spin_code_error": _code_error(spin_codes, spin_top, spin)}
    faults = tuple(
        f"the 16-bit code is wrong by {quality[key]:.2e}"
        for key in ("code_error", "spin_code_error")
        if not quality.get(key, 0.0) <= CODE_LIMIT
    )
    return Imported(
        order,
        volume.structure,
        volume.grid,
        codes,
        top,
        spin_codes,
        spin_top,
        volume.electrons,
        picked.stride,
        picked.sha256,
        quality,
        faults,
    )


def imported_sample(made: Imported) -> Sample:
    """The sample with its points found again."""
    order, structure = made.order, made.structure
    picked = _picked(order, structure, made.grid)
    if picked.sha256 != made.points_sha256 or len(picked.index) != len(made.codes):
        raise BadInput(
            f"the points drawn for {order.name} are not those its values belong to",
            hint="make the data set again with this version and machine: pinchpoint density data --from",
        )
    spin = None if made.spin_codes is None else decode(made.spin_codes, made.spin_top).astype(np.float32)
    return Sample(
        order.name,
        structure.formula,
        structure.species,
        structure.cartesian,
        structure.lattice,
        places(picked.index, made.grid, structure.lattice),
        decode(made.codes, made.top).astype(np.float32),
        picked.weights,
        made.electrons,
        spin,
        made.grid if made.stride == (1, 1, 1) else None,
    )


def entry_of(made: Imported) -> dict[str, Any]:
    """For the index."""
    return {
        "atoms": len(made.structure.species),
        "probes": len(made.codes),
        "attempts": 1,
        "quality": made.quality,
        "faults": list(made.faults),
        "kind": made.order.kind,
        "content": made.order.content,
        "species": sorted(set(made.structure.species)),
        "spin": made.spin_codes is not None,
        "grid": list(made.grid),
        "stride": None if made.stride is None else list(made.stride),
        "alike": _alike(made.structure, made.grid),
    }


def pack_imported(made: Imported) -> bytes:
    arrays = {"lattice": made.structure.lattice, "positions": made.structure.positions, "codes": made.codes}
    if made.spin_codes is not None:
        arrays["spin_codes"] = made.spin_codes
    order = asdict(made.order)
    del order["source"]
    keys = ("grid", "top", "spin_top", "electrons", "stride", "points_sha256", "quality", "faults")
    return packed(
        arrays,
        {key: getattr(made, key) for key in keys} | {"species": made.structure.species, "order": order},
    )


def unpack_imported(data: bytes, *, where: str) -> Imported:
    arrays, about = opened(data, where=where)
    try:
        structure = Structure(arrays["lattice"], tuple(about["species"]), arrays["positions"])
        nx, ny, nz = about["grid"]
        stride = (
            None if about["stride"] is None else (about["stride"][0], about["stride"][1], about["stride"][2])
        )
        return Imported(
            FileOrder(source="", **about["order"]),
            structure,
            (nx, ny, nz),
            arrays["codes"],
            about["top"],
            arrays.get("spin_codes"),
            about["spin_top"],
            about["electrons"],
            stride,
            about["points_sha256"],
            about["quality"],
            tuple(about["faults"]),
        )
    except FAILURES as error:
        raise no_sample(where, error) from error


def _check_density(volume: Volume) -> None:
    below = -float(np.minimum(volume.total, 0).mean()) * volume.structure.volume
    if volume.electrons < FEWEST or below > NEGATIVE * volume.electrons:
        raise BadInput(
            f"it integrates to {volume.electrons:.4g} electrons, {below:.4g} of them below zero",
            hint="give the density of all valence electrons: no difference, spin alone or potential",
        )


def _picked(order: FileOrder, structure: Structure, grid: Grid) -> Picked:
    if order.kind == "grid":
        return grid_part(structure, grid, most=order.grid_points)
    return draw_points(structure, grid, count=order.probes, key=(order.seed, int(order.content[:12], 16)))


def _coded(values: np.ndarray, *, signed: bool = False) -> tuple[np.ndarray, float]:
    top = float(np.abs(values).max())
    if signed or top == 0 or values.min() < 0:
        return encode_signed(values, top), top
    return encode(values, top), top


def _code_error(codes: np.ndarray, top: float, values: np.ndarray) -> float:
    return float((np.abs(decode(codes, top) - values) / np.maximum(np.abs(values), CODE_FROM)).max())


def _alike(structure: Structure, grid: Grid) -> str:
    """The same for two files of one structure and grid."""
    inside = np.round(structure.positions, _ALIKE) % 1.0
    lattice = np.round(structure.lattice, _ALIKE) + 0.0  # which makes 0 of -0
    return hashlib.sha256(
        f"{structure.species} {grid} {lattice.tolist()} {inside.tolist()}".encode()
    ).hexdigest()[:16]
