"""Scene: one point cloud in memory, from a file or a generator.

Letters: N points, F features per point, K classes. This module uses plain NumPy, not torch. Coordinates are
float32 relative to an `origin`, so a survey far from zero keeps its precision of millimetres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pinchpoint.core.errors import BadInput

IGNORED = -1  # label of a point without a class; losses and scores skip it


@dataclass(frozen=True)
class Scene:
    """Positions and features of points, and their classes if known."""

    name: str
    xyz: np.ndarray  # (N, 3) float32, metres
    features: np.ndarray  # (N, F) float32; F may be 0
    labels: np.ndarray | None = None  # (N,) integers; IGNORED where a point has none
    names: tuple[str, ...] = ()  # names of the F columns: "red", "green", "blue", "opacity", "scale_0", ...
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...; empty if the file does not name them
    # xyz + origin, in float64, are the coordinates of the file.
    origin: tuple[float, float, float] = (0.0, 0.0, 0.0)
    # (N, D) floats to predict, such as language features, and which points have them, (N,) bool.
    targets: np.ndarray | None = None
    has_target: np.ndarray | None = None
    unused: tuple[str, ...] = ()  # arrays of the file that are answers, such as lang_feat, and not inputs

    @property
    def points(self) -> int:
        return len(self.xyz)

    def take(self, index: np.ndarray) -> Scene:
        """Return the points of index (M,), in its order."""
        labels = None if self.labels is None else self.labels[index]
        targets = None if self.targets is None else np.asarray(self.targets[index])
        has_target = None if self.has_target is None else self.has_target[index]
        return replace(
            self,
            xyz=self.xyz[index],
            features=self.features[index],
            labels=labels,
            targets=targets,
            has_target=has_target,
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays; one that is mapped from a file takes none."""
        arrays = (self.xyz, self.features, self.labels, self.targets, self.has_target)
        return sum(
            values.nbytes for values in arrays if values is not None and not isinstance(values, np.memmap)
        )


def ignore_labels(scene: Scene, ignore: Sequence[int]) -> Scene:
    """Return the scene with every label in `ignore` replaced by IGNORED, without checking the scene."""
    if scene.labels is None or not ignore:
        return scene
    return replace(scene, labels=np.where(np.isin(scene.labels, ignore), IGNORED, scene.labels))


def check_scene(scene: Scene, where: str | None = None) -> Scene:
    """Return the scene if its lengths agree and all numbers are finite; otherwise raise BadInput.

    where: the name of the file, for the error message; by default the name of the scene.
    """
    where = where or scene.name
    if scene.xyz.ndim != 2 or scene.xyz.shape[1] != 3:
        raise BadInput(
            f"The coordinates of {where} have shape {scene.xyz.shape}, not (N, 3).",
            hint="Give x, y and z for each point.",
        )
    count = len(scene.xyz)
    if count == 0:
        raise BadInput(f"{where} has no points.", hint="Give a cloud with at least one point.")
    _require_finite(scene.xyz, "coordinates", where)
    if scene.features.ndim != 2 or len(scene.features) != count:
        raise BadInput(
            f"{where} has {count:,} points, but features of shape {scene.features.shape}.",
            hint="Give one row of features per point.",
        )
    if scene.features.shape[1] != len(scene.names):
        raise BadInput(
            f"{where} has {scene.features.shape[1]} features, but {len(scene.names)} names for them.",
            hint="Give each feature column a name.",
        )
    _require_finite(scene.features, "features", where)
    if scene.labels is not None:
        _check_labels(scene.labels, count, len(scene.classes), where)
    return scene


def _require_finite(values: np.ndarray, what: str, where: str) -> None:
    bad = int((~np.isfinite(values)).any(axis=1).sum())
    if bad:
        raise BadInput(
            f"{bad:,} of {len(values):,} points of {where} have {what} that are NaN or infinite.",
            hint="Remove those points, or write the file again.",
        )


def _check_labels(labels: np.ndarray, count: int, classes: int, where: str) -> None:
    if labels.shape != (count,):
        raise BadInput(
            f"{where} has {count:,} points, but labels of shape {labels.shape}.",
            hint="Give one label per point.",
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise BadInput(
            f"The labels of {where} are {labels.dtype}, not integers.",
            hint="Give integers, with -1 for points without a class.",
        )
    if labels.min() < IGNORED:
        raise BadInput(
            f"{where} has the label {labels.min()}, which is below -1.",
            hint="Give labels of 0 or more, and -1 for points without a class.",
        )
    if classes and labels.max() >= classes:
        raise BadInput(
            f"{where} has the label {labels.max()}, but there are {classes} classes.",
            hint=f"Give labels from -1 to {classes - 1}, or treat that label as no class with"
            f" `cloud train --set ignore={labels.max()}`.",
        )
