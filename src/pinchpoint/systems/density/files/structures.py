"""Structures of other libraries and files: to and from ASE and pymatgen, and read from POSCAR, cif, xyz and the like.

Objects are taken by what they offer, so neither library is needed to be handed one. ASE reads what is no POSCAR and is
imported only then.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.systems.density.files.file_io import read_text_blob
from pinchpoint.systems.density.files.formats import read_volume
from pinchpoint.systems.density.files.poscar import read_poscar
from pinchpoint.systems.density.grid.structure import Structure, cell_volume, check_structure

_POSCARS = ("POSCAR", "CONTCAR", "CHGCAR", "CHG", "PARCHG", "AECCAR")
_HINT = "give a structure as POSCAR, cif or extended xyz"
_WHOLE = 1e-3  # of an atom or an electron: less is rounding
# By suffix, ASE's name of the format: it would take POSCAR_rutile.cif for a POSCAR.
_OTHERS = {
    ".cif": "cif",
    ".xyz": "extxyz",
    ".extxyz": "extxyz",
    ".pdb": "proteindatabank",
    ".json": "json",
    ".traj": "traj",
}


def read_structure(path: str | Path, *, padding_a: float | None = None) -> Structure:
    """The structure of a file. `padding_a`: a molecule without a cell is put into a box with as much room on every side."""
    path = Path(path)
    if path.is_dir():
        raise BadInput(f"{path} is a folder", hint="name the file of a structure in it, such as POSCAR")
    bare = path.with_suffix("") if path.suffix == ".gz" else path
    suffix = bare.suffix.lower()
    if suffix in (".cube", ".cub", ".npz"):
        return read_volume(path).structure
    # POSCAR.rutile is a POSCAR; POSCAR_rutile.cif is not.
    if suffix in (".vasp", ".poscar", ".chgcar") or (
        bare.name.upper().startswith(_POSCARS) and suffix not in _OTHERS
    ):
        return read_poscar(io.BytesIO(read_text_blob(path)), name=str(path))[0]
    return _by_ase(path, padding_a)


def as_structure(thing: Any, *, padding_a: float | None = None) -> Structure:
    """A Structure, ASE's Atoms, pymatgen's Structure or Molecule, or the path of a file, as a checked Structure.

    `padding_a`: what has no cell is put into a box with as much room on every side.
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
        f"a {type(thing).__name__} is no structure",
        hint="give the path of a file, ASE's Atoms, or pymatgen's Structure or Molecule",
    )


def from_ase(atoms: Any, *, padding_a: float | None = None) -> Structure:
    """atoms: ase.Atoms with a cell of three vectors, or with none and room to make one of."""
    _check_occupancies(atoms)
    lattice = np.array(atoms.cell[:], dtype=np.float64)
    species, charge = tuple(atoms.get_chemical_symbols()), _ase_charge(atoms)
    if padding_a is not None and not lattice.any():
        return _boxed(species, np.array(atoms.get_positions(), dtype=np.float64), padding_a, charge)
    if not lattice.any():
        raise BadInput(
            "the atoms have no cell of three vectors",
            hint="put them into a box: give a padding, or atoms.center(vacuum=5.0) in ASE",
        )
    if not cell_volume(lattice) > 0:
        raise BadInput(
            f"the atoms have a cell without a volume: {int(lattice.any(axis=1).sum())} of its vectors are not zero",
            hint="give three lattice vectors, with vacuum along the third of a slab (atoms.center(vacuum=5.0, axis=2) in ASE); "
            "a molecule that is to be put into a box has none at all (atoms.set_cell(None))",
        )
    positions = np.linalg.solve(lattice.T, np.asarray(atoms.get_positions(), dtype=np.float64).T).T
    return check_structure(Structure(lattice, species, positions, charge))


def to_ase(structure: Structure) -> Any:
    """ase.Atoms, periodic along all vectors."""
    try:
        from ase import Atoms
    except ModuleNotFoundError as error:
        raise _missing_ase("this conversion") from error
    return Atoms(
        list(structure.species), scaled_positions=structure.positions, cell=structure.lattice, pbc=True
    )


def from_pymatgen(structure: Any) -> Structure:
    """structure: pymatgen.core.Structure, ordered: one element a site."""
    lattice = np.array(structure.lattice.matrix, dtype=np.float64)
    positions = np.array(structure.frac_coords, dtype=np.float64).reshape(-1, 3)
    return check_structure(Structure(lattice, _symbols(structure), positions, _pymatgen_charge(structure)))


