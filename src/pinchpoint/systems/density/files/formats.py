"""Volumetric files by name: reader and writer for a path, what a format cannot store, and numpy's .npz.

Formats are CHGCAR (also CHG, PARCHG, AECCAR and any name that ends in .vasp), .cube or .cub, and .npz. All
but .npz may be gzipped (.gz).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data.sample_file import load_npz
from pinchpoint.systems.density.files.augmentation import read_augmentation
from pinchpoint.systems.density.files.chgcar import read_chgcar, write_chgcar
from pinchpoint.systems.density.files.cube import read_cube, write_cube
from pinchpoint.systems.density.files.file_io import check_writable, read_blob, write_blob
from pinchpoint.systems.density.files.volume import Volume, check_volume, missing_augmentation
from pinchpoint.systems.density.grid.structure import Structure

Kind = Literal["chgcar", "cube", "npz"]
_PREFIXES = ("CHGCAR", "CHG", "PARCHG", "AECCAR")
_SUFFIXES: dict[str, Kind] = {
    ".vasp": "chgcar",
    ".chgcar": "chgcar",
    ".cube": "cube",
    ".cub": "cube",
    ".npz": "npz",
}


def kind_of(path: str | Path) -> Kind:
    """Return the format that a file name stands for."""
    path = Path(path)
    bare = path.with_suffix("") if path.suffix == ".gz" else path
    if kind := _SUFFIXES.get(bare.suffix.lower()):
        return kind
    if bare.name.upper().startswith(_PREFIXES):
        return "chgcar"
    raise BadInput(
        f"The format of {path.name!r} cannot be determined from its name.",
        hint="Name it CHGCAR, or end its name in .vasp, .cube or .npz.",
    )


def read_volume(path: str | Path) -> Volume:
    """Read a density in the format given by the file name."""
    if not Path(path).exists():
        raise BadInput(f"There is no file {path}.", hint="Give a file that exists.")
    return {"chgcar": read_chgcar, "cube": read_cube, "npz": read_npz}[kind_of(path)](path)


def write_volume(path: str | Path, volume: Volume) -> Path:
    """Write a density in the format given by the file name."""
    return {"chgcar": write_chgcar, "cube": write_cube, "npz": write_npz}[kind_of(path)](path, volume)


def check_volume_output(path: str | Path) -> Path:
    """Raise BadInput, before any work is done, for an unknown format, a folder, or an unwritable path."""
    if Path(path).is_dir():
        raise BadInput(
            f"{path} cannot be written: it is a folder.", hint="Give a file in it, such as CHGCAR."
        )
    kind = kind_of(path)
    bare = Path(path).with_suffix("") if Path(path).suffix == ".gz" else Path(path)
    if bare.suffix[1:].isalpha() and bare.suffix.lower() not in _SUFFIXES:
        raise BadInput(
            f"{bare.suffix} of {bare.name!r} is not a format of densities.",
            hint=f"Name it {bare.stem}_{bare.suffix[1:]}, or end its name in .vasp, .cube or .npz.",
        )
    if kind == "npz":
        _check_plain(path)
    return check_writable(path)


def warnings_of(volume: Volume, path: str | Path) -> tuple[str, ...]:
    """Return notes for the user about what the file at this path does not contain."""
    if kind_of(path) == "chgcar":
        warning = missing_augmentation(volume)
        return (warning,) if warning else ()
    if kind_of(path) == "cube":
        missing_parts = [
            name
            for name, has_it in (
                ("the spin density", volume.spin is not None),
                ("augmentation", volume.augmentation),
            )
            if has_it
        ]
        return (
            (f"a cube file stores only the total density: {' and '.join(missing_parts)} is left out",)
            if missing_parts
            else ()
        )
    return ()


def write_npz(path: str | Path, volume: Volume) -> Path:
    """Write numpy's own format, which is exact and needs no parsing."""
    _check_plain(path)
    check_volume(volume)
    arrays: dict[str, Any] = {
        "lattice": volume.lattice,
        "species": np.array(volume.species),
        "positions": volume.positions,
        "total": volume.total,
        "augmentation": np.array([volume.augmentation, volume.spin_augmentation]),
        "comment": np.array(volume.comment),
    }
    if volume.spin is not None:
        arrays["spin"] = volume.spin
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return write_blob(path, stream.getvalue())


def _check_plain(path: str | Path) -> None:
    if Path(path).suffix == ".gz":
        raise BadInput(
            f"{Path(path).name} cannot be used: numpy cannot read a gzipped .npz file.", hint="Leave out .gz."
        )


def read_npz(path: str | Path) -> Volume:
    """Read a file written by `write_npz`. Only lattice, species, positions and total are required."""
    try:
        arrays = load_npz(io.BytesIO(read_blob(path)))
    except BadInput:
        raise
    except Exception as error:  # given arbitrary bytes, zipfile and numpy may raise any exception
        raise BadInput(f"{path} cannot be read: {error}.", hint="Give a complete .npz file.") from error
    if missing_parts := [name for name in ("lattice", "species", "positions", "total") if name not in arrays]:
        raise BadInput(
            f"{path} has no {', '.join(missing_parts)}.",
            hint="Store lattice, species, positions and total in it.",
        )
    try:
        numbers = {
            name: arrays[name].astype(np.float64)
            for name in ("lattice", "positions", "total", "spin")
            if name in arrays
        }
        texts = [str(text) for text in arrays["augmentation"]] if "augmentation" in arrays else ["", ""]
        species = tuple(str(symbol) for symbol in arrays["species"].reshape(-1))
        volume = Volume(
            Structure(numbers["lattice"], species, numbers["positions"]),
            numbers["total"],
            numbers.get("spin"),
            texts[0],
            texts[1],
            str(arrays.get("comment", "")),
        )
        check_volume(volume)
    except (ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}.", hint="Store numbers, and element symbols as species."
        ) from error
    except BadInput as error:
        raise BadInput(f"{path} cannot be read: {error.what}", hint=error.hint) from error
    for text in texts:
        read_augmentation(text, atoms=len(species), name=str(path))
    return volume
