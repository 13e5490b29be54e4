"""Volumetric files: the reader for a file's contents, the writer for a name, and numpy's .npz.

Formats are CHGCAR (also CHG, PARCHG, AECCAR and any name that ends in .vasp), .cube or .cub, and .npz; the
JSON of pymatgen and the Materials Project is read, too. All but .npz may be compressed (.gz, .bz2, .xz). A
file is read by its contents, whatever its name; a name determines the format only for writing.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.files.augmentation import read_augmentation
from pinchpoint.systems.density.files.chgcar import chgcar_of, write_chgcar
from pinchpoint.systems.density.files.cube import cube_of, write_cube
from pinchpoint.systems.density.files.detection import content_kind
from pinchpoint.systems.density.files.file_io import (
    bare_path,
    check_text,
    check_writable,
    read_blob,
    write_blob,
)
from pinchpoint.systems.density.files.materials_json import json_volume
from pinchpoint.systems.density.files.scattered import is_scattered, npz_arrays
from pinchpoint.systems.density.files.volume import Volume, check_volume, missing_augmentation
from pinchpoint.systems.density.grid.structure import Structure

Kind = Literal["chgcar", "cube", "npz"]
_GRID_AFTER_BLANK = re.compile(rb"\n[ \t\r]*\n[ \t]*\d+[ \t]+\d+[ \t]+\d+[ \t\r]*\n")
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
    bare = bare_path(path)
    if kind := _SUFFIXES.get(bare.suffix.lower()):
        return kind
    if bare.name.upper().startswith(_PREFIXES):
        return "chgcar"
    raise BadInput(
        f"The format of {path.name!r} cannot be determined from its name.",
        hint="Name it CHGCAR, or end its name in .vasp, .cube or .npz.",
    )


def read_volume(path: str | Path) -> Volume:
    """Read a density, in the format of the file's contents."""
    return volume_of(read_blob(path), name=str(path))


def volume_of(data: bytes, *, name: str) -> Volume:
    """Parse the bytes of a density file. name: used in error messages, and if the contents are unclear."""
    kind = content_kind(data)
    if kind == "hdf5":
        raise BadInput(
            f"{name} is an HDF5 file, which may hold scattered probes but no grid.",
            hint="Give a CHGCAR, .cube, .npz or JSON file; use scattered probes with density data --from.",
        )
    if kind is None:
        try:
            kind = kind_of(name)
        except BadInput as error:
            raise BadInput(
                f"The format of {Path(name).name!r} cannot be determined, neither from its contents nor from "
                "its name.",
                hint="Give a CHGCAR, .cube, .npz or JSON file with a density.",
            ) from error
    if kind in ("chgcar", "cube"):
        check_text(data, name=name)
    return {"chgcar": chgcar_of, "cube": cube_of, "npz": npz_volume, "json": json_volume}[kind](
        data, name=name
    )


def holds_density(data: bytes) -> bool:
    """Whether the contents of a file look like a density rather than a structure; nothing is checked."""
    kind = content_kind(data)
    if kind == "json":
        return b'"total"' in data and b'"sites"' in data
    if kind == "chgcar":
        return _GRID_AFTER_BLANK.search(data) is not None
    return kind in ("cube", "npz") or (kind == "hdf5" and b"probes" in data)


def write_volume(path: str | Path, volume: Volume, *, device: str = "cpu") -> Path:
    """Write a density in the format given by the file name.

    device: where the numbers of a CHGCAR are printed.
    """
    kind = kind_of(path)
    if kind == "chgcar":
        return write_chgcar(path, volume, device=device)
    return (write_cube if kind == "cube" else write_npz)(path, volume)


def check_volume_output(path: str | Path) -> Path:
    """Raise BadInput, before any work is done, for an unknown format, a folder, or an unwritable path."""
    if Path(path).is_dir():
        raise BadInput(
            f"{path} cannot be written: it is a folder.", hint="Give a file in it, such as CHGCAR."
        )
    kind = kind_of(path)
    bare = bare_path(path)
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
    if bare_path(path) != Path(path):
        raise BadInput(
            f"{Path(path).name} cannot be used: numpy cannot read a compressed .npz file.",
            hint=f"Leave out {Path(path).suffix}.",
        )


def read_npz(path: str | Path) -> Volume:
    """Read a file written by `write_npz`. Only lattice, species, positions and total are required."""
    return npz_volume(read_blob(path), name=str(path))


def npz_volume(data: bytes, *, name: str) -> Volume:
    """Parse the bytes of an .npz file with a grid. name: used in error messages."""
    arrays = npz_arrays(data, name=name)
    if is_scattered(arrays):
        raise BadInput(
            f"{name} holds scattered probes, not a grid.",
            hint="Use it with density data --from, or give a file with a grid `total`.",
        )
    if missing_parts := [key for key in ("lattice", "species", "positions", "total") if key not in arrays]:
        raise BadInput(
            f"{name} has no {', '.join(missing_parts)}.",
            hint="Store lattice, species, positions and total in it.",
        )
    try:
        numbers = {
            key: arrays[key].astype(np.float64)
            for key in ("lattice", "positions", "total", "spin")
            if key in arrays
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
            f"{name} cannot be read: {error}.", hint="Store numbers, and element symbols as species."
        ) from error
    except BadInput as error:
        raise BadInput(f"{name} cannot be read: {error.what}", hint=error.hint) from error
    for text in texts:
        read_augmentation(text, atoms=len(species), name=name)
    return volume
