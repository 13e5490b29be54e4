"""Metrics of predicted labels: confusion matrix, IoU, mIoU and accuracy.

Letters: N points, K classes. Rows of the matrix are true classes, columns are predicted classes; points
without a class are not counted.
    IoU of a class = correct points / points that truly are, or are predicted to be, of the class
    mIoU = mean IoU over the classes that occur in the truth
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pinchpoint.core.errors import BadInput


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Return the confusion matrix (K, K) of true and predicted labels (N,).

    Points with a negative true label are left out.
    """
    if truth.shape != predicted.shape:
        raise BadInput(
            f"There are {len(predicted):,} predicted labels, but {len(truth):,} true labels.",
            hint="Give one of each for every point.",
        )
    labelled = truth >= 0
    truth, predicted = truth[labelled].astype(np.int64), predicted[labelled].astype(np.int64)
    if len(truth) and (max(truth.max(), predicted.max()) >= classes or predicted.min() < 0):
        raise BadInput(
            f"Some labels are not among the {classes} classes.",
            hint=f"Give labels from 0 to {classes - 1}, or -1 for none.",
        )
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


@dataclass(frozen=True)
class Scores:
    """Scores over all points. iou: one per class, None for classes that do not occur in the truth."""

    miou: float
    accuracy: float
    iou: tuple[float | None, ...]
    points: int


def scores_of(counts: np.ndarray) -> Scores:
    """Return the scores of counts (K, K) from `confusion`, of one scene or summed over many."""
    points = int(counts.sum())
    if not points:
        raise BadInput("No point has a class.", hint="Give scenes with labels of 0 or more.")
    correct, true_counts, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    iou = tuple(
        float(hits) / float(true + guesses - hits) if true else None
        for hits, true, guesses in zip(correct, true_counts, predicted, strict=True)
    )
    present = [value for value in iou if value is not None]
    return Scores(sum(present) / len(present), float(correct.sum()) / points, iou, points)


def predict_everywhere(label: int, counts: np.ndarray) -> np.ndarray:
    """Return the counts (K, K) of predicting one label for every point."""
    result = np.zeros_like(counts)
    result[:, label] = counts.sum(axis=1)
    return result
