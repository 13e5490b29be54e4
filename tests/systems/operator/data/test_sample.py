"""Samples: moved as a whole, and refused if they are inconsistent."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the operator needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.operator.data.sample import Sample, check_sample  # noqa: E402

GOOD = Sample("a", torch.rand(4, 3), torch.rand(4, 7), torch.rand(4, 1), torch.rand(4))


def test_all_tensors_of_a_sample_move_with_it():
    sample = GOOD.to("meta")
    assert {part.device.type for part in (sample.points, sample.features, sample.target, sample.areas)} == {
        "meta"
    }
    assert sample.name == "a" and check_sample(GOOD) is GOOD


@pytest.mark.parametrize("part", ["features", "target", "areas"])
def test_tensors_of_unequal_length_are_refused(part):
    with pytest.raises(BadInput, match=f"4 points, but 3 rows of {part}"):
        check_sample(replace(GOOD, **{part: getattr(GOOD, part)[:3]}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused(value):
    with pytest.raises(BadInput, match="1 numbers in points of a"):
        check_sample(
            replace(
                GOOD,
                points=GOOD.points.index_fill(0, torch.tensor([0]), 0).index_put(
                    (torch.tensor(1), torch.tensor(2)), torch.tensor(value)
                ),
            )
        )


def test_a_sample_without_points_is_refused():
    with pytest.raises(BadInput, match="no points"):
        check_sample(Sample("a", torch.zeros(0, 3), torch.zeros(0, 7), torch.zeros(0, 1), torch.zeros(0)))
