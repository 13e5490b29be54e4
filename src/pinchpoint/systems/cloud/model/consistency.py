"""Consistency loss: the distance of each view of a scene from the teacher view, cell by cell.

Letters: V views, C cells of the batch, M drawn points, D features (or K logits) per point. Features are
averaged over the points of a cell in each view; cells that contain points of both views are compared. With
`stop_gradient` the teacher's means are constants, so only the students move toward the teacher. This module
uses no atomics and does not wait for the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.reduce import segment_mean
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.systems.cloud.model.views import ViewDraw

Kind = Literal["cos", "mse", "kl"]


def consistency(
    values: Tensor,
    draw: ViewDraw,
    segments: Segments | None = None,
    *,
    kind: Kind = "cos",
    teacher: str | int = "dense",
    stop_gradient: bool = True,
) -> Tensor:
    """Return the mean distance over all cells in which the teacher and another view have points.

    The result is zero if there are no such cells. values: (M, D), one row per drawn point (logits for "kl");
    segments: the cells of the batch's points in which views are compared, by default those the views were
    drawn from; teacher: name or number of a view.
    """
    leader = teacher_of(draw, teacher)
    means, present = cell_means(values, draw, segments)
    target = means[leader].detach() if stop_gradient else means[leader]
    others = [number for number in range(len(draw.views)) if number != leader]
    shared = torch.stack([present[number] & present[leader] for number in others])
    # The sum over all views is divided by the total number of cells, so views with many cells weigh more.
    gaps = torch.stack([distances(means[number], target, kind=kind) for number in others])
    return torch.where(shared, gaps, 0).sum() / shared.sum().clamp(min=1)


def teacher_of(draw: ViewDraw, teacher: str | int) -> int:
    """Return the number of the teacher view."""
    names = [view.name for view in draw.views]
    if len(names) < 2:
        raise BadInput(
            f"A consistency loss needs at least two views, but there is {len(names)}.",
            hint="Draw at least two views, such as dense and log-uniform:0.05:1.",
        )
    if isinstance(teacher, int) and 0 <= teacher < len(names):
        return teacher
    if teacher not in names:
        raise BadInput(
            f"The teacher {teacher!r} is not one of the views.", hint=f"Name one of: {', '.join(names)}."
        )
    return names.index(str(teacher))


def cell_means(values: Tensor, draw: ViewDraw, segments: Segments | None = None) -> tuple[Tensor, Tensor]:
    """Average values (M, D) over the cells of each view.

    Returns the means (V, C, D), zero for cells without points, and whether each cell has points (V, C). When
    views are processed one after another, pass `draw.only(number)`; V is then 1.
    """
    segments = draw.segments if segments is None else segments
    if values.shape[0] != draw.index.shape[0]:
        raise BadInput(
            f"There are values for {values.shape[0]:,} points,"
            f" but {draw.index.shape[0]:,} points were drawn.",
            hint="Give one row per drawn point.",
        )
    views, cells = len(draw.views), segments.cells
    grouped_points = _group_points(_cell_of_view(draw, segments), views * cells, segments)
    wide = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    return segment_mean(wide, grouped_points).reshape(views, cells, -1), (grouped_points.counts > 0).reshape(
        views, cells
    )


def occupied_cells(draw: ViewDraw) -> Tensor:
    """Return (V, C) bool: which cells have points in each view.

    The result is the same as that of `cell_means`, but needs no sort.
    """
    views, cells = len(draw.views), draw.segments.cells
    occupied = torch.zeros(views * cells, dtype=torch.bool, device=draw.index.device)
    return occupied.index_fill_(0, _cell_of_view(draw, draw.segments), True).reshape(views, cells)


def _cell_of_view(draw: ViewDraw, segments: Segments) -> Tensor:
    """Return (M,) int64: the cell of each drawn point, numbered consecutively over all views."""
    number = draw.view - draw.view[:1] if len(draw.views) == 1 else draw.view
    return number * segments.cells + segments.of_point().index_select(0, draw.index)


def distances(student: Tensor, teacher: Tensor, *, kind: Kind) -> Tensor:
    """Return the distances (...) of two arrays (..., D).

    "cos": 1 - cosine similarity; "mse": mean squared difference; "kl": KL divergence of the student's class
    probabilities from the teacher's.
    """
    if kind == "cos":
        return 1 - functional.cosine_similarity(student, teacher, dim=-1)
    if kind == "mse":
        return (student - teacher).square().mean(-1)
    if kind == "kl":
        teacher_log, student_log = teacher.log_softmax(-1), student.log_softmax(-1)
        return (teacher_log.exp() * (teacher_log - student_log)).sum(-1)
    raise BadInput(
        f"The consistency loss {kind!r} is unknown.", hint=f"Use one of: {', '.join(get_args(Kind))}."
    )


def _group_points(ids: Tensor, count: int, like: Segments) -> Segments:
    """Group points by ids 0 .. count - 1 without waiting for the device; some groups may be empty."""
    ordered, order = torch.sort(ids, stable=True)
    edges = torch.arange(count + 1, dtype=ordered.dtype, device=ids.device)
    offsets = torch.searchsorted(ordered, edges, out_int32=True)
    return replace(
        like,
        order=order.int(),
        offsets=offsets,
        of_place=ordered.int(),
        ids=None,
        longest=ids.shape[0],
        empty=True,
    )
