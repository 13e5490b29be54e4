"""The meaning of named columns: which are colours, which is the label, and which parts of a Gaussian splat
are features.

Letters: N points, F features. Colours come first, scaled to 0..1; then the other values of a splat (opacity
in 0..1, scales as logarithms, rotation); then every other column, unchanged. The colour of a splat is its
constant term; the higher terms (`f_rest_*`) depend on the view and are left out, and so are normals that are
zero everywhere, which programs write because a PLY viewer expects them. Labels, confidences, and columns
that describe how a point was recorded (GPS time, returns, source id) are left out as well. This applies to a
Scene only: sampling a file keeps all of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.files.splats import HIGHER_TERMS, colour_of, opacity_of, unit_rotations

COLOURS = ("red", "green", "blue")
LABELS = (
    "label",
    "labels",
    "segment",
    "semantic",
    "class",
    "classification",
    "scalar_label",
    "scalar_classification",
)
_OTHER_COLOURS = {
    "r": "red",
    "g": "green",
    "b": "blue",
    "diffuse_red": "red",
    "diffuse_green": "green",
    "diffuse_blue": "blue",
}
_CONSTANT = {"f_dc_0": "red", "f_dc_1": "green", "f_dc_2": "blue"}
NORMALS = ("nx", "ny", "nz")
ROTATIONS = ("rot_0", "rot_1", "rot_2", "rot_3")
_SPLAT = ("opacity", "scale_0", "scale_1", "scale_2", *ROTATIONS)
_POSITION = ("x", "y", "z")
CONFIDENCE = "confidence"  # of a predicted label
INTENSITY_TOP = 65535  # of the 16-bit intensities of LAS
# The dimensions of LAS that no network should read, by the names of laspy.
_RECORDING = (
    "return_number",
    "number_of_returns",
    "synthetic",
    "key_point",
    "withheld",
    "overlap",
    "scanner_channel",
    "scan_direction_flag",
    "edge_of_flight_line",
    "scan_angle",
    "scan_angle_rank",
    "user_data",
    "point_source_id",
    "gps_time",
)
_NOT_FEATURES = frozenset((*LABELS, *_POSITION, *_RECORDING, CONFIDENCE))
EXACT_INTEGERS = 2**53  # the largest integer up to which a double holds all of them
_WIDER = {"f2": "f4"}  # no format of points has half precision


def features_of(
    columns: Mapping[str, np.ndarray], *, colour_top: float | None = None, keep: Sequence[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return features (N, F) float32 and their names. columns: arrays (N,) by name.

    colour_top: the value that becomes 1 in colours; by default it follows from the columns. keep: normals
    that are features even if they are zero everywhere.
    """
    features_by_name: dict[str, np.ndarray] = {}
    splat = _is_splat(columns)
    colours: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        if name.lower() in _NOT_FEATURES or name.startswith(HIGHER_TERMS):
            continue
        if splat and name in NORMALS and name not in keep and not values.any():
            continue
        if splat and name in _CONSTANT:
            features_by_name[_CONSTANT[name]] = colour_of(values)
        elif splat and name == "opacity":
            features_by_name[name] = opacity_of(values)
        elif (plain := _OTHER_COLOURS.get(name.lower(), name.lower())) in COLOURS:
            colours[plain] = values
        elif name == "intensity" and values.dtype.kind == "u" and values.dtype.itemsize == 2:
            features_by_name[name] = values / np.float32(INTENSITY_TOP)
        else:
            features_by_name[name] = values.astype(np.float32)
    if colours and not splat:
        top = np.float32(colour_top or _colour_top(colours))
        features_by_name |= {name: values.astype(np.float32) / top for name, values in colours.items()}
    if splat and all(name in features_by_name for name in ROTATIONS):
        rotations = unit_rotations(np.stack([features_by_name[name] for name in ROTATIONS], axis=1))
        features_by_name |= dict(zip(ROTATIONS, rotations.T, strict=True))
    names = [name for name in (*COLOURS, *_SPLAT) if name in features_by_name]
    names += [name for name in features_by_name if name not in names]
    count = len(next(iter(columns.values()), ()))
    features = (
        np.stack([features_by_name[name] for name in names], axis=1)
        if names
        else np.zeros((count, 0), np.float32)
    )
    return np.ascontiguousarray(features, dtype=np.float32), tuple(names)


