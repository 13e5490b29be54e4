"""Weights that depend on the other edges of a row: a softmax of scores, and the maximum of each channel.

    softmax     out = sum of w k f,   w = exp(score - lse),   lse = log of the row's sum of exp(score)
    backward    dk = w g f,   dscore = w sum over channels of g (k f - out)
    maximum     out = the largest k f,   dk = g f / n for the n edges that have it, else 0

Letters: e edges of a chunk, Q rows, C channels; k the kernel, g the gradient of a row. A row that is split
over chunks continues from the values of its earlier pieces. On a GPU each function is one Triton kernel
(`weight_ops_triton`), elsewhere it is plain torch; both always add in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, own_kernels
from pinchpoint.kit.edges.row_chunks import Rows


def softmax_into(
    out: Tensor, lse: Tensor, kernel: Tensor, f: Tensor | None, score: Tensor, rows: Rows
) -> None:
    """Write the rows of a chunk to out (Q, C), the kernel (e, C) times f[source] weighted by a softmax.

    score: (e, 1). lse: (Q,), the log-sum-exp of each row, written too; -inf for a row without edges.
    """
    if own_kernels(out):
        if not is_fake(out):
            from pinchpoint.kit.edges import weight_ops_triton

            weight_ops_triton.softmax_into(out, lse, kernel, f, score, rows)
        return
    wide = score.to(lse.dtype)
    largest = rows.largest(wide)
    # The maximum of a row without edges is -inf: it is not shifted, and its sum is empty.
    shift = torch.where(largest.isneginf(), 0, largest)
    powers = torch.exp(wide - shift.index_select(0, rows.local()))
    sums = rows.sum(powers)
    sums_of_values = rows.sum(values_of(kernel, f, rows).to(lse.dtype) * powers)
    here = torch.where(rows.degrees()[:, None] > 0, sums_of_values / sums, 0)
    row_lse = (shift + torch.log(sums))[:, 0]
    if rows.continues:
        before = lse[rows.first : rows.last]
        total = torch.logaddexp(before, row_lse)
        here = here * torch.exp(row_lse - total)[:, None]
        earlier = out[rows.first : rows.last] * torch.exp(before - total)[:, None]
        # A piece whose scores are all -inf has no mean; it has no weight unless the others are like it.
        empty, empty_before = row_lse.isneginf()[:, None], before.isneginf()[:, None]
        here = torch.where(empty & ~empty_before, 0, here)
        here += torch.where(empty_before & ~empty, 0, earlier)
        row_lse = total
    out[rows.first : rows.last] = here.to(out.dtype)
    lse[rows.first : rows.last] = row_lse


def spread_softmax(
    gradient: Tensor,
    f: Tensor | None,
    score: Tensor,
    lse: Tensor,
    rows: Rows,
    at: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The gradient of the kernel, (e, C) in `dtype`, and the weights, (e,) in the dtype of lse.

    gradient: (Q, C) of the rows; score: (e, 1); at: (e,), the row of every edge.
    """
    if own_kernels(gradient):
        values = torch.empty(rows.count, gradient.shape[1], dtype=dtype, device=gradient.device)
        weights = torch.empty(rows.count, dtype=lse.dtype, device=gradient.device)
        if not is_fake(gradient):
            from pinchpoint.kit.edges import weight_ops_triton

            weight_ops_triton.spread_softmax(gradient, f, score, lse, rows, at, values, weights)
        return values, weights
    weights = torch.exp(score[:, 0].to(lse.dtype) - lse.index_select(0, at))
    values = values_of(gradient.index_select(0, at), f, rows)
    return (values * weights[:, None]).to(dtype), weights


