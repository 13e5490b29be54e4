"""Mean, maximum, sum and softmax over cells, compared with loops; gradients with finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Segments, segment_max, segment_mean, segment_softmax, segment_sum

Reduce = Callable[[Tensor, Segments], Tensor]
IDS = torch.tensor([4, 0, 4, 2, 2, 4, 0, 9, 4])


def values(features: int = 3, *, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        len(IDS), features, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(dtype)


@pytest.mark.parametrize(
    ("reduce", "truth"),
    [
        (segment_mean, lambda v: v.mean(0)),
        (segment_max, lambda v: v.amax(0)),
        (segment_sum, lambda v: v.sum(0)),
    ],
)
def test_a_reduction_is_that_of_each_cell_by_itself(
    reduce: Reduce, truth: Callable[[Tensor], Tensor]
) -> None:
    v = values()
    expected = torch.stack([truth(v[name == IDS]) for name in IDS.unique()])
    torch.testing.assert_close(reduce(v, Segments.from_ids(IDS)), expected, rtol=1e-14, atol=0)


def test_softmax_is_that_of_each_cell_by_itself_however_large_its_values() -> None:
    v = values() + 1e4 * IDS[:, None]
    found = segment_softmax(v, Segments.from_ids(IDS))
    for name in IDS.unique():
        torch.testing.assert_close(found[name == IDS], v[name == IDS].softmax(0))


@pytest.mark.parametrize("reduce", [segment_mean, segment_max, segment_softmax, segment_sum])
def test_gradients_are_finite_differences(reduce: Reduce) -> None:
    segments = Segments.from_ids(IDS)
    v = values().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: reduce(v, segments), (v,))
    assert torch.autograd.gradgradcheck(lambda v: reduce(v, segments) ** 2, (v,))


def test_equal_greatest_values_share_the_gradient() -> None:
    v = torch.tensor([[1.0], [1.0], [0.0], [5.0]], requires_grad=True)
    found = segment_max(v, Segments.from_ids(torch.tensor([0, 0, 0, 1])))
    assert found.tolist() == [[1.0], [5.0]]
    found.sum().backward()
    assert v.grad is not None and v.grad.tolist() == [[0.5], [0.5], [0.0], [1.0]]


def test_cells_without_points_are_zero_or_minus_infinity() -> None:
    segments = Segments.from_offsets(torch.tensor([0, 2, 2, 3]))
    v = torch.tensor([[1.0], [3.0], [5.0]], requires_grad=True)
    assert segment_mean(v, segments).tolist() == [[2.0], [0.0], [5.0]]
    assert segment_max(v, segments).tolist() == [[3.0], [-torch.inf], [5.0]]
    segment_max(v, segments)[[0, 2]].sum().backward()
    assert v.grad is not None and v.grad.tolist() == [[0.0], [1.0], [1.0]]


def test_sums_of_half_precision_are_taken_in_float32() -> None:
    segments = Segments.from_ids(torch.zeros(3000, dtype=torch.int64))
    ones = torch.ones(3000, 1, dtype=torch.bfloat16)
    assert segment_mean(ones, segments).item() == 1.0  # in bfloat16 the sum would stop at 256
    shares = segment_softmax(ones, segments)
    assert shares.dtype is torch.bfloat16 and float(shares[0]) == pytest.approx(1 / 3000, rel=5e-3)


def test_the_order_of_points_does_not_change_a_bit_of_the_way_back() -> None:
    v = torch.randn(5000, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    segments = Segments.from_ids(torch.randint(0, 60, (5000,), generator=torch.Generator().manual_seed(2)))
    grads = [torch.autograd.grad((segment_softmax(v, segments) * v.detach()).sum(), v)[0] for _ in range(3)]
    assert all(grad.equal(grads[0]) for grad in grads)


@pytest.mark.parametrize("bad", [torch.zeros(8, 3), torch.zeros(9), torch.zeros(9, 3).long(), [[1.0]]])
def test_values_that_are_not_one_row_for_each_point_are_refused(bad: Tensor) -> None:
    with pytest.raises(BadInput):
        segment_mean(bad, Segments.from_ids(IDS))
