"""NPZ files: point clouds as arrays under common names, and the rooms of datasets made by `cloud data`.

Coordinates (N, 3) are named `xyz`, `coord`, `coords`, `points`, `pos` or `means`, colours (N, 3) `color` or
`rgb`, and the label (N,) as in other files; every other array of N rows is a feature, except instances and
language features, which are answers and not inputs. For the arrays of gsplat and SceneSplat, see `splats`. A
subset takes rows of all of these arrays and keeps arrays of other lengths unchanged; labels of another length
are an error.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import parse_json, write_bytes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.columns import (
    COLOURS,
    NORMALS,
    ROTATIONS,
    centre_coordinates,
    features_of,
    integer_labels,
    label_name,
)
from pinchpoint.systems.cloud.files.splats import splat_arrays
from pinchpoint.systems.common.data import sample_file

XYZ = ("xyz", "coord", "coords", "points", "pos", "means")
_ABOUT = "about"  # the JSON text of a room; a subset drops it, because its checksums cover all points
_COLUMNS = {
    "color": COLOURS,
    "colour": COLOURS,
    "colors": COLOURS,
    "rgb": COLOURS,
    "normal": NORMALS,
    "normals": NORMALS,
    "scale": ("scale_0", "scale_1", "scale_2"),
    "quat": ROTATIONS,
}
# Targets of training, which the network must not read: language features, and where they are valid.
TARGETS = ("lang_feat", "lang_feat_index", "valid_feat_mask")
_NOT_FEATURES = ("instance", "origin", *TARGETS)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return all arrays of a file. Object arrays are rejected, because loading them could run code."""
    try:
        return sample_file.load_npz(path)
    except sample_file.FAILURES as error:
        raise BadInput(f"Cannot read {path}: {error}", hint="Write it again with numpy.savez.") from error


def xyz_key(arrays: dict[str, np.ndarray], where: str) -> str:
    """Return the name of the coordinate array of a cloud."""
    for name in XYZ:
        if (
            name in arrays
            and arrays[name].ndim == 2
            and arrays[name].shape[1] == 3
            and arrays[name].dtype.kind in "fiu"
        ):
            return name
    shapes = ", ".join(f"{name} {values.shape}" for name, values in arrays.items()) or "nothing"
    raise BadInput(
        f"{where} has no coordinates: it contains {shapes}.", hint="Name a numeric array (N, 3) 'xyz'."
    )


def arrays_scene(arrays: dict[str, np.ndarray], where: str) -> Scene:
    """Return the unvalidated scene of named arrays."""
    key = xyz_key(arrays, where)
    count = len(arrays[key])
    texts = _texts(arrays)
    rest = {
        name: values
        for name, values in arrays.items()
        if name not in (key, _ABOUT) and values.dtype.kind in "fiub"
    }
    label = label_name(tuple(rest))
    labels = None
    if label is not None:
        _check_labels(rest[label], count, where)
        labels = integer_labels(rest.pop(label).reshape(-1), where)
    rest = splat_arrays(rest, count)
    if "features" in rest and len(texts["names"]) == rest["features"].shape[-1]:
        features, names = rest["features"].astype(np.float32), texts["names"]
    else:
        features, names = features_of({**_columns(rest, count, where)} or {"x": np.zeros(count)})
    xyz, origin = centre_coordinates(arrays[key])
    if "origin" in arrays and arrays["origin"].shape == (3,):
        x, y, z = arrays["origin"].tolist()
        origin = (x, y, z)
    unused = tuple(name for name in TARGETS if name in arrays)
    return Scene(Path(where).stem, xyz, features, labels, names, texts["classes"], origin, unused=unused)


def scene_arrays(scene: Scene) -> dict[str, np.ndarray]:
    """Return the arrays of a scene, as `arrays_scene` reads them."""
    arrays = {"xyz": scene.xyz, "features": scene.features, "names": np.array(scene.names, dtype=str)}
    if scene.labels is not None:
        arrays["label"] = scene.labels
    if scene.classes:
        arrays["classes"] = np.array(scene.classes)
    if any(scene.origin):
        arrays["origin"] = np.array(scene.origin)
    return arrays


def take_arrays(arrays: dict[str, np.ndarray], keep: np.ndarray, where: str) -> dict[str, np.ndarray]:
    """Return the rows keep (M,) of every array with one row per point, and all other arrays unchanged.

    The names of features and classes in the text of a room become arrays of their own.
    """
    count = len(arrays[xyz_key(arrays, where)])
    if (label := label_name(tuple(arrays))) is not None:
        _check_labels(arrays[label], count, where)
    part = {
        name: values[keep] if values.shape[:1] == (count,) else values
        for name, values in arrays.items()
        if name != _ABOUT
    }
    return part | {name: np.array(words, dtype=str) for name, words in _texts(arrays).items() if words}


def named_columns(arrays: dict[str, np.ndarray], key: str) -> dict[str, np.ndarray]:
    """Return the columns (N,) of all numeric arrays with one row per point but the coordinates `key`."""
    count = len(arrays[key])
    names = _texts(arrays)["names"]
    columns: dict[str, np.ndarray] = {}
    for name, values in arrays.items():
        if name == key or values.dtype.kind not in "fiub" or values.shape[:1] != (count,) or values.ndim > 2:
            continue
        values = values.astype(np.uint8) if values.dtype.kind == "b" else values
        if name == "features" and values.ndim == 2 and values.shape[1] == len(names):
            columns |= {one: values[:, place] for place, one in enumerate(names)}
        else:
            columns |= _split(name, values)
    return columns


def _check_labels(labels: np.ndarray, count: int, where: str) -> None:
    if labels.size != count:
        raise BadInput(
            f"{where} has {count:,} points but {labels.size:,} labels.", hint="Give one label per point."
        )


def write_npz(path: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write the arrays atomically."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return write_bytes(path, buffer.getvalue())


def _texts(arrays: dict[str, np.ndarray]) -> dict[str, tuple[str, ...]]:
    """Return the names of features and classes, from their own arrays or from the text of a room."""
    about = _about(arrays)
    texts = {}
    for name in ("names", "classes"):
        own = arrays.get(name)
        words = (
            own.tolist()
            if own is not None and own.dtype.kind == "U" and own.ndim == 1
            else about.get(name, ())
        )
        texts[name] = tuple(words) if isinstance(words, list) else ()
    return texts


def _about(arrays: dict[str, np.ndarray]) -> dict[str, object]:
    if _ABOUT not in arrays or arrays[_ABOUT].dtype.kind != "U":
        return {}
    try:
        about = parse_json(str(arrays[_ABOUT]))
    except ValueError:
        return {}  # text written by another program
    return about if isinstance(about, dict) else {}


def _columns(arrays: dict[str, np.ndarray], count: int, where: str) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for name, values in arrays.items():
        if name in _NOT_FEATURES:
            continue
        if values.ndim not in (1, 2) or len(values) != count:
            raise BadInput(
                f"{name} of {where} has shape {values.shape}, but there are {count:,} points.",
                hint="Give one row per point.",
            )
        columns |= _split(name, values)
    return columns


def _split(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of an array (N,) or (N, W), by their common names if it has them."""
    if values.ndim == 1:
        return {name: values}
    common_names, width = _COLUMNS.get(name, ()), values.shape[1]
    if len(common_names) != width:
        common_names = (name,) if width == 1 else tuple(f"{name}_{number}" for number in range(width))
    return {key: values[:, place] for place, key in enumerate(common_names)}
