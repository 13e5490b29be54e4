"""Scores: the confusion matrix and mIoU equal a count by hand, point by point."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.metrics import confusion, predict_everywhere, scores_of


def test_the_confusion_matrix_equals_a_loop_over_the_points() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(-1, 4, 500), rng.integers(0, 4, 500)
    expected = np.zeros((4, 4), dtype=int)
    for true_label, predicted_label in zip(truth.tolist(), predicted.tolist(), strict=True):
        if true_label >= 0:
            expected[true_label, predicted_label] += 1
    assert (confusion(truth, predicted, 4) == expected).all()


def test_miou_is_the_mean_over_classes_of_intersection_over_union() -> None:
    rng = np.random.default_rng(1)
    truth, predicted = rng.integers(0, 3, 300), rng.integers(0, 4, 300)  # class 3 is predicted but never true
    scores = scores_of(confusion(truth, predicted, 5))
    expected = []
    for label in range(3):
        true_points, predicted_points = (
            set(np.flatnonzero(truth == label)),
            set(np.flatnonzero(predicted == label)),
        )
        expected.append(len(true_points & predicted_points) / len(true_points | predicted_points))
    assert scores.iou[:3] == pytest.approx(expected) and scores.iou[3:] == (None, None)
    assert scores.miou == pytest.approx(sum(expected) / 3)
    assert scores.accuracy == pytest.approx((truth == predicted).mean())
    assert scores.points == 300


def test_predicting_one_class_everywhere_has_its_share_as_accuracy() -> None:
    truth = np.array([0] * 6 + [1] * 3 + [-1] * 5)
    counts = confusion(truth, np.zeros_like(truth), 2)
    again = scores_of(predict_everywhere(0, confusion(truth, np.ones_like(truth), 2)))
    assert scores_of(counts) == again
    assert (again.accuracy, again.miou) == (pytest.approx(6 / 9), pytest.approx(6 / 9 / 2))


def test_mismatched_unknown_or_missing_labels_are_rejected() -> None:
    with pytest.raises(BadInput, match="3 predicted labels, but 2 true"):
        confusion(np.zeros(2, int), np.zeros(3, int), 2)
    with pytest.raises(BadInput, match="not among the 2 classes"):
        confusion(np.array([0, 2]), np.array([0, 1]), 2)
    with pytest.raises(BadInput, match="No point has a class"):
        scores_of(confusion(np.array([-1, -1]), np.array([0, 1]), 2))
