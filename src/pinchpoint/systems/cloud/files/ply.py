"""PLY files: read whole, thinned and written with every property, comment and number as it was.

ASCII, binary little and big endian, without a library. The vertices are one structured array in the file's own types; a
chosen line of an ASCII file is written as it was read. Elements that do not point at vertices (a camera) are kept. Lists
of vertices (faces, edges) mean nothing once vertices are left out: a thinned file refuses or drops them, as asked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.columns import centred, features_of, label_name, whole_labels
from pinchpoint.systems.cloud.files.ply_header import Element, Header, plain_header, read_header

HINT = "write the file again, as binary PLY"


@dataclass(frozen=True)
class Ply:
    """A file in memory."""

    path: str
    header: Header
    vertices: np.ndarray  # (N,) structured, in the file's types and byte order
    before: bytes  # of the elements that precede the vertices
    after: bytes  # of those that follow
    lines: tuple[bytes, ...] = ()  # of the vertices of an ASCII file

    def xyz(self) -> np.ndarray:
        """(N, 3) in the file's precision."""
        columns = [self.vertices[axis] for axis in "xyz"]
        wide = any(column.dtype.itemsize > 4 or column.dtype.kind != "f" for column in columns)
        return np.stack(columns, axis=1).astype(np.float64 if wide else np.float32)


def read_ply(path: str | Path) -> Ply:
    path = Path(path)
    with path.open("rb") as file:
        header = read_header(file, str(path))
        place = header.place("vertex")
        vertex = header.elements[place]
        if vertex.lists:
            raise BadInput(
                f"the vertices of {path} hold lists ({', '.join(vertex.lists)})",
                hint="write them without those",
            )
        if missing := [axis for axis in "xyz" if axis not in (vertex.dtype.names or ())]:
            raise BadInput(
                f"the vertices of {path} have no {', '.join(missing)}", hint="write the file with x, y and z"
            )
        if header.ascii:
            return _read_ascii(str(path), header, file.read())
        before = _skip_binary(header.elements[:place], file, str(path))
        left = os.fstat(file.fileno()).st_size - file.tell()
        need = vertex.count * vertex.dtype.itemsize
        if need > left:
            raise BadInput(
                f"{path} is cut short: {vertex.count:,} vertices take {show_bytes(need)}; it holds {show_bytes(left)} of them",
                hint="copy or write the file again",
            )
        vertices = np.fromfile(file, vertex.dtype, vertex.count)
        after = file.read()
    _check_rest(header.elements[place + 1 :], len(after), str(path))
    return Ply(str(path), header, vertices, before, after)


def ply_scene(ply: Ply) -> Scene:
    """The cloud of the vertices; not checked yet."""
    names = ply.vertices.dtype.names or ()
    label = label_name(names)
    features, columns = features_of({name: ply.vertices[name] for name in names if name != label})
    labels = None if label is None else whole_labels(ply.vertices[label], ply.path)
    xyz, origin = centred(ply.xyz())
    return Scene(Path(ply.path).stem, xyz, features, labels, columns, (), origin)


def scene_ply(scene: Scene) -> Ply:
    """A scene as a binary file: x, y, z, its features as floats, its label. Splats come out as features, not as splats."""
    origin = any(scene.origin)
    kind = "<f8" if origin else "<f4"
    names = ["_".join(name.split()) for name in scene.names]  # a header is words between spaces
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


def kept(ply: Ply, index: np.ndarray, *, faces: Literal["refuse", "drop"] = "refuse") -> Ply:
    """The file with the vertices of index (M,) alone, in its order. faces: what becomes of elements that point at vertices."""
    pointing = [
        element for element in ply.header.elements if element.name != "vertex" and element.points_at_vertices
    ]
    if pointing and faces == "refuse":
        what = ", ".join(f"{element.count:,} x {element.name}" for element in pointing)
        raise BadInput(
            f"{ply.path} also holds {what}, which would point at vertices that are left out",
            hint='leave them out too (faces="drop", --faces drop), or give a file of points alone',
        )
    header, before, after = ply.header, ply.before, ply.after
    if pointing:
        # The bytes of what stays cannot be told from those of lists without walking them: every other element goes as well.
        header, before, after = header.only("vertex"), b"", b""
    lines = tuple(ply.lines[place] for place in index.tolist()) if ply.lines else ()
    # As plain bytes: numpy would copy a vertex property by property.
    vertices = ply.vertices.view(np.dtype((np.void, ply.vertices.itemsize)))[index].view(ply.vertices.dtype)
    return replace(
        ply,
        header=header.counted("vertex", len(index)),
        vertices=vertices,
        before=before,
        after=after,
        lines=lines,
    )


