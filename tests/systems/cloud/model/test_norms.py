"""Norms: one view equals torch's batch norm, and several views are normalised independently."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pinchpoint.systems.cloud.model.norms import LayerNorm, ViewNorm, make_norm


def test_the_norm_with_one_view_equals_the_batch_norm_of_torch() -> None:
    ours, reference = ViewNorm(5, 1).double(), nn.BatchNorm1d(5).double()
    view = torch.zeros(40, dtype=torch.int64)
    for training in (True, True, False):
        values = torch.randn(40, 5, dtype=torch.float64) * 3 + 1
        ours.train(training)
        reference.train(training)
        assert torch.allclose(ours(values, view), reference(values), atol=1e-10)
    assert torch.allclose(ours.running_var[0], reference.running_var, atol=1e-10)  # pyright: ignore[reportArgumentType]


def test_each_view_is_normalised_independently() -> None:
    together = ViewNorm(5, 3).double()
    view = torch.arange(60) % 2 * 2  # views 0 and 2; view 1 is absent
    values = torch.randn(60, 5, dtype=torch.float64) * (view[:, None] + 1)
    result = together(values, view)
    for number in (0, 2):
        alone = ViewNorm(5, 1).double()
        rows = values[view == number]
        assert torch.allclose(
            alone(rows, torch.zeros(30, dtype=torch.int64)), result[view == number], atol=1e-10
        )
        assert torch.allclose(alone.running_mean[0], together.running_mean[number], atol=1e-12)
    assert together.running_mean[1].eq(0).all() and together.running_var[1].eq(1).all()


def test_gradients_of_the_norm_equal_finite_differences() -> None:
    norm = ViewNorm(3, 2).double()
    values = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda inputs: norm(inputs, torch.arange(7) % 2), [values])


def test_a_view_of_one_voxel_is_finite_and_updates_no_statistics() -> None:
    norm = ViewNorm(4, 2)
    assert norm(torch.randn(1, 4), torch.tensor([1])).isfinite().all()
    assert norm.running_mean.eq(0).all() and norm.running_var.eq(1).all()


def test_statistics_are_computed_in_float32_under_autocast() -> None:
    norm = ViewNorm(4, 1)
    values = torch.randn(50, 4) + 100  # bfloat16 cannot represent this spread
    with torch.autocast("cpu", torch.bfloat16):
        result = norm(values, torch.zeros(50, dtype=torch.int64))
    assert torch.allclose(result.std(0, correction=0), torch.ones(4), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "expected"), [("layer", LayerNorm), ("batch", ViewNorm), ("per-view", ViewNorm)]
)
def test_make_norm_returns_the_norm_of_a_name(kind: str, expected: type) -> None:
    assert type(make_norm(kind, 4, 1)) is expected  # pyright: ignore[reportArgumentType]
