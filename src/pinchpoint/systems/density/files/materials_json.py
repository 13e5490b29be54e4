"""Structures and densities in the JSON of pymatgen and the Materials Project; pymatgen is not needed.

A density is a `Chgcar` or `VolumetricData`: a structure, and `data` with the grids `total` and `diff`, which
hold the density times the volume of the cell. A structure is a `Structure` or a `Molecule`. Either may be
inside another document, under `data`, `structure`, `poscar` or `output`, or be the only entry of a list.
Augmentation occupancies are left out, because this JSON has lost their text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import json_fault, parse_json
from pinchpoint.systems.density.files.volume import Volume, check_volume
from pinchpoint.systems.density.grid.structure import Structure, check_structure

_INSIDE = ("data", "structure", "poscar", "output", "final_structure", "initial_structure")
_WHOLE = 1e-3  # deviations of an occupancy from 1 below this are rounding
_DEEPEST = 6
_GIVE_VOLUME = "Give the JSON of a Chgcar or VolumetricData of pymatgen, or a CHGCAR."
_GIVE_STRUCTURE = "Give the JSON of a Structure of pymatgen, or a POSCAR."


def json_volume(data: bytes, *, name: str) -> Volume:
    """Return the density in a JSON file. name: used in error messages."""
    document = _find(_parse(data, name), lambda one: _is_structure(_structure_in(one)) and "data" in one)
    if document is None:
        raise BadInput(f"{name} has no density: no structure with `data` is in it.", hint=_GIVE_VOLUME)
    structure = _structure_of(_structure_in(document), name)
    grids = document["data"]
    if not isinstance(grids, dict) or "total" not in grids:
        raise BadInput(f"{name} has no density `total` in its `data`.", hint=_GIVE_VOLUME)
    if "diff_x" in grids:
        raise BadInput(
            f"{name} has more than two grids, as written by a non-collinear run, which pinchpoint does not "
            "support.",
            hint="Give the density of a run without LNONCOLLINEAR.",
        )
    total = _grid(grids["total"], name, "total")
    spin = _grid(grids["diff"], name, "diff") if grids.get("diff") is not None else None
    try:
        return check_volume(
            Volume(
                structure,
                total / structure.volume,
                None if spin is None else spin / structure.volume,
                comment=_comment(document) or structure.formula,
            )
        )
    except BadInput as error:
        raise BadInput(f"{name} cannot be read: {error.what}", hint=error.hint) from error


def json_sites(
    data: bytes, *, name: str
) -> tuple[np.ndarray | None, tuple[str, ...], np.ndarray, float] | None:
    """Return the lattice (None for a molecule), species, positions and charge in a JSON file.

    The positions are fractional with a lattice, and Cartesian without. None if the file has no such
    structure; it may be another program's JSON.
    """
    try:
        document = _find(_parse(data, name), _is_structure)
    except BadInput:
        return None
    if document is None:
        return None
    if "lattice" not in document:
        species, positions = _sites(document, "xyz", name)
        return None, species, positions, _charge(document)
    structure = _structure_of(document, name)
    return structure.lattice, structure.species, structure.positions, structure.charge


def _parse(data: bytes, name: str) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise BadInput(f"{name} cannot be read: {json_fault(error)}.", hint=_GIVE_VOLUME) from error


def _find(document: Any, wanted: Any, depth: int = 0) -> dict[str, Any] | None:
    """Return the first dictionary that is wanted, looking into the usual places."""
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict) or depth > _DEEPEST:
        return None
    if wanted(document):
        return document
    inside = (_find(document[key], wanted, depth + 1) for key in _INSIDE if key in document)
    return next((one for one in inside if one is not None), None)


def _is_structure(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("sites"), list)


def _structure_in(document: dict[str, Any]) -> Any:
    """Return the structure of a Chgcar (in its POSCAR) or of VolumetricData."""
    poscar = document.get("poscar")
    return poscar.get("structure") if isinstance(poscar, dict) else document.get("structure")


def _comment(document: dict[str, Any]) -> str:
    poscar = document.get("poscar")
    comment = poscar.get("comment") if isinstance(poscar, dict) else None
    return comment if isinstance(comment, str) else ""


def _structure_of(document: dict[str, Any], name: str) -> Structure:
    species, positions = _sites(document, "abc", name)
    try:
        lattice = np.array(document["lattice"]["matrix"], dtype=np.float64)
        if lattice.shape != (3, 3):
            raise ValueError(f"its lattice has the shape {lattice.shape}")
        return check_structure(Structure(lattice, species, positions, _charge(document)))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{name} cannot be read: its lattice is missing or is not a matrix of numbers.",
            hint=_GIVE_STRUCTURE,
        ) from error
    except BadInput as error:
        raise BadInput(f"{name} cannot be read: {error.what}", hint=error.hint) from error


def _sites(document: dict[str, Any], key: str, name: str) -> tuple[tuple[str, ...], np.ndarray]:
    species: list[str] = []
    places: list[Any] = []
    for number, site in enumerate(document["sites"], start=1):
        try:
            shares = [(str(one["element"]), float(one.get("occu", 1))) for one in site["species"]]
            places.append([float(value) for value in site[key]])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(
                f"{name}: site {number} has no species, or no coordinates `{key}`.", hint=_GIVE_STRUCTURE
            ) from error
        if len(shares) != 1 or abs(shares[0][1] - 1) > _WHOLE:
            text = ", ".join(f"{symbol}:{share:g}" for symbol, share in shares)
            raise BadInput(
                f"{name}: site {number} is occupied by {text or 'nothing'}.",
                hint="Give an ordered structure with one element per site.",
            )
        species.append(shares[0][0])
        if len(places[-1]) != 3:
            raise BadInput(
                f"{name}: site {number} has {len(places[-1])} coordinates, not 3.", hint=_GIVE_STRUCTURE
            )
    return tuple(species), np.array(places, dtype=np.float64).reshape(-1, 3)


def _charge(document: dict[str, Any]) -> float:
    charge = document.get("charge")
    return float(charge) if isinstance(charge, int | float) and abs(charge) >= _WHOLE else 0.0


def _grid(value: Any, name: str, key: str) -> np.ndarray:
    """Return a grid (nx, ny, nz): nested lists, or numpy's array as monty writes it."""
    try:
        grid = np.array(value["data"] if isinstance(value, dict) else value, dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{name}: `{key}` is not an array of numbers.", hint=_GIVE_VOLUME) from error
    if grid.ndim != 3:
        raise BadInput(f"{name}: `{key}` has {grid.ndim} axes, not 3.", hint=_GIVE_VOLUME)
    return grid
