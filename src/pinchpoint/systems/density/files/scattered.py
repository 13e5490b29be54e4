"""Densities at scattered probes, as training data: positions and values in an .npz or HDF5 file.

Arrays: `species` (A,), symbols or atomic numbers; `lattice` (3, 3) in angstrom, left out for a molecule;
`positions` (A, 3) of the atoms, fractional with a lattice and Cartesian without; `probes` (P, 3), Cartesian
in angstrom; `values` (P,) in electrons per cubic angstrom; optionally `spin` (P,), up - down; `weights` (P,),
the volume that each probe stands for; and `electrons`, their number in the structure. The sum of weights *
values estimates that number. Without weights the probes must be spread evenly over a cell; a molecule needs
weights.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.systems.common.data.sample_file import load_npz
from pinchpoint.systems.density.grid.elements import SYMBOLS
from pinchpoint.systems.density.grid.structure import Structure, check_structure

REQUIRED = ("species", "positions", "probes", "values")
OPTIONAL = ("lattice", "spin", "weights", "electrons")
PADDING_A = 10.0  # around a molecule: no image of an atom is within the cutoff of a probe
DEVIATIONS = 5.0  # standard deviations by which an integral may differ from the number of electrons
LEAST_SHARE = 0.02  # deviations below this share of the electrons are never refused
_HINT = (
    "Store species, positions, probes and values, and optionally lattice, weights, spin and electrons; "
    "see `Train on your own densities` in the docs of density."
)


@dataclass(frozen=True, eq=False)
class ScatteredDensity:
    """A structure with its density at probes, not on a grid.

    structure: in a box of its own if `molecule`; probes: (P, 3), Cartesian in the frame of the structure;
    values, weights: (P,); spin: (P,) or None.
    """

    structure: Structure
    molecule: bool
    probes: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    spin: np.ndarray | None
    electrons: float


def npz_arrays(data: bytes, *, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file; raise BadInput if it is damaged."""
    try:
        return load_npz(io.BytesIO(data))
    except Exception as error:  # given arbitrary bytes, zipfile and numpy may raise any exception
        raise BadInput(f"{name} cannot be read: {error}.", hint="Give a complete .npz file.") from error


