"""A reader and writer of VTK PolyData files (.vtp), without a library.

Reads ASCII, inline base64 and appended data (base64 or raw), plain or zlib-compressed, with polygons of any
size; lines, single points and values are skipped. Writes one piece with inline base64 and values on faces,
which ParaView opens.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes

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
_NAMES = {np.dtype(code).name: name for name, code in _TYPES.items()}


def read_vtp(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    """Points (V, 3) float64, and polygons as int64 arrays (count, corners), one per run of equal size."""
    data = path.read_bytes()
    try:
        return _parse(data)
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
        zlib.error,
        ElementTree.ParseError,
        binascii.Error,
    ) as error:
        raise BadInput(
            f"{path} cannot be read as VTK PolyData: {error}.",
            hint="Export it again, for example from ParaView as .vtp or .stl.",
        ) from error


def write_vtp(path: Path, points: np.ndarray, faces: np.ndarray, cell_data: Mapping[str, np.ndarray]) -> Path:
    """Write a mesh. points: (V, 3), faces: (F, 3), cell_data: name -> (F,) or (F, n)."""
    ends = np.arange(1, len(faces) + 1, dtype=np.int64) * faces.shape[1]
    cells = "".join(_array(name, values) for name, values in cell_data.items())
    text = (
        '<?xml version="1.0"?>\n'
        '<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64">\n'
        f'<PolyData>\n<Piece NumberOfPoints="{len(points)}" NumberOfVerts="0" NumberOfLines="0"'
        f' NumberOfStrips="0" NumberOfPolys="{len(faces)}">\n'
        f"<PointData/>\n<CellData>\n{cells}</CellData>\n<Points>\n{_array('Points', points)}</Points>\n"
        f"<Polys>\n{_array('connectivity', faces.astype(np.int64).reshape(-1))}"
        f"{_array('offsets', ends)}</Polys>\n"
        "</Piece>\n</PolyData>\n</VTKFile>\n"
    )
    return write_bytes(path, text.encode("utf-8"))


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
    compressed: bool  # by zlib
    appended: bytes
    appended_raw: bool


def _parse(data: bytes) -> tuple[np.ndarray, list[np.ndarray]]:
    tree, appended = _split_appended(data)
    if tree.tag != "VTKFile" or tree.get("type") != "PolyData":
        raise ValueError(f"it contains {tree.get('type') or tree.tag}, not PolyData")
    packer = tree.get("compressor", "vtkZLibDataCompressor")
    if packer != "vtkZLibDataCompressor":
        raise ValueError(f"its data is compressed by {packer}, which is not supported")
    order: Literal["<", ">"] = ">" if tree.get("byte_order") == "BigEndian" else "<"
    tail = tree.find("AppendedData")
    file = _File(
        order,
        np.dtype(_TYPES[tree.get("header_type", "UInt32")]).newbyteorder(order),
        "compressor" in tree.attrib,
        appended,
        tail is not None and tail.get("encoding") == "raw",
    )
    points: list[np.ndarray] = []
    polygons: list[np.ndarray] = []
    before = 0
    for piece in tree.iter("Piece"):
        if int(piece.get("NumberOfStrips", "0")):
            raise ValueError(
                "it contains triangle strips, which are not supported: apply the filter Triangulate"
            )
        place = piece.find("Points/DataArray")
        here = _values(place, file).reshape(-1, 3) if place is not None else np.zeros((0, 3))
        arrays = {part.get("Name"): part for part in piece.findall("Polys/DataArray")}
        if int(piece.get("NumberOfPolys", "0")):
            corners, ends = (
                _values(arrays[name], file).astype(np.int64) for name in ("connectivity", "offsets")
            )
            polygons += runs_of(corners + before, ends)
        points.append(here.astype(np.float64))
        before += len(here)
    return np.concatenate(points) if points else np.zeros((0, 3)), polygons


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
        _inflate(source, is_base64, file) if file.compressed else _plain(source, is_base64, file), dtype=dtype
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
    sizes = np.frombuffer(head, dtype=file.header)[3:].astype(np.int64)
    content, _ = _take(source, start, int(sizes.sum()), is_base64)
    ends = np.cumsum(sizes)
    return b"".join(
        zlib.decompress(content[end - length : end]) for end, length in zip(ends, sizes, strict=True)
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