def label_name(names: Mapping[str, object] | tuple[str, ...]) -> str | None:
    """Return the name of the label column, or None if there is none."""
    lower = {name.lower(): name for name in names}
    return next((lower[known] for known in LABELS if known in lower), None)


def integer_labels(values: np.ndarray, where: str) -> np.ndarray:
    """Return labels (N,) as int32. Some programs store them as floats, which must have integer values."""
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.round(values)).all()):
        raise BadInput(
            f"The labels of {where} are not integers.",
            hint="Write them as integers, with -1 for points without a label.",
        )
    if values.dtype.kind not in "fiu" or (len(values) and abs(values.astype(np.float64)).max() >= 2**31):
        raise BadInput(
            f"The labels of {where} do not fit into 32-bit integers.", hint="Number the classes from 0."
        )
    return values.astype(np.int32)


def centre_coordinates(xyz: np.ndarray) -> tuple[np.ndarray, tuple[float, float, float]]:
    """Return coordinates (N, 3) as float32 relative to an origin, and the origin.

    The origin has integer coordinates, and is zero if float32 is precise enough without it.
    """
    if (xyz.dtype.kind == "f" and xyz.dtype.itemsize == 4) or not len(xyz) or not np.isfinite(xyz).all():
        return np.ascontiguousarray(xyz, dtype=np.float32), (0.0, 0.0, 0.0)
    far = np.abs(xyz).max() > 1024  # where the resolution of float32 is 0.1 mm
    origin = np.floor(xyz.min(axis=0)).astype(np.float64) if far else np.zeros(3)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are rejected later
        return (xyz - origin).astype(np.float32), (float(origin[0]), float(origin[1]), float(origin[2]))


def finite_values(values: np.ndarray) -> np.ndarray:
    """Return values (n,) without those that are NaN or infinite."""
    return values[np.isfinite(values)] if values.dtype.kind == "f" else values


def stored_kind(dtype: np.dtype, *, wide_integers: bool) -> str:
    """Return the NumPy type, without the byte order, of a column in a file.

    wide_integers: whether the format has integers of 64 bits; they become doubles otherwise.
    """
    if dtype.kind in "iu" and dtype.itemsize == 8 and not wide_integers:
        return "f8"
    return _WIDER.get(dtype.str[1:], dtype.str[1:])


def _is_splat(columns: Mapping[str, np.ndarray]) -> bool:
    return all(name in columns for name in _CONSTANT)


def colour_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names of the columns that are plain colours, by the names of COLOURS."""
    plain = {_OTHER_COLOURS.get(name.lower(), name.lower()): name for name in names}
    return {colour: plain[colour] for colour in COLOURS if colour in plain}


class ColourRange:
    """The types and the largest value of the colours of a cloud that is read in chunks."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._most = 0.0

    def add(self, columns: Mapping[str, np.ndarray]) -> None:
        """Include a chunk. columns: arrays (N,) by name."""
        if _is_splat(columns):
            return  # its colours are coefficients, which have a scale of their own
        for name in colour_names(columns).values():
            values = columns[name]
            self._kinds.add(values.dtype.kind + str(values.dtype.itemsize))
            self._most = max(self._most, float(finite_values(values).max(initial=0)))

    @property
    def top(self) -> float:
        """The value that becomes 1: by the type, or by the largest value of floats and wide integers."""
        if not self._kinds:
            return 1.0
        if self._kinds == {"u1"}:
            return 255.0
        if any(kind[0] == "f" for kind in self._kinds):
            return 1.0 if not self._most > 1 else 255.0
        return 255.0 if self._most <= 255 else 65535.0  # 16-bit fields often hold 8-bit colours


def _colour_top(colours: Mapping[str, np.ndarray]) -> float:
    colour_range = ColourRange()
    colour_range.add(colours)
    return colour_range.top