def hdf5_arrays(data: bytes, *, name: str) -> dict[str, np.ndarray]:
    """Return the known arrays of an HDF5 file, which h5py reads."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise Missing(
            f"{name} is an HDF5 file, and h5py, which reads them, is not installed.",
            hint="Install it: pip install h5py. Or store the arrays in an .npz file.",
        ) from error
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            datasets: dict[str, Any] = {key: file[key] for key in (*REQUIRED, *OPTIONAL) if key in file}
            # A damaged or hostile file may claim any size: nothing is read beyond what the file can hold
            # unpacked.
            claimed = sum(int(getattr(one, "nbytes", 0)) for one in datasets.values())
            if claimed > 1000 * len(data):
                raise ValueError(f"it claims {claimed:,} bytes")
            return {key: np.asarray(one[()]) for key, one in datasets.items()}
    except Exception as error:  # given arbitrary bytes, h5py may raise any exception
        text = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise BadInput(f"{name} cannot be read: {text}.", hint="Give a complete HDF5 file.") from error


def is_scattered(arrays: dict[str, np.ndarray]) -> bool:
    """Whether arrays hold probes and values rather than a grid."""
    return "total" not in arrays and ("probes" in arrays or "values" in arrays)


def scattered_density(arrays: dict[str, np.ndarray], *, name: str) -> ScatteredDensity:
    """Check the arrays of a file and return its density. name: used in error messages."""
    if missing := [key for key in REQUIRED if key not in arrays]:
        raise BadInput(f"{name} has no {', '.join(missing)}.", hint=_HINT)
    species = _species(arrays["species"], name)
    numbers = {
        key: _floats(arrays[key], key, name)
        for key in ("lattice", "positions", "probes", "values", "spin", "weights", "electrons")
        if key in arrays
    }
    positions = _shaped(numbers["positions"], (len(species), 3), "positions", "one row per species", name)
    probes = _shaped(numbers["probes"], (None, 3), "probes", "three coordinates each", name)
    per_probe = {
        key: _shaped(numbers[key].squeeze(), (len(probes),), key, "one number per probe", name)
        for key in ("values", "spin", "weights")
        if key in numbers
    }
    if len(probes) == 0:
        raise BadInput(f"{name} has no probes.", hint="Store at least one probe.")
    try:
        if "lattice" in numbers:
            lattice = _shaped(numbers["lattice"], (3, 3), "lattice", "three vectors", name)
            structure, shift = check_structure(Structure(lattice, species, positions)), np.zeros(3)
        else:
            low = np.minimum(positions.min(axis=0), probes.min(axis=0)) - PADDING_A
            sides = np.maximum(positions.max(axis=0), probes.max(axis=0)) + PADDING_A - low
            structure = check_structure(Structure(np.diag(sides), species, (positions - low) / sides))
            shift = -low
    except BadInput as error:
        what = error.what if name in error.what else f"{name} cannot be read: {error.what}"
        raise BadInput(what, hint=error.hint) from error
    weights = _weights(per_probe, structure, molecule="lattice" not in numbers, name=name)
    values = per_probe["values"]
    integral = float((weights * values).sum())
    electrons = float(numbers["electrons"].reshape(-1)[0]) if "electrons" in numbers else integral
    _check_integral(weights * values, integral, electrons, name)
    return ScatteredDensity(
        structure,
        "lattice" not in numbers,
        probes + shift,
        values,
        weights,
        per_probe.get("spin"),
        electrons,
    )


def _weights(
    per_probe: dict[str, np.ndarray], structure: Structure, *, molecule: bool, name: str
) -> np.ndarray:
    if "weights" in per_probe:
        wrong = np.flatnonzero(~(per_probe["weights"] > 0))
        if len(wrong):
            raise BadInput(
                f"{name}: probe {int(wrong[0]) + 1} has a weight that is not above 0.",
                hint="Give the volume in cubic angstrom that each probe stands for.",
            )
        return per_probe["weights"]
    if molecule:
        raise BadInput(
            f"{name} has neither a lattice nor weights: the volume that a probe stands for is unknown.",
            hint="Store weights, the volume in cubic angstrom that each probe stands for, or a lattice.",
        )
    count = len(per_probe["values"])
    return np.full(count, structure.volume / count)


def _check_integral(parts: np.ndarray, integral: float, electrons: float, name: str) -> None:
    if not electrons > 0:
        raise BadInput(
            f"{name} has {electrons:.4g} electrons.",
            hint="Give the density of all valence electrons, not a difference or a potential.",
        )
    error = float(parts.std() * np.sqrt(len(parts)))  # one standard deviation
    if abs(integral - electrons) > max(DEVIATIONS * error, LEAST_SHARE * electrons):
        raise BadInput(
            f"{name}: the weighted sum of the values is {integral:.4g} electrons, but `electrons` is "
            f"{electrons:.4g}.",
            hint="Give weights in cubic angstrom and values in electrons per cubic angstrom; without "
            "weights, spread the probes evenly over the cell.",
        )


def _species(array: np.ndarray, name: str) -> tuple[str, ...]:
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.kind in "iu":
        wrong = [int(number) for number in flat if not 1 <= number <= len(SYMBOLS)]
        if wrong:
            raise BadInput(
                f"{name}: there is no element with the atomic number {wrong[0]}.",
                hint=f"Give atomic numbers from 1 to {len(SYMBOLS)}, or symbols.",
            )
        return tuple(SYMBOLS[int(number) - 1] for number in flat)
    return tuple(one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in flat)


def _floats(array: Any, key: str, name: str) -> np.ndarray:
    try:
        values = np.asarray(array).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: `{key}` does not hold numbers.", hint=_HINT) from error
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values.reshape(-1)))[0])
        raise BadInput(
            f"{name}: number {at + 1:,} of `{key}` is {values.reshape(-1)[at]}.",
            hint="Give finite values; NaN often means overflow.",
        )
    return values


def _shaped(array: np.ndarray, shape: tuple[int | None, ...], key: str, what: str, name: str) -> np.ndarray:
    array = array.reshape(1) if array.ndim == 0 and len(shape) == 1 else array
    if array.ndim != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, array.shape, strict=True)
    ):
        wanted = " x ".join("any" if want is None else f"{want:,}" for want in shape)
        raise BadInput(
            f"{name}: `{key}` has the shape {' x '.join(map(str, array.shape)) or 'of one number'}, but "
            f"{wanted} is expected ({what}).",
            hint=_HINT,
        )
    return array
