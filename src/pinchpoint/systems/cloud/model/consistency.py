"""How far the views of a scene are from the teacher's, cell by cell: a loss that trains.

V views, C cells of the batch, D features (or K logits) of a point. Features are averaged over the points of a cell in each
view; cells that hold points of both views are compared. With `stop_gradient` the teacher's averages are constants: only the
students move toward it. No atomics and no device wait.
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
from pinchpoint.systems.cloud.model.views import Drawn

Kind = Literal["cos", "mse", "kl"]


def consistency(
    values: Tensor,
    drawn: Drawn,
    segments: Segments | None = None,
    *,
    kind: Kind = "cos",
    teacher: str | int = "dense",
    stop_gradient: bool = True,
) -> Tensor:
    """The mean distance over all cells that the teacher and another view both hold; zero where there are none.

    values: (M, D), of all drawn points (logits for "kl"); segments: the cells to compare in, of the batch's points (default
    those that were drawn from); teacher: a view's name or number.
    """
    leader = teacher_of(drawn, teacher)
    means, present = cell_means(values, drawn, segments)
    known = means[leader].detach() if stop_gradient else means[leader]
    others = [number for number in range(len(drawn.views)) if number != leader]
    both = torch.stack([present[number] & present[leader] for number in others])
    # Sums of all views over the number of all cells: a view of few cells does not count as much as one of many.
    apart = torch.stack([distances(means[number], known, kind=kind) for number in others])
    return torch.where(both, apart, 0).sum() / both.sum().clamp(min=1)


def teacher_of(drawn: Drawn, teacher: str | int) -> int:
    """The number of the view that teaches."""
    names = [view.name for view in drawn.views]
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


def cell_means(values: Tensor, drawn: Drawn, segments: Segments | None = None) -> tuple[Tensor, Tensor]:
    """values (M, D) -> the means (V, C, D) over each cell in each view, zeros where it has no point; and has it any (V, C).

    For views that pass one after another give each with `drawn.only(number)`: V is 1.
    """
    segments = drawn.segments if segments is None else segments
    if values.shape[0] != drawn.index.shape[0]:
        raise BadInput(
            f"There are values for {values.shape[0]:,} points, but {drawn.index.shape[0]:,} points were drawn.",
            hint="Give one row per drawn point.",
        )
    views, cells = len(drawn.views), segments.cells
    found = _grouped(_cell_of_view(drawn, segments), views * cells, segments)
    wide = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    return segment_mean(wide, found).reshape(views, cells, -1), (found.counts > 0).reshape(views, cells)


def cells_held(drawn: Drawn) -> Tensor:
    """(V, C) bool: which cells hold points in each view, as `cell_means` tells too, without sorting anything."""
    views, cells = len(drawn.views), drawn.segments.cells
    held = torch.zeros(views * cells, dtype=torch.bool, device=drawn.index.device)
    return held.index_fill_(0, _cell_of_view(drawn, drawn.segments), True).reshape(views, cells)


def _cell_of_view(drawn: Drawn, segments: Segments) -> Tensor:
    """(M,) int64: the cell of each drawn point, numbered through all views."""
    number = drawn.view - drawn.view[:1] if len(drawn.views) == 1 else drawn.view
    return number * segments.cells + segments.of_point().index_select(0, drawn.index)


def distances(student: Tensor, teacher: Tensor, *, kind: Kind) -> Tensor:
    """(..., D) and (..., D) -> (...): 1 - cosine, mean square, or the divergence of the student's classes from the teacher's."""
    if kind == "cos":
        return 1 - functional.cosine_similarity(student, teacher, dim=-1)
    if kind == "mse":
        return (student - teacher).square().mean(-1)
    if kind == "kl":
        told, said = teacher.log_softmax(-1), student.log_softmax(-1)
        return (told.exp() * (told - said)).sum(-1)
    raise BadInput(
        f"The consistency loss {kind!r} is unknown.", hint=f"Use one of: {', '.join(get_args(Kind))}."
    )


def _grouped(ids: Tensor, count: int, like: Segments) -> Segments:
    """The points of each of the ids 0 .. count - 1, of which some may have none: nothing is waited for."""
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
