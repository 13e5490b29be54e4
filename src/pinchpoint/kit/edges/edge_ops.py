"""Operations of the flat transform on the edges of a chunk: gather, reduce, spread, sum by source.

Letters: e edges of the chunk, q rows, C channels. On a GPU each is one Triton kernel
(`edge_ops_triton`), elsewhere it is plain torch; both always add in the same order.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat
from pinchpoint.kit.edges.row_chunks import Rows


def gather(
    x: Tensor, y: Tensor, f: Tensor | None, rows: Rows, *, dtype: torch.dtype, relative: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The network's inputs, [y, x] of (e, 2d) or [y, x, f] of (e, 2d + C), and every edge's row, (e,).

    dtype: that of the inputs. relative: also the vectors y - x, (e, d), in the dtype of x and y.
    """
    vectors: Tensor | None = None
    if own_kernels(x):
        at = torch.empty(rows.count, dtype=torch.int32, device=x.device)
        width = x.shape[1] + y.shape[1] + (0 if f is None else f.shape[1])
        inputs = torch.empty(rows.count, width, dtype=dtype, device=x.device)
        if relative:
            vectors = torch.empty(rows.count, x.shape[1], dtype=widest(x, y), device=x.device)
        if not is_fake(x):
            from pinchpoint.kit.edges import edge_ops_triton

            edge_ops_triton.gather(x, y, f, rows, at, inputs, vectors)
        return inputs, at, vectors
    at, sources = rows.destinations(), rows.sources()
    parts = [y.index_select(0, sources), x.index_select(0, at)]
    if relative:
        vectors = parts[0] - parts[1]
    parts += [] if f is None else [f.index_select(0, sources)]
    return torch.cat(parts, dim=1).to(dtype), at, vectors


def reduce_into(out: Tensor, kernel: Tensor, f: Tensor | None, weights: Tensor | None, rows: Rows) -> None:
    """Add to each of the chunk's rows of `out`, (Q, C), its sum of weights * kernel * f[source].

    kernel: (e, C); f: (S, C), or None to use the kernel alone; weights: (e,).
    """
    if own_kernels(out):
        if not is_fake(out):
            from pinchpoint.kit.edges import edge_ops_triton

            edge_ops_triton.reduce_into(out, kernel, f, weights, rows)
        return
    values = kernel if f is None else kernel * f.index_select(0, rows.sources())
    if weights is not None:
        values = values * weights[:, None]
    out[rows.first : rows.last] += rows.sum(values)


def reduce_rows(
    kernel: Tensor,
    f: Tensor | None,
    weights: Tensor | None,
    rows: Rows,
    dtype: torch.dtype,
    *,
    mean: bool,
) -> Tensor:
    """The sum or mean of weights * kernel * f[source] over every row of a graph with whole rows: (q, C).

    The arguments are those of `reduce_into`.
    """
    if own_kernels(kernel):
        out = torch.empty(rows.last - rows.first, kernel.shape[1], dtype=dtype, device=kernel.device)
        if not is_fake(out):
            from pinchpoint.kit.edges import edge_ops_triton

            edge_ops_triton.reduce_into(out, kernel, f, weights, rows, once=True, mean=mean)
        return out
    wide = at_least_float32(dtype)
    out = torch.zeros(rows.last - rows.first, kernel.shape[1], dtype=wide, device=kernel.device)
    reduce_into(out, kernel, f, weights, rows)
    return (out / rows.degrees().clamp_min_(1)[:, None] if mean else out).to(dtype)


def spread(
    gradient: Tensor,
    f: Tensor | None,
    weights: Tensor | None,
    rows: Rows,
    at: Tensor,
    dtype: torch.dtype,
    *,
    mean: bool = False,
) -> Tensor:
    """Gradient of `reduce_into` for the kernel: (e, C) of weights * gradient[row] * f[source], in `dtype`.

    gradient: (Q, C) of the rows; at: (e,) the row of every edge. mean: divide by the edges of the row, which
    our own kernels can do (`divides`).
    """
    if own_kernels(gradient):
        values = torch.empty(rows.count, gradient.shape[1], dtype=dtype, device=gradient.device)
        if not is_fake(gradient):
            from pinchpoint.kit.edges import edge_ops_triton

            edge_ops_triton.spread(gradient, f, weights, rows, at, values, mean=mean)
        return values
    assert not mean
    values = gradient.index_select(0, at)
    if f is not None:
        values = values * f.index_select(0, rows.sources())
    return (values if weights is None else values * weights[:, None]).to(dtype)


