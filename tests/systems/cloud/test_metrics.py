"""Scores: the matrix of counts and mIoU against counting by hand, point by point."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.metrics import confusion, predict_everywhere, scores_of


def test_the_matrix_counts_what_a_loop_over_the_points_counts() -> None:
    rng = np.random.default_rng(0)
    truth, said = rng.integers(-1, 4, 500), rng.integers(0, 4, 500)
    wanted = np.zeros((4, 4), dtype=int)
    for one, other in zip(truth.tolist(), said.tolist(), strict=True):
        if one >= 0:
            wanted[one, other] += 1
    assert (confusion(truth, said, 4) == wanted).all()


def test_miou_is_the_mean_over_classes_of_sets_of_points_cut_and_joined() -> None:
    rng = np.random.default_rng(1)
    truth, said = rng.integers(0, 3, 300), rng.integers(0, 4, 300)  # class 3 is said and never true
    found = scores_of(confusion(truth, said, 5))
    wanted = []
    for label in range(3):
        of, told = set(np.flatnonzero(truth == label)), set(np.flatnonzero(said == label))
        wanted.append(len(of & told) / len(of | told))
    assert found.iou[:3] == pytest.approx(wanted) and found.iou[3:] == (None, None)
    assert found.miou == pytest.approx(sum(wanted) / 3)
    assert found.accuracy == pytest.approx((truth == said).mean())
    assert found.points == 300


def test_one_class_everywhere_scores_its_share() -> None:
    truth = np.array([0] * 6 + [1] * 3 + [-1] * 5)
    counts = confusion(truth, np.zeros_like(truth), 2)
    again = scores_of(predict_everywhere(0, confusion(truth, np.ones_like(truth), 2)))
    assert scores_of(counts) == again
    assert (again.accuracy, again.miou) == (pytest.approx(6 / 9), pytest.approx(6 / 9 / 2))


def test_labels_of_another_length_beyond_the_classes_or_none_at_all_are_refused() -> None:
    with pytest.raises(BadInput, match="3 predicted labels, but 2 true"):
        confusion(np.zeros(2, int), np.zeros(3, int), 2)
    with pytest.raises(BadInput, match="not among the 2 classes"):
        confusion(np.array([0, 2]), np.array([0, 1]), 2)
    with pytest.raises(BadInput, match="No point has a class"):
        scores_of(confusion(np.array([-1, -1]), np.array([0, 1]), 2))
