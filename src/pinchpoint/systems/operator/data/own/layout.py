"""What the cases of a user's dataset have in common, and the points of a grid that follow from it.

P points of a case, V and C points and cells of its file. Fields on points give one point per point of the
file, fields on cells one per cell, at its centre. Data in a plane, whichever it is, and grids that are one
cell thick have two coordinates; the third is 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.own.cells import (
    FACES,
    Array,
    at_points,
    boundary_of,
    cell_geometry,
    cell_means,
    cloud_measures,
    inner_boundary,
    moment_names,
    nearest,
    to_wall,
    wall_moments,
)
from pinchpoint.systems.operator.files.grid import Cells, Grid, polygon_cells
from pinchpoint.systems.operator.files.meshes import triangles_of
from pinchpoint.systems.operator.files.orientation import closed_normals

# Increased with every change that alters the numbers of a case.
GENERATOR = 3

Location = Literal["points", "cells"]
AXES = "xyz"
MEASURES = {0: "single points", 1: "a curve", 2: "a surface or a plane", 3: "a volume"}
_FLAT = 1e-6  # of the largest extent: a smaller one is none


@dataclass(frozen=True)
class Layout:
    """How a file becomes a sample; the same for all cases of a dataset, and for predictions."""

    location: Location
    axes: tuple[int, ...]  # the coordinates in use: 0, 1, 2, or two of them for data in a plane
    measure: int  # dimension of what the points sample
    normals: bool  # whether the normals of the surface are features
    wall: Literal["", "inner", "all"]  # the boundary to which distance and direction are features
    inputs: tuple[tuple[str, int], ...]  # names and components of the fields that are features
    targets: tuple[tuple[str, int], ...]
    parameters: tuple[str, ...]  # one number per case
    moments: bool = False  # whether place, size and shape of that boundary are features
    generator: int = field(default=0, compare=False)  # of the cases; 0: of a run that did not store it

    @property
    def dimension(self) -> int:
        return len(self.axes)

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """The columns of each target."""
        ends = np.cumsum([0, *(count for _, count in self.targets)]).tolist()
        return {name: tuple(range(ends[at], ends[at + 1])) for at, (name, _) in enumerate(self.targets)}

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the features."""
        names = [f"normal_{axis}" for axis in AXES] if self.normals or self.wall else []
        names += ["wall_distance", "wall_closeness"] if self.wall else []
        names += self.shape
        names += [*self.parameters, *self.columns(self.inputs)]
        return tuple(names or ["one"])

    @property
    def shape(self) -> list[str]:
        """Names of the columns that describe the boundary as a whole."""
        return moment_names("xyz"[: self.dimension]) if self.moments else []

    def columns(self, fields: tuple[tuple[str, int], ...]) -> list[str]:
        """p stays p; a vector U becomes U_x, U_y, U_z, and any other field T becomes T_0, T_1, ..."""
        names = []
        for name, count in fields:
            ends = [AXES[axis] for axis in self.axes] if count == self.dimension else map(str, range(count))
            names += [name] if count == 1 else [f"{name}_{end}" for end in ends]
        return names

    def has_shapes_of(self, generator: int) -> bool:
        """Whether place, size and shape of a boundary, if they are features, were computed by a generator."""
        return not self.moments or self.generator == generator

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        values: dict[str, Any] = dict(data)
        values |= {key: tuple((str(name), int(n)) for name, n in data[key]) for key in ("inputs", "targets")}
        values |= {key: tuple(data[key]) for key in ("axes", "parameters")}
        return cls(**values)


@dataclass(frozen=True)
class Places:
    """The points of a case, and how to draw them."""

    points: Array  # (P, 3); in a plane, the third coordinate is 0
    areas: Array  # (P,) lengths, areas or volumes
    measure: int
    normals: Array | None  # (P, 3) of a surface or a curve
    rows: Array  # (P,) the row of each point in a field of the file
    back: Array  # (V,) or (C,): the point of each row of a field of the file, -1 for none
    blocks: list[Cells]  # cells of the largest dimension, in the coordinates of `vertices`
    vertices: Array  # (W, 3)
    triangles: Array  # (N, 3) for pictures; empty for volumes and for points without cells
    owners: Array  # (N,) the point of each triangle, for fields on cells; empty if vertices are points


