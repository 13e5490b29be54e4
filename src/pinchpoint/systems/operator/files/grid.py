"""A grid: the points, cells and fields of a file, as every reader returns them.

V points, C cells, n components of a field. Cells are in blocks of one kind, named as in meshio, in the order
of the file; the rows of a cell field follow the blocks. Corners beyond the linear ones (of quadratic cells)
are kept, so that a grid can be written again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# The dimension of each kind of cell, and its linear corners; None: all.
KINDS: dict[str, tuple[int, int | None]] = {
    "vertex": (0, None),
    "line": (1, None),
    "line3": (1, 2),
    "triangle": (2, None),
    "triangle6": (2, 3),
    "quad": (2, None),
    "quad8": (2, 4),
    "quad9": (2, 4),
    "polygon": (2, None),
    "tetra": (3, None),
    "tetra10": (3, 4),
    "pyramid": (3, None),
    "pyramid13": (3, 5),
    "wedge": (3, None),
    "wedge15": (3, 6),
    "hexahedron": (3, None),
    "hexahedron20": (3, 8),
    "hexahedron27": (3, 8),
}
# Kinds whose corners are in another order than those of the kind they are read as.
_REORDERED = {"pixel": ("quad", [0, 1, 3, 2]), "voxel": ("hexahedron", [0, 1, 3, 2, 4, 5, 7, 6])}


@dataclass(frozen=True)
class Cells:
    """Cells of one kind. corners: (count, corners per cell) int64."""

    kind: str
    corners: Array

    @property
    def dimension(self) -> int:
        return KINDS[self.kind][0]

    @property
    def linear(self) -> Array:
        """The corners without the points in the middle of edges and faces."""
        return self.corners[:, : KINDS[self.kind][1]]


@dataclass(frozen=True)
class Grid:
    points: Array  # (V, 3) float64
    cells: tuple[Cells, ...] = ()
    point_fields: dict[str, Array] = field(default_factory=dict)  # (V,) or (V, n)
    cell_fields: dict[str, Array] = field(default_factory=dict)  # (C,) or (C, n)
    values: dict[str, float] = field(default_factory=dict)  # numbers that belong to the whole file

    @property
    def cell_count(self) -> int:
        return sum(len(block.corners) for block in self.cells)

    @property
    def dimension(self) -> int:
        """The largest dimension of a cell; 0 for points alone."""
        return max((block.dimension for block in self.cells if len(block.corners)), default=0)

    def main_cells(self) -> tuple[list[Cells], Array]:
        """The blocks of the largest dimension, and the rows (M,) of their cells in a cell field."""
        starts = np.cumsum([0, *(len(block.corners) for block in self.cells)])
        chosen = [at for at, block in enumerate(self.cells) if block.dimension == self.dimension]
        rows = [np.arange(starts[at], starts[at + 1]) for at in chosen]
        return [self.cells[at] for at in chosen], np.concatenate(rows) if rows else np.zeros(0, dtype=int)

    def with_fields(self, point_fields: dict[str, Array], cell_fields: dict[str, Array]) -> Grid:
        return replace(self, point_fields=point_fields, cell_fields=cell_fields)


class UnknownCells(ValueError):
    """A kind of cell that is not supported."""


def cells_of(kind: str, corners: Array) -> Cells:
    """Cells of a kind that a file names. Raises `UnknownCells` for a kind that is not supported."""
    corners = np.asarray(corners, dtype=np.int64)
    if kind in _REORDERED:
        kind, order = _REORDERED[kind]
        corners = corners[:, order]
    if kind not in KINDS:
        raise UnknownCells(f"it has cells of the kind {kind}, which is not supported")
    return Cells(kind, corners)


def polygon_cells(polygons: Array) -> Cells:
    """Polygons (count, corners) under the name of their kind."""
    return Cells({3: "triangle", 4: "quad"}.get(polygons.shape[1], "polygon"), polygons)
