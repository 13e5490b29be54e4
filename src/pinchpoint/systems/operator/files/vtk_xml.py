"""A reader of VTK's XML files (.vtp, .vtu, .vts, .vtr, .vti), and a writer of .vtp, without a library.

Reads ASCII, inline base64 and appended data (base64 or raw), plain or compressed by zlib, lzma or LZ4, and
the fields on points and cells. Of PolyData it reads polygons of any size, or lines if there are no polygons;
single points are skipped. Of unstructured grids it reads all cells but polyhedra, and of structured grids
all cells that are not hidden. Writes one piece with inline base64 and fields, which ParaView opens.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import lzma
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.systems.operator.files import structured
from pinchpoint.systems.operator.files.grid import Cells, Grid, cells_of, polygon_cells
from pinchpoint.systems.operator.files.lz4_block import decompress_lz4

_TYPES = {
    "Int8": "i1",
    "UInt8": "u1",
    "Int16": "i2",
    "UInt16": "u2",
    "Int32": "i4",
    "UInt32": "u4",
    "Int64": "i8",
    "UInt64": "u8",
    "Float32": "f4",
    "Float64": "f8",
}
# Kinds of cells by VTK's number, named as in meshio.
_CELLS = {
    1: "vertex",
    3: "line",
    5: "triangle",
    7: "polygon",
    8: "pixel",
    9: "quad",
    10: "tetra",
    11: "voxel",
    12: "hexahedron",
    13: "wedge",
    14: "pyramid",
    21: "line3",
    22: "triangle6",
    23: "quad8",
    24: "tetra10",
    25: "hexahedron20",
    26: "wedge15",
    27: "pyramid13",
    28: "quad9",
    29: "hexahedron27",
}
# Each reads a compressed block; the second argument is the size of its content.
_INFLATE: dict[str, Callable[[bytes, int], bytes]] = {
    "vtkZLibDataCompressor": lambda block, size: zlib.decompress(block),
    "vtkLZMADataCompressor": lambda block, size: lzma.decompress(block),
    "vtkLZ4DataCompressor": decompress_lz4,
}
KINDS = {".vtp": "PolyData", ".vtu": "UnstructuredGrid", **structured.KINDS}
_NAMES = {np.dtype(code).name: name for name, code in _TYPES.items()}


def read_vtk_xml(path: Path) -> Grid:
    """The grid of a file, with one block of cells per run of cells of equal kind and size."""
    data = path.read_bytes()
    kind = KINDS[path.suffix.lower()]
    try:
        return _parse(data, kind)
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
        zlib.error,
        lzma.LZMAError,
        ElementTree.ParseError,
        binascii.Error,
    ) as error:
        raise BadInput(
            f"{path} cannot be read as VTK {kind}: {error}.",
            hint="Export it again, for example from ParaView as .vtp or .vtu.",
        ) from error


def write_vtp(path: Path, grid: Grid) -> Path:
    """Write the points of a grid, its cells of dimension 2 or less, and their fields."""
    groups = {"Verts": 0, "Lines": 1, "Polys": 2}
    # The rows of cell fields are those of points, then lines, then polygons, whatever the order in the grid.
    rows = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(_rows(grid, dimension) for dimension in groups.values())]
    )
    blocks = {
        name: [block.linear for block in grid.cells if block.dimension == dimension]
        for name, dimension in groups.items()
    }
    cell_fields = {name: values[rows] for name, values in grid.cell_fields.items()}
    counts = " ".join(f'NumberOf{name}="{sum(map(len, parts))}"' for name, parts in blocks.items())
    text = (
        '<?xml version="1.0"?>\n'
        '<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64">\n'
        f'<PolyData>\n<Piece NumberOfPoints="{len(grid.points)}" {counts} NumberOfStrips="0">\n'
        f"<PointData>\n{_arrays(grid.point_fields)}</PointData>\n"
        f"<CellData>\n{_arrays(cell_fields)}</CellData>\n"
        f"<Points>\n{_array('Points', grid.points)}</Points>\n"
        f"{''.join(_cells(name, parts) for name, parts in blocks.items())}"
        "</Piece>\n</PolyData>\n</VTKFile>\n"
    )
    return write_bytes(path, text.encode("utf-8"))


def _rows(grid: Grid, dimension: int) -> np.ndarray:
    """The rows of the cells of a dimension in a cell field."""
    kinds = [np.full(len(block.corners), block.dimension) for block in grid.cells]
    return np.flatnonzero(np.concatenate([np.zeros(0), *kinds]) == dimension)


def _arrays(fields: Mapping[str, np.ndarray]) -> str:
    return "".join(_array(name, values) for name, values in fields.items())


def _cells(name: str, parts: list[np.ndarray]) -> str:
    corners = np.concatenate([np.zeros(0, dtype=np.int64), *(part.reshape(-1) for part in parts)])
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *(np.full(len(p), p.shape[1]) for p in parts)])
    arrays = {"connectivity": corners, "offsets": np.cumsum(counts)}
    return f"<{name}>\n{_arrays(arrays)}</{name}>\n"


def _array(name: str, values: np.ndarray) -> str:
    values = np.ascontiguousarray(values)
    width = values.shape[1] if values.ndim > 1 else 1
    raw = values.astype(values.dtype.newbyteorder("<")).tobytes()
    content = base64.b64encode(np.array(len(raw), dtype="<u8").tobytes() + raw).decode("ascii")
    kind = _NAMES[values.dtype.name]
    head = f'type="{kind}" Name={quoteattr(name)} NumberOfComponents="{width}" format="binary"'
    return f"<DataArray {head}>\n{content}\n</DataArray>\n"


@dataclass(frozen=True)
class _File:
    order: Literal["<", ">"]
    header: np.dtype  # of the byte counts before the data
    packer: str | None  # VTK's name of the compressor
    appended: bytes
    appended_raw: bool


def _parse(data: bytes, kind: str) -> Grid:
    tree, appended = _split_appended(data)
    if tree.tag != "VTKFile" or tree.get("type") != kind:
        raise ValueError(f"it contains {tree.get('type') or tree.tag}, not {kind}")
    packer = tree.get("compressor")
    if packer not in (None, *_INFLATE):
        raise ValueError(
            f"its data is compressed by {packer}, which is not supported: save it with the compressor ZLib"
        )
    order: Literal["<", ">"] = ">" if tree.get("byte_order") == "BigEndian" else "<"
    tail = tree.find("AppendedData")
    file = _File(
        order,
        np.dtype(_TYPES[tree.get("header_type", "UInt32")]).newbyteorder(order),
        packer,
        appended,
        tail is not None and tail.get("encoding") == "raw",
    )
    values = _fields(tree.find(f"{kind}/FieldData"), file)
    whole = {name: float(array.reshape(-1)[0]) for name, array in values.items() if array.size == 1}
    if kind in structured.KINDS.values():
        piece, points, cells = structured.structured_grid(tree, kind, lambda part: _values(part, file))
        cells, at_cells = structured.without_hidden(cells, _fields(piece.find("CellData"), file))
        return Grid(points, (cells,), _fields(piece.find("PointData"), file), at_cells, whole)
    return _joined_pieces(tree, kind, file, whole)


def _joined_pieces(tree: ElementTree.Element, kind: str, file: _File, whole: dict[str, float]) -> Grid:
    """The grid of PolyData or an unstructured grid. whole: the numbers that belong to the whole file."""
    pieces = [piece for piece in tree.iter("Piece") if int(piece.get("NumberOfPoints", "0"))]
    # Without polygons, the lines are the body: the outline of an aerofoil.
    group = "Polys" if any(int(piece.get("NumberOfPolys", "0")) for piece in pieces) else "Lines"
    group = "Cells" if kind == "UnstructuredGrid" else group
    points: list[np.ndarray] = []
    blocks: list[Cells] = []
    fields: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []
    before = 0
    for piece in pieces:
        if int(piece.get("NumberOfStrips", "0")):
            raise ValueError(
                "it contains triangle strips, which are not supported: apply the filter Triangulate"
            )
        place = piece.find("Points/DataArray")
        here = _values(place, file).reshape(-1, 3) if place is not None else np.zeros((0, 3))
        arrays = {part.get("Name"): part for part in piece.findall(f"{group}/DataArray")}
        if count := int(piece.get(f"NumberOf{group}", "0")):
            corners, ends = (
                _values(arrays[name], file).astype(np.int64) for name in ("connectivity", "offsets")
            )
            if group == "Cells":
                types = _values(arrays["types"], file).astype(np.int64)
                blocks += unstructured_cells(types, corners + before, ends)
            else:
                blocks += polydata_cells(group, corners + before, ends)
        # Rows of points come before those of lines, and those of lines before those of polygons.
        earlier = {"Polys": ("Verts", "Lines"), "Lines": ("Verts",), "Cells": ()}[group]
        first = sum(int(piece.get(f"NumberOf{name}", "0")) for name in earlier)
        at_cells = {
            name: values[first : first + count]
            for name, values in _fields(piece.find("CellData"), file).items()
        }
        fields.append((_fields(piece.find("PointData"), file), at_cells))
        points.append(here.astype(np.float64))
        before += len(here)
    return Grid(
        np.concatenate(points) if points else np.zeros((0, 3)),
        tuple(blocks),
        _joined([both[0] for both in fields]),
        _joined([both[1] for both in fields]),
        whole,
    )


def _fields(parent: ElementTree.Element | None, file: _File) -> dict[str, np.ndarray]:
    """The arrays of numbers below an element, (n,) or (n, components)."""
    arrays = {}
    for part in () if parent is None else parent.findall("DataArray"):
        if part.get("type") in _TYPES:
            width = int(part.get("NumberOfComponents", "1"))
            values = _values(part, file)
            arrays[part.get("Name", "")] = values.reshape(-1, width) if width > 1 else values
    return arrays


def _joined(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Fields that every piece has, one piece after the other."""
    names = [name for name in (pieces[0] if pieces else ()) if all(name in piece for piece in pieces)]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in names}


