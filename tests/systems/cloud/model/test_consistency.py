"""The consistency loss equals a loop over cells, its gradient equals finite differences, and a constant
teacher has no gradient.
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


def _draw(points: int = 60) -> tuple[Batch, ViewDraw]:
    xyz = torch.rand(points, 3, generator=torch.Generator().manual_seed(0))
    batch = Batch(xyz, torch.zeros(points, 0), torch.zeros(points), torch.tensor([0, points // 3, points]))
    return batch, draw_views(batch, VIEWS, cell=0.4, seed=7)


def _values(draw: ViewDraw) -> Tensor:
    return torch.randn(
        len(draw.index), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()


def _slow(values: Tensor, draw: ViewDraw, segments: Segments, kind: Kind) -> Tensor:
    """Compute the loss cell by cell and view by view with boolean masks."""
    cell = segments.of_point()[draw.index.long()]
    gaps = []
    for at in range(segments.cells):
        teacher_values = values[(cell == at) & (draw.view == 1)]
        for view in (0, 2):
            student_values = values[(cell == at) & (draw.view == view)]
            if len(student_values) and len(teacher_values):
                a, b = student_values.mean(0), teacher_values.mean(0)
                if kind == "cos":
                    gaps.append(1 - a @ b / (a.norm() * b.norm()))
                elif kind == "mse":
                    gaps.append(((a - b) ** 2).sum() / 5)
                else:
                    gaps.append(
                        functional.kl_div(
                            a.log_softmax(0), b.log_softmax(0), log_target=True, reduction="sum"
                        )
                    )
    return torch.stack(gaps).mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", [0.4, 0.9])
def test_the_loss_is_the_mean_over_cells_shared_by_two_views(kind: Kind, cell: float) -> None:
    batch, draw = _draw()
    values = _values(draw)
    scene = torch.tensor([0] * 20 + [1] * 40)
    segments = None if cell == 0.4 else Segments.from_coords(batch.xyz, cell, scene)
    result = consistency(values, draw, segments, kind=kind)
    assert result.item() == pytest.approx(
        _slow(values, draw, segments or draw.segments, kind).item(), rel=1e-10
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [True, False])
def test_the_gradient_equals_finite_differences_and_is_not_zero(kind: Kind, stop: bool) -> None:
    _, draw = _draw()
    values = _values(draw)
    (grad,) = torch.autograd.grad(consistency(values, draw, kind=kind, stop_gradient=stop), values)
    students = draw.view != 1
    assert grad.isfinite().all()
    assert grad[students].abs().sum(1).gt(0).sum() == students.sum()
    assert bool(grad[~students].any()) is not stop
    movable = torch.ones_like(values) if not stop else students[:, None].double().expand(-1, 5)
    for row in range(0, len(values), 5):
        for column in range(5):
            step = torch.zeros_like(values)
            step[row, column] = 1e-6
            with torch.no_grad():
                up, down = (
                    consistency(values + sign * step * movable, draw, kind=kind).item() for sign in (1, -1)
                )
            assert grad[row, column].item() == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-9)


def test_minimising_the_loss_makes_students_agree_with_the_teacher() -> None:
    _, draw = _draw()
    values = _values(draw).detach().requires_grad_()
    start = consistency(values, draw, kind="mse").item()
    for _ in range(50):
        (grad,) = torch.autograd.grad(consistency(values, draw, kind="mse"), values)
        values = (values - 20 * grad).detach().requires_grad_()
    assert consistency(values, draw, kind="mse").item() < 0.05 * start


@pytest.mark.parametrize("kind", KINDS)
def test_the_distance_of_equal_means_is_zero(kind: Kind) -> None:
    means = torch.randn(4, 6, dtype=torch.float64)
    assert distances(means, means, kind=kind).abs().max() < 1e-12


def test_views_processed_one_by_one_have_the_same_means_as_together() -> None:
    _, draw = _draw()
    values = _values(draw)
    together, present = cell_means(values, draw)
    for number, part in enumerate(values.split(draw.sizes)):
        alone, occupied = cell_means(part, draw.only(number))
        assert torch.allclose(alone[0], together[number], atol=1e-12) and occupied[0].equal(present[number])


def test_the_occupied_cells_of_a_view_are_the_cells_of_its_points() -> None:
    _, draw = _draw()
    cell = draw.segments.of_point()[draw.index.long()].tolist()
    truth = set(zip(draw.view.tolist(), cell, strict=True))
    assert {(view, at) for view, at in occupied_cells(draw).nonzero().tolist()} == truth
    assert len(truth) < 3 * draw.segments.cells  # a sparse view has lost some cells
    assert occupied_cells(draw.only(2))[0].equal(occupied_cells(draw)[2])


def test_the_teacher_can_be_given_by_name_or_number() -> None:
    _, draw = _draw()
    values = _values(draw)
    assert consistency(values, draw, teacher=1).item() == consistency(values, draw, teacher="dense").item()
    assert consistency(values, draw, teacher="uniform:0.3:0.7").item() != consistency(values, draw).item()


def test_half_precision_is_averaged_in_float32() -> None:
    _, draw = _draw()
    values = _values(draw).detach().to(torch.bfloat16)
    assert consistency(values, draw, kind="mse").item() == pytest.approx(
        consistency(values.double(), draw, kind="mse").item(), rel=1e-5
    )


def test_draws_without_a_teacher_or_a_student_are_rejected() -> None:
    batch, draw = _draw()
    values = _values(draw)
    with pytest.raises(BadInput, match="is not one of the views"):
        consistency(values, draw, teacher="one-per-cell")
    with pytest.raises(BadInput, match="is not one of the views"):
        consistency(values, draw, teacher=3)
    with pytest.raises(BadInput, match="There are values for"):
        consistency(values[1:], draw)
    with pytest.raises(BadInput, match="'l1' is unknown"):
        consistency(values, draw, kind="l1")  # pyright: ignore[reportArgumentType]
    alone = draw_views(batch, [OnePerCell()], cell=0.4, seed=7)
    with pytest.raises(BadInput, match="needs at least two views, but there is 1"):
        consistency(torch.zeros(len(alone.index), 2), alone)
