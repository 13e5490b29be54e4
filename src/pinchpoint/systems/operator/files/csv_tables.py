"""A reader of tables of numbers with a line of names (.csv), as spreadsheets and flow solvers export them.

Columns are separated by commas, or by semicolons, tabs or spaces, then also with decimal commas. Lines before
the names (comments, the sections of CFX) are skipped, and so are columns of words. Units at the end of a
name, `Pressure (Pa)` or `X [ m ]`, are not part of it. x, y and z, also `x-coordinate` or `Points:0`, become
the array `points`; components such as U_x, U:0, Velocity[i], x-velocity or `Velocity u` become one array.
"""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from pathlib import Path

import numpy as np

_SEPARATORS = (",", ";", "\t", None)  # None: any number of spaces
_UNIT = re.compile(r"\s*(\([^()]*\)|\[[^\[\]]*\])$")
_PLACE = re.compile(r"([xyz])[ _-]*(coord(inate)?s?)?|(?:points|coordinates)[:_]?([012])", re.IGNORECASE)
# The component of a vector in a column's name, at its end or, as in Fluent, at its beginning.
_LAST = re.compile(r"(.+?)(?:[_:.]([xyz012])|\[([ijk])\]| ([uvwxyz]))", re.IGNORECASE)
_FIRST = re.compile(r"([xyz])-(.+)", re.IGNORECASE)
_AXES = dict(zip("xyz012ijkuvw", [0, 1, 2] * 4, strict=True))


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, or in Latin-1 as older spreadsheets write it."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """The columns of numbers by name, (n,) or (n, components). Raises ValueError if it is not a table."""
    lines = [line for line in read_text(path).splitlines() if line.strip() and line.lstrip()[0] not in "#%"]
    start, separator = _names_line(lines)
    names, *rows = _split(lines[start:], separator) or [[]]
    if not any(names) or not rows:
        raise ValueError("it has no line of names and no rows")
    short = next((number for number, row in enumerate(rows) if len(row) != len(names)), None)
    if short is not None:
        raise ValueError(f"row {short + 1} has {len(rows[short])} values, not {len(names)}")
    plain = [_UNIT.sub("", name) for name in names]
    names = plain if len(set(plain)) == len(plain) and all(plain) else names
    if len(set(names)) != len(names):
        raise ValueError("a name of a column is repeated")
    columns: dict[str, np.ndarray] = {}
    for at, name in enumerate(names):
        try:
            columns[name] = np.array([_number(row[at], decimal_comma=separator != ",") for row in rows])
        except ValueError:
            continue  # a column of words
    return join_columns(columns)


def _names_line(lines: list[str]) -> tuple[int, str | None]:
    """The line of names and the separator: the first line that is followed by as many numbers."""
    for start, (line, after) in enumerate(pairwise(lines)):
        for separator in _SEPARATORS:
            names, values = _split([line, after], separator)
            if len(names) != len(values) or len(names) < 2:
                continue
            if any(map(_is_number, values)) and not any(map(_is_number, names)):
                return start, separator
    return 0, ","


def _split(lines: list[str], separator: str | None) -> list[list[str]]:
    if separator is None:
        return [line.split() for line in lines]
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    return [[value.strip() for value in row] for row in rows]


def _is_number(text: str) -> bool:
    try:
        _number(text, decimal_comma=True)
    except ValueError:
        return False
    return bool(text)


def _number(text: str, *, decimal_comma: bool) -> float:
    return float((text.replace(",", ".") if decimal_comma else text) or "nan")


def join_columns(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns of coordinates become `points`, and those of components become one array."""
    rest = dict(columns)
    places: dict[int, str] = {}
    for name in columns:
        if match := _PLACE.fullmatch(name):
            places.setdefault(_AXES[(match[1] or match[4]).lower()], name)
    arrays: dict[str, np.ndarray] = {}
    if len(places) >= 2:
        arrays["points"] = np.stack([rest.pop(places[axis]) for axis in sorted(places)], axis=1)
    groups: dict[str, dict[int, str]] = {}
    for name in rest:
        if (part := _component(name)) is not None:
            groups.setdefault(part[0], {}).setdefault(part[1], name)
    vectors = {
        name: [members[axis] for axis in sorted(members)]
        for name, members in groups.items()
        if sorted(members) in ([0, 1], [0, 1, 2]) and name not in rest
    }
    vector_of = {member: name for name, members in vectors.items() for member in members}
    for name, values in rest.items():
        vector = vector_of.get(name)
        if vector is None:
            arrays[name] = values
        elif vector not in arrays:
            arrays[vector] = np.stack([rest[member] for member in vectors[vector]], axis=1)
    return arrays


def _component(name: str) -> tuple[str, int] | None:
    """The vector that a column belongs to, and its axis."""
    if match := _LAST.fullmatch(name):
        return match[1], _AXES[next(part for part in match.groups()[1:] if part).lower()]
    if match := _FIRST.fullmatch(name):
        return match[2], _AXES[match[1].lower()]
    return None
