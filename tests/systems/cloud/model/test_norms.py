"""Norms: with one view that of torch; with several, each view as if it were alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pinchpoint.systems.cloud.model.norms import LayerNorm, ViewNorm, make_norm


def test_one_set_of_statistics_is_the_batch_norm_of_torch() -> None:
    ours, torchs = ViewNorm(5, 1).double(), nn.BatchNorm1d(5).double()
    view = torch.zeros(40, dtype=torch.int64)
    for training in (True, True, False):
        values = torch.randn(40, 5, dtype=torch.float64) * 3 + 1
        ours.train(training)
        torchs.train(training)
        assert torch.allclose(ours(values, view), torchs(values), atol=1e-10)
    assert torch.allclose(ours.running_var[0], torchs.running_var, atol=1e-10)  # pyright: ignore[reportArgumentType]


def test_each_view_is_normed_as_if_it_were_alone() -> None:
    together = ViewNorm(5, 3).double()
    view = torch.arange(60) % 2 * 2  # views 0 and 2; none of view 1
    values = torch.randn(60, 5, dtype=torch.float64) * (view[:, None] + 1)
    found = together(values, view)
    for number in (0, 2):
        alone = ViewNorm(5, 1).double()
        rows = values[view == number]
        assert torch.allclose(
            alone(rows, torch.zeros(30, dtype=torch.int64)), found[view == number], atol=1e-10
        )
        assert torch.allclose(alone.running_mean[0], together.running_mean[number], atol=1e-12)
    assert together.running_mean[1].eq(0).all() and together.running_var[1].eq(1).all()


def test_gradients_of_a_norm_by_view_equal_finite_differences() -> None:
    norm = ViewNorm(3, 2).double()
    values = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: norm(given, torch.arange(7) % 2), [values])


def test_a_view_of_one_voxel_leaves_no_trace_and_gives_numbers() -> None:
    norm = ViewNorm(4, 2)
    assert norm(torch.randn(1, 4), torch.tensor([1])).isfinite().all()
    assert norm.running_mean.eq(0).all() and norm.running_var.eq(1).all()


def test_statistics_are_taken_in_float32_under_autocast() -> None:
    norm = ViewNorm(4, 1)
    values = torch.randn(50, 4) + 100  # whose spread bfloat16 cannot hold
    with torch.autocast("cpu", torch.bfloat16):
        found = norm(values, torch.zeros(50, dtype=torch.int64))
    assert torch.allclose(found.std(0, correction=0), torch.ones(4), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "made"), [("layer", LayerNorm), ("batch", ViewNorm), ("per-view", ViewNorm)]
)
def test_a_norm_is_made_by_name(kind: str, made: type) -> None:
    assert type(make_norm(kind, 4, 1)) is made  # pyright: ignore[reportArgumentType]
