"""LAS and LAZ files: reading, and writing a subset of the points. The only module that imports laspy.

A subset keeps the header, its records, the scales, and every dimension including extra bytes: values are
copied as the stored integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pinchpoint.core.errors import BadInput, Missing, PinchpointError
from pinchpoint.core.files import open_output
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.columns import COLOURS, centre_coordinates, features_of, integer_labels

_SIGNATURE = b"LASF"
_HEAD_BYTES = 375  # of version 1.4, the longest
_RECORD_BYTES, _EXTENDED_BYTES = 54, 60  # the least of a variable length record, and of an extended one
_RECORDS_AT, _EXTENDED_AT = 100, 243  # where their numbers are; the second from version 1.4 on
_HEADER_SIZE_AT, _POINTS_AT, _EXTENDED_START_AT = 94, 96, 235  # where the records begin, and the first end
_MOST_RECORDS = 100_000  # real files have a dozen; reading millions of empty ones would take hours
_CLASSES = 256  # of the classification of point formats from 6 on
_WAVES = ("wavepacket_index", "wavepacket_offset", "wavepacket_size", "return_point_wave_location")
_WAVES += ("x_t", "y_t", "z_t")  # they point into the waveforms, which stay behind


def read_las(path: str | Path) -> Any:
    """Return the laspy.LasData of a file."""
    path = Path(path)
    header = read_las_header(path)
    _require_memory(path, header)
    records = list(las_chunks(path, max(1, header.point_count)))
    return _laspy(path).LasData(header, records[0] if records else None)


def read_las_header(path: str | Path) -> Any:
    """Return the laspy.LasHeader of a file, with its records, after checking what it claims."""
    path = Path(path)
    laspy = _laspy(path)
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.startswith(_SIGNATURE):
        raise BadInput(
            f"{path} is not a LAS file: it does not start with LASF.", hint="Give a LAS or LAZ file."
        )
    _check_records(path, head)
    with _explain(path), laspy.open(path) as reader:
        header = reader.header
        _require_bytes(path, header)
        return header


def las_chunks(path: str | Path, size: int) -> Iterator[Any]:
    """Yield the points of a file as records of laspy, at most `size` at a time."""
    path = Path(path)
    with _explain(path), _laspy(path).open(path, read_evlrs=False) as reader:
        total, points = reader.header.point_count, 0
        while points < total:
            record = reader.read_points(min(size, total - points))
            points += len(record)
            if len(record) < min(size, total - points + len(record)):
                raise BadInput(
                    f"{path} is truncated: it has {points:,} points, but its header says {total:,}.",
                    hint="Copy or write the file again.",
                )
            yield record


@contextmanager
def _explain(path: Path) -> Iterator[None]:
    """Turn what laspy raises for a damaged file into BadInput."""
    try:
        yield
    except (PinchpointError, GeneratorExit):
        raise
    except (Exception, MemoryError) as error:  # laspy can fail in any way on arbitrary bytes
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"Cannot read {path}: {why[:200]}", hint="Copy or write the file again.") from error


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
        columns["intensity"] = np.asarray(data["intensity"])
    features, names = features_of(columns)
    classes = np.asarray(data["classification"])
    labels = integer_labels(classes, str(path)) if classes.any() else None
    xyz, origin = centre_coordinates(las_xyz(data))
    return Scene(Path(path).stem, xyz, features, labels, names, (), origin)


def las_columns(record: Any) -> dict[str, np.ndarray]:
    """Return every dimension (n,) but coordinates and waveforms; several values become several columns."""
    columns: dict[str, np.ndarray] = {}
    for name in record.point_format.dimension_names:
        if name in ("X", "Y", "Z", *_WAVES):
            continue
        values = np.asarray(record[name])
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{place}": values[:, place] for place in range(values.shape[1])}
    return columns


def las_losses(header: Any) -> tuple[str, ...]:
    """Return, in words, what only a LAS file can hold."""
    own = [record for record in (*header.vlrs, *(header.evlrs or ())) if not _is_layout(record)]
    systems = [record for record in own if record.user_id == "LASF_Projection"]
    waves = any(name in _WAVES for name in header.point_format.dimension_names)
    others = len(own) - len(systems)
    return (
        *(("the coordinate reference system",) if systems else ()),
        *(("the waveforms",) if waves else ()),
        *((f"{others} record{'s' * (others > 1)} of the header",) if others else ()),
    )


def _is_layout(record: Any) -> bool:
    """Whether a record describes how the points are stored, which is written anew."""
    extra_bytes = record.user_id == "LASF_Spec" and record.record_id == 4
    return extra_bytes or record.user_id in ("copc", "laszip encoded")


def write_las(path: str | Path, data: Any, *, keep: np.ndarray) -> Path:
    """Write the points keep (M,) atomically, compressed if the name ends in .laz."""
    path = Path(path)
    with open_output(path) as file, las_writer(path, file, data.header) as writer:
        writer.write_points(data.points[keep])
    return path


def plain_las_header(header: Any) -> Any:
    """Return a copy of a header for a file of other points: COPC becomes plain LAZ, without its index."""
    header = deepcopy(header)
    for records in (header.vlrs, header.evlrs or []):
        for record in [record for record in records if record.user_id == "copc"]:
            records.remove(record)
    return header


def new_header(
    path: Path,
    *,
    point_format: int,
    scale: float,
    offsets: np.ndarray,
    extra: Mapping[str, str],
    classes: Sequence[str],
) -> Any:
    """Return the header of a new file of version 1.4. extra: NumPy types of extra dimensions by name."""
    header = _laspy(path).LasHeader(point_format=point_format, version="1.4")
    header.scales, header.offsets = np.full(3, scale), offsets
    return _add_extra(header, path, extra, classes)


def add_dimensions(header: Any, path: Path, added: Mapping[str, str], classes: Sequence[str] = ()) -> Any:
    """Return a copy of a header with extra dimensions, and with the names of the classes.

    added: NumPy types by name; those that exist with this type are left as they are, others are replaced, and
    a label that fits into the classification needs none.
    """
    header = deepcopy(header)
    if types := other_types(header, added, len(classes)):
        header.remove_extra_dims(list(types))
    known = set(header.point_format.dimension_names)
    extra = {name: kind for name, kind in _own_dimensions(header, added, len(classes)) if name not in known}
    return _add_extra(header, path, extra, classes)


def other_types(header: Any, added: Mapping[str, str], classes: int) -> dict[str, str]:
    """Return the types, in words, of dimensions to add that exist with another type, or with a scale."""
    types: dict[str, str] = {}
    for name, kind in _own_dimensions(header, added, classes):
        for dimension in header.point_format.extra_dimensions:
            scaled = dimension.scales is not None or dimension.offsets is not None
            if dimension.name == name and (scaled or dimension.dtype != np.dtype(kind)):
                types[name] = f"scaled {dimension.dtype}" if scaled else str(dimension.dtype)
    return types


def _own_dimensions(header: Any, added: Mapping[str, str], classes: int) -> list[tuple[str, str]]:
    """Return the names and types of the columns that need a dimension of their own."""
    label = label_dimension(header, classes)
    return [(name, kind) for name, kind in added.items() if name != "label" or label == name]


def _add_extra(header: Any, path: Path, extra: Mapping[str, str], classes: Sequence[str]) -> Any:
    laspy = _laspy(path)
    if extra:  # otherwise the description of those that exist stays as it is
        header.add_extra_dims([laspy.ExtraBytesParams(name, kind) for name, kind in extra.items()])
    if classes and len(classes) <= _CLASSES:
        lookup = laspy.vlrs.known.ClassificationLookupVlr()
        for number, name in enumerate(classes):
            # The field has 15 bytes.
            lookup.lookups[number] = name.encode("ascii", "replace").decode()[:15]
        header.vlrs = laspy.vlrs.vlrlist.VLRList(
            [record for record in header.vlrs if (record.user_id, record.record_id) != ("LASF_Spec", 0)]
        )
        header.vlrs.append(lookup)
    return header


def label_dimension(header: Any, classes: int) -> str:
    """Return the dimension for labels: the classification, or an extra one if it has too few bits."""
    most = 32 if header.point_format.id < 6 else _CLASSES
    return "classification" if classes <= most else "label"


def new_record(header: Any, points: int) -> Any:
    """Return a record of laspy with the dimensions of a header, all zero."""
    import laspy

    return laspy.ScaleAwarePointRecord.zeros(points, header=header)


def with_dimensions(record: Any, header: Any, added: Mapping[str, np.ndarray], classes: int) -> Any:
    """Return a copy of a record with the dimensions of a header from `add_dimensions`.

    added: their values (n,) by name.
    """
    result = new_record(header, len(record))
    columns = {label_dimension(header, classes) if name == "label" else name: added[name] for name in added}
    for name in record.array.dtype.names:
        if name not in columns:
            result.array[name] = record.array[name]
    for name, values in columns.items():
        result[name] = values
    return result


@contextmanager
def las_writer(path: Path, file: BinaryIO, header: Any) -> Iterator[Any]:
    """Yield a laspy.LasWriter to an open file, compressed if the name ends in .laz."""
    header = plain_las_header(header)
    compress = path.suffix.lower() == ".laz"
    with _laspy(path).LasWriter(file, header, do_compress=compress, closefd=False) as writer:
        yield writer
        if header.version.minor >= 4 and header.evlrs:
            writer.write_evlrs(header.evlrs)


def _check_records(path: Path, head: bytes) -> None:
    """Raise an error if the header claims more records than the file can hold; laspy would look for them."""
    size = path.stat().st_size
    claims = [(_RECORDS_AT, _RECORD_BYTES, _number(head, _HEADER_SIZE_AT, 2), _number(head, _POINTS_AT, 4))]
    if head[24:26] >= b"\x01\x04":
        claims.append((_EXTENDED_AT, _EXTENDED_BYTES, _number(head, _EXTENDED_START_AT, 8), size))
    for at, least_bytes, start, end in claims:
        count = _number(head, at, 4)
        if count * least_bytes > min(end, size) - start and count:
            raise BadInput(
                f"The header of {path} claims {count:,} records, more than the file can hold.",
                hint="Copy or write the file again.",
            )
        if count > _MOST_RECORDS:
            raise BadInput(
                f"{path} has {count:,} records before or after its points; at most {_MOST_RECORDS:,} are"
                " supported.",
                hint="Write the file again without them.",
            )


def _number(head: bytes, at: int, size: int) -> int:
    return int.from_bytes(head[at : at + size], "little")


def _require_bytes(path: Path, header: Any) -> None:
    """Raise an error, before allocating anything, if the point count exceeds the file."""
    need = header.point_count * header.point_format.size
    available = path.stat().st_size - header.offset_to_point_data
    if not header.are_points_compressed and need > available:
        raise BadInput(
            f"{path} is truncated: {header.point_count:,} points need {show_bytes(need)}, but it contains"
            f" {show_bytes(max(0, available))}.",
            hint="Copy or write the file again.",
        )


def _require_memory(path: Path, header: Any) -> None:
    need, free = header.point_count * header.point_format.size, free_bytes()
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
