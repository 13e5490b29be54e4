"""Reading and writing of Gaussian cube files: one density and the atoms.

In the file, lengths are in bohr (angstrom if the numbers of points are negative) and densities in electrons
per cubic bohr, z fastest. The cell is count times step along each axis and repeats periodically; the origin
of the file becomes the corner of the cell. A cube file has neither spin nor augmentation occupancies. Files
with orbitals are refused.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.files.file_io import read_text_blob, write_blob
from pinchpoint.systems.density.files.number_parsing import NotNumbers, parse_any
from pinchpoint.systems.density.files.number_printing import format_lines
from pinchpoint.systems.density.files.volume import Volume, check_grid, check_volume
from pinchpoint.systems.density.grid.elements import SYMBOLS
from pinchpoint.systems.density.grid.structure import Structure, check_structure

_PER_LINE = 6
_COPY_AGAIN = "Copy the file again: it is truncated or damaged."


def read_cube(path: str | Path) -> Volume:
    """Read the density of a cube file, plain or compressed."""
    return cube_of(read_text_blob(path), name=str(path))


def cube_of(data: bytes, *, name: str) -> Volume:
    """Parse the bytes of a cube file. name: used in error messages."""
    stream = io.BytesIO(data)
    comment = stream.readline().decode("utf-8", errors="replace").strip()
    stream.readline()
    head = _row(stream, name, "the number of atoms and the origin", least=4)
    if head[0] < 0 or (len(head) > 4 and head[4] > 1):
        raise BadInput(
            f"{name} contains orbitals, or several values per point.",
            hint="Give a cube file with one density.",
        )
    axes = [_row(stream, name, "a count of points and a step", least=4) for _ in range(3)]
    unit = 1.0 if axes[0][0] < 0 else BOHR_A
    grid = (abs(int(axes[0][0])), abs(int(axes[1][0])), abs(int(axes[2][0])))
    with np.errstate(over="ignore"):  # refused below
        lattice = np.array([np.array(axis[1:4]) * n for axis, n in zip(axes, grid, strict=True)]) * unit
    atoms = np.array([_row(stream, name, f"atom {i + 1}", least=5)[:5] for i in range(int(head[0]))]).reshape(
        -1, 5
    )
    try:
        check_grid(grid)
        structure = _structure(lattice, atoms, np.array(head[1:4]), unit)
    except BadInput as error:
        raise BadInput(f"{name} cannot be read: {error.what}", hint=error.hint) from error
    try:
        values = parse_any(np.frombuffer(data, dtype=np.uint8)[stream.tell() :], grid[0] * grid[1] * grid[2])
    except NotNumbers as error:
        line = f", line {data.count(10, 0, stream.tell() + error.at) + 1}" if error.at >= 0 else ""
        raise BadInput(f"{name}{line} cannot be read: {error}.", hint=_COPY_AGAIN) from error
    return Volume(structure, values.reshape(grid) / BOHR_A**3, comment=comment)


def write_cube(path: str | Path, volume: Volume, *, part: Literal["total", "spin"] = "total") -> Path:
    """Write one density atomically, with 11 digits per number; compressed if the name ends in .gz, .bz2
    or .xz.
    """
    check_volume(volume)
    density = volume.total if part == "total" else volume.spin
    if density is None:
        raise BadInput("This density has no spin part.", hint="Write its total.")
    unit = "electrons per cubic bohr, up - down" if part == "spin" else "electrons per cubic bohr"
    lines = [" ".join(volume.comment.split()) or volume.structure.formula, unit]
    lines.append(f"{len(volume.species):5d}{_numbers(np.zeros(3))}")
    lines += [
        f"{n:5d}{_numbers(vector / n / BOHR_A)}"
        for n, vector in zip(volume.grid, volume.lattice, strict=True)
    ]
    for symbol, place in zip(volume.species, volume.structure.cartesian / BOHR_A, strict=True):
        number = SYMBOLS.index(symbol) + 1
        lines.append(f"{number:5d}{_numbers(np.array([float(number), *place]))}")
    nx, ny, nz = volume.grid
    # Each row along z starts a new line, as in Gaussian.
    body = format_lines(
        np.asarray(density, dtype=np.float64).reshape(nx * ny, nz) * BOHR_A**3, per_line=_PER_LINE
    )
    return write_blob(path, ("\n".join(lines) + "\n").encode("utf-8") + body)


def _structure(lattice: np.ndarray, atoms: np.ndarray, origin: np.ndarray, unit: float) -> Structure:
    numbers = atoms[:, 0].astype(np.int64)
    wrong = np.flatnonzero((numbers < 1) | (numbers > len(SYMBOLS)))
    if len(wrong):
        raise BadInput(
            f"Atom {wrong[0] + 1} has the atomic number {numbers[wrong[0]]}.",
            hint=f"Give atomic numbers from 1 to {len(SYMBOLS)}.",
        )
    species = tuple(SYMBOLS[number - 1] for number in numbers)
    places = (atoms[:, 2:5] - origin) * unit
    try:
        fractions = np.linalg.solve(lattice.T, places.T).T
    except np.linalg.LinAlgError:
        fractions = places  # the cell is flat or tiny, and refused by check_structure
    return check_structure(Structure(lattice, species, fractions))


def _numbers(values: np.ndarray) -> str:
    return "".join(
        f" {np.format_float_positional(value, unique=True, min_digits=12):>17}" for value in values
    )


def _row(stream: io.BytesIO, name: str, what: str, *, least: int) -> list[float]:
    line = stream.readline().decode("utf-8", errors="replace")
    try:
        numbers = [float(word) for word in line.split()]
    except ValueError:
        numbers = []
    if len(numbers) < least or not np.isfinite(numbers).all():
        raise BadInput(
            f"{name}: expected {what}, but the file has {line.strip()!r:.80}.",
            hint="Give a complete Gaussian cube file.",
        )
    return numbers
