"""Points and cells of VTK's structured grids: .vts (curvilinear), .vtr (rectilinear) and .vti (uniform).

The points of such a grid are counted along three axes, the first one fastest, and so are its cells:
hexahedra, quadrilaterals where one axis has a single point, or lines where two have.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import numpy as np

from pinchpoint.systems.operator.files.grid import Array, Cells

KINDS = {".vts": "StructuredGrid", ".vtr": "RectilinearGrid", ".vti": "ImageData"}
GHOSTS = "vtkGhostType"
_MOST = 50_000_000  # points: the coordinates of some grids are not in the file, which may claim any number
_HIDDEN = 32  # the bit of a cell that is not part of the grid
_STRUCTURED = {1: "line", 2: "quad", 3: "hexahedron"}  # kinds of cells by dimension
# Corners of a cell, as steps along the axes that have an extent: the first 2, 4 or 8.
_CORNERS = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]]

Values = Callable[[ElementTree.Element], Array]


def structured_grid(
    tree: ElementTree.Element, kind: str, values: Values
) -> tuple[ElementTree.Element, Array, Cells]:
    """The only piece of a file, its points (V, 3) and its cells. values: reads a DataArray."""
    parent = tree.find(kind)
    pieces = [] if parent is None else parent.findall("Piece")
    if parent is None or len(pieces) != 1:
        raise ValueError(
            f"it has {len(pieces)} pieces, but only one is supported: save it again as one piece"
        )
    piece = pieces[0]
    extent = np.array(_numbers(piece, "Extent", 6, "")).astype(np.int64).reshape(3, 2)
    counts = checked_counts((extent[:, 1] - extent[:, 0] + 1).tolist())
    if kind == "StructuredGrid":
        points = _only(piece, "Points", 1, values)[0].reshape(-1, 3)
    elif kind == "RectilinearGrid":
        points = rectilinear_points(counts, _only(piece, "Coordinates", 3, values))
    else:
        steps = combinations([np.arange(low, high + 1) for low, high in extent])
        turn = np.array(_numbers(parent, "Direction", 9, "1 0 0 0 1 0 0 0 1")).reshape(3, 3)
        origin, spacing = (
            np.array(_numbers(parent, name, 3, text))
            for name, text in (("Origin", "0 0 0"), ("Spacing", "1 1 1"))
        )
        points = origin + (steps * spacing) @ turn.T
    return piece, points.astype(np.float64), structured_cells(counts, len(points))


def checked_counts(counts: list[int]) -> list[int]:
    """The points along each axis. Raises ValueError unless they are three, of a grid that can be read."""
    if len(counts) != 3 or min(counts) < 1:
        raise ValueError(f"its numbers of points along the axes are {counts}, not three of at least 1")
    if math.prod(counts) > _MOST:
        raise ValueError(f"it has {math.prod(counts):,} points, but at most {_MOST:,} are supported")
    return counts


def without_hidden(cells: Cells, fields: dict[str, Array]) -> tuple[Cells, dict[str, Array]]:
    """Cells and their fields without those that the file marks as hidden (blanked)."""
    ghosts = fields.get(GHOSTS)
    if ghosts is None or len(ghosts) != len(cells.corners):
        return cells, fields
    visible = (ghosts.astype(np.int64) & _HIDDEN) == 0
    return Cells(cells.kind, cells.corners[visible]), {name: part[visible] for name, part in fields.items()}


def structured_cells(counts: list[int], points: int) -> Cells:
    """The cells of a grid with these numbers of points along its axes. points: those that a file has."""
    if points != math.prod(counts):
        raise ValueError(f"it has {points:,} points, but {' x '.join(map(str, counts))} are expected")
    axes = [axis for axis in range(3) if counts[axis] > 1]
    if not axes:
        return Cells("vertex", np.zeros((1, 1), dtype=np.int64))
    strides = np.array([1, counts[0], counts[0] * counts[1]])
    first = combinations([np.arange(max(count - 1, 1)) for count in counts]) @ strides
    steps = np.array(_CORNERS[: 2 ** len(axes)])[:, : len(axes)] @ strides[axes]
    return Cells(_STRUCTURED[len(axes)], first[:, None] + steps)


def rectilinear_points(counts: list[int], axes: list[Array]) -> Array:
    """The points of a grid with these coordinates along its axes."""
    lengths = [len(axis) for axis in axes]
    if lengths != counts:
        raise ValueError(f"it has {lengths} coordinates along its axes, but {counts} are expected")
    return combinations(axes)


def combinations(axes: list[Array]) -> Array:
    """(n, 3) all combinations of values of three axes, the first one fastest."""
    z, y, x = np.meshgrid(*reversed(axes), indexing="ij")
    return np.stack([x.reshape(-1), y.reshape(-1), z.reshape(-1)], axis=1)


def _only(piece: ElementTree.Element, name: str, count: int, values: Values) -> list[Array]:
    arrays = [values(part) for part in piece.findall(f"{name}/DataArray")]
    if len(arrays) != count:
        raise ValueError(f"its {name} have {len(arrays)} arrays, not {count}")
    return arrays


def _numbers(element: ElementTree.Element, name: str, count: int, otherwise: str) -> list[float]:
    numbers = [float(word) for word in element.get(name, otherwise).split()]
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ValueError(f"its {name} is {element.get(name)!r}, not {count} numbers")
    return numbers
