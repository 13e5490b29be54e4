"""Read a molecule from an xyz file.

The file has a count, a comment, and then lines with a symbol and three coordinates in angstrom. Coordinates
are returned in bohr. Columns after the third coordinate are ignored; any other deviation from the format is
an error that names the line. Imports no framework.
"""

from __future__ import annotations

import math
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.vmc.data.molecules import SYMBOLS, Position

_FORM = "Write the number of atoms, a comment line, then one line SYMBOL X Y Z, in angstrom, per atom."


def read_xyz(path: str | Path) -> tuple[tuple[str, ...], tuple[Position, ...]]:
    """Return the symbols, and the positions in bohr."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}.", hint="Give an .xyz file that exists."
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a text file.", hint=_FORM) from error
    head = lines[0].strip() if lines else ""
    if not head.isdecimal() or int(head) < 1:
        raise BadInput(f"{path} starts with {head!r:.40} instead of the number of atoms.", hint=_FORM)
    rows = [(number, line.split()) for number, line in enumerate(lines[2:], start=3)]
    while rows and not rows[-1][1]:
        rows.pop()
    if len(rows) != int(head):
        raise BadInput(
            f"{path} has {len(rows)} atoms, but its first line says {head}.",
            hint=f"Write {len(rows)} on its first line, or add the missing atoms.",
        )
    atoms = [_atom(path, number, words) for number, words in rows]
    return tuple(symbol for symbol, _ in atoms), tuple(place for _, place in atoms)


def _atom(path: Path, number: int, words: list[str]) -> tuple[str, Position]:
    if len(words) < 4:
        raise BadInput(f"{path}, line {number}: {' '.join(words)!r:.60} is not an atom.", hint=_FORM)
    symbol = words[0]
    if symbol not in SYMBOLS:
        near = symbol.capitalize()
        hint = (
            f"Write {near}: upper and lower case matter."
            if near in SYMBOLS
            else "Give the symbols of elements from H to Kr."
        )
        raise BadInput(f"{path}, line {number}: {symbol!r:.20} is not an element.", hint=hint)
    try:
        x, y, z = (float(word) / BOHR_A for word in words[1:4])
    except ValueError as error:
        raise BadInput(
            f"{path}, line {number}: {' '.join(words[1:4])!r:.60} is not a position.", hint=_FORM
        ) from error
    if not all(map(math.isfinite, (x, y, z))):
        raise BadInput(f"{path}, line {number}: {' '.join(words[1:4])!r:.60} is not finite.", hint=_FORM)
    return symbol, (x, y, z)