def spread_to_weights(gradient: Tensor, kernel: Tensor, f: Tensor | None, rows: Rows, at: Tensor) -> Tensor:
    """Gradient of the weights: (e,), the sum over channels of gradient[row] * kernel * f[source]."""
    wide = torch.promote_types(torch.promote_types(gradient.dtype, kernel.dtype), torch.float32)
    if own_kernels(gradient):
        result = torch.empty(rows.count, dtype=wide, device=gradient.device)
        if not is_fake(gradient):
            from pinchpoint.kit.edges import weight_ops_triton

            weight_ops_triton.spread_to_weights(gradient, None, kernel, f, None, rows, at, result)
        return result
    values = gradient.index_select(0, at) * kernel
    values = values if f is None else values * f.index_select(0, rows.sources())
    return values.sum(1, dtype=wide)


def spread_to_scores(
    gradient: Tensor,
    out: Tensor,
    kernel: Tensor,
    f: Tensor | None,
    weights: Tensor,
    rows: Rows,
    at: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of the scores: (e, 1) in `dtype`.

    out: (Q, C), the output of `softmax_into`; weights: (e,), those of `spread_softmax`. The output is
    subtracted before the sum over channels, because the two sums are often close to each other.
    """
    if own_kernels(gradient):
        result = torch.empty(rows.count, 1, dtype=dtype, device=gradient.device)
        if not is_fake(gradient):
            from pinchpoint.kit.edges import weight_ops_triton

            weight_ops_triton.spread_to_weights(gradient, out, kernel, f, weights, rows, at, result)
        return result
    above = values_of(kernel, f, rows).to(weights.dtype) - out.index_select(0, at)
    return ((above * gradient.index_select(0, at)).sum(1) * weights)[:, None].to(dtype)


def raise_largest(largest: Tensor, ties: Tensor, kernel: Tensor, f: Tensor | None, rows: Rows) -> None:
    """Write the largest kernel * f[source] of a chunk's rows to `largest`, and how many edges have it.

    largest, ties: (Q, C); both 0 for a row without edges. NaN is larger than any number, and no edge has it.
    """
    if own_kernels(largest):
        if not is_fake(largest):
            from pinchpoint.kit.edges import weight_ops_triton

            weight_ops_triton.raise_largest(largest, ties, kernel, f, rows)
        return
    values = values_of(kernel, f, rows).to(largest.dtype)
    here = rows.largest(values)
    if rows.continues:
        before = largest[rows.first : rows.last]
        here = torch.maximum(before, here)
        count = ties[rows.first : rows.last] * (before == here)
    else:
        count = torch.zeros_like(here)
    count += rows.sum((values == here.index_select(0, rows.local())).to(count.dtype))
    largest[rows.first : rows.last] = torch.where(rows.degrees()[:, None] > 0, here, 0)
    ties[rows.first : rows.last] = count


def spread_maximum(
    gradient: Tensor,
    maxima: tuple[Tensor, Tensor],
    kernel: Tensor,
    f: Tensor | None,
    rows: Rows,
    at: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The gradients of the kernel, in `dtype`, and of f at the sources: (e, C) each.

    maxima: those of `raise_largest`; kernel: bit for bit the same as there; it may be overwritten. The second
    gradient has no meaning without f.
    """
    if own_kernels(gradient):
        result = torch.empty(kernel.shape, dtype=dtype, device=gradient.device)
        if not is_fake(gradient):
            from pinchpoint.kit.edges import weight_ops_triton

            weight_ops_triton.spread_maximum(gradient, maxima, kernel, f, rows, at, result)
        return result, kernel
    largest, ties = (values.index_select(0, at) for values in maxima)
    holds = values_of(kernel, f, rows).to(largest.dtype) == largest
    share = torch.where(holds, gradient.index_select(0, at) / ties.clamp_min(1), 0)
    return values_of(share, f, rows).to(dtype), share * kernel


def values_of(kernel: Tensor, f: Tensor | None, rows: Rows) -> Tensor:
    """(e, C): the kernel, times f at the sources. In plain torch."""
    return kernel if f is None else kernel * f.index_select(0, rows.sources())
