"""Sum, mean, maximum and softmax over the points of every cell, bit for bit the same every time.

Points are gathered in the order of their cells and each cell is summed from its first place to its last;
backward gathers too. Atomics are not used, because they would add in a different order in each run.
Half-precision values are summed in float32. Letters: N points, C cells, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.segments.subset import require_segments
from pinchpoint.kit.validation import require_tensor


def segment_sum(values: Tensor, segments: Segments) -> Tensor:
    """Sum over each cell; 0 for an empty cell. values: (N, F) by point; returns (C, F)."""
    _require_values(values, segments)
    return _Sum.apply(values, segments, segments.of_point())  # pyright: ignore[reportReturnType]


def segment_mean(values: Tensor, segments: Segments) -> Tensor:
    """Mean over each cell; 0 for an empty cell. values: (N, F) by point; returns (C, F)."""
    _require_values(values, segments)
    sums = segment_sum(_wide(values), segments)
    return (sums / segments.counts.clamp(min=1)[:, None]).to(values.dtype)


def segment_max(values: Tensor, segments: Segments) -> Tensor:
    """Maximum of each cell; -inf for an empty cell. values: (N, F) by point; returns (C, F).

    The gradient goes to the points that attain the maximum, in equal shares if there are several.
    """
    _require_values(values, segments)
    with torch.no_grad():
        greatest = _reduce(values, segments, "max")
        of_point = segments.of_point()
        holds = (values == greatest.index_select(0, of_point)).to(_wide(values).dtype)
        shares = holds / _Spread.apply(_Sum.apply(holds, segments, of_point), segments, of_point)
    if not values.requires_grad:
        return greatest
    # The sum of equal shares of a number is that number up to rounding: use the exact value, but the gradient
    # of the sum.
    sums = _Sum.apply(torch.where(shares > 0, _wide(values) * shares, 0), segments, of_point)
    return _WithValue.apply(sums, greatest)  # pyright: ignore[reportReturnType]


def segment_softmax(values: Tensor, segments: Segments) -> Tensor:
    """Softmax over each cell, feature by feature. values: (N, F) by point; returns (N, F)."""
    _require_values(values, segments)
    of_point = segments.of_point()
    wide = _wide(values)
    greatest = _reduce(wide.detach(), segments, "max").index_select(0, of_point)
    powers = torch.exp(wide - greatest)
    sums = _Spread.apply(_Sum.apply(powers, segments, of_point), segments, of_point)
    return (powers / sums).to(values.dtype)  # pyright: ignore[reportOperatorIssue]


class _Sum(torch.autograd.Function):
    """(N, F) to (C, F). Backward is `_Spread`, and vice versa, so derivatives of any order work."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, segments: Segments, of_point: Tensor) -> Tensor:
        ctx.segments = segments
        ctx.save_for_backward(of_point)
        return _reduce(_wide(values), segments, "sum").to(values.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Spread.apply(gradient, ctx.segments, *ctx.saved_tensors), None, None


class _Spread(torch.autograd.Function):
    """(C, F) to (N, F): each point gets the value of its cell."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, segments: Segments, of_point: Tensor) -> Tensor:
        ctx.segments = segments
        ctx.save_for_backward(of_point)
        return values.index_select(0, of_point)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Sum.apply(gradient, ctx.segments, *ctx.saved_tensors), None, None


class _WithValue(torch.autograd.Function):
    """Returns the value of one tensor and passes the gradient to another."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, value: Tensor) -> Tensor:
        ctx.dtype = source.dtype
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient.to(ctx.dtype), None


def _reduce(values: Tensor, segments: Segments, how: str) -> Tensor:
    """(N, F) by point to (C, F), each cell from its first place to its last."""
    by_cell = values.index_select(0, segments.order)
    start = 0 if how == "sum" else -torch.inf
    return torch.segment_reduce(
        by_cell, how, lengths=segments.counts.long(), axis=0, unsafe=True, initial=start
    )


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _require_values(values: Tensor, segments: Segments) -> None:
    require_segments(segments)
    require_tensor("values", values)
    if values.dim() != 2 or values.shape[0] != segments.points or not values.is_floating_point():
        raise BadInput(
            f"`values` has shape {tuple(values.shape)} and dtype {values.dtype}, but there are "
            f"{segments.points:,} points.",
            hint=f"Give ({segments.points}, F) floating-point numbers, one row for each point.",
        )