def polydata_cells(group: str, corners: np.ndarray, ends: np.ndarray) -> list[Cells]:
    """Blocks of a PolyData's polygons, or of its lines, which may only have two points each."""
    if group == "Polys":
        return [polygon_cells(part) for part in runs_of(corners, ends)]
    if len(corners) != 2 * len(ends):
        raise ValueError(
            "it contains lines of more than two points, which are not supported: apply the filter Triangulate"
        )
    return [cells_of("line", corners.reshape(-1, 2))]


def unstructured_cells(types: np.ndarray, corners: np.ndarray, ends: np.ndarray) -> list[Cells]:
    """Blocks of cells of equal kind and size, in order."""
    unknown = sorted({int(kind) for kind in types} - set(_CELLS))
    if unknown:
        polyhedra = ": use foamToVTK -poly-decomp, or the filter Tetrahedralize" if unknown[0] == 42 else ""
        raise ValueError(f"it has cells of VTK's type {unknown[0]}, which is not supported{polyhedra}")
    counts = np.diff(ends, prepend=0)
    if len(types) != len(ends) or counts.min() < 1 or ends[-1] != len(corners):
        raise ValueError("its cell counts are inconsistent")
    changes = np.flatnonzero((np.diff(counts) != 0) | (np.diff(types) != 0)) + 1
    return [
        cells_of(
            _CELLS[int(types[first])],
            corners[ends[first] - counts[first] : ends[last - 1]].reshape(last - first, counts[first]),
        )
        for first, last in itertools.pairwise([0, *changes.tolist(), len(types)])
    ]


