"""Point clouds written in chunks: a copy of some points, with new columns, in the same or another format.

In the same family of formats, points are copied as they are stored. Another format gets every column under
its own name and in its own type where that exists, and `notes` say what it cannot hold. A file appears under
its name only when it is complete.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, open_output
from pinchpoint.core.units import show_choices
from pinchpoint.systems.cloud.files import las as las_files
from pinchpoint.systems.cloud.files.columns import EXACT_INTEGERS, LABELS, stored_kind
from pinchpoint.systems.cloud.files.las_columns import LasColumns, las_layout
from pinchpoint.systems.cloud.files.npz import write_npz
from pinchpoint.systems.cloud.files.ply import ascii_rest, subset_header
from pinchpoint.systems.cloud.files.ply_header import Header, plain_header
from pinchpoint.systems.cloud.files.pointcept import write_folder
from pinchpoint.systems.cloud.files.readers import (
    SCALE_COMMENT,
    ArrayCloud,
    ArrayRows,
    Cloud,
    LasCloud,
    LasRows,
    PlyCloud,
    PlyRows,
    Rows,
    family_of,
)
from pinchpoint.systems.cloud.files.scratch import Scratch

WRITES = (".ply", ".npz", ".las", ".laz")
Others = Literal["keep", "refuse", "drop"]  # what happens to the faces of a PLY mesh


@dataclass(frozen=True)
class Target:
    """What is written. added: new columns, their NumPy types by name; scale: steps of LAS coordinates."""

    path: Path
    count: int
    added: Mapping[str, str] = field(default_factory=dict)
    classes: Sequence[str] = ()
    scale: float | None = None
    others: Others = "refuse"


class Writer(ABC):
    """Writes rows in order. notes: what the format cannot hold, in sentences.

    passes: how many times the points were read from their file before the first were written.
    """

    def __init__(self, notes: Sequence[str] = ()) -> None:
        self.notes = list(notes)
        self.passes = 0

    @abstractmethod
    def write(self, rows: Rows, added: Mapping[str, np.ndarray]) -> None:
        """Write some points. added: values (n,) of the new columns."""


def check_pair(path: Path, output: Path) -> None:
    """Raise BadInput for an output that cannot be written, before anything is read."""
    if family_of(output) == "folder":
        if not path.is_dir():
            raise BadInput(
                f"Cannot write points to {output.name!r}: the format is unknown.",
                hint=f"Give a file that ends in {show_choices(WRITES)}.",
            )
        if output.exists():
            raise BadInput(f"{output} already exists.", hint="Choose another -o.")
        check_output(output)
        return
    check_output(output)
    if output.exists() and path.exists() and output.samefile(path):
        raise BadInput(f"{output} is the input file.", hint="Choose another -o: the input would be lost.")


@contextmanager
def open_writer(cloud: Cloud, target: Target) -> Iterator[Writer]:
    """Yield a Writer for points of a cloud."""
    own, family = family_of(cloud.path), family_of(target.path)
    notes = [] if own == family else _loss_notes(cloud, target.path)
    with ExitStack() as stack:
        if isinstance(cloud, ArrayCloud) and own == family:
            writer: Writer = _ArrayWriter(target)
        elif family == "npz":
            writer = stack.enter_context(_npz_writer(target, notes))
        elif family == "ply":
            file = stack.enter_context(open_output(target.path))
            writer = _ply_writer(cloud, target, file, notes)
        else:
            header, layout = _las_header(cloud, target)
            if isinstance(cloud, LasCloud):
                types = las_files.other_types(cloud.header, target.added, len(target.classes))
                notes += [
                    f"{target.path.name} has {name} as {np.dtype(target.added[name])}: it was {kind} before."
                    for name, kind in types.items()
                ]
            file = stack.enter_context(open_output(target.path))
            las_writer = stack.enter_context(las_files.las_writer(target.path, file, header))
            writer = _LasWriter(las_writer, target, layout, notes)
            writer.passes = int(layout is not None and not isinstance(cloud, ArrayCloud))
        yield writer
        if isinstance(writer, _PlyWriter):
            writer.finish()


def _loss_notes(cloud: Cloud, output: Path) -> list[str]:
    losses = cloud.losses
    if not losses:
        return []
    text = " and ".join([", ".join(losses[:-1])] * (len(losses) > 1) + [losses[-1]])
    return [f"{output.name} does not keep {text} of {cloud.path.name}: its format cannot hold that."]


class _PlyWriter(Writer):
    """Vertices of a PLY file: the rows of another with columns added, or any columns."""

    def __init__(self, file: BinaryIO, cloud: Cloud, target: Target, notes: Sequence[str]) -> None:
        super().__init__(notes)
        self.file, self.cloud, self.target = file, cloud, target
        self.header: Header | None = None  # known with the first rows
        self.dtype = np.dtype([])
        self.after: Iterator[Any] = iter(())

    def write(self, rows: Rows, added: Mapping[str, np.ndarray]) -> None:
        if self.header is None:
            self.begin(rows)
        assert self.header is not None
        if self.header.ascii:
            assert isinstance(rows, PlyRows)
            self.file.write(b"".join(self._lines(rows, added)))
            return
        if isinstance(rows, PlyRows) and not added:
            vertices = np.ascontiguousarray(rows.vertices)
        else:
            vertices = np.empty(rows.points, self.dtype)
            xyz = rows.absolute_xyz
            columns = {"x": xyz[:, 0], "y": xyz[:, 1], "z": xyz[:, 2]} | rows.columns()
            for name, values in (columns | dict(added)).items():
                vertices[_property(name)] = values
                self._note_rounded(name, values)
        self.file.write(vertices.view(np.uint8).data)

    def begin(self, rows: Rows) -> None:
        added = dict(self.target.added)
        comments = [f"class {number} {name}" for number, name in enumerate(self.target.classes)]
        before: Iterator[Any] = iter(())
        if isinstance(self.cloud, PlyCloud):
            ply = self.cloud.ply
            if self.target.others == "keep":
                header, whole = ply.header.with_count("vertex", self.target.count), True
            else:
                header, whole = subset_header(ply, self.target.count, faces=self.target.others)
            if added:
                header = header.with_columns("vertex", added)
            if whole:
                before, self.after = (
                    ((line + b"\n" for line in part) for part in ascii_rest(ply.path, ply.header))
                    if header.ascii
                    else (iter([ply.before]), iter([ply.after]))
                )
            dtype = header.elements[header.place("vertex")].dtype
        else:
            kinds = {"xyz"[axis]: rows.absolute_xyz.dtype.str[1:] for axis in range(3)}
            kinds |= {
                _property(name): stored_kind(values.dtype, wide_integers=False)
                for name, values in rows.columns().items()
            }
            dtype = np.dtype([(name, "<" + kind) for name, kind in (kinds | added).items()])
            header = plain_header(dtype, self.target.count)
            if isinstance(self.cloud, LasCloud):
                scales = " ".join(f"{scale:.10g}" for scale in self.cloud.header.scales)
                comments.insert(0, f"{SCALE_COMMENT} {scales}")
        if self.target.classes:
            header = header.without_classes()
        self.header, self.dtype = header.with_comments(comments), dtype
        self.file.write(self.header.text())
        for piece in before:
            self.file.write(piece)

    def finish(self) -> None:
        for piece in self.after:
            self.file.write(piece)

    def _note_rounded(self, name: str, values: np.ndarray) -> None:
        """Add a note if integers become doubles that are not all exact."""
        if values.dtype.kind not in "iu" or self.dtype[_property(name)].kind != "f" or not len(values):
            return
        note = (
            f"{self.target.path.name} has {name} rounded to doubles: PLY has no integers of 64 bits, and some"
            " of these are above 2**53."
        )
        largest = max(int(values.max()), -int(values.min()))
        if largest > EXACT_INTEGERS and note not in self.notes:
            self.notes.append(note)

    def _lines(self, rows: PlyRows, added: Mapping[str, np.ndarray]) -> Iterator[bytes]:
        if not added:
            yield from (line + b"\n" for line in rows.lines)
            return
        names = rows.vertices.dtype.names or ()
        places = [place for place, name in enumerate(names) if name not in added]
        texts = zip(
            *([f"{value:.6g}" for value in values.tolist()] for values in added.values()), strict=True
        )
        for line, values in zip(rows.lines, texts, strict=True):
            words = line.split()
            old = line if len(places) == len(names) else b" ".join(words[place] for place in places)
            yield old.rstrip() + b" " + " ".join(values).encode() + b"\n"


def _ply_writer(cloud: Cloud, target: Target, file: BinaryIO, notes: Sequence[str]) -> _PlyWriter:
    writer = _PlyWriter(file, cloud, target, notes)
    if isinstance(cloud, PlyCloud) and target.others == "refuse":
        subset_header(cloud.ply, 0, faces="refuse")  # rejects faces before the work starts
    return writer


def _property(name: str) -> str:
    return "_".join(name.split())  # spaces separate words in a header


class _LasWriter(Writer):
    """Points of a LAS file: the records of another with columns added, or columns arranged by a layout."""

    def __init__(self, writer: Any, target: Target, layout: LasColumns | None, notes: Sequence[str]) -> None:
        super().__init__([*notes, *(layout.notes if layout is not None else ())])
        self.writer, self.target, self.layout = writer, target, layout

    def write(self, rows: Rows, added: Mapping[str, np.ndarray]) -> None:
        if self.layout is not None:
            columns = rows.columns()
            if "label" in added:  # the classification is the predicted one
                columns = {name: values for name, values in columns.items() if name.lower() not in LABELS}
            self.writer.write_points(self.layout.record(rows.absolute_xyz, columns | dict(added)))
            return
        assert isinstance(rows, LasRows)
        record = rows.record
        if added:
            record = las_files.with_dimensions(record, self.writer.header, added, len(self.target.classes))
        self.writer.write_points(record)


def _las_header(cloud: Cloud, target: Target) -> tuple[Any, LasColumns | None]:
    """Return the header of a LAS file, and the layout of the columns if they come from another format."""
    if isinstance(cloud, LasCloud):
        header = las_files.add_dimensions(cloud.header, target.path, target.added, target.classes)
        return header, None
    scale = las_scale(cloud, target.path, target.scale)
    assert scale is not None
    layout = las_layout(cloud, target.path, scale=scale, added=target.added, classes=target.classes)
    return layout.header, layout


def las_scale(cloud: Cloud, output: Path, scale: float | None) -> float | None:
    """Return the scale of a new LAS file, given or noted; None if `output` needs none.

    Raises BadInput if there is none; call this before the work whose result goes there.
    """
    if family_of(output) != "las" or isinstance(cloud, LasCloud):
        return None
    scale = scale if scale is not None else _noted_scale(cloud)
    if scale is None:
        raise BadInput(
            f"{output.name} needs a scale: LAS stores coordinates as multiples of a step.",
            hint="Give --scale, such as 0.001 for a millimetre if the coordinates are metres.",
        )
    if not 0 < scale < np.inf:
        raise BadInput(f"The scale {scale:g} is not above 0.", hint="Give --scale, such as 0.001.")
    return scale


def _noted_scale(cloud: Cloud) -> float | None:
    """Return the finest scale of the LAS file that a PLY file was made from, if a comment states it."""
    if not isinstance(cloud, PlyCloud):
        return None
    for line in cloud.ply.header.lines:
        words = line.split()
        if words[:3] == ["comment", *SCALE_COMMENT.split()] and len(words) == 6:
            try:
                scales = [float(word) for word in words[3:]]
            except ValueError:
                return None
            return min(scales) if min(scales) > 0 else None
    return None


class _ArrayWriter(Writer):
    """An NPZ file or folder of the same arrays, which are in memory and written at once."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target

    def write(self, rows: Rows, added: Mapping[str, np.ndarray]) -> None:
        assert isinstance(rows, ArrayRows)
        arrays = rows.arrays()
        if family_of(self.target.path) == "npz":
            if self.target.classes:
                arrays["classes"] = np.array(self.target.classes)
            write_npz(self.target.path, arrays | dict(added))
            return
        # The label of a folder is called segment.
        write_folder(
            self.target.path,
            arrays | {"segment" if name == "label" else name: values for name, values in added.items()},
        )


