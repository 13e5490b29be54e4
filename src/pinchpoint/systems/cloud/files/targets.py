"""Targets of regression: an array (N, D) of a scene that the network learns to predict, such as `lang_feat`.

Letters: N points, D columns. The array is in the scene's NPZ file, or in `NAME.npy` of its folder.
`valid_feat_mask` (N,) marks the points that have a target; rows of zeros have none either. A folder may store
each target once, in `NAME.npz`: `compressed` (M, D), and `indices`, the row of each point, or of each point
of the mask.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.npz import TARGETS, read_arrays

MASK = "valid_feat_mask"
_ROWS = 2**16  # rows that are checked together


def without_target(arrays: dict[str, np.ndarray], target: str) -> dict[str, np.ndarray]:
    """Return the arrays that may become inputs."""
    return {name: values for name, values in arrays.items() if name != target}


def with_target(
    scene: Scene, arrays: dict[str, np.ndarray], target: str, where: str, *, folder: Path | None = None
) -> Scene:
    """Return the scene with its target. arrays: all arrays of the file or folder."""
    mask = arrays.get(MASK)
    valid = np.ones(scene.points, bool) if mask is None else mask.reshape(-1).astype(bool)
    _require_rows(MASK, valid, scene.points, where)
    if target in arrays:
        values = arrays[target]
    elif folder is not None and (folder / f"{target}.npz").is_file():
        values = _expand(folder / f"{target}.npz", valid)
    else:
        known = ", ".join(sorted(name for name in arrays if arrays[name].ndim == 2)) or "none"
        raise BadInput(
            f"{where} has no array {target} to predict.", hint=f"Give --target one of its arrays: {known}."
        )
    _require_rows(target, values, scene.points, where)
    if values.ndim != 2 or values.shape[1] < 2 or values.dtype.kind != "f":
        raise BadInput(
            f"{target} of {where} has shape {values.shape} and dtype {values.dtype}.",
            hint="Give a target of at least two columns of floats: the network predicts its direction.",
        )
    valid = valid.copy()
    for start in range(0, scene.points, _ROWS):
        rows = slice(start, start + _ROWS)
        part = np.asarray(values[rows])
        if not np.isfinite(part[valid[rows]]).all():
            raise BadInput(
                f"{target} of {where} is NaN or infinite at points that {MASK} says are valid.",
                hint="Correct the mask, or write the array again.",
            )
        valid[rows] &= part.any(axis=1)
    unused = tuple(name for name in scene.unused if name not in TARGETS)
    return replace(scene, targets=values, has_target=valid, unused=unused)


def _expand(path: Path, valid: np.ndarray) -> np.ndarray:
    """Return (N, D) from targets that are stored once each; points without one get zeros."""
    arrays = read_arrays(path)
    hint = "Give `compressed` (M, D) and `indices`, the row of each point."
    if not {"compressed", "indices"} <= set(arrays):
        raise BadInput(f"{path} contains {', '.join(arrays) or 'nothing'}.", hint=hint)
    rows, index = arrays["compressed"], arrays["indices"].reshape(-1)
    if rows.ndim != 2 or index.dtype.kind not in "iu" or len(index) not in (len(valid), int(valid.sum())):
        raise BadInput(
            f"{path} has {len(index):,} indices of {rows.shape} targets, but the scene has {len(valid):,}"
            f" points, {int(valid.sum()):,} of them valid.",
            hint=hint,
        )
    if len(index) and (index.min() < -1 or index.max() >= len(rows)):
        raise BadInput(f"{path} has an index outside its {len(rows):,} targets.", hint=hint)
    targets = np.zeros((len(valid), rows.shape[1]), np.float32)
    at = np.arange(len(valid)) if len(index) == len(valid) else np.flatnonzero(valid)
    targets[at[index >= 0]] = rows[index[index >= 0]]
    return targets


def _require_rows(name: str, values: np.ndarray, points: int, where: str) -> None:
    if values.shape[:1] != (points,):
        raise BadInput(
            f"{name} of {where} has shape {values.shape}, but there are {points:,} points.",
            hint="Give one row per point.",
        )