Order = tuple[Tensor, Tensor]


def source_order(rows: Rows) -> Order | None:
    """The sources of a chunk, sorted, and the place of each among its edges: (e,) int32 and int64.

    With it, our own kernels add each source's values in the order of their edges; atomics would add them in
    a different order every time. None where plain torch adds.
    """
    return torch.sort(rows.sources(), stable=True) if own_kernels(rows.edges.sources) else None


def add_to_f(
    total: Tensor,
    gradient: Tensor,
    kernel: Tensor,
    weights: Tensor | None,
    rows: Rows,
    at: Tensor,
    *,
    mean: bool = False,
    more: tuple[Tensor, int] | None = None,
    order: Order | None = None,
) -> None:
    """Add the gradient for f, weights * gradient[row] * kernel of the chunk's edges, to total (S, C).

    mean: as in `spread`. more: further gradients of the same sources, in C columns from the given one. order:
    `source_order`, if it is known.
    """
    if own_kernels(total):
        ordered, places = order or torch.sort(rows.sources(), stable=True)
        if not is_fake(total):
            from pinchpoint.kit.edges import edge_ops_triton

            of_rows = gradient, weights, rows, at, mean
            edge_ops_triton.add_runs(total, kernel, ordered, places, of_rows, more=more)
        return
    assert not mean
    values = gradient.index_select(0, at) * kernel
    values = values if weights is None else values * weights[:, None]
    add_by_source(total, values, rows, more=more)


def divides(tensor: Tensor) -> bool:
    """Whether `spread` and `add_to_f` divide by the edges of a row themselves on the tensor's device."""
    return own_kernels(tensor)


def add_by_source(
    total: Tensor,
    values: Tensor,
    rows: Rows,
    *,
    column: int = 0,
    more: tuple[Tensor, int] | None = None,
    order: Order | None = None,
) -> None:
    """Add values of the chunk's edges to their sources: total (S, W), W columns of values from `column`.

    more: further values and their first column. order: `source_order`, if it is known.
    """
    if not rows.count:
        return
    if own_kernels(total):
        ordered, places = order or torch.sort(rows.sources(), stable=True)
        if not is_fake(total):
            from pinchpoint.kit.edges import edge_ops_triton

            edge_ops_triton.add_runs(total, values, ordered, places, column=column, more=more)
        return
    width = total.shape[1]
    values = values[:, column : column + width]
    if more is not None:
        values = values + more[0][:, more[1] : more[1] + width]
    total.index_put_((rows.sources().long(),), values.to(total.dtype), accumulate=True)


def add_by_row(total: Tensor, values: Tensor, rows: Rows, *, column: int = 0) -> None:
    """Add values of the chunk's edges to their rows: total (Q, W), W columns of values from `column`."""
    if own_kernels(total):
        if not is_fake(total):
            from pinchpoint.kit.edges import edge_ops_triton

            edge_ops_triton.reduce_into(total, values, None, None, rows, column=column)
        return
    total[rows.first : rows.last] += rows.sum(values[:, column : column + total.shape[1]])


def widest(*tensors: Tensor | None) -> torch.dtype:
    """The dtype to which all the tensors are promoted."""
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    widest = dtypes[0]
    for dtype in dtypes[1:]:
        if dtype is not widest:
            widest = torch.promote_types(widest, dtype)
    return widest


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype, or float32 if it is narrower."""
    if dtype is torch.float32 or dtype is torch.float64:  # torch takes longer to say so than to allocate
        return dtype
    return torch.promote_types(dtype, torch.float32)


def own_kernels(tensor: Tensor) -> bool:
    """Whether our own Triton kernels run on the tensor's device. For a fake GPU the answer is yes."""
    return tensor.is_cuda and (is_fake(tensor) or _triton_works(tensor.device))


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's GPU the current one, on which our kernels are launched."""
    if not tensor.is_cuda or is_fake(tensor) or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def is_fake(tensor: Tensor) -> bool:
    """Whether the tensor has a shape but no data, as when the peak of a step is predicted."""
    return isinstance(tensor, compat.FakeTensor)


@cache
def _triton_works(device: torch.device) -> bool:
    """Whether Triton, a C compiler for its launchers and a supported GPU are present.

    If not, plain torch is used.
    """
    compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
    has_compiler = any(shutil.which(name) for name in compilers if name)
    return (
        find_spec("triton") is not None
        and has_compiler
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