class _NpzWriter(Writer):
    """The arrays of an NPZ file, each in a temporary file until all points are there."""

    def __init__(self, scratch: Scratch, notes: Sequence[str]) -> None:
        super().__init__(notes)
        self.scratch = scratch
        self.dtypes: dict[str, np.dtype] = {}
        self.points = 0

    def write(self, rows: Rows, added: Mapping[str, np.ndarray]) -> None:
        self.points += rows.points
        arrays = {"xyz": rows.absolute_xyz} | rows.columns() | dict(added)
        for number, (name, values) in enumerate(arrays.items()):
            self.dtypes.setdefault(name, values.dtype)
            self.scratch.append(f"column-{number}", values)

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        for number, (name, dtype) in enumerate(self.dtypes.items()):
            yield name, self.scratch.load(f"column-{number}", dtype, 3 if name == "xyz" else None)


@contextmanager
def _npz_writer(target: Target, notes: Sequence[str]) -> Iterator[_NpzWriter]:
    with Scratch(target.path) as scratch, open_output(target.path) as file:
        writer = _NpzWriter(scratch, notes)
        yield writer
        with zipfile.ZipFile(file, "w") as archive:
            classes = [("classes", np.array(target.classes))] if target.classes else []
            for name, values in (*writer.arrays(), *classes):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values)
