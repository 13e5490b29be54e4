"""The cases in a folder of a user's files: which file is a case, and its fields and parameters.

A case is a mesh file with fields, or a mesh and a table (npz, csv, HDF5) of its fields, or a table with
points. In a folder, every file is a case, and so is every subfolder with one mesh or one table; the folders
`train` and `test` decide the split if both exist. Parameters are numbers of a whole case: in
`parameters.json` or `parameters.csv` of its folder, in a .json file of its name, in a table of all cases
beside them, or in the mesh file itself.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import parse_json
from pinchpoint.core.units import show_choices
from pinchpoint.systems.operator.files.csv_tables import read_text
from pinchpoint.systems.operator.files.formats import (
    MESHES,
    TABLES,
    check_grid,
    read_grid,
    read_table,
    with_table,
)
from pinchpoint.systems.operator.files.grid import Grid

PARAMETERS = "parameters"
# Files of flow solvers that hold fields, but are not read.
_OTHERS = (
    ".vtm",
    ".pvtu",
    ".pvtp",
    ".cgns",
    ".case",
    ".foam",
    ".plt",
    ".xdmf",
    ".msh",
)
_KEYS = ("case", "name", "id", "file")  # the column of a table that names the case


@dataclass(frozen=True)
class Source:
    """The files of one case."""

    name: str
    file: Path
    tables: tuple[Path, ...] = ()  # further fields
    parameters: tuple[Path, ...] = ()  # files with its parameters, the last has the last word
    split: str = ""  # train or test if the folders decide

    def files(self) -> tuple[Path, ...]:
        return (self.file, *self.tables, *self.parameters)


def find_sources(folder: Path, pattern: str | None = None) -> list[Source]:
    """The cases in a folder, by name. pattern: of the files that are cases, relative to the folder."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.", hint="Name the folder that holds your cases.")
    if pattern is not None:
        sources = _matching(folder, pattern)
    elif (folder / "train").is_dir() and (folder / "test").is_dir():
        sources = [
            Source(s.name, s.file, s.tables, s.parameters, split)
            for split in ("train", "test")
            for s in _in_folder(folder / split, folder)
        ]
    else:
        sources = _in_folder(folder, folder)
    if not sources:
        others = sorted({path.suffix for path in folder.rglob("*") if path.suffix.lower() in _OTHERS})
        raise BadInput(
            f"{folder} contains no cases"
            + (f", only files of types such as {others[0]}." if others else "."),
            hint="Save them as .vtu, for example in ParaView."
            if others
            else f"Put one file per case there, ending in {show_choices((*MESHES, *TABLES))}, or one folder.",
        )
    _check_names(sources)
    return sorted(sources, key=lambda source: source.name)


def read_source(source: Source, *, strict: bool = True) -> tuple[Grid, dict[str, float], set[str]]:
    """The grid of a case, its parameters, and the names of those that are not from the mesh file.

    strict=False ignores tables of parameters that do not name the case.
    """
    grid = read_grid(source.file)
    for table in source.tables:
        grid = check_grid(with_table(grid, read_table(table), table), table)
    parameters, named = dict(grid.values), set()
    for file in source.parameters:
        values = _read_parameters(file, source.name, strict=strict)
        parameters |= values
        named |= set(values)
    return grid, parameters, named


def _in_folder(folder: Path, root: Path) -> list[Source]:
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and _is_case(path)]
    common = [*parameter_files(root), *(parameter_files(folder) if folder != root else [])]
    meshes = [path for path in files if path.suffix.lower() in MESHES]
    beside = {path.stem for path in meshes}
    sources = []
    for path in [*meshes, *(p for p in files if p.suffix.lower() in TABLES and p.stem not in beside)]:
        tables = [p for p in files if p.stem == path.stem and p != path and path in meshes]
        own = [p for p in (path.with_suffix(".json"),) if p.is_file()]
        sources.append(Source(_name(path.stem), path, tuple(tables), (*common, *own)))
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            sources += _one_case(path, common)
    return sources


