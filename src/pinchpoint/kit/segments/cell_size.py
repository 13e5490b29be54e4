"""The size of a grid's cells: one edge, or one for each of x, y and z. Imports no framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from pinchpoint.core.errors import BadInput

CellSize = float | Sequence[float]


def cell_edges(cell: CellSize) -> tuple[float, float, float]:
    """Return the edges along x, y and z, or raise `BadInput` unless they are finite numbers above 0."""
    edges: list[Any] = list(cell) if isinstance(cell, Sequence) and not isinstance(cell, str) else [cell] * 3
    valid = len(edges) == 3 and all(
        isinstance(edge, Real) and not isinstance(edge, bool) and math.isfinite(edge) and float(edge) > 0
        for edge in edges
    )
    if not valid:
        raise BadInput(
            f"The cell size is {cell!r}; it must be a finite number above 0, or three of them.",
            hint="Give one edge above 0 in the units of the coordinates, or one each for x, y and z.",
        )
    x, y, z = (float(edge) for edge in edges)
    return x, y, z


def show_cell(cell: CellSize, factor: float = 1.0) -> str:
    """`0.1` for cubes, `0.1 x 0.1 x 0.5` for other cells, with every edge multiplied by `factor`."""
    digits = "g" if factor == 1 else ".3g"
    edges = [f"{edge * factor:{digits}}" for edge in cell_edges(cell)]
    return edges[0] if len(set(edges)) == 1 else " x ".join(edges)


def parse_cell(text: str) -> CellSize:
    """Parse `0.1`, or `0.1,0.1,0.05` for the edges along x, y and z; BadInput unless all are above 0."""
    try:
        edges = tuple(float(edge) for edge in text.split(","))
    except ValueError:
        edges = ()
    if len(edges) not in (1, 3):
        raise BadInput(
            f"The cell size {text!r} is neither one number nor three numbers separated by commas.",
            hint="Give one edge, such as 0.1, or one each for x, y and z, such as 0.1,0.1,0.05.",
        )
    cell = edges[0] if len(edges) == 1 else edges
    cell_edges(cell)
    return cell


def plain_cell(cell: CellSize) -> float | tuple[float, float, float]:
    """Return one number for cubes, three otherwise, as records hold them."""
    edges = cell_edges(cell)
    return edges[0] if len(set(edges)) == 1 else edges
