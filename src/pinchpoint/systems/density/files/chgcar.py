"""Reading and writing of VASP's CHGCAR: density, spin density and augmentation occupancies.

The file holds the density times the cell volume, x fastest, five numbers per line; a `Volume` holds electrons
per cubic angstrom. A file that is read and written again has the same numbers, digit for digit. CHG, PARCHG
and AECCAR files have the same format. The last line of a grid may be filled up with zeros. Non-collinear
files (four grids) are refused.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.files.augmentation import read_augmentation
from pinchpoint.systems.density.files.file_io import read_text_blob, write_blob
from pinchpoint.systems.density.files.number_parsing import NotNumbers, parse_numbers
from pinchpoint.systems.density.files.number_printing import HostPrinter
from pinchpoint.systems.density.files.poscar import poscar_text, read_poscar
from pinchpoint.systems.density.files.volume import Volume, check_grid, check_volume

if TYPE_CHECKING:
    from pinchpoint.systems.density.files.device_printing import DevicePrinter

_PER_LINE = 5
_GRID = re.compile(rb"^[ \t]*(\d+)[ \t]+(\d+)[ \t]+(\d+)[ \t\r]*$", re.MULTILINE)
_COPY_AGAIN = "Copy the file again: it is truncated or damaged."


def read_chgcar(path: str | Path) -> Volume:
    """Read the density of a CHGCAR, plain or compressed."""
    return chgcar_of(read_text_blob(path), name=str(path))


def write_chgcar(path: str | Path, volume: Volume, *, device: str = "cpu") -> Path:
    """Write a CHGCAR atomically; compressed if the name ends in .gz, .bz2 or .xz.

    device: where the numbers are printed; the text is the same.
    """
    return write_blob(path, _parts(volume, device))


def chgcar_of(data: bytes, *, name: str) -> Volume:
    """Parse the bytes of a CHGCAR. name: used in error messages."""
    stream = io.BytesIO(data)
    structure, comment = read_poscar(stream, name=name)
    line = b"\n"
    while line and not line.strip():
        line = stream.readline()
    head = _GRID.fullmatch(line.rstrip())
    if head is None:
        line_text = line.decode("utf-8", errors="replace").strip()
        raise BadInput(
            f"{name}: expected the grid, but the file has {line_text!r:.80}.",
            hint="Give a CHGCAR; a POSCAR alone has no density.",
        )
    text = np.frombuffer(data, dtype=np.uint8)
    grid = (int(head[1]), int(head[2]), int(head[3]))
    atoms = len(structure.species)
    total, at = _read_grid(text, stream.tell(), grid, structure.volume, name)
    augmentation, more = _between(data, at, grid, name)
    read_augmentation(augmentation, atoms=atoms, name=name)
    if more is None:
        return Volume(structure, total, augmentation=augmentation, comment=comment)
    spin, at = _read_grid(text, more, grid, structure.volume, f"{name}, spin density")
    spin_augmentation, more = _between(data, at, grid, name)
    if more is not None:
        raise BadInput(
            f"{name} has more than two grids, as written by a non-collinear run, which pinchpoint does not "
            "support.",
            hint="Give a CHGCAR of a run without LNONCOLLINEAR.",
        )
    read_augmentation(spin_augmentation, atoms=atoms, name=f"{name}, spin density")
    return Volume(structure, total, spin, augmentation, spin_augmentation, comment)


def chgcar_bytes(volume: Volume) -> bytes:
    """Return the contents of a CHGCAR file."""
    return b"".join(map(bytes, _parts(volume, "cpu")))


def _parts(volume: Volume, device: str) -> Iterator[bytes | memoryview]:
    """Yield the contents of a file; a part is valid until the next one is requested."""
    check_volume(volume)
    cell = volume.structure.volume
    grid = "".join(f"{n:5d}" if n < 10_000 else f" {n}" for n in volume.grid).encode() + b"\n"
    yield poscar_text(volume.structure, volume.comment).encode("utf-8") + b"\n" + grid
    yield from _grid_text("density", volume.total, cell, device)
    yield _with_newline(volume.augmentation)
    if volume.spin is not None:
        yield grid
        yield from _grid_text("spin density", volume.spin, cell, device)
        yield _with_newline(volume.spin_augmentation)


def _read_grid(
    text: np.ndarray, start: int, grid: tuple[int, int, int], cell: float, name: str
) -> tuple[np.ndarray, int]:
    """Return the density (nx, ny, nz) that starts at a byte offset, and the offset after its last line."""
    try:
        check_grid(grid)
    except BadInput as error:
        raise BadInput(f"{name} cannot be read: {error.what}", hint=error.hint) from error
    nx, ny, nz = grid
    if len(text) - start < 2 * nx * ny * nz - 1:  # checked before memory is allocated
        raise BadInput(f"{name} ends before the last of {nx * ny * nz:,} grid points.", hint=_COPY_AGAIN)
    try:
        values, length = parse_numbers(text[start:], nx * ny * nz)
    except NotNumbers as error:
        line = f", line {np.count_nonzero(text[: start + error.at] == 10) + 1}" if error.at >= 0 else ""
        raise BadInput(f"{name}{line} cannot be read: {error}.", hint=_COPY_AGAIN) from error
    values /= cell
    return np.ascontiguousarray(values.reshape(nz, ny, nx).transpose(2, 1, 0)), start + length


def _between(data: bytes, start: int, grid: tuple[int, int, int], name: str) -> tuple[str, int | None]:
    """Return the text up to the next grid or the end of the file, and the offset of the numbers after it.

    The offset is None if there is no other grid.
    """
    head = _GRID.search(data, start)
    if head is not None and tuple(int(n) for n in head.groups()) != grid:
        raise BadInput(
            f"{name}: the second grid is {head[0].decode().split()}, but the first is "
            f"{list(map(str, grid))}; they must be equal.",
            hint="Write the CHGCAR again with equal grids.",
        )
    text = data[start : head.start() if head else len(data)].decode("utf-8", errors="replace")
    return (text if text.strip() else ""), (None if head is None else min(head.end() + 1, len(data)))


def _grid_text(name: str, density: np.ndarray, cell: float, device: str) -> Iterator[memoryview]:
    """Return the text of the grid in chunks. name: used in error messages."""
    printer = _printer(density, cell, device)
    if not math.isfinite(printer.largest):
        raise BadInput(
            f"The {name} is up to {np.abs(density).max():.3g} electrons per cubic angstrom; times the cell "
            f"volume of {cell:.6g} cubic angstrom, it overflows.",
            hint="Give the density in electrons per cubic angstrom; so large a value is a mistake.",
        )
    return printer.chunks(per_line=_PER_LINE)


def _printer(density: np.ndarray, cell: float, device: str) -> HostPrinter | DevicePrinter:
    if device != "cpu":
        from pinchpoint.systems.density.files.device_printing import device_printer

        if (printer := device_printer(density, cell, device)) is not None:
            return printer
    return HostPrinter(density, cell)


def _with_newline(text: str) -> bytes:
    return (text if not text or text.endswith("\n") else text + "\n").encode("utf-8")
