"""A check that a function treats every row independently, on points that are split and reordered."""

from __future__ import annotations

from typing import Any

import numpy as np

from pinchpoint.backends.stream_backend import Lane
from pinchpoint.core.errors import BadInput

# Relative to the largest value. Kernels round differently for other shapes, but mixed rows differ far more.
_ROUNDING = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 2e-2,
    "bfloat16": 5e-2,
}


def check_rowwise(lane: Lane, count: int, tile: int) -> None:
    """Raise if results for up to one tile of points depend on which points are processed together."""
    size = min(count, tile)
    if size < 2:
        return
    rows = np.unique(np.linspace(0, count - 1, size).astype(np.int64))
    third = max(1, len(rows) // 3)
    whole, head, tail = lane.try_rows(rows), lane.try_rows(rows[:third]), lane.try_rows(rows[third:])
    reversed_rows = lane.try_rows(rows[::-1].copy())
    for part, (first, dtype) in enumerate(whole):
        for other in (np.concatenate([head[part][0], tail[part][0]]), reversed_rows[part][0][::-1]):
            worst = _apart(first, other, dtype)
            if worst > 0:
                raise BadInput(
                    f"The function mixes rows: for {len(rows):,} points its results change by {worst:.2g} of"
                    " the largest value when the points are split or ordered differently.",
                    hint="Make each row depend on its own point only: use eval mode, no random numbers and no"
                    " sums over points.",
                )


def _apart(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], dtype: str) -> float:
    """The largest difference relative to the largest value, or 0 if it is only rounding. NaN equals NaN."""
    if a.dtype.kind not in "fc":
        return float((a != b).mean())
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a[~same]).all() and np.isfinite(b[~same]).all()):
        return float("inf")
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    worst = float(np.abs(a[~same] - b[~same]).max() / scale) if scale else float("inf")
    return worst if worst > _ROUNDING.get(dtype, 1e-4) else 0.0