def plane_axes(grid: Grid, where: str) -> tuple[int, ...]:
    """The coordinates in which a grid, or at least the middles of its cells, has an extent."""
    blocks, _ = grid.main_cells()
    sets = [grid.points, *([cell_geometry(grid.points, blocks).centres] if blocks else [])]
    for places in sets:
        extent = np.ptp(places, axis=0)
        axes = tuple(axis for axis in range(3) if extent[axis] > _FLAT * extent.max())
        if len(axes) < 2:
            raise BadInput(
                f"All points of {where} lie on a line or in one place.",
                hint="Give data in two or three axes.",
            )
        if len(axes) == 2:
            return axes
    return (0, 1, 2)


def places_of(grid: Grid, axes: tuple[int, ...], location: Location, where: str) -> Places:
    """The points of a grid for fields at `location`."""
    flat, point_rows, cell_rows, point_back = _in_plane(grid, axes, where)
    blocks, rows = flat.main_cells()
    surface = flat.dimension == 2
    triangles = triangles_of(blocks) if surface else np.zeros((0, 3), dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    if location == "cells":
        shape = cell_geometry(flat.points, blocks)
        chosen = cell_rows[rows]
        back = np.full(grid.cell_count, -1)
        back[chosen] = np.arange(len(chosen))
        return Places(
            shape.centres,
            shape.measures,
            flat.dimension,
            _normals(flat, blocks, shape.normals, axes),
            chosen,
            back,
            blocks,
            flat.points,
            triangles,
            _owners(blocks) if surface else none,
        )
    if not blocks or flat.dimension == 0:
        areas, measure = cloud_measures(flat.points)
        everything = np.arange(len(flat.points))
        return Places(
            flat.points,
            areas,
            min(measure, len(axes)),
            None,
            point_rows,
            point_back,
            [],
            flat.points,
            triangles,
            everything[:0],
        )
    shape = cell_geometry(flat.points, blocks)
    normals = _normals(flat, blocks, shape.normals, axes)
    if normals is not None:
        sums = at_points(len(flat.points), blocks, normals * shape.measures[:, None])
        normals = sums / np.maximum(np.linalg.norm(sums, axis=1), np.finfo(float).tiny)[:, None]
    return Places(
        flat.points,
        at_points(len(flat.points), blocks, shape.measures),
        flat.dimension,
        normals,
        point_rows,
        point_back,
        blocks,
        flat.points,
        triangles,
        none,
    )


def wall_of(places: Places, which: str) -> list[Array]:
    """The boundary of a case: the bodies in it, or all of it. Empty where there is none."""
    if not places.blocks or places.blocks[0].dimension < 2:
        return []
    boundary = boundary_of(places.blocks)
    if which == "all" or not boundary:
        return boundary
    return inner_boundary(places.vertices, boundary)


def features_of(
    grid: Grid, places: Places, layout: Layout, parameters: dict[str, float], where: str
) -> Array:
    """(P, K) the columns of `layout.features`."""
    count = len(places.points)
    parts: list[Array] = []
    if layout.wall:
        wall = wall_of(places, layout.wall)
        if not wall:
            raise BadInput(
                f"{where} has no boundary inside its box, but the cases of training had one.",
                hint="Give a grid with cells around a body.",
            )
        distance, direction = to_wall(places.points, places.vertices, wall)
        share = distance / np.ptp(places.points, axis=0).max()
        parts += [direction, share[:, None], -np.log(share + 1e-3)[:, None]]
        if layout.moments:
            moments = wall_moments(places.vertices, wall, dimension=layout.dimension)
            parts.append(np.broadcast_to(moments, (count, len(moments))))
    elif layout.normals:
        if places.normals is None:
            raise BadInput(
                f"{where} has no faces, but the cases of training had normals.", hint="Give a surface."
            )
        parts.append(places.normals)
    for name in layout.parameters:
        parts.append(np.full((count, 1), parameters[name]))
    parts += [field_at(grid, places, layout, field, where) for field in layout.inputs]
    return np.concatenate(parts or [np.ones((count, 1))], axis=1)


def field_at(grid: Grid, places: Places, layout: Layout, field: tuple[str, int], where: str) -> Array:
    """(P, components) of a field, from points to cells if necessary."""
    name, components = field
    if layout.location == "cells" and name in grid.cell_fields:
        values = grid.cell_fields[name][places.rows]
    elif layout.location == "points" and name in grid.point_fields:
        values = grid.point_fields[name][places.rows]
    elif layout.location == "cells" and name in grid.point_fields:
        blocks, rows = grid.main_cells()
        means = np.zeros((grid.cell_count, *grid.point_fields[name].shape[1:]))
        means[rows] = cell_means(blocks, grid.point_fields[name])
        values = means[places.rows]
    else:
        kinds = sorted({*grid.point_fields, *grid.cell_fields})
        raise BadInput(
            f"{where} has no field {name!r} on its {layout.location}; it has {', '.join(kinds) or 'none'}.",
            hint="Add the field, or name others.",
        )
    values = np.asarray(values, dtype=np.float64).reshape(len(places.rows), -1)
    values = in_axes(values, layout.axes)
    if values.shape[1] != components:
        raise BadInput(
            f"{name!r} has {values.shape[1]} components in {where}, but {components} in the other cases.",
            hint="Export the same fields from every case.",
        )
    return values


def in_axes(values: Array, axes: tuple[int, ...]) -> Array:
    """Of vectors (P, 3) of data in a plane, the components in the plane; other values unchanged."""
    return values[:, list(axes)] if values.shape[1] == 3 and len(axes) == 2 else values


def _in_plane(grid: Grid, axes: tuple[int, ...], where: str) -> tuple[Grid, Array, Array, Array]:
    """The grid with coordinates in the order of the axes, and rows of its points and cells in the file's.

    Also (V,): the point of each point of the file. A grid that is one cell thick becomes its lower side.
    """
    own = np.arange(len(grid.points))
    if len(axes) == 3:
        return grid, own, np.arange(grid.cell_count), own
    rest = next(axis for axis in range(3) if axis not in axes)
    height = grid.points[:, rest]
    points = np.zeros_like(grid.points)
    points[:, :2] = grid.points[:, list(axes)]
    if grid.dimension < 3:
        return Grid(points, grid.cells), own, np.arange(grid.cell_count), own
    low = height <= height.min() + 1e-3 * np.ptp(height)
    new = np.cumsum(low) - 1
    blocks, owners = _lower_faces(grid, low, where)
    _, back = nearest(points, points[low], 1)
    flat = Grid(points[low], tuple(polygon_cells(new[block]) for block in blocks))
    return flat, own[low], owners, back[:, 0]


def _lower_faces(grid: Grid, low: Array, where: str) -> tuple[list[Array], Array]:
    """The faces of each cell on the lower side, by their number of corners, and the rows of their cells."""
    blocks, rows = grid.main_cells()
    faces: dict[int, list[Array]] = {}
    owners: dict[int, list[Array]] = {}
    first = 0
    for block in blocks:
        corners = block.linear
        own = rows[first : first + len(corners)]
        first += len(corners)
        for face in FACES[corners.shape[1]]:
            below = low[corners[:, face]].all(axis=1)
            faces.setdefault(len(face), []).append(corners[below][:, face])
            owners.setdefault(len(face), []).append(own[below])
    cells = np.concatenate([part for parts in owners.values() for part in parts])
    if len(np.unique(cells)) != len(cells) or len(cells) != len(rows):
        raise BadInput(
            f"{where} seems to be in a plane, but is not exactly one cell thick.",
            hint="Cut it with a plane (ParaView: Slice), and give the slices.",
        )
    sides = [count for count in faces if sum(map(len, faces[count]))]
    return [np.concatenate(faces[count]) for count in sides], np.concatenate(
        [part for count in sides for part in owners[count]]
    )


def _normals(grid: Grid, blocks: list[Cells], normals: Array, axes: tuple[int, ...]) -> Array | None:
    """Normals (C, 3) of a surface in space or a curve in a plane, outward if it is closed."""
    if grid.dimension != len(axes) - 1:
        return None
    if grid.dimension == 1:
        return normals
    return closed_normals(grid.points, triangles_of(blocks), _owners(blocks), normals)


def _owners(blocks: list[Cells]) -> Array:
    """(N,) the cell of each triangle of `triangles_of`."""
    parts, first = [], 0
    for block in blocks:
        own = np.arange(first, first + len(block.corners))
        parts += [own] * (block.linear.shape[1] - 2)
        first += len(own)
    return np.concatenate(parts)
