"""LAS and LAZ files through laspy, which is imported only here: read, thinned, written with all that a point holds.

Thinning keeps the header, its records, the scales and every dimension, extra bytes included: numbers are copied as the
integers they are stored as.
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
from pinchpoint.systems.cloud.files.columns import COLOURS, centred, features_of, whole_labels

_SIGNATURE = b"LASF"


def read_las(path: str | Path) -> Any:
    """The laspy.LasData of a file."""
    path = Path(path)
    laspy = _laspy(path)
    with path.open("rb") as file:
        if file.read(4) != _SIGNATURE:
            raise BadInput(
                f"{path} is no LAS file: it does not begin with LASF", hint="give a LAS or LAZ file"
            )
    try:
        with laspy.open(path) as reader:
            _require_bytes(path, reader.header)
            data = reader.read()
    except BadInput:
        raise
    except (Exception, MemoryError) as error:  # a parser meets bytes of any kind, and fails in any way
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"cannot read {path}: {why[:200]}", hint="copy or write the file again") from error
    if len(data.points) != data.header.point_count:
        raise BadInput(
            f"{path} is cut short: it has {len(data.points):,} points; its header says {data.header.point_count:,}",
            hint="copy or write the file again",
        )
    return data


def las_xyz(data: Any) -> np.ndarray:
    """(N, 3) float64."""
    return np.stack([np.asarray(data.x), np.asarray(data.y), np.asarray(data.z)], axis=1)


def las_scene(data: Any, path: str | Path) -> Scene:
    """Colour and intensity as features, the classification as labels where any point has one; not checked yet."""
    held = set(data.point_format.dimension_names)
    columns = {name: np.asarray(data[name]) for name in COLOURS if name in held}
    if "intensity" in held:
        columns["intensity"] = np.asarray(data["intensity"]) / np.float32(65535)
    features, names = features_of(columns)
    classes = np.asarray(data["classification"])
    labels = whole_labels(classes, str(path)) if classes.any() else None
    xyz, origin = centred(las_xyz(data))
    return Scene(Path(path).stem, xyz, features, labels, names, (), origin)


def write_las(path: str | Path, data: Any, *, keep: np.ndarray) -> Path:
    """Write the points of keep (M,), compressed where the name ends in .laz; whole or not at all."""
    path = Path(path)
    laspy = _laspy(path)
    part = laspy.LasData(data.header, data.points[keep])
    part.update_header()
    held = io.BytesIO()
    part.write(held, do_compress=path.suffix.lower() == ".laz")
    return write_bytes(path, held.getvalue())


def _require_bytes(path: Path, header: Any) -> None:
    """Refuse a count that the file, or the memory, cannot hold before anything is allocated for it."""
    need = header.point_count * header.point_format.size
    held = path.stat().st_size - header.offset_to_point_data
    if not header.are_points_compressed and need > held:
        raise BadInput(
            f"{path} is cut short: {header.point_count:,} points take {show_bytes(need)}; it holds {show_bytes(max(0, held))}",
            hint="copy or write the file again",
        )
    free = free_bytes()
    if need > free:
        raise BadInput(
            f"{path} says it holds {header.point_count:,} points, {show_bytes(need)}; {show_bytes(free)} of memory are free",
            hint="cut it into tiles, or write the file again if that count is wrong",
        )


def _laspy(path: Path) -> Any:
    try:
        import laspy
    except ModuleNotFoundError as error:
        raise Missing(
            f"{path.suffix} files need laspy, which is not installed",
            hint='pip install "pinchpoint[cloud]", or use .ply',
        ) from error
    if path.suffix.lower() == ".laz" and not laspy.LazBackend.detect_available():
        raise Missing(
            ".laz files need lazrs beside laspy, which is not installed",
            hint='pip install "pinchpoint[cloud]"',
        )
    return laspy
