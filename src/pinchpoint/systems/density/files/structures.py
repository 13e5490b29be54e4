"""Structures from files (POSCAR, cif, xyz and others), and conversion from and to ASE and pymatgen.

Objects are recognised by their attributes, so neither library has to be installed. POSCAR, density files and
pymatgen's JSON are recognised by their contents; other files are read by ASE, which is imported only then.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.systems.density.files.detection import content_kind
from pinchpoint.systems.density.files.file_io import bare_path, check_text, read_blob
from pinchpoint.systems.density.files.formats import volume_of
from pinchpoint.systems.density.files.materials_json import json_sites
from pinchpoint.systems.density.files.poscar import read_poscar
from pinchpoint.systems.density.grid.structure import Structure, cell_volume, check_structure

_POSCARS = ("POSCAR", "CONTCAR", "CHGCAR", "CHG", "PARCHG", "AECCAR")
_HINT = "Give a structure as POSCAR, cif or extended xyz."
_WHOLE = 1e-3  # fraction of an atom or an electron: smaller deviations are rounding
# ASE's names of formats, by suffix. Without them, ASE would treat POSCAR_rutile.cif as a POSCAR.
_OTHERS = {
    ".cif": "cif",
    ".xyz": "extxyz",
    ".extxyz": "extxyz",
    ".pdb": "proteindatabank",
    ".json": "json",
    ".traj": "traj",
}


def read_structure(path: str | Path, *, padding_a: float | None = None) -> Structure:
    """Read the structure in a file.

    padding_a: space on every side of a molecule without a cell, which is put into a box.
    """
    path = Path(path)
    if path.is_dir():
        raise BadInput(f"{path} is a folder.", hint="Give a structure file in it, such as POSCAR.")
    suffix = bare_path(path).suffix.lower()
    data = read_blob(path)
    kind = content_kind(data)
    if kind == "json" and (sites := json_sites(data, name=str(path))) is not None:
        return _of_sites(*sites, path, padding_a)
    if kind in ("cube", "npz", "hdf5") or (kind is None and suffix in (".cube", ".cub", ".npz")):
        return volume_of(data, name=str(path)).structure
    # POSCAR.rutile is a POSCAR; POSCAR_rutile.cif is not.
    named = suffix in (".vasp", ".poscar", ".chgcar") or (
        bare_path(path).name.upper().startswith(_POSCARS) and suffix not in _OTHERS
    )
    if kind == "chgcar" or (kind is None and named):
        return read_poscar(io.BytesIO(check_text(data, name=str(path))), name=str(path))[0]
    return _by_ase(path, padding_a)


def _of_sites(
    lattice: np.ndarray | None,
    species: tuple[str, ...],
    positions: np.ndarray,
    charge: float,
    path: Path,
    padding_a: float | None,
) -> Structure:
    """Return the structure of a JSON file; a molecule is put into a box."""
    if lattice is not None:
        return check_structure(Structure(lattice, species, positions, charge))
    if padding_a is None:
        raise BadInput(
            f"{path} holds a molecule, which has no cell.",
            hint="Give a padding to have the molecule put into a box.",
        )
    return _put_in_box(species, positions, padding_a, charge)


def as_structure(thing: Any, *, padding_a: float | None = None) -> Structure:
    """Convert a Structure, ASE's Atoms, pymatgen's Structure or Molecule, or a path to a checked Structure.

    padding_a: space on every side of a structure without a cell, which is put into a box.
    """
    if isinstance(thing, Structure):
        return check_structure(thing)
    if isinstance(thing, str | Path):
        return read_structure(thing, padding_a=padding_a)
    if hasattr(thing, "get_chemical_symbols"):
        return from_ase(thing, padding_a=padding_a)
    if hasattr(thing, "frac_coords"):
        return from_pymatgen(thing)
    if hasattr(thing, "cart_coords"):
        return from_pymatgen_molecule(thing, padding_a=padding_a)
    raise BadInput(
        f"An object of type {type(thing).__name__} is not a structure.",
        hint="Give the path of a file, ASE's Atoms, or pymatgen's Structure or Molecule.",
    )


def from_ase(atoms: Any, *, padding_a: float | None = None) -> Structure:
    """Convert ase.Atoms that have a cell of three vectors, or no cell if `padding_a` is given."""
    _check_occupancies(atoms)
    lattice = np.array(atoms.cell[:], dtype=np.float64)
    species, charge = tuple(atoms.get_chemical_symbols()), _ase_charge(atoms)
    if padding_a is not None and not lattice.any():
        return _put_in_box(species, np.array(atoms.get_positions(), dtype=np.float64), padding_a, charge)
    if not lattice.any():
        raise BadInput(
            "The atoms have no cell.",
            hint="Put them into a box: give a padding, or call atoms.center(vacuum=5.0) in ASE.",
        )
    if not cell_volume(lattice) > 0:
        raise BadInput(
            f"The cell of the atoms has no volume: {int(lattice.any(axis=1).sum())} of its vectors are not "
            "zero.",
            hint="Give three lattice vectors, with vacuum along the third of a slab "
            "(atoms.center(vacuum=5.0, axis=2) in ASE), or remove the cell of a molecule "
            "(atoms.set_cell(None)) to have it put into a box.",
        )
    positions = np.linalg.solve(lattice.T, np.asarray(atoms.get_positions(), dtype=np.float64).T).T
    return check_structure(Structure(lattice, species, positions, charge))


def to_ase(structure: Structure) -> Any:
    """Convert to ase.Atoms, periodic along all vectors."""
    try:
        from ase import Atoms
    except ModuleNotFoundError as error:
        raise _missing_ase("this conversion") from error
    return Atoms(
        list(structure.species), scaled_positions=structure.positions, cell=structure.lattice, pbc=True
    )


def from_pymatgen(structure: Any) -> Structure:
    """Convert an ordered pymatgen.core.Structure, with one element per site."""
    lattice = np.array(structure.lattice.matrix, dtype=np.float64)
    positions = np.array(structure.frac_coords, dtype=np.float64).reshape(-1, 3)
    return check_structure(Structure(lattice, _symbols(structure), positions, _pymatgen_charge(structure)))


def from_pymatgen_molecule(molecule: Any, *, padding_a: float | None) -> Structure:
    """Convert a pymatgen.core.Molecule and put it into a box."""
    if padding_a is None:
        raise BadInput("A molecule has no cell.", hint="Give a padding to have the molecule put into a box.")
    positions = np.array(molecule.cart_coords, dtype=np.float64).reshape(-1, 3)
    return _put_in_box(_symbols(molecule), positions, padding_a, _pymatgen_charge(molecule))


def _symbols(sites: Any) -> tuple[str, ...]:
    species = []
    for at, site in enumerate(sites):
        if not getattr(site, "is_ordered", True):
            raise BadInput(
                f"Site {at + 1} is occupied by {site.species_string}.",
                hint="Give an ordered structure with one element per site.",
            )
        species.append(str(getattr(site.specie, "symbol", site.specie)))
    return tuple(species)


def _check_occupancies(atoms: Any) -> None:
    """Raise BadInput for sites that are shared or partly empty.

    ASE silently uses the most common element of such a site.
    """
    kinds = getattr(atoms, "arrays", {}).get("spacegroup_kinds")
    for kind, shares in (getattr(atoms, "info", {}).get("occupancy") or {}).items():
        if len(shares) == 1 and abs(next(iter(shares.values())) - 1) < _WHOLE:
            continue
        at = np.flatnonzero(np.asarray(kinds).astype(str) == str(kind)) if kinds is not None else []
        site = f"Site {at[0] + 1}" if len(at) else f"Site kind {kind}"
        text = ", ".join(f"{symbol}:{share:g}" for symbol, share in shares.items())
        raise BadInput(
            f"{site} is occupied by {text}.", hint="Give an ordered structure with one element per site."
        )


def _ase_charge(atoms: Any) -> float:
    """Return the sum of the atomic charges, or the total charge stated in an extended xyz file."""
    each = atoms.get_initial_charges().sum() if hasattr(atoms, "get_initial_charges") else 0.0
    info = getattr(atoms, "info", {})
    return _charge(each) or next(
        (_charge(info[key]) for key in ("charge", "total_charge") if key in info), 0.0
    )


def _pymatgen_charge(sites: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a warning that the charge differs from the sum of the oxidation states
        return _charge(getattr(sites, "charge", 0.0))


def _charge(value: Any) -> float:
    """Return a charge as a number; 0 if it is missing or negligible."""
    try:
        charge = float(value or 0.0)
    except (TypeError, ValueError):
        return 0.0
    return charge if np.isfinite(charge) and abs(charge) >= _WHOLE else 0.0


def _put_in_box(
    species: tuple[str, ...], positions: np.ndarray, padding_a: float, charge: float
) -> Structure:
    """Put the atoms into the middle of a box, with space on every side.

    positions: (A, 3), Cartesian.
    """
    if len(positions) == 0:
        raise BadInput("The structure has no atoms.", hint="Give at least one atom.")
    _check_finite(positions)
    low = positions.min(axis=0)
    sides = positions.max(axis=0) - low + 2 * padding_a
    return check_structure(
        Structure(np.diag(sides), species, (positions - low + padding_a) / sides, charge, boxed=True)
    )


def _check_finite(positions: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(positions).all(axis=1))
    if len(bad):
        raise BadInput(
            f"The position of atom {bad[0] + 1} is NaN or infinite.", hint="Give finite coordinates."
        )


def to_pymatgen(structure: Structure) -> Any:
    """Convert to pymatgen.core.Structure."""
    try:
        from pymatgen.core import Structure as Theirs
    except ModuleNotFoundError as error:
        raise Missing(
            "This conversion needs pymatgen, which is not installed.",
            hint="Install it: pip install pymatgen.",
        ) from error
    return Theirs(structure.lattice, list(structure.species), structure.positions)


def _by_ase(path: Path, padding_a: float | None) -> Structure:
    if not path.is_file():
        raise BadInput(f"There is no file {path}.", hint="Give a file that exists.")
    try:
        from ase.io import read
    except ModuleNotFoundError as error:
        raise _missing_ase(f"{path.suffix or path.name} files") from error
    suffix = bare_path(path).suffix.lower()
    _check_counts(path, is_xyz=suffix in (".xyz", ".extxyz"))
    try:
        frames: Any = read(str(path), index=":", format=_OTHERS.get(suffix))
    except Exception as error:  # given arbitrary text, its readers may raise any exception
        raise BadInput(f"{path} cannot be read: {_why(path, error)}.", hint=_HINT) from error
    if len(frames) == 0:
        raise BadInput(f"{path} contains no structure.", hint=_HINT)
    if len(frames) > 1:
        raise BadInput(
            f"{path} contains {len(frames)} structures.",
            hint="Give a file with one structure; in Python, one of ase.io.read(path, index=':').",
        )
    try:
        return from_ase(frames[0], padding_a=padding_a)
    except BadInput as error:
        raise BadInput(f"{path} cannot be used: {error.what}", hint=error.hint) from error
    except (IndexError, ValueError, TypeError) as error:  # ASE does not check what a file holds
        raise BadInput(f"{path} cannot be used: {_why(path, error)}.", hint=_HINT) from error


def _check_counts(path: Path, *, is_xyz: bool) -> None:
    """Raise BadInput if the header of a frame claims more atoms or columns than the file has.

    ASE's reader would look for every one of them. is_xyz: check all frames, not only a count in the first
    line.
    """
    lines = read_blob(path).split(b"\n")
    at = 0
    while at < len(lines) and lines[at].strip().isdigit():
        digits, about = lines[at].strip(), b"".join(lines[at + 1 : at + 2])
        columns = [count for count in re.findall(rb"[RISL]:(\d+)", about) if len(count) > 3]
        if len(digits) > 12 or int(digits) > len(lines) - at - 2 or columns:
            raise BadInput(
                f"{path} cannot be read: line {at + 1} claims more atoms or columns than the file has.",
                hint=_HINT,
            )
        if not is_xyz:
            return
        at += int(digits) + 2


def _why(path: Path, error: Exception) -> str:
    """Return why ASE's reader failed, as one printable line."""
    if type(error).__name__ == "UnknownFileTypeError":
        return "its format is unknown"
    with path.open("rb") as file:
        if b"\0" in file.read(1024):
            return "it is a binary file"
    if (
        isinstance(error, KeyError)
        and error.args
        and isinstance(error.args[0], str)
        and re.fullmatch("[A-Za-z]+", error.args[0])
    ):
        return f"unknown element {error.args[0]!r}"
    line = (str(error).strip().splitlines() or [""])[0]
    text = "".join(sign for sign in line if sign.isprintable())
    return f"{text:.120}" or type(error).__name__


def _missing_ase(what: str) -> Missing:
    return Missing(
        f"ASE is needed for {what}, but it is not installed.",
        hint='Install it: pip install "pinchpoint[density]". Or give a POSCAR.',
    )
