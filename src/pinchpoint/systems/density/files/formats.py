"""Volumetric files by their names: which reader and writer a path belongs to, and what a format cannot hold.

CHGCAR and its like (CHG, PARCHG, AECCAR; any name that ends in .vasp), .cube or .cub, .npz. All but .npz may end in .gz.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
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
    """The format a name stands for."""
    path = Path(path)
    bare = path.with_suffix("") if path.suffix == ".gz" else path
    if kind := _SUFFIXES.get(bare.suffix.lower()):
        return kind
    if bare.name.upper().startswith(_PREFIXES):
        return "chgcar"
    raise BadInput(
        f"cannot tell the format of {path.name!r} from its name",
        hint="name it CHGCAR, or let it end in .vasp, .cube or .npz",
    )


def read_volume(path: str | Path) -> Volume:
    if not Path(path).exists():
        raise BadInput(f"there is no file {path}", hint="name a file that exists")
    return {"chgcar": read_chgcar, "cube": read_cube, "npz": read_npz}[kind_of(path)](path)


def write_volume(path: str | Path, volume: Volume) -> Path:
    return {"chgcar": write_chgcar, "cube": write_cube, "npz": write_npz}[kind_of(path)](path, volume)


def check_volume_output(path: str | Path) -> Path:
    """Refuse an output before the work: a name of no known format, a folder, a place that cannot be written."""
    if Path(path).is_dir():
        raise BadInput(f"cannot write {path}: it is a folder", hint="name a file in it, such as CHGCAR")
    if kind_of(path) == "npz":
        _check_plain(path)
    return check_writable(path)


def warnings_of(volume: Volume, path: str | Path) -> tuple[str, ...]:
    """What the user of a file written there must know, a sentence each."""
    if kind_of(path) == "chgcar":
        warning = missing_augmentation(volume)
        return (warning,) if warning else ()
    if kind_of(path) == "cube":
        lost = [
            name
            for name, held in (
                ("the spin density", volume.spin is not None),
                ("augmentation", volume.augmentation),
            )
            if held
        ]
        return (
            (f"a cube file holds the total density only: {' and '.join(lost)} is left out",) if lost else ()
        )
    return ()


def write_npz(path: str | Path, volume: Volume) -> Path:
    """numpy's own format: every number bit for bit, no text to parse."""
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
        raise BadInput(f"{Path(path).name}: numpy cannot read a packed .npz", hint="leave out the .gz")


def read_npz(path: str | Path) -> Volume:
    """What `write_npz` wrote; lattice, species, positions and total must be there, the rest may."""
    try:
        with np.load(io.BytesIO(read_blob(path)), allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except BadInput:
        raise
    except Exception as error:  # zipfile and numpy meet bytes of any kind, and fail in any way
        raise BadInput(f"cannot read {path}: {error}", hint="give a .npz file that is whole") from error
    if lost := [name for name in ("lattice", "species", "positions", "total") if name not in arrays]:
        raise BadInput(
            f"{path} has no {', '.join(lost)}",
            hint="write all of lattice, species, positions and total into it",
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
        raise BadInput(f"cannot read {path}: {error}", hint="give numbers, and symbols of species") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error.what}", hint=error.hint) from error
    for text in texts:
        read_augmentation(text, atoms=len(species), name=str(path))
    return volume
