"""Point clouds read in chunks: PLY and LAS files from disk, NPZ files and folders from memory.

A Cloud knows its number of points before any is read, and yields Rows: some consecutive points with all of
their columns. Rows have three views: coordinates, what features are made of (see `columns`), and all columns
in their own types, for another format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.edges import INT32_MOST
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files import las as las_files
from pinchpoint.systems.cloud.files.columns import COLOURS
from pinchpoint.systems.cloud.files.formats import check_cloud_path
from pinchpoint.systems.cloud.files.npz import arrays_scene, named_columns, read_arrays, take_arrays, xyz_key
from pinchpoint.systems.cloud.files.ply import Ply, ascii_chunks, open_ply, ply_xyz, take_rows
from pinchpoint.systems.cloud.files.pointcept import folder_scene, read_folder

Family = Literal["ply", "las", "npz", "folder"]
SCALE_COMMENT = "las scale"  # of a PLY file made from LAS, whose steps follow; it becomes the scale again
_LINE_BYTES = 50
_FAMILIES: dict[str, Family] = {".ply": "ply", ".npz": "npz", ".las": "las", ".laz": "las"}


class Rows(Protocol):
    """Some points of a cloud. xyz: (n, 3) float32 or float64."""

    @property
    def points(self) -> int: ...

    @property
    def xyz(self) -> np.ndarray: ...

    @property
    def absolute_xyz(self) -> np.ndarray:
        """Coordinates (n, 3) with the origin that an NPZ file may state apart from them."""
        ...

    def columns(self) -> dict[str, np.ndarray]:
        """Return every column (n,) in its own type, except the coordinates."""
        ...

    def take(self, index: np.ndarray) -> Rows: ...


class Cloud(Protocol):
    """A point cloud of a file or folder. losses: what no other format can hold, in words."""

    @property
    def path(self) -> Path: ...

    @property
    def points(self) -> int: ...

    @property
    def losses(self) -> tuple[str, ...]: ...

    @property
    def row_bytes(self) -> int:
        """Bytes of memory that a point takes while it is read."""
        ...

    def chunks(self, size: int) -> Iterator[Rows]: ...


def family_of(path: Path) -> Family:
    """Return the family of formats of a path, whose points are copied without a conversion."""
    return "folder" if path.is_dir() else _FAMILIES.get(path.suffix.lower(), "folder")


def open_cloud(path: str | Path) -> Cloud:
    """Open a file or scene folder; the points of PLY and LAS files are read later, in chunks."""
    path = check_cloud_path(path)
    family = family_of(path)
    if family == "ply":
        cloud: Cloud = PlyCloud(path, open_ply(path))
    elif family == "las":
        cloud = LasCloud(path, las_files.read_las_header(path))
    elif family == "npz":
        arrays = read_arrays(path)
        cloud = ArrayCloud(path, arrays, xyz_key(arrays, str(path)))
    else:
        arrays = read_folder(path)
        cloud = ArrayCloud(path, arrays, xyz_key(arrays, str(path)))
    if cloud.points > INT32_MOST:
        raise BadInput(
            f"{path} has {cloud.points:,} points; points are numbered in 32 bits.",
            hint=f"Split it into files of at most {INT32_MOST:,} points.",
        )
    return cloud


@dataclass(frozen=True)
class PlyRows:
    """Vertices of a PLY file; lines: their text if the file is ASCII."""

    vertices: np.ndarray
    lines: tuple[bytes, ...] = ()

    @property
    def points(self) -> int:
        return len(self.vertices)

    @property
    def xyz(self) -> np.ndarray:
        return ply_xyz(self.vertices)

    @property
    def absolute_xyz(self) -> np.ndarray:
        return self.xyz

    def feature_columns(self) -> dict[str, np.ndarray]:
        """Return the columns (n,) that `features_of` interprets."""
        return self.columns()

    def columns(self) -> dict[str, np.ndarray]:
        names = [name for name in self.vertices.dtype.names or () if name not in ("x", "y", "z")]
        return {name: self.vertices[name] for name in names}

    def take(self, index: np.ndarray) -> PlyRows:
        return PlyRows(*take_rows(self.vertices, self.lines, index))


@dataclass(frozen=True)
class PlyCloud:
    path: Path
    ply: Ply

    @property
    def points(self) -> int:
        return self.ply.header.elements[self.ply.header.place("vertex")].count

    @property
    def losses(self) -> tuple[str, ...]:
        others = [element.name for element in self.ply.header.elements if element.name != "vertex"]
        comments = [
            line
            for line in self.ply.header.lines
            if line.split()[:1] == ["comment"] and not line.startswith(f"comment {SCALE_COMMENT}")
        ]
        return (
            *(f"the element {name}" for name in others),
            *((f"{len(comments)} comment{'s' * (len(comments) > 1)}",) if comments else ()),
        )

    @property
    def row_bytes(self) -> int:
        vertex = self.ply.header.elements[self.ply.header.place("vertex")]
        # A line of text is an object of its own, of about ten characters per number.
        text = _LINE_BYTES + 20 * len(vertex.dtype.names or ()) if self.ply.header.ascii else 0
        return vertex.dtype.itemsize + text

    def chunks(self, size: int) -> Iterator[PlyRows]:
        if self.ply.header.ascii:
            for vertices, lines in ascii_chunks(self.path, self.ply.header, size):
                yield PlyRows(vertices, lines)
            return
        for start in range(0, self.points, size):
            yield PlyRows(self.ply.vertices[start : start + size])


@dataclass(frozen=True)
class LasRows:
    """Points of a LAS file, as a record of laspy."""

    record: Any

    @property
    def points(self) -> int:
        return len(self.record)

    @property
    def xyz(self) -> np.ndarray:
        return las_files.las_xyz(self.record)

    @property
    def absolute_xyz(self) -> np.ndarray:
        return self.xyz

    def feature_columns(self) -> dict[str, np.ndarray]:
        """Return the columns (n,) that `features_of` interprets."""
        dimensions = set(self.record.point_format.dimension_names)
        return {name: np.asarray(self.record[name]) for name in (*COLOURS, "intensity") if name in dimensions}

    def columns(self) -> dict[str, np.ndarray]:
        return las_files.las_columns(self.record)

    def take(self, index: np.ndarray) -> LasRows:
        return LasRows(self.record[index])


@dataclass(frozen=True)
class LasCloud:
    path: Path
    header: Any  # of laspy

    @property
    def points(self) -> int:
        return self.header.point_count

    @property
    def losses(self) -> tuple[str, ...]:
        return las_files.las_losses(self.header)

    @property
    def row_bytes(self) -> int:
        return self.header.point_format.size

    def chunks(self, size: int) -> Iterator[LasRows]:
        for record in las_files.las_chunks(self.path, size):
            yield LasRows(record)


@dataclass(frozen=True)
class ArrayRows:
    """Rows start .. stop of the arrays of an NPZ file or folder, or those of `index`."""

    cloud: ArrayCloud
    index: np.ndarray | slice
    points: int

    @property
    def xyz(self) -> np.ndarray:
        xyz = self.cloud.arrays[self.cloud.key][self.index]
        return xyz if xyz.dtype in (np.float32, np.float64) else xyz.astype(np.float64)

    @property
    def absolute_xyz(self) -> np.ndarray:
        origin = self.cloud.arrays.get("origin")
        return self.xyz if origin is None or origin.shape != (3,) else self.xyz + origin.astype(np.float64)

    @property
    def features(self) -> np.ndarray:
        """Features (n, F) with the names of the scene."""
        return self.cloud.scene.features[self.index]

    def columns(self) -> dict[str, np.ndarray]:
        return {name: values[self.index] for name, values in self.cloud.plain_columns.items()}

    def take(self, index: np.ndarray) -> ArrayRows:
        places = np.arange(self.cloud.points)[self.index][index]
        return replace(self, index=places, points=len(places))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays, with these rows of those that have one row per point."""
        return take_arrays(self.cloud.arrays, np.arange(self.cloud.points)[self.index], str(self.cloud.path))


@dataclass(frozen=True)
class ArrayCloud:
    path: Path
    arrays: dict[str, np.ndarray]
    key: str  # the name of the coordinates

    @property
    def points(self) -> int:
        return len(self.arrays[self.key])

    @cached_property
    def scene(self) -> Scene:
        read = folder_scene if self.path.is_dir() else arrays_scene
        return read(self.arrays, str(self.path))

    @cached_property
    def plain_columns(self) -> dict[str, np.ndarray]:
        return named_columns(self.arrays, self.key)

    @property
    def losses(self) -> tuple[str, ...]:
        others = [
            name
            for name, values in self.arrays.items()
            if values.shape[:1] != (self.points,) and name not in ("names", "classes", "about", "origin")
        ]
        return tuple(f"the array {name}" for name in others)

    @property
    def row_bytes(self) -> int:
        return 0  # the arrays are in memory already

    def chunks(self, size: int) -> Iterator[ArrayRows]:
        for start in range(0, self.points, size):
            stop = min(start + size, self.points)
            yield ArrayRows(self, slice(start, stop), stop - start)
