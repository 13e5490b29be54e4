"""A reader of legacy VTK files (.vtk) without a library: PolyData, unstructured and structured grids.

Reads ASCII and binary, cells as lists with their counts (up to version 4) or as offsets and connectivity
(version 5), and the fields on points and cells. Of PolyData it reads polygons, or lines if there are no
polygons; single points are skipped. Of structured grids it reads all cells that are not hidden.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.files import structured
from pinchpoint.systems.operator.files.grid import Cells, Grid
from pinchpoint.systems.operator.files.vtk_xml import polydata_cells, unstructured_cells

_TYPES = {
    "float": "f4",
    "double": "f8",
    "char": "i1",
    "unsigned_char": "u1",
    "short": "i2",
    "unsigned_short": "u2",
    "int": "i4",
    "unsigned_int": "u4",
    "long": "i8",
    "unsigned_long": "u8",
    "vtkidtype": "i8",
    "vtktypeint32": "i4",
    "vtktypeint64": "i8",
}
# Kinds of fields, with their components; 0: the line says how many.
_ATTRIBUTES = {"SCALARS": 0, "VECTORS": 3, "NORMALS": 3, "TENSORS": 9, "TEXTURE_COORDINATES": 0}
_DATASETS = ("POLYDATA", "UNSTRUCTURED_GRID", "STRUCTURED_POINTS", "STRUCTURED_GRID", "RECTILINEAR_GRID")
_COORDINATES = ("X_COORDINATES", "Y_COORDINATES", "Z_COORDINATES")
# Lines with three numbers about a structured grid, and the name under which they are kept.
_TRIPLES = {
    "DIMENSIONS": "DIMENSIONS",
    "ORIGIN": "ORIGIN",
    "SPACING": "SPACING",
    "ASPECT_RATIO": "SPACING",
}


def read_vtk_legacy(path: Path) -> Grid:
    """The grid of a file, with one block of cells per run of cells of equal kind and size."""
    try:
        return _parse(_Rest(path.read_bytes()))
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise BadInput(
            f"{path} cannot be read as legacy VTK: {error}.",
            hint="Export it again, for example from ParaView as .vtp or .vtu.",
        ) from error


class _Rest:
    """The unread rest of a file: header lines, and arrays between them."""

    def __init__(self, data: bytes) -> None:
        lines = data.split(b"\n", 4)
        words = lines[3].decode("latin-1").upper().split() if len(lines) == 5 else []
        if words[:1] != ["DATASET"] or words[1:] not in [[name] for name in _DATASETS]:
            raise ValueError(f"its fourth line does not name one of the datasets {', '.join(_DATASETS)}")
        form, self.dataset, self.data = lines[2], words[1], lines[4]
        self.at = 0
        self.binary = form.strip().upper() == b"BINARY"

    def words(self) -> list[str]:
        """The words of the next line that is not empty; an empty list at the end of the file."""
        while self.at < len(self.data):
            end = self.data.find(b"\n", self.at)
            end = len(self.data) if end < 0 else end
            words = self.data[self.at : end].decode("latin-1").split()
            self.at = end + 1
            if words:
                return words
        return []

    def skip_block(self) -> None:
        """Skip to the line after the next empty line."""
        end = self.data.find(b"\n\n", self.at)
        self.at = len(self.data) if end < 0 else end + 2

    def numbers(self, count: int, kind: str) -> np.ndarray:
        dtype = np.dtype(_TYPES[kind.lower()])
        if self.binary:
            end = self.at + count * dtype.itemsize
            piece = self.data[self.at : end]
            if count < 0 or len(piece) != end - self.at:
                raise ValueError("the file ends within an array")
            self.at = end
            return np.frombuffer(piece, dtype=dtype.newbyteorder(">"))
        parts = self.data[self.at :].split(None, count)
        if count < 0 or len(parts) < count:
            raise ValueError("the file ends within an array")
        self.at = len(self.data) - (len(parts[count]) if len(parts) > count else 0)
        return np.array([part.decode("latin-1") for part in parts[:count]], dtype=str).astype(dtype)


def _parse(rest: _Rest) -> Grid:
    points = np.zeros((0, 3))
    cells: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    counts = {"VERTICES": 0, "LINES": 0, "POLYGONS": 0, "CELLS": 0}
    types = np.zeros(0, dtype=np.int64)
    fields: dict[str, dict[str, np.ndarray]] = {"POINT_DATA": {}, "CELL_DATA": {}}
    values: dict[str, np.ndarray] = {}
    place, rows = values, 0
    triples: dict[str, list[float]] = {}
    axes: dict[str, np.ndarray] = {}
    while words := rest.words():
        key = words[0].upper()
        if key == "POINTS":
            points = rest.numbers(3 * int(words[1]), words[2]).reshape(-1, 3).astype(np.float64)
        elif key in _TRIPLES:
            triples[_TRIPLES[key]] = [float(word) for word in words[1:4]]
        elif key in _COORDINATES:
            axes[key] = rest.numbers(int(words[1]), words[2])
        elif key in counts:
            corners, ends = _cells(rest, int(words[1]), int(words[2]))
            counts[key] = len(ends)
            cells[key] = corners, ends
        elif key == "CELL_TYPES":
            types = rest.numbers(int(words[1]), "int").astype(np.int64)
        elif key == "TRIANGLE_STRIPS":
            raise ValueError(
                "it contains triangle strips, which are not supported: apply the filter Triangulate"
            )
        elif key == "METADATA":
            rest.skip_block()
        elif key == "FIELD":
            for _ in range(int(words[2])):
                header = rest.words()
                if header[:1] == ["METADATA"]:
                    rest.skip_block()
                    header = rest.words()
                name, width, count, kind = header
                array = rest.numbers(int(width) * int(count), kind)
                place[_name(name)] = array.reshape(-1, int(width)) if int(width) > 1 else array
        elif key in fields:
            place, rows = fields[key], int(words[1])
        elif key in _ATTRIBUTES:
            width = _width(key, words)
            kind = words[3] if key == "TEXTURE_COORDINATES" else words[2]
            if key == "SCALARS":
                rest.words()  # the name of a lookup table
            array = rest.numbers(width * rows, kind)
            place[_name(words[1])] = array.reshape(-1, width) if width > 1 else array
        elif key == "LOOKUP_TABLE":
            rest.numbers(4 * int(words[2]), "unsigned_char" if rest.binary else "float")
        elif key == "COLOR_SCALARS":
            rest.numbers(int(words[2]) * rows, "unsigned_char" if rest.binary else "float")
        else:
            raise ValueError(f"it has an unknown section {words[0][:20]!r}")
    whole = {name: float(array.reshape(-1)[0]) for name, array in values.items() if array.size == 1}
    if rest.dataset in ("STRUCTURED_POINTS", "STRUCTURED_GRID", "RECTILINEAR_GRID"):
        points, block = _structured(rest.dataset, triples, [axes.get(name) for name in _COORDINATES], points)
        block, at_cells = structured.without_hidden(block, fields["CELL_DATA"])
        return Grid(points, (block,), fields["POINT_DATA"], at_cells, whole)
    # Without polygons, the lines are the body: the outline of an aerofoil.
    group = "CELLS" if counts["CELLS"] else "POLYGONS" if counts["POLYGONS"] else "LINES"
    first = counts["VERTICES"] + (counts["LINES"] if counts["POLYGONS"] else 0)
    blocks: list[Cells] = []
    if group == "CELLS":
        blocks = unstructured_cells(types, *cells[group])
    elif counts[group]:
        blocks = polydata_cells("Polys" if group == "POLYGONS" else "Lines", *cells[group])
    return Grid(
        points,
        tuple(blocks),
        fields["POINT_DATA"],
        {name: array[first : first + counts[group]] for name, array in fields["CELL_DATA"].items()},
        whole,
    )


def _structured(
    dataset: str, triples: dict[str, list[float]], axes: list[np.ndarray | None], points: np.ndarray
) -> tuple[np.ndarray, Cells]:
    """Points and cells of a structured dataset. axes: the coordinates of a rectilinear grid."""
    counts = structured.checked_counts([int(count) for count in triples.get("DIMENSIONS", [])])
    if dataset == "STRUCTURED_POINTS":
        steps = structured.combinations([np.arange(count) for count in counts])
        points = np.array(triples.get("ORIGIN", [0.0] * 3)) + steps * triples.get("SPACING", [1.0] * 3)
    elif dataset == "RECTILINEAR_GRID":
        points = structured.rectilinear_points(counts, [axis for axis in axes if axis is not None])
    return points.astype(np.float64), structured.structured_cells(counts, len(points))


def _width(key: str, words: list[str]) -> int:
    """The components of an attribute, from the line that announces it."""
    if key == "SCALARS":
        return int(words[3]) if len(words) > 3 else 1
    return int(words[2]) if key == "TEXTURE_COORDINATES" else _ATTRIBUTES[key]


def _name(text: str) -> str:
    """A name with the characters that the format encodes as %20."""
    return unquote(text)


def _cells(rest: _Rest, first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
    """The corners of all cells of a section, one after the other, and the end of each cell among them."""
    before = rest.at
    words = rest.words()
    if words[:1] == ["OFFSETS"]:  # the two numbers count the offsets and the corners
        offsets = rest.numbers(first, words[1]).astype(np.int64)
        kind = rest.words()[1]
        return rest.numbers(second, kind).astype(np.int64), offsets[1:]
    # The two numbers count the cells and all integers, with a count before each cell's corners.
    rest.at = before
    numbers = rest.numbers(second, "int").astype(np.int64)
    if not 0 <= first <= len(numbers):
        raise ValueError(f"it claims {first:,} cells, but has {len(numbers):,} integers for them")
    heads, at = np.zeros(first, dtype=np.int64), 0
    for cell in range(first):
        heads[cell] = at
        at += 1 + max(0, int(numbers[at]))
    if at != len(numbers):
        raise ValueError("its cell counts are inconsistent")
    return np.delete(numbers, heads), np.cumsum(numbers[heads])
