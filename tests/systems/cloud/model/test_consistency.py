"""Consistency: against a loop over cells, its gradient against finite differences, and no gradient to a
teacher at rest.
"""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.systems.cloud.model.consistency import (
    Kind,
    cell_means,
    consistency,
    distances,
    occupied_cells,
)
from pinchpoint.systems.cloud.model.views import (
    Batch,
    Dense,
    LogUniform,
    OnePerCell,
    Uniform,
    ViewDraw,
    draw_views,
)

KINDS = get_args(Kind)
VIEWS = (Uniform(0.3, 0.7), Dense(), LogUniform(0.1, 0.2))


def _drawn(points: int = 60) -> tuple[Batch, ViewDraw]:
    xyz = torch.rand(points, 3, generator=torch.Generator().manual_seed(0))
    batch = Batch(xyz, torch.zeros(points, 0), torch.zeros(points), torch.tensor([0, points // 3, points]))
    return batch, draw_views(batch, VIEWS, cell=0.4, seed=7)


def _values(drawn: ViewDraw) -> Tensor:
    return torch.randn(
        len(drawn.index), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()


def _slow(values: Tensor, drawn: ViewDraw, segments: Segments, kind: Kind) -> Tensor:
    """Cell by cell, view by view, with boolean masks."""
    cell = segments.of_point()[drawn.index.long()]
    apart = []
    for at in range(segments.cells):
        told = values[(cell == at) & (drawn.view == 1)]
        for view in (0, 2):
            said = values[(cell == at) & (drawn.view == view)]
            if len(said) and len(told):
                a, b = said.mean(0), told.mean(0)
                if kind == "cos":
                    apart.append(1 - a @ b / (a.norm() * b.norm()))
                elif kind == "mse":
                    apart.append(((a - b) ** 2).sum() / 5)
                else:
                    apart.append(
                        functional.kl_div(
                            a.log_softmax(0), b.log_softmax(0), log_target=True, reduction="sum"
                        )
                    )
    return torch.stack(apart).mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", [0.4, 0.9])
def test_it_is_the_mean_over_cells_that_two_views_share(kind: Kind, cell: float) -> None:
    batch, drawn = _drawn()
    values = _values(drawn)
    scene = torch.tensor([0] * 20 + [1] * 40)
    segments = None if cell == 0.4 else Segments.from_coords(batch.xyz, cell, scene)
    found = consistency(values, drawn, segments, kind=kind)
    assert found.item() == pytest.approx(
        _slow(values, drawn, segments or drawn.segments, kind).item(), rel=1e-10
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [True, False])
def test_its_gradient_equals_finite_differences_and_is_not_zero(kind: Kind, stop: bool) -> None:
    _, drawn = _drawn()
    values = _values(drawn)
    (grad,) = torch.autograd.grad(consistency(values, drawn, kind=kind, stop_gradient=stop), values)
    students = drawn.view != 1
    assert grad.isfinite().all()
    assert grad[students].abs().sum(1).gt(0).sum() == students.sum()
    assert bool(grad[~students].any()) is not stop
    moved = torch.ones_like(values) if not stop else students[:, None].double().expand(-1, 5)
    for row in range(0, len(values), 5):
        for column in range(5):
            step = torch.zeros_like(values)
            step[row, column] = 1e-6
            with torch.no_grad():
                up, down = (
                    consistency(values + sign * step * moved, drawn, kind=kind).item() for sign in (1, -1)
                )
            assert grad[row, column].item() == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-9)


def test_it_trains_a_student_to_agree_with_the_teacher() -> None:
    _, drawn = _drawn()
    values = _values(drawn).detach().requires_grad_()
    start = consistency(values, drawn, kind="mse").item()
    for _ in range(50):
        (grad,) = torch.autograd.grad(consistency(values, drawn, kind="mse"), values)
        values = (values - 20 * grad).detach().requires_grad_()
    assert consistency(values, drawn, kind="mse").item() < 0.05 * start


@pytest.mark.parametrize("kind", KINDS)
def test_equal_means_have_no_distance(kind: Kind) -> None:
    means = torch.randn(4, 6, dtype=torch.float64)
    assert distances(means, means, kind=kind).abs().max() < 1e-12


def test_views_that_pass_one_after_another_have_the_means_of_all_together() -> None:
    _, drawn = _drawn()
    values = _values(drawn)
    together, present = cell_means(values, drawn)
    for number, part in enumerate(values.split(drawn.sizes)):
        alone, there = cell_means(part, drawn.only(number))
        assert torch.allclose(alone[0], together[number], atol=1e-12) and there[0].equal(present[number])


def test_the_cells_a_view_holds_are_those_its_points_lie_in() -> None:
    _, drawn = _drawn()
    cell = drawn.segments.of_point()[drawn.index.long()].tolist()
    truth = set(zip(drawn.view.tolist(), cell, strict=True))
    assert {(view, at) for view, at in occupied_cells(drawn).nonzero().tolist()} == truth
    assert len(truth) < 3 * drawn.segments.cells  # a thin view has lost some
    assert occupied_cells(drawn.only(2))[0].equal(occupied_cells(drawn)[2])


def test_the_teacher_may_be_named_or_numbered() -> None:
    _, drawn = _drawn()
    values = _values(drawn)
    assert consistency(values, drawn, teacher=1).item() == consistency(values, drawn, teacher="dense").item()
    assert consistency(values, drawn, teacher="uniform:0.3:0.7").item() != consistency(values, drawn).item()


def test_half_precision_is_averaged_in_float32() -> None:
    _, drawn = _drawn()
    values = _values(drawn).detach().to(torch.bfloat16)
    assert consistency(values, drawn, kind="mse").item() == pytest.approx(
        consistency(values.double(), drawn, kind="mse").item(), rel=1e-5
    )


def test_what_has_no_teacher_or_no_student_is_refused() -> None:
    batch, drawn = _drawn()
    values = _values(drawn)
    with pytest.raises(BadInput, match="is not one of the views"):
        consistency(values, drawn, teacher="one-per-cell")
    with pytest.raises(BadInput, match="is not one of the views"):
        consistency(values, drawn, teacher=3)
    with pytest.raises(BadInput, match="There are values for"):
        consistency(values[1:], drawn)
    with pytest.raises(BadInput, match="'l1' is unknown"):
        consistency(values, drawn, kind="l1")  # pyright: ignore[reportArgumentType]
    alone = draw_views(batch, [OnePerCell()], cell=0.4, seed=7)
    with pytest.raises(BadInput, match="needs at least two views, but there is 1"):
        consistency(torch.zeros(len(alone.index), 2), alone)
