"""PLY files: reading, and writing a subset of the vertices with every property and comment unchanged.

Files are ASCII, or binary of either byte order. The vertices are one structured array in the types of the
file, which is mapped from disk if the file is binary. Lines of an ASCII file are written exactly as they were
read, which plyfile does not do (benchmarks/results/cloud_ply_cpu.json). Elements that do not refer to
vertices (such as a camera) are kept. Elements that list vertices (faces, edges) become invalid when vertices
are left out: they raise an error or are dropped, as requested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.columns import centre_coordinates, features_of, integer_labels, label_name
from pinchpoint.systems.cloud.files.ply_header import Element, Header, plain_header, read_header

HINT = "Write the file again as binary PLY."
_LONGEST_LINE = 2**26  # bytes; one line may list all strips of triangles of a large mesh


@dataclass(frozen=True)
class Ply:
    """The content of a PLY file."""

    path: str
    header: Header
    vertices: np.ndarray  # (N,) structured, in the file's types and byte order
    before: bytes  # elements before the vertices
    after: bytes | memoryview  # elements after the vertices, mapped if the file is binary
    lines: tuple[bytes, ...] = ()  # vertices of an ASCII file

    def xyz(self) -> np.ndarray:
        """Coordinates (N, 3) in the precision of the file."""
        return ply_xyz(self.vertices)


def ply_xyz(vertices: np.ndarray) -> np.ndarray:
    """Return the coordinates (n, 3) of vertices (n,), in the precision of the file."""
    columns = [vertices[axis] for axis in "xyz"]
    wide = any(column.dtype.itemsize > 4 or column.dtype.kind != "f" for column in columns)
    return np.stack(columns, axis=1).astype(np.float64 if wide else np.float32)


def read_ply(path: str | Path) -> Ply:
    ply = open_ply(path)
    if not ply.header.ascii:
        return ply
    vertex = ply.header.elements[ply.header.place("vertex")]
    pieces = list(ascii_chunks(path, ply.header, max(1, vertex.count)))
    vertices, lines = pieces[0] if pieces else (np.empty(0, vertex.dtype), ())
    before, after = (b"".join(line + b"\n" for line in part) for part in ascii_rest(path, ply.header))
    return replace(ply, vertices=vertices, lines=lines, before=before, after=after)


def open_ply(path: str | Path) -> Ply:
    """Read the header of a file and map its data; an ASCII file has no vertices until they are read."""
    path = Path(path)
    with path.open("rb") as file:
        header = read_header(file, str(path))
        place = header.place("vertex")
        vertex = header.elements[place]
        if vertex.lists:
            raise BadInput(
                f"The vertices of {path} contain lists ({', '.join(vertex.lists)}), which are not supported.",
                hint="Write the vertices without lists.",
            )
        if missing := [axis for axis in "xyz" if axis not in (vertex.dtype.names or ())]:
            raise BadInput(
                f"The vertices of {path} have no {', '.join(missing)}.",
                hint="Write the file with x, y and z.",
            )
        if header.ascii:
            expected = sum(element.count for element in header.elements)
            size = os.fstat(file.fileno()).st_size
            if expected > size:  # a line has at least one byte
                raise BadInput(
                    f"{path} is truncated: {expected:,} lines do not fit into {size:,} bytes.", hint=HINT
                )
            return Ply(str(path), header, np.empty(0, vertex.dtype), b"", b"")
        before = _skip_binary(header.elements[:place], file, str(path))
        left = os.fstat(file.fileno()).st_size - file.tell()
        need = vertex.count * vertex.dtype.itemsize
        if need > left:
            raise BadInput(
                f"{path} is truncated: {vertex.count:,} vertices need {show_bytes(need)}, but it contains"
                f" {show_bytes(left)}.",
                hint="Copy or write the file again.",
            )
        start = file.tell()
        vertices = _map_vertices(file, vertex)
        rest = left - need
        after = (
            np.memmap(file.name, np.uint8, mode="r", offset=start + need, shape=(rest,)).data if rest else b""
        )
    _check_rest(header.elements[place + 1 :], len(after), str(path))
    return Ply(str(path), header, vertices, before, after)


def _map_vertices(file: BinaryIO, vertex: Element) -> np.ndarray:
    """Return the vertices (N,) as a memory map of the file, of which only the rows in use are read."""
    if not vertex.count or not vertex.dtype.itemsize:
        return np.empty(vertex.count, vertex.dtype)
    vertices = np.memmap(file.name, vertex.dtype, mode="r", offset=file.tell(), shape=(vertex.count,))
    return vertices.view(np.ndarray)


def ply_scene(ply: Ply) -> Scene:
    """Return the unvalidated scene of the vertices."""
    names = ply.vertices.dtype.names or ()
    label = label_name(names)
    features, columns = features_of({name: ply.vertices[name] for name in names if name != label})
    labels = None if label is None else integer_labels(ply.vertices[label], ply.path)
    xyz, origin = centre_coordinates(ply.xyz())
    return Scene(Path(ply.path).stem, xyz, features, labels, columns, (), origin)


def scene_ply(scene: Scene) -> Ply:
    """Return a scene as a binary file with x, y, z, the features as floats, and the label.

    The values of splats become plain features.
    """
    origin = any(scene.origin)
    kind = "<f8" if origin else "<f4"
    names = ["_".join(name.split()) for name in scene.names]  # spaces separate words in a header
    fields = [*((axis, kind) for axis in "xyz"), *((name, "<f4") for name in names)]
    if scene.labels is not None:
        fields.append(("label", "<i4"))
    vertices = np.empty(len(scene.xyz), np.dtype(fields))
    for column, axis in enumerate("xyz"):
        vertices[axis] = (
            scene.xyz[:, column].astype(kind) + scene.origin[column] if origin else scene.xyz[:, column]
        )
    for column, name in enumerate(names):
        vertices[name] = scene.features[:, column]
    if scene.labels is not None:
        vertices["label"] = scene.labels
    return Ply(scene.name, plain_header(vertices.dtype, len(vertices)), vertices, b"", b"")


def take_rows(
    vertices: np.ndarray, lines: Sequence[bytes], index: np.ndarray
) -> tuple[np.ndarray, tuple[bytes, ...]]:
    """Return the vertices of index (M,), in its order, and their lines if the file is ASCII."""
    # View the vertices as plain bytes, because NumPy would copy a vertex property by property.
    plain = vertices.view(np.dtype((np.void, vertices.itemsize)))
    return plain[index].view(vertices.dtype), tuple(lines[place] for place in index.tolist()) if lines else ()


def take_vertices(ply: Ply, index: np.ndarray, *, faces: Literal["refuse", "drop"] = "refuse") -> Ply:
    """Return the vertices of index (M,), in its order, with all other elements.

    faces: what to do with elements that list vertices.
    """
    header, whole = subset_header(ply, len(index), faces=faces)
    before, after = (ply.before, ply.after) if whole else (b"", b"")
    vertices, lines = take_rows(ply.vertices, ply.lines, index)
    return replace(
        ply,
        header=header,
        vertices=vertices,
        before=before,
        after=after,
        lines=lines,
    )


def subset_header(ply: Ply, count: int, *, faces: Literal["refuse", "drop"]) -> tuple[Header, bool]:
    """Return the header of a subset of `count` vertices, and whether it keeps the other elements."""
    pointing = [
        element for element in ply.header.elements if element.name != "vertex" and element.points_at_vertices
    ]
    if pointing and faces == "refuse":
        what = ", ".join(f"{element.count:,} x {element.name}" for element in pointing)
        raise BadInput(
            f"{ply.path} also contains {what}, which would refer to vertices that are left out.",
            hint='Drop them as well (faces="drop", --faces drop), or give a file with points only.',
        )
    # Finding the other elements would require parsing all lists, so they are dropped too.
    header = ply.header.only("vertex") if pointing else ply.header
    return header.with_count("vertex", count), not pointing


def write_ply(path: str | Path, ply: Ply | Scene, *, keep: np.ndarray | None = None) -> Path:
    """Write a file atomically; with keep (M,), only those vertices."""
    if isinstance(ply, Scene):
        ply = scene_ply(ply)
    if keep is not None:
        ply = take_vertices(ply, keep)
    body = (
        b"".join(line + b"\n" for line in ply.lines) if ply.header.ascii else ply.vertices.view(np.uint8).data
    )
    return write_bytes(path, b"".join((ply.header.text(), ply.before, body, ply.after)))


def _skip_binary(elements: tuple[Element, ...], file: BinaryIO, path: str) -> bytes:
    content = b""
    for element in elements:
        if element.lists:
            raise BadInput(
                f"In {path} the element {element.name}, which has lists, precedes the vertices;"
                " pinchpoint does not support that.",
                hint="Write the vertices first, as nearly every program does.",
            )
        size = element.count * element.dtype.itemsize
        piece = file.read(size) if size <= os.fstat(file.fileno()).st_size else b""
        if len(piece) != size:
            raise BadInput(
                f"{path} is truncated: its element {element.name} is incomplete.",
                hint="Copy or write the file again.",
            )
        content += piece
    return content


def _check_rest(elements: tuple[Element, ...], size: int, path: str) -> None:
    """Check the length of what follows the vertices; for lists only the minimum length is known."""
    least = sum(element.count * (element.dtype.itemsize + len(element.lists)) for element in elements)
    if size < least:
        raise BadInput(f"{path} is truncated after its vertices.", hint="Copy or write the file again.")
    if size > least and not any(element.lists for element in elements):
        raise BadInput(
            f"{path} has {show_bytes(size - least)} after its last element, so its counts are wrong.",
            hint="Write the file again.",
        )


def ascii_chunks(
    path: str | Path, header: Header, size: int
) -> Iterator[tuple[np.ndarray, tuple[bytes, ...]]]:
    """Yield the vertices of an ASCII file, at most `size` at a time, as an array and as lines of text."""
    place = header.place("vertex")
    vertex = header.elements[place]
    lines = _ascii_lines(path)
    first = sum(1 for _ in islice(lines, sum(element.count for element in header.elements[:place])))
    vertices_read = 0
    while vertices_read < vertex.count:
        rows = tuple(islice(lines, min(size, vertex.count - vertices_read)))
        if not rows:
            break
        vertices_read += len(rows)
        yield _parse_rows(str(path), rows, vertex), rows
    count = first + vertices_read + sum(1 for _ in lines)
    expected = sum(element.count for element in header.elements)
    if count != expected:
        raise BadInput(
            f"{path} has {count:,} lines of data, but its header says {expected:,}.",
            hint="Copy or write the file again.",
        )


def ascii_rest(path: str | Path, header: Header) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """Return the lines of an ASCII file before its vertices, and those after them."""
    place = header.place("vertex")
    first = sum(element.count for element in header.elements[:place])
    before = islice(_ascii_lines(path), first)
    return before, islice(_ascii_lines(path), first + header.elements[place].count, None)


def _ascii_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of data of an ASCII file, without blank ones."""
    with Path(path).open("rb") as file:
        read_header(file, str(path))
        while line := _read_line(file, path):
            if not line.isspace():
                yield line.rstrip(b"\r\n")


