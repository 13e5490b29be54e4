"""A reader of Wavefront files (.obj) without a library: points and faces, nothing else.

Only `v` and `f` matter: texture coordinates, normals, groups, objects, materials and whatever else a program
writes are skipped, in any number. Several parts in a file become one surface. Faces may have any number of
corners, count backwards from the last point, and continue on the next line after a backslash.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.files.grid import Cells, Grid, polygon_cells


def read_obj(path: Path) -> Grid:
    """The grid of a file, with one block of cells per run of faces of equal size."""
    text = path.read_bytes().decode("utf-8", errors="replace").replace("\\\r\n", " ").replace("\\\n", " ")
    points: list[list[float]] = []
    faces: list[list[int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        try:
            if words[:1] == ["v"]:
                # A fourth number is a weight, and six are a place and a colour.
                points.append([float(word) for word in words[1:4]])
                if len(points[-1]) != 3:
                    raise ValueError(f"a point has {len(points[-1])} coordinates")
            elif words[:1] == ["f"]:
                faces.append([_corner(word, len(points)) for word in words[1:]])
                if len(faces[-1]) < 3:
                    raise ValueError(f"a face has {len(faces[-1])} corners")
        except ValueError as error:
            raise BadInput(
                f"{path} cannot be read: {error} (about line {number:,}).",
                hint="Export it again as .vtp or .stl.",
            ) from error
    return Grid(np.array(points, dtype=np.float64).reshape(-1, 3), tuple(_blocks(faces)))


def _corner(word: str, count: int) -> int:
    """The point of a corner such as 7, 7/2, 7//3, 7/2/3 or -1, counted from 0."""
    index = int(word.split("/", 1)[0])
    if index == 0:
        raise ValueError("a face has a corner 0; points are counted from 1")
    if abs(index) >= 2**62:
        raise ValueError(f"a face has a corner {word[:30]}")
    return index - 1 if index > 0 else count + index


def _blocks(faces: list[list[int]]) -> list[Cells]:
    blocks: list[Cells] = []
    start = 0
    for at in range(1, len(faces) + 1):
        if at == len(faces) or len(faces[at]) != len(faces[start]):
            blocks.append(polygon_cells(np.array(faces[start:at], dtype=np.int64)))
            start = at
    return blocks