def write_ply(path: str | Path, ply: Ply | Scene, *, keep: np.ndarray | None = None) -> Path:
    """Write a file, whole or not at all; of keep (M,), those vertices alone."""
    if isinstance(ply, Scene):
        ply = scene_ply(ply)
    if keep is not None:
        ply = kept(ply, keep)
    body = (
        b"".join(line + b"\n" for line in ply.lines) if ply.header.ascii else ply.vertices.view(np.uint8).data
    )
    return write_bytes(path, b"".join((ply.header.text(), ply.before, body, ply.after)))


def _skip_binary(elements: tuple[Element, ...], file: BinaryIO, path: str) -> bytes:
    held = b""
    for element in elements:
        if element.lists:
            raise BadInput(
                f"in {path} the {element.name} element, with lists, stands before the vertices",
                hint="write the vertices first, as nearly every program does",
            )
        size = element.count * element.dtype.itemsize
        piece = file.read(size) if size <= os.fstat(file.fileno()).st_size else b""
        if len(piece) != size:
            raise BadInput(
                f"{path} is cut short within its {element.name} element", hint="copy or write the file again"
            )
        held += piece
    return held


def _check_rest(elements: tuple[Element, ...], size: int, path: str) -> None:
    """What follows the vertices must be as long as the header says; of lists only the least length is known."""
    least = sum(element.count * (element.dtype.itemsize + len(element.lists)) for element in elements)
    if size < least:
        raise BadInput(f"{path} is cut short after its vertices", hint="copy or write the file again")
    if size > least and not any(element.lists for element in elements):
        raise BadInput(
            f"{path} goes on for {show_bytes(size - least)} after its last element: its counts are wrong",
            hint="write the file again",
        )


def _read_ascii(path: str, header: Header, text: bytes) -> Ply:
    place = header.place("vertex")
    vertex = header.elements[place]
    first = sum(element.count for element in header.elements[:place])
    wanted = sum(element.count for element in header.elements)
    if wanted > len(text):  # a line takes a byte or more: refused before anything is split for it
        raise BadInput(f"{path} is cut short: {wanted:,} lines cannot lie in {len(text):,} bytes", hint=HINT)
    lines = [line for line in text.replace(b"\r\n", b"\n").split(b"\n") if line and not line.isspace()]
    if len(lines) < first + vertex.count or len(lines) != wanted:
        raise BadInput(
            f"{path} has {len(lines):,} lines of data; its header says {wanted:,}",
            hint="copy or write the file again",
        )
    rows = lines[first : first + vertex.count]
    vertices = _parsed(path, rows, vertex)
    before = b"".join(line + b"\n" for line in lines[:first])
    after = b"".join(line + b"\n" for line in lines[first + vertex.count :])
    return Ply(path, header, vertices, before, after, tuple(rows))


def _parsed(path: str, rows: list[bytes], vertex: Element) -> np.ndarray:
    names = vertex.dtype.names or ()
    vertices = np.empty(len(rows), vertex.dtype)
    if not rows:
        return vertices
    try:
        table = np.loadtxt(rows, np.float64, comments=None, ndmin=2, encoding="latin-1")
    except ValueError as error:
        raise BadInput(f"the vertices of {path} are not numbers throughout: {error}", hint=HINT) from error
    if table.shape[1] != len(names):
        raise BadInput(
            f"the vertices of {path} have {table.shape[1]} numbers a line; its header says {len(names)}",
            hint="copy or write the file again",
        )
    for column, name in enumerate(names):
        dtype, values = vertices.dtype[name], table[:, column]
        if dtype.kind in "iu":
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            if not ((values >= least) & (values <= most) & (values == np.floor(values))).all():
                raise BadInput(
                    f"{name} of {path} has values that are no {dtype.name}",
                    hint=f"whole numbers, {least} to {most}",
                )
        with np.errstate(
            over="ignore"
        ):  # a double too large for a float becomes infinite, and is refused as such
            vertices[name] = values
    return vertices