def _read_line(file: BinaryIO, path: str | Path) -> bytes:
    """Return the next line with its end, or nothing at the end of the file."""
    try:
        line = file.readline(_LONGEST_LINE + 1)
    except OSError as error:
        raise BadInput(
            f"Cannot read {path}: {error.strerror}.", hint="Copy the file to another disk, then try again."
        ) from error
    if len(line) > _LONGEST_LINE:
        raise BadInput(f"{path} has a line of more than {show_bytes(_LONGEST_LINE)}.", hint=HINT)
    return line


def _parse_rows(path: str, rows: Sequence[bytes], vertex: Element) -> np.ndarray:
    names = vertex.dtype.names or ()
    vertices = np.empty(len(rows), vertex.dtype)
    if not rows:
        return vertices
    try:
        table = np.loadtxt(rows, np.float64, comments=None, ndmin=2, encoding="latin-1")
    except ValueError as error:
        raise BadInput(f"Some vertices of {path} are not numbers: {error}", hint=HINT) from error
    if table.shape[1] != len(names):
        raise BadInput(
            f"The vertices of {path} have {table.shape[1]} numbers per line,"
            f" but its header says {len(names)}.",
            hint="Copy or write the file again.",
        )
    for column, name in enumerate(names):
        dtype, values = vertices.dtype[name], table[:, column]
        if dtype.kind in "iu":
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            if not ((values >= least) & (values <= most) & (values == np.floor(values))).all():
                raise BadInput(
                    f"{name} of {path} has values that are not valid {dtype.name} numbers.",
                    hint=f"Use integers from {least} to {most}.",
                )
        # Values too large for float32 become infinite, and are rejected later.
        with np.errstate(over="ignore"):
            vertices[name] = values
    return vertices
