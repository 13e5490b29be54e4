"""LAS and LAZ files: reading, and writing a subset of the points. The only module that imports laspy.

A subset keeps the header, its records, the scales, and every dimension including extra bytes: values are
copied as the stored integers.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import write_bytes
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.columns import COLOURS, centre_coordinates, features_of, integer_labels

_SIGNATURE = b"LASF"
_HEAD_BYTES = 375  # of version 1.4, the longest
_RECORD_BYTES = 54  # the least of a variable length record
_RECORDS_AT, _EXTENDED_AT = 100, 243  # where their numbers are; the second from version 1.4 on


def read_las(path: str | Path) -> Any:
    """Return the laspy.LasData of a file."""
    path = Path(path)
    laspy = _laspy(path)
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.startswith(_SIGNATURE):
        raise BadInput(
            f"{path} is not a LAS file: it does not start with LASF.", hint="Give a LAS or LAZ file."
        )
    _check_records(path, head)
    try:
        with laspy.open(path) as reader:
            _require_bytes(path, reader.header)
            data = reader.read()
    except BadInput:
        raise
    except (Exception, MemoryError) as error:  # laspy can fail in any way on arbitrary bytes
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"Cannot read {path}: {why[:200]}", hint="Copy or write the file again.") from error
    if len(data.points) != data.header.point_count:
        raise BadInput(
            f"{path} is truncated: it has {len(data.points):,} points, but its header says"
            f" {data.header.point_count:,}.",
            hint="Copy or write the file again.",
        )
    return data


def las_xyz(data: Any) -> np.ndarray:
    """Return the coordinates (N, 3) as float64."""
    return np.stack([np.asarray(data.x), np.asarray(data.y), np.asarray(data.z)], axis=1)


def las_scene(data: Any, path: str | Path) -> Scene:
    """Return the unvalidated scene: colour and intensity are features, the classification is the label.

    There are no labels if no point has a classification.
    """
    dimensions = set(data.point_format.dimension_names)
    columns = {name: np.asarray(data[name]) for name in COLOURS if name in dimensions}
    if "intensity" in dimensions:
        columns["intensity"] = np.asarray(data["intensity"]) / np.float32(65535)
    features, names = features_of(columns)
    classes = np.asarray(data["classification"])
    labels = integer_labels(classes, str(path)) if classes.any() else None
    xyz, origin = centre_coordinates(las_xyz(data))
    return Scene(Path(path).stem, xyz, features, labels, names, (), origin)


def write_las(path: str | Path, data: Any, *, keep: np.ndarray) -> Path:
    """Write the points keep (M,) atomically, compressed if the name ends in .laz."""
    path = Path(path)
    laspy = _laspy(path)
    part = laspy.LasData(data.header, data.points[keep])
    part.update_header()
    buffer = io.BytesIO()
    part.write(buffer, do_compress=path.suffix.lower() == ".laz")
    return write_bytes(path, buffer.getvalue())


def _check_records(path: Path, head: bytes) -> None:
    """Raise an error if the header claims more records than the file can hold; laspy would look for them."""
    at = [_RECORDS_AT, *([_EXTENDED_AT] if head[24:26] >= b"\x01\x04" else [])]
    count = max((int.from_bytes(head[place : place + 4], "little") for place in at), default=0)
    if count * _RECORD_BYTES > path.stat().st_size:
        raise BadInput(
            f"The header of {path} claims {count:,} records, more than the file can hold.",
            hint="Copy or write the file again.",
        )


def _require_bytes(path: Path, header: Any) -> None:
    """Raise an error, before allocating anything, if the point count exceeds the file or the free memory."""
    need = header.point_count * header.point_format.size
    available = path.stat().st_size - header.offset_to_point_data
    if not header.are_points_compressed and need > available:
        raise BadInput(
            f"{path} is truncated: {header.point_count:,} points need {show_bytes(need)}, but it contains"
            f" {show_bytes(max(0, available))}.",
            hint="Copy or write the file again.",
        )
    free = free_bytes()
    if need > free:
        raise BadInput(
            f"The header of {path} says {header.point_count:,} points, which need {show_bytes(need)};"
            f" {show_bytes(free)} of memory are free.",
            hint="Split the file into tiles, or write it again if the count is wrong.",
        )


def _laspy(path: Path) -> Any:
    try:
        import laspy
    except ModuleNotFoundError as error:
        raise Missing(
            f"{path.suffix} files need laspy, which is not installed.",
            hint='Run pip install "pinchpoint[cloud]", or use .ply.',
        ) from error
    if path.suffix.lower() == ".laz" and not laspy.LazBackend.detect_available():
        raise Missing(
            ".laz files need lazrs in addition to laspy, which is not installed.",
            hint='Run pip install "pinchpoint[cloud]".',
        )
    return laspy