def from_pymatgen_molecule(molecule: Any, *, padding_a: float | None) -> Structure:
    """molecule: pymatgen.core.Molecule, put into a box."""
    if padding_a is None:
        raise BadInput("a molecule has no cell", hint="give a padding: a box is put round it")
    positions = np.array(molecule.cart_coords, dtype=np.float64).reshape(-1, 3)
    return _boxed(_symbols(molecule), positions, padding_a, _pymatgen_charge(molecule))


def _symbols(sites: Any) -> tuple[str, ...]:
    species = []
    for at, site in enumerate(sites):
        if not getattr(site, "is_ordered", True):
            raise BadInput(
                f"site {at + 1} holds {site.species_string}",
                hint="give an ordered structure: one element a site",
            )
        species.append(str(getattr(site.specie, "symbol", site.specie)))
    return tuple(species)


def _check_occupancies(atoms: Any) -> None:
    """Refuse sites that several elements share, or that are empty now and then: ASE takes the commonest and goes on."""
    kinds = getattr(atoms, "arrays", {}).get("spacegroup_kinds")
    for kind, held in (getattr(atoms, "info", {}).get("occupancy") or {}).items():
        if len(held) == 1 and abs(next(iter(held.values())) - 1) < _WHOLE:
            continue
        at = np.flatnonzero(np.asarray(kinds).astype(str) == str(kind)) if kinds is not None else []
        site = f"site {at[0] + 1}" if len(at) else f"the kind of site {kind}"
        shown = ", ".join(f"{symbol}:{share:g}" for symbol, share in held.items())
        raise BadInput(f"{site} holds {shown}", hint="give an ordered structure: one element a site")


def _ase_charge(atoms: Any) -> float:
    """The sum of the atoms' charges, or the one that an extended xyz file tells of all."""
    each = atoms.get_initial_charges().sum() if hasattr(atoms, "get_initial_charges") else 0.0
    info = getattr(atoms, "info", {})
    return _charge(each) or next(
        (_charge(info[key]) for key in ("charge", "total_charge") if key in info), 0.0
    )


def _pymatgen_charge(sites: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not the sum of oxidation states, which nobody gave
        return _charge(getattr(sites, "charge", 0.0))


def _charge(told: Any) -> float:
    """A charge as a number; 0 where there is none to speak of."""
    try:
        charge = float(told or 0.0)
    except (TypeError, ValueError):
        return 0.0
    return charge if np.isfinite(charge) and abs(charge) >= _WHOLE else 0.0


def _boxed(species: tuple[str, ...], positions: np.ndarray, padding_a: float, charge: float) -> Structure:
    """positions: (A, 3) cartesian; the atoms in the middle of a box with room on every side."""
    if len(positions) == 0:
        raise BadInput("the structure has no atoms", hint="give at least one atom")
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
            f"the position of atom {bad[0] + 1} is NaN or infinite", hint="give finite coordinates"
        )


def to_pymatgen(structure: Structure) -> Any:
    """pymatgen.core.Structure."""
    try:
        from pymatgen.core import Structure as Theirs
    except ModuleNotFoundError as error:
        raise Missing(
            "this conversion needs pymatgen, which is not installed", hint="pip install pymatgen"
        ) from error
    return Theirs(structure.lattice, list(structure.species), structure.positions)


def _by_ase(path: Path, padding_a: float | None) -> Structure:
    if not path.is_file():
        raise BadInput(f"there is no file {path}", hint="name a file that exists")
    try:
        from ase.io import read
    except ModuleNotFoundError as error:
        raise _missing_ase(f"{path.suffix or path.name} files") from error
    try:
        frames: Any = read(str(path), index=":", format=_OTHERS.get(path.suffix.lower()))
    except Exception as error:  # its readers meet text of any kind, and fail in any way
        raise BadInput(f"cannot read {path}: {_why(path, error)}", hint=_HINT) from error
    if len(frames) == 0:
        raise BadInput(f"{path} holds no structure", hint=_HINT)
    if len(frames) > 1:
        raise BadInput(
            f"{path} holds {len(frames)} structures",
            hint="give a file with one; in Python give one of ase.io.read(path, index=':')",
        )
    try:
        return from_ase(frames[0], padding_a=padding_a)
    except BadInput as error:
        raise BadInput(f"{path}: {error.what}", hint=error.hint) from error


def _why(path: Path, error: Exception) -> str:
    """What ASE's reader stumbled over, in a line that can be printed."""
    if type(error).__name__ == "UnknownFileTypeError":
        return "a file of no kind that is known here"
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
    shown = "".join(sign for sign in line if sign.isprintable())
    return f"{shown:.120}" or type(error).__name__


def _missing_ase(what: str) -> Missing:
    return Missing(
        f"ASE is not installed; it is needed for {what}",
        hint='pip install "pinchpoint[density]", or give a POSCAR',
    )
