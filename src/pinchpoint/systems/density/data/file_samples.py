"""Samples of density files: a crystal with its density and spin density at points of the file's own grid, or
at the scattered probes of a file.

Letters: A atoms, P probes. Training samples have points drawn from a known distribution; test samples have
the whole grid, or an even subset if it is too large. A sample file holds the crystal and a 16-bit code for
each value. The points of a grid follow from the seed; their sha256 is compared whenever they are drawn again.
Scattered probes are stored with their weights: some drawn by the seed for training, all for testing.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data.sample_file import FAILURES, pack_arrays
from pinchpoint.systems.density.data.molecules import uniform
from pinchpoint.systems.density.data.probes import Grid, GridSelection, draw_points, positions_of, select_grid
from pinchpoint.systems.density.data.sample import (
    Kind,
    Sample,
    decode,
    encode,
    encode_signed,
    no_sample,
    unpack_arrays,
)
from pinchpoint.systems.density.files.detection import content_kind
from pinchpoint.systems.density.files.file_io import read_blob
from pinchpoint.systems.density.files.formats import volume_of
from pinchpoint.systems.density.files.scattered import (
    ScatteredDensity,
    hdf5_arrays,
    is_scattered,
    npz_arrays,
    scattered_density,
)
from pinchpoint.systems.density.files.volume import Volume, check_volume
from pinchpoint.systems.density.grid.structure import Structure

# A string, while the generator of molecules is a number: neither kind of dataset is continued as the other.
GENERATOR = "files 1"
OXIDES = (
    "oxides"  # first word of the generator of computed crystals, whose names begin with that of the crystal
)
NEGATIVE = 0.1  # most negative charge, as a fraction of the electrons: plane waves cause ripples
FEWEST = 0.01  # least electrons in a density
CODE_LIMIT, CODE_FROM = 5e-4, 1e-3  # error of the code, relative to the value or to 1e-3 e / A^3 if larger
_ALIKE = 5  # decimals that must agree for two structures to count as the same


@dataclass(frozen=True)
class FileOrder:
    """One sample to make from a file."""

    name: str
    source: str  # path of the file; not contents, so that the sample does not depend on it
    content: str  # sha256 of the file's bytes, decompressed
    kind: Kind
    seed: int
    probes: int  # number of probes, for kind "probes"
    grid_points: int  # most points, for kind "grid"
    generator: str = GENERATOR


@dataclass(frozen=True, eq=False)
class StoredFileSample:
    """The contents of a sample file. codes, spin_codes: (P,) uint16, or int16 if values are negative."""

    order: FileOrder
    structure: Structure
    grid: Grid | None  # of the file; None for scattered probes
    codes: np.ndarray
    top: float
    spin_codes: np.ndarray | None
    spin_top: float
    electrons: float
    stride: Grid | None
    points_sha256: str
    quality: dict[str, float]
    faults: tuple[str, ...]
    probes: np.ndarray | None = None  # (P, 3) float32, Cartesian, of scattered probes
    weights: np.ndarray | None = None  # (P,) float32, of scattered probes
    molecule: bool = False  # the cell is only a box


def import_sample(order: FileOrder) -> StoredFileSample:
    """Read the file, check that it contains a density, and select some of its points."""
    data = read_blob(order.source)
    if hashlib.sha256(data).hexdigest() != order.content:
        raise BadInput(
            f"{order.source} changed while it was being read.",
            hint="Wait until the file is complete, then run the command again.",
        )
    try:
        if (scattered := _scattered(data, order.source)) is not None:
            return _scattered_sample(order, scattered)
        volume = check_volume(volume_of(data, name=order.source))
        _check_density(volume)
    except BadInput as error:
        what = error.what if order.source in error.what else f"{order.source}: {error.what}"
        raise BadInput(what, hint=error.hint) from error
    return volume_sample(order, volume)


def volume_sample(
    order: FileOrder, volume: Volume, *, quality: dict[str, float] | None = None, faults: tuple[str, ...] = ()
) -> StoredFileSample:
    """Return a sample of some points of a density. quality and faults are added to those of the points."""
    points = _select_points(order, volume.structure, volume.grid)
    values = volume.total.reshape(-1)[points.index]
    spin = None if volume.spin is None else volume.spin.reshape(-1)[points.index]
    stored = _encode_values(values, spin, points.weights, volume.electrons, estimated=order.kind == "probes")
    if spin is not None:
        stored["quality"]["moment"] = volume.moment
    stored["quality"] = (quality or {}) | stored["quality"]
    stored["faults"] = faults + stored["faults"]
    return StoredFileSample(
        order,
        volume.structure,
        volume.grid,
        electrons=volume.electrons,
        stride=points.stride,
        points_sha256=points.sha256,
        **stored,
    )


def _scattered(data: bytes, name: str) -> ScatteredDensity | None:
    """Return the scattered probes in the bytes of a file, or None if it is not such a file."""
    kind = content_kind(data)
    if kind == "hdf5":
        return scattered_density(hdf5_arrays(data, name=name), name=name)
    arrays = npz_arrays(data, name=name) if kind == "npz" else {}
    return scattered_density(arrays, name=name) if is_scattered(arrays) else None


def _scattered_sample(order: FileOrder, scattered: ScatteredDensity) -> StoredFileSample:
    """Return some probes for training, or all of them for testing unless they are too many."""
    total = len(scattered.values)
    below = -float((scattered.weights * np.minimum(scattered.values, 0)).sum())
    _check_electrons(scattered.electrons, below, float(np.ptp(scattered.values)), total)
    count = min(total, order.probes if order.kind == "probes" else order.grid_points)
    # In random order, so that the first probes represent all of them.
    which = np.argsort(uniform(total, order.seed, int(order.content[:12], 16)), kind="stable")[:count]
    weights = scattered.weights[which] * (total / count)
    spin = None if scattered.spin is None else scattered.spin[which]
    return StoredFileSample(
        order,
        scattered.structure,
        None,
        electrons=scattered.electrons,
        stride=None,
        points_sha256="",
        probes=scattered.probes[which].astype(np.float32),
        weights=weights.astype(np.float32),
        molecule=scattered.molecule,
        **_encode_values(scattered.values[which], spin, weights, scattered.electrons, estimated=True),
    )


def _encode_values(
    values: np.ndarray, spin: np.ndarray | None, weights: np.ndarray, electrons: float, *, estimated: bool
) -> dict[str, Any]:
    """Return the codes of values (P,) and spin, their quality and faults, as fields of StoredFileSample.

    estimated: whether the weighted sum is an estimate of the integral, whose error is then recorded.
    """
    codes, top = _encode(values)
    spin_codes, spin_top = (None, 0.0) if spin is None else _encode(spin, signed=True)
    quality = {
        "electrons": electrons,
        "integral": float((weights * values).sum()),
        "code_error": _code_error(codes, top, values),
    }
    if estimated:
        # One standard deviation.
        quality["integral_error"] = float((weights * values).std() * np.sqrt(len(values)))
    if spin is not None and spin_codes is not None:
        quality["spin_code_error"] = _code_error(spin_codes, spin_top, spin)
    faults = tuple(
        f"the 16-bit code is wrong by {quality[key]:.2e}"
        for key in ("code_error", "spin_code_error")
        if not quality.get(key, 0.0) <= CODE_LIMIT
    )
    return {
        "codes": codes,
        "top": top,
        "spin_codes": spin_codes,
        "spin_top": spin_top,
        "quality": quality,
        "faults": faults,
    }


def file_sample_of(contents: StoredFileSample) -> Sample:
    """Return the sample, with its points drawn again."""
    order, structure = contents.order, contents.structure
    if contents.grid is None:
        return _scattered_of(contents)
    points = _select_points(order, structure, contents.grid)
    if points.sha256 != contents.points_sha256 or len(points.index) != len(contents.codes):
        raise BadInput(
            f"The points drawn for {order.name} are not the ones its values were stored for.",
            hint="Make the dataset again on this machine with this version: pinchpoint density data --from.",
        )
    spin = (
        None
        if contents.spin_codes is None
        else decode(contents.spin_codes, contents.spin_top).astype(np.float32)
    )
    return Sample(
        order.name,
        order.name.rpartition("-")[0] if order.generator.startswith(OXIDES) else structure.formula,
        structure.species,
        structure.cartesian,
        structure.lattice,
        positions_of(points.index, contents.grid, structure.lattice),
        decode(contents.codes, contents.top).astype(np.float32),
        points.weights,
        contents.electrons,
        spin,
        contents.grid if contents.stride == (1, 1, 1) else None,
    )


def _scattered_of(contents: StoredFileSample) -> Sample:
    structure = contents.structure
    assert contents.probes is not None and contents.weights is not None
    return Sample(
        contents.order.name,
        structure.formula,
        structure.species,
        structure.cartesian,
        None if contents.molecule else structure.lattice,
        contents.probes.astype(np.float64),
        decode(contents.codes, contents.top).astype(np.float32),
        contents.weights.astype(np.float64),
        contents.electrons,
        None
        if contents.spin_codes is None
        else decode(contents.spin_codes, contents.spin_top).astype(np.float32),
    )


def entry_of(contents: StoredFileSample) -> dict[str, Any]:
    """Return the entry of the sample in the index of the dataset."""
    return {
        "atoms": len(contents.structure.species),
        "probes": len(contents.codes),
        "attempts": 1,
        "quality": contents.quality,
        "faults": list(contents.faults),
        "kind": contents.order.kind,
        "content": contents.order.content,
        "species": sorted(set(contents.structure.species)),
        "spin": contents.spin_codes is not None,
        "grid": None if contents.grid is None else list(contents.grid),
        "stride": None if contents.stride is None else list(contents.stride),
        "alike": _alike(contents.structure, contents.grid),
    }


def pack_file_sample(contents: StoredFileSample) -> bytes:
    """Return the bytes of a sample file. They are the same for the same sample."""
    arrays = {
        "lattice": contents.structure.lattice,
        "positions": contents.structure.positions,
        "codes": contents.codes,
    }
    if contents.spin_codes is not None:
        arrays["spin_codes"] = contents.spin_codes
    about: dict[str, Any] = {"species": contents.structure.species}
    if contents.probes is not None and contents.weights is not None:
        arrays |= {"probes": contents.probes, "weights": contents.weights}
        about["molecule"] = contents.molecule
    order = asdict(contents.order)
    del order["source"]
    keys = ("grid", "top", "spin_top", "electrons", "stride", "points_sha256", "quality", "faults")
    return pack_arrays(
        arrays,
        {key: getattr(contents, key) for key in keys} | about | {"order": order},
    )


def unpack_file_sample(data: bytes, *, where: str) -> StoredFileSample:
    """Return the contents of a sample file; raise BadInput, naming the file, if it is not a sample."""
    arrays, about = unpack_arrays(data, where=where)
    try:
        structure = Structure(arrays["lattice"], tuple(about["species"]), arrays["positions"])
        grid, stride = (_three(about[key]) for key in ("grid", "stride"))
        if grid is None and not {"probes", "weights"} <= arrays.keys():
            raise ValueError("it has neither a grid nor probes")
        return StoredFileSample(
            FileOrder(source="", **about["order"]),
            structure,
            grid,
            arrays["codes"],
            about["top"],
            arrays.get("spin_codes"),
            about["spin_top"],
            about["electrons"],
            stride,
            about["points_sha256"],
            about["quality"],
            tuple(about["faults"]),
            arrays.get("probes"),
            arrays.get("weights"),
            bool(about.get("molecule", False)),
        )
    except FAILURES as error:
        raise no_sample(where, error) from error


def _three(numbers: Any) -> Grid | None:
    if numbers is None:
        return None
    first, second, third = numbers
    return first, second, third


def _check_density(volume: Volume) -> None:
    below = -float(np.minimum(volume.total, 0).mean()) * volume.structure.volume
    _check_electrons(volume.electrons, below, float(np.ptp(volume.total)), volume.total.size)


def _check_electrons(electrons: float, below: float, spread: float, points: int) -> None:
    """Raise BadInput for what cannot be a density. below: negative electrons; spread: of the values."""
    if electrons < FEWEST or below > NEGATIVE * electrons:
        raise BadInput(
            f"The integral of the density is {electrons:.4g} electrons, {below:.4g} of them negative.",
            hint="Give the density of all valence electrons, not a difference, a spin density or a "
            "potential.",
        )
    if spread == 0 and points > 1:
        raise BadInput(
            f"The density is the same at all {points:,} points, so there is nothing to learn.",
            hint="Give the density that a calculation computed.",
        )


def _select_points(order: FileOrder, structure: Structure, grid: Grid) -> GridSelection:
    if order.kind == "grid":
        return select_grid(structure, grid, most=order.grid_points)
    return draw_points(structure, grid, count=order.probes, key=(order.seed, int(order.content[:12], 16)))


def _encode(values: np.ndarray, *, signed: bool = False) -> tuple[np.ndarray, float]:
    top = float(np.abs(values).max())
    if signed or top == 0 or values.min() < 0:
        return encode_signed(values, top), top
    return encode(values, top), top


def _code_error(codes: np.ndarray, top: float, values: np.ndarray) -> float:
    return float((np.abs(decode(codes, top) - values) / np.maximum(np.abs(values), CODE_FROM)).max())


def _alike(structure: Structure, grid: Grid | None) -> str:
    """Return a hash that is equal for two files with the same structure and grid."""
    inside = np.round(structure.positions, _ALIKE) % 1.0
    lattice = np.round(structure.lattice, _ALIKE) + 0.0  # turns -0 into 0
    return hashlib.sha256(
        f"{structure.species} {grid} {lattice.tolist()} {inside.tolist()}".encode()
    ).hexdigest()[:16]