def _one_case(folder: Path, common: list[Path]) -> list[Source]:
    """The case of a subfolder, at any depth in it; none if it has no such file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _is_case(path)]
    meshes = [path for path in files if path.suffix.lower() in MESHES]
    tables = [path for path in files if path.suffix.lower() in TABLES]
    mains = meshes or tables
    if not mains:
        return []
    if len(mains) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in mains[:3])
        raise BadInput(
            f"{folder} contains {len(mains):,} files that could be the case: {names}"
            f"{', ...' if len(mains) > 3 else ''}.",
            hint=f"Name the one of every case with --files, such as --files '{_pattern(folder, mains[-1])}'.",
        )
    own = [path for path in sorted(folder.rglob(f"{PARAMETERS}.*")) if path.suffix in (".json", ".csv")]
    return [Source(_name(folder.name), mains[0], tuple(tables if meshes else ()), (*common, *own))]


def _pattern(folder: Path, file: Path) -> str:
    """A pattern for files like this one in other cases, whose names may contain that of the case."""
    return "/".join(["*", *(part.replace(folder.name, "*") for part in file.relative_to(folder).parts)])


def _matching(folder: Path, pattern: str) -> list[Source]:
    try:
        paths = sorted(path for path in folder.glob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        raise BadInput(
            f"--files {pattern!r} is not a pattern: {error}.", hint="Give one such as '*/internal.vtu'."
        ) from error
    if not paths:
        raise BadInput(f"No file in {folder} matches {pattern!r}.", hint="Give another pattern with --files.")
    parts = [path.relative_to(folder).with_suffix("").parts for path in paths]
    # The folder of the case is name enough where every match has its own.
    short = [part[0] for part in parts]
    names = short if len(set(short)) == len(short) else ["-".join(part) for part in parts]
    common = parameter_files(folder)
    sources = []
    for path, name in zip(paths, names, strict=True):
        own = [p for parent in _between(path, folder) for p in parameter_files(parent)]
        sources.append(Source(_name(name), path, (), (*common, *own)))
    return sources


def _between(path: Path, folder: Path) -> list[Path]:
    """The folders from `folder`, without it, down to that of the file."""
    parents = path.relative_to(folder).parents
    return [folder / parent for parent in reversed(parents) if str(parent) != "."]


def _is_case(path: Path) -> bool:
    return (
        path.suffix.lower() in (*MESHES, *TABLES)
        and path.stem.lower() != PARAMETERS
        and not path.name.startswith(".")
    )


def parameter_files(folder: Path) -> list[Path]:
    return [path for end in ("csv", "json") if (path := folder / f"{PARAMETERS}.{end}").is_file()]


def _read_parameters(path: Path, case: str, *, strict: bool) -> dict[str, float]:
    """The numbers in a file about a case: all of them, or those of its row in a table of cases."""
    try:
        if path.suffix.lower() == ".csv":
            rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
            key = next((name for name in (rows[0] if rows else {}) if name.strip().lower() in _KEYS), None)
            if key is not None:
                rows = [row for row in rows if _name(Path(str(row[key])).stem) == case]
                rows = [{name: value for name, value in row.items() if name != key} for row in rows]
            elif len(rows) != 1 and not strict:
                rows = []
            elif len(rows) != 1:
                raise ValueError(
                    f"it has {len(rows)} rows, and no column {show_choices(_KEYS)} that names the case"
                )
            values: dict[str, Any] = rows[0] if rows else {}
        else:
            values = parse_json(path.read_text(encoding="utf-8"))
            if not isinstance(values, dict):
                raise ValueError("it is not an object of names and numbers")
            own = [part for name, part in values.items() if _name(str(name)) == case]
            if own and isinstance(own[0], dict):
                values = own[0]
    except (OSError, ValueError, json.JSONDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path} cannot be read: {str(error)[:200].rstrip('.')}.",
            hint='Write numbers by name: {"U": 1.5, "alpha": 3} as .json, or one row per case as .csv.',
        ) from error
    numbers = {}
    for name, value in values.items():
        number = _number(value)
        if name is not None and number is not None:
            numbers[name.strip()] = number
    return numbers


def _number(value: Any) -> float | None:
    """The number that a value is or spells; None for words, lists and truth values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan if value == "" else None


def _name(text: str) -> str:
    """A name for a case that is a file name everywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._") or "_"


def _check_names(sources: Iterable[Source]) -> None:
    by_name: dict[str, Source] = {}
    for source in sources:
        if source.name in by_name:
            raise BadInput(
                f"{by_name[source.name].file} and {source.file} are both a case named {source.name!r}.",
                hint="Rename one of them, or choose the files with --files.",
            )
        by_name[source.name] = source
