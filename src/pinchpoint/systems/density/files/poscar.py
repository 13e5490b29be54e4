"""Reading and writing of structures in VASP's POSCAR format, which is also the header of a CHGCAR.

Reads the format of VASP 5 and later: one or three scale factors or a negative one (the volume), selective
dynamics (ignored), direct or Cartesian coordinates, species such as `Hf_pv`, over several lines if there are
many. A number that is written and
read back is the same float64.
"""

from __future__ import annotations

import re
from typing import BinaryIO

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.grid.structure import Structure, cell_volume, check_structure

_DECIMALS = 16
_LONGEST_COUNT = 12  # digits
_SHORTEST_POSITION = 6  # bytes, `0 0 0` and the end of the line
_SYMBOL = re.compile(r"[A-Z][a-z]?([_/]\S*)?")


def read_poscar(stream: BinaryIO, *, name: str) -> tuple[Structure, str]:
    """Read the structure and the comment line; the stream is left after the last position.

    name: used in error messages.
    """
    comment = _line(stream, name, "the comment")
    scale = _floats(stream, name, "the scale factor", least=1)
    lattice = np.array([_floats(stream, name, f"lattice vector {i}", least=3)[:3] for i in (1, 2, 3)])
    factor = _factor(scale, lattice, name)
    lattice = lattice * factor
    symbols, counts = _species(stream, name)
    kind = _line(stream, name, "Direct or Cartesian")
    if kind[:1].lower() == "s":
        kind = _line(stream, name, "Direct or Cartesian")
    if kind[:1].lower() not in ("d", "c", "k"):
        raise BadInput(
            f"{name}: expected Direct or Cartesian, but the file has {kind!r:.80}.",
            hint="Write Direct or Cartesian on a line before the positions.",
        )
    rows = [
        _floats(stream, name, f"position {i + 1} of {sum(counts)}", least=3)[:3] for i in range(sum(counts))
    ]
    positions = np.array(rows, dtype=np.float64).reshape(-1, 3)
    if kind[0].lower() != "d" and cell_volume(lattice) > 0:  # a flat cell is refused by check_structure
        positions = np.linalg.solve(lattice.T, (positions * factor).T).T
    species = tuple(symbol for symbol, count in zip(symbols, counts, strict=True) for _ in range(count))
    try:
        return check_structure(Structure(lattice, species, positions)), comment
    except BadInput as error:
        raise BadInput(f"{name} cannot be read: {error.what}", hint=error.hint) from error


def poscar_text(structure: Structure, comment: str) -> str:
    """Return a POSCAR with the atoms in their order; a species that occurs in two runs is listed twice."""
    lines = [" ".join(comment.split()) or structure.formula, "   1.00000000000000"]
    lines += [_row(vector) for vector in structure.lattice]
    lines.append("".join(f"   {symbol:<2}" for symbol, _ in structure.runs))
    lines.append("".join(f"{count:6d}" for _, count in structure.runs))
    lines += ["Direct", *(_row(position) for position in structure.positions)]
    return "\n".join(lines) + "\n"


def _row(numbers: np.ndarray) -> str:
    # At least 16 decimals, and more if they are needed to read the same number back.
    texts = (np.format_float_positional(number, unique=True, min_digits=_DECIMALS) for number in numbers)
    return "  " + " ".join(f"{text:>21}" for text in texts)


def _factor(scale: list[float], lattice: np.ndarray, name: str) -> np.ndarray:
    """Return the factors (3,) of the Cartesian coordinates."""
    if len(scale) >= 3:
        factor = np.array(scale[:3])
    elif scale[0] < 0:  # minus the volume of the cell
        volume = cell_volume(lattice)
        factor = np.full(3, (-scale[0] / volume) ** (1 / 3) if volume > 0 else 1.0)
    else:
        factor = np.full(3, scale[0])
    if not (factor > 0).all():
        raise BadInput(
            f"{name}: the scale factor {scale[0]:g} is not valid.",
            hint="Use a scale factor above 0, or minus the volume of the cell.",
        )
    return factor


def _species(stream: BinaryIO, name: str) -> tuple[list[str], list[int]]:
    words = _line(stream, name, "the species").split()
    if words and all(word.isdigit() for word in words):
        raise BadInput(
            f"{name} does not name its species: the sixth line is {' '.join(words)!r}, as in VASP 4.",
            hint="Insert a line with the element symbols before it, such as 'Hf O'.",
        )
    # The name or hash of a POTCAR may follow the symbol: Hf_pv, Hf/3f5a0c2.
    counts = _line(stream, name, "the number of atoms of each species").split()
    # Long lists are wrapped: further lines of symbols, and then as many of counts.
    while counts and all(_SYMBOL.fullmatch(word) for word in counts):
        words += counts
        counts = _line(stream, name, "the number of atoms of each species").split()
    symbols = [word.partition("_")[0].partition("/")[0] for word in words]
    while counts and all(word.isdigit() for word in counts) and len(counts) < len(symbols):
        more = _line(stream, name, "the number of atoms of each species").split()
        if not more or not all(word.isdigit() for word in more):
            break
        counts += more
    if not all(word.isdigit() for word in counts) or len(counts) != len(symbols):
        raise BadInput(
            f"{name}: the counts {' '.join(counts)!r} do not match {len(symbols)} species "
            f"({' '.join(symbols)}).",
            hint="Give one whole number for each species.",
        )
    atoms = [int(word) for word in counts if len(word) <= _LONGEST_COUNT]
    if len(atoms) < len(counts) or sum(atoms) > _left(stream) // _SHORTEST_POSITION + 1:
        raise BadInput(
            f"{name} claims {' + '.join(counts)} atoms, which is more than the file has room for.",
            hint="Copy or write the file again: it is truncated or damaged.",
        )
    return symbols, atoms


def _left(stream: BinaryIO) -> int:
    """Return how many bytes follow."""
    at = stream.tell()
    end = stream.seek(0, 2)
    stream.seek(at)
    return end - at


def _line(stream: BinaryIO, name: str, what: str) -> str:
    line = stream.readline()
    if not line:
        raise BadInput(f"{name} ends before {what}.", hint="Copy or write the file again: it is truncated.")
    return line.decode("utf-8", errors="replace").strip()


def _floats(stream: BinaryIO, name: str, what: str, *, least: int) -> list[float]:
    """Return the numbers at the start of a line; words may follow them."""
    line = _line(stream, name, what)
    numbers: list[float] = []
    for word in line.split():
        try:
            numbers.append(float(word.replace("D", "E").replace("d", "e")))
        except ValueError:
            break
    if len(numbers) < least:
        raise BadInput(
            f"{name}: expected {what}, but the file has {line!r:.80}.",
            hint="Give the numbers, separated by blanks.",
        )
    return numbers
