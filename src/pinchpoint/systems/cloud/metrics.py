"""How well labels are told: a matrix of counts, and what follows from it.

Letters: N points, K classes. Rows are the truth, columns what was said; points without a class count nowhere.
    IoU of a class = said rightly / (are of it or said to be)      mIoU = its mean over the classes that occur in the truth
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput


def confusion(truth: np.ndarray, said: np.ndarray, classes: int) -> np.ndarray:
    """truth, said: (N,) integers -> (K, K) counts. What is below zero in the truth is left out."""
    if truth.shape != said.shape:
        raise BadInput(
            f"There are {len(said):,} predicted labels, but {len(truth):,} true labels.",
            hint="Give one of each for every point.",
        )
    known = truth >= 0
    truth, said = truth[known].astype(np.int64), said[known].astype(np.int64)
    if len(truth) and (max(truth.max(), said.max()) >= classes or said.min() < 0):
        raise BadInput(
            f"Some labels are not among the {classes} classes.",
            hint=f"Give labels from 0 to {classes - 1}, or -1 for none.",
        )
    return np.bincount(truth * classes + said, minlength=classes * classes).reshape(classes, classes)


@dataclass(frozen=True)
class Scores:
    """Of all points counted together. iou: of each class; None for one that does not occur in the truth."""

    miou: float
    accuracy: float
    iou: tuple[float | None, ...]
    points: int


def scores_of(counts: np.ndarray) -> Scores:
    """counts: (K, K) as `confusion` makes them, of one scene or the sum of many."""
    points = int(counts.sum())
    if not points:
        raise BadInput("No point has a class.", hint="Give scenes with labels of 0 or more.")
    right, of, said = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    iou = tuple(
        float(hits) / float(true + told - hits) if true else None
        for hits, true, told in zip(right, of, said, strict=True)
    )
    found = [value for value in iou if value is not None]
    return Scores(sum(found) / len(found), float(right.sum()) / points, iou, points)


def said_everywhere(label: int, counts: np.ndarray) -> np.ndarray:
    """(K, K): the counts if one label were said of every point."""
    made = np.zeros_like(counts)
    made[:, label] = counts.sum(axis=1)
    return made
