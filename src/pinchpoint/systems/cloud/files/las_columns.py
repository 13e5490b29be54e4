"""Columns of another format as dimensions of a LAS file: which become standard ones, and which extra ones.

Columns with the names of LAS dimensions, colours and labels become standard dimensions of point format 6, 7
or 8 if their values fit; every other column becomes an extra dimension of its own type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.files import las as las_files
from pinchpoint.systems.cloud.files.columns import (
    COLOURS,
    EXACT_INTEGERS,
    LABELS,
    ColourRange,
    colour_names,
    finite_values,
    label_name,
    stored_kind,
)
from pinchpoint.systems.cloud.files.readers import Cloud

_CHUNK = 1_000_000
_LONGEST_NAME = 32  # bytes of the name of an extra dimension
_DEGREE = 0.006  # of one step of scan_angle, which replaced the whole degrees of scan_angle_rank
# The smallest and largest value of each standard dimension of the point formats 6, 7 and 8.
_LIMITS: dict[str, tuple[float, float]] = {
    "intensity": (0, 65535),
    "return_number": (0, 15),
    "number_of_returns": (0, 15),
    "synthetic": (0, 1),
    "key_point": (0, 1),
    "withheld": (0, 1),
    "overlap": (0, 1),
    "scanner_channel": (0, 3),
    "scan_direction_flag": (0, 1),
    "edge_of_flight_line": (0, 1),
    "classification": (0, 255),
    "user_data": (0, 255),
    "scan_angle": (-32768, 32767),
    "point_source_id": (0, 65535),
    "gps_time": (-np.inf, np.inf),
    "nir": (0, 65535),
}


@dataclass
class _Range:
    """The type of a column, the smallest and largest of its finite values, and whether all values are finite
    and whole numbers.
    """

    dtype: np.dtype
    low: float = np.inf
    high: float = -np.inf
    finite: bool = True
    whole: bool = True

    def add(self, values: np.ndarray) -> None:
        finite = finite_values(values)
        self.finite = self.finite and len(finite) == len(values)
        self.whole = self.whole and self.finite
        if not len(finite):
            return
        self.low = min(self.low, float(finite.min()))
        self.high = max(self.high, float(finite.max()))
        if self.whole and values.dtype.kind == "f":
            self.whole = bool((values == np.round(values)).all())

    def within(self, limits: tuple[float, float], factor: float) -> bool:
        return limits[0] <= self.low * factor and self.high * factor <= limits[1]


@dataclass(frozen=True)
class LasColumns:
    """Where each column goes. standard: dimension and factor by column; extra: dimension by column."""

    header: Any  # of laspy
    standard: Mapping[str, tuple[str, float]]
    extra: Mapping[str, str]
    notes: tuple[str, ...]

    def record(self, xyz: np.ndarray, columns: Mapping[str, np.ndarray]) -> Any:
        """Return a point record of laspy. xyz: (n, 3); columns: (n,) by name."""
        record = las_files.new_record(self.header, len(xyz))
        for axis, name in enumerate("XYZ"):
            record[name] = np.round((xyz[:, axis] - self.header.offsets[axis]) / self.header.scales[axis])
        for name, values in columns.items():
            if name in self.standard:
                to, factor = self.standard[name]
                record[to] = values if factor == 1 else np.round(values * factor)
            elif name in self.extra:
                record[self.extra[name]] = values
        return record


def las_layout(
    cloud: Cloud, output: Path, *, scale: float, added: Mapping[str, str], classes: Sequence[str]
) -> LasColumns:
    """Return the layout of a cloud's columns, after one look at all values.

    added: NumPy types of further columns by name: a label below the number of classes, and others.
    """
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    ranges: dict[str, _Range] = {}
    colours = ColourRange()
    for rows in cloud.chunks(_CHUNK):
        xyz, columns = rows.absolute_xyz, rows.columns()
        low, high = np.minimum(low, xyz.min(axis=0)), np.maximum(high, xyz.max(axis=0))
        colours.add(columns)
        for name, values in columns.items():
            if name not in added and not ("label" in added and name.lower() in LABELS):
                ranges.setdefault(name, _Range(values.dtype)).add(values)
    if not np.isfinite(low).all() or not np.isfinite(high).all():
        raise BadInput(
            f"{cloud.path} has coordinates that are NaN or infinite.", hint="Remove those points first."
        )
    offsets = np.floor(low)
    steps = float((high - offsets).max()) / scale
    if steps >= 2**31:
        raise BadInput(
            f"{cloud.path} is {steps:.3g} steps of {scale:g} long; LAS has 32 bits per coordinate.",
            hint=f"Give --scale {10 ** np.ceil(np.log10(scale * steps / 2**31)):g} or more.",
        )
    standard, extra, second = _arrange(ranges, colours, added, classes)
    notes = [f"{output.name} has coordinates in steps of {scale:g}."]
    notes += [
        f"{output.name} has {name} as the extra dimension {extra[name][0]}: another column is {dimension}."
        for name, dimension in second.items()
    ]
    if renamed := [f"{name} as {to}" for name, (to, _) in extra.items() if to != name and name not in second]:
        notes.append(f"{output.name} has {', '.join(renamed)}: the values do not fit that dimension of LAS.")
    if too_long := [name for name, (to, _) in extra.items() if len(to.encode()) > _LONGEST_NAME]:
        notes.append(
            f"{output.name} does not keep {', '.join(too_long)}: names have at most {_LONGEST_NAME} bytes."
        )
    extra = {name: place for name, place in extra.items() if name not in too_long}
    dimensions = {to for to, _ in standard.values()}
    header = las_files.new_header(
        output,
        point_format=8 if "nir" in dimensions else 7 if dimensions & {*COLOURS} else 6,
        scale=scale,
        offsets=offsets,
        extra=dict(extra.values()),
        classes=classes,
    )
    return LasColumns(header, standard, {name: to for name, (to, _) in extra.items()}, tuple(notes))


def _arrange(
    ranges: Mapping[str, _Range], colours: ColourRange, added: Mapping[str, str], classes: Sequence[str]
) -> tuple[dict[str, tuple[str, float]], dict[str, tuple[str, str]], dict[str, str]]:
    """Return the standard dimension and factor of columns, the extra dimension and type of the others, and
    the dimension of those that are extra ones only because another column has it.
    """
    standard: dict[str, tuple[str, float]] = {}
    extra: dict[str, tuple[str, str]] = {}
    second: dict[str, str] = {}
    colour_of = {name: colour for colour, name in colour_names(ranges).items()}
    label = None if "label" in added else label_name(tuple(ranges))
    dimensions: set[str] = set()  # the standard ones that have a column
    names = {*ranges, *added}
    # A column with the very name of a dimension comes before others that could be it, too.
    for name, column in sorted(ranges.items(), key=lambda item: item[0] not in _LIMITS):
        if name in colour_of:
            factor = 1.0 if column.dtype.itemsize > 1 and column.dtype.kind != "f" else 65535 / colours.top
            place, limits = (colour_of[name], factor), (0.0, 65535.0)
        elif name.lower() == "scan_angle_rank":
            place, limits = ("scan_angle", 1 / _DEGREE), _LIMITS["scan_angle"]
        else:
            dimension = "classification" if name == label else name.lower()
            place, limits = (dimension, 1.0), _LIMITS.get(dimension)
            if dimension == "gps_time" and column.dtype.kind in "iu":  # a double
                limits = (1.0 - EXACT_INTEGERS, EXACT_INTEGERS - 1.0)
        # Other columns with fractions would lose them. Only a double can be NaN or infinite.
        rounded = (name in colour_of and column.finite) or place[0] == "gps_time"
        fits = limits is not None and (column.whole or rounded) and column.within(limits, place[1])
        if fits and place[0] not in dimensions:
            standard[name] = place
            dimensions.add(place[0])
            continue
        if fits:
            second[name] = place[0]
        to = name
        if name.lower() in _LIMITS or name.lower() in COLOURS:
            to = f"{name}_value"
            while to in names:
                to += "_value"
        names.add(to)
        extra[name] = to, stored_kind(column.dtype, wide_integers=True)
    for name, kind in added.items():
        if name == "label" and len(classes) <= _LIMITS["classification"][1] + 1:
            standard[name] = "classification", 1.0
        else:
            extra[name] = name, kind
    return standard, extra, second