def _split_appended(data: bytes) -> tuple[ElementTree.Element, bytes]:
    """The XML without its appended data, which may not be XML, and that data."""
    start = data.find(b"<AppendedData")
    if start < 0:
        return ElementTree.fromstring(data), b""
    begin = data.index(b"_", data.index(b">", start)) + 1
    end = data.rindex(b"</AppendedData>")
    return ElementTree.fromstring(data[: begin - 1] + data[end:]), data[begin:end]


def _values(part: ElementTree.Element, file: _File) -> np.ndarray:
    dtype = np.dtype(_TYPES[part.attrib["type"]]).newbyteorder(file.order)
    form = part.get("format", "ascii")
    if form == "ascii":
        return np.array((part.text or "").split(), dtype=dtype)
    if form == "appended":
        source, is_base64 = file.appended[int(part.attrib["offset"]) :], not file.appended_raw
    else:
        source, is_base64 = (part.text or "").strip().encode("ascii"), True
    return np.frombuffer(
        _inflate(source, is_base64, file) if file.packer else _plain(source, is_base64, file), dtype=dtype
    )


def _take(source: bytes, start: int, count: int, is_base64: bool) -> tuple[bytes, int]:
    """`count` bytes from position `start` of the source, and the position after them.

    base64 is in groups of 4 letters.
    """
    length = -(-count // 3) * 4 if is_base64 else count
    piece = source[start : start + length]
    content = (base64.b64decode(piece, validate=True) if is_base64 else piece)[:count]
    if len(content) != count:
        raise ValueError("the file ends within an array")
    return content, start + length


def _plain(source: bytes, is_base64: bool, file: _File) -> bytes:
    size = file.header.itemsize
    # The first complete group of letters that contains the count; count and data share one base64 stream.
    count = int(np.frombuffer(_take(source, 0, size, is_base64)[0], dtype=file.header)[0])
    return _take(source, 0, size + count, is_base64)[0][size:]


def _inflate(source: bytes, is_base64: bool, file: _File) -> bytes:
    size = file.header.itemsize
    blocks = int(np.frombuffer(_take(source, 0, size, is_base64)[0], dtype=file.header)[0])
    head, start = _take(source, 0, size * (3 + blocks), is_base64)
    # The number of blocks, the size of their content, that of the last one (0: as the others), their sizes.
    numbers = np.frombuffer(head, dtype=file.header).astype(np.int64)
    sizes = numbers[3:]
    content, _ = _take(source, start, int(sizes.sum()), is_base64)
    ends = np.cumsum(sizes)
    contents = np.full(blocks, numbers[1])
    contents[-1:] = numbers[2] or numbers[1]
    inflate = _INFLATE[file.packer or ""]
    return b"".join(
        inflate(content[end - length : end], int(size))
        for end, length, size in zip(ends, sizes, contents, strict=True)
    )


def runs_of(corners: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Polygons in runs of equal corner count, in order. ends: the end of each polygon in `corners`."""
    counts = np.diff(ends, prepend=0)
    if len(ends) and (counts.min() < 3 or ends[-1] != len(corners)):
        raise ValueError("its polygon counts are inconsistent")
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), len(counts)]
    return [
        corners[ends[first] - counts[first] : ends[last - 1]].reshape(last - first, counts[first])
        for first, last in itertools.pairwise(edges)
        if last > first
    ]
