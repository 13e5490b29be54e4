"""The edge transform with memory that does not grow with the edges: chunks of rows, computed again in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from pinchpoint.kit.rows import Rows
    from pinchpoint.kit.transform import EdgeKernel


def flat_rows(
    kernel: EdgeKernel,
    modules: nn.ModuleDict,
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    quadrature: Tensor | None,
    parts: list[Rows],
) -> Tensor:
    """(Q, C): what `kernel.rows` gives for all parts, one after the other."""
    return _Flat.apply(kernel, modules, parts, x, y, f, quadrature, *modules.parameters())  # type: ignore[no-any-return]


class _Flat(torch.autograd.Function):
    """Keeps its inputs alone. Gradients are taken with respect to the values gathered at edges, then added up by point."""

    @staticmethod
    def forward(
        ctx: Any, kernel: EdgeKernel, modules: nn.ModuleDict, parts: list[Rows], x: Tensor, y: Tensor, f: Tensor | None,
        quadrature: Tensor | None, *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.kernel, ctx.modules, ctx.parts = kernel, modules, parts
        ctx.save_for_backward(x, y, f, quadrature, *parameters)
        ctx.autocast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
        out: Tensor | None = None
        for part in parts:
            made = kernel.rows(modules, x, y, f, quadrature, part)
            if out is None:
                out = made.new_empty(x.shape[0], made.shape[1])
            out[part.first : part.last] = made
        assert out is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = gradients
        x, y, f, quadrature, *parameters = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        values = (x, y, f, quadrature, *parameters)
        into: list[Tensor | None] = [None] * len(values)
        enabled, dtype = ctx.autocast
        for part in ctx.parts:
            if part.begin == part.end:
                continue
            leaves = [
                None if value is None else value.requires_grad_(want)
                for value, want in zip(ctx.kernel.gathered(x, y, f, quadrature, part), wanted[:4], strict=True)
            ]
            with torch.enable_grad(), torch.autocast(x.device.type, dtype, enabled=enabled):
                made = ctx.kernel.reduce(ctx.modules, *leaves, part)
            asked = [at for at, leaf in enumerate((*leaves, *parameters)) if leaf is not None and wanted[at]]
            inputs: Any = [(*leaves, *parameters)[at] for at in asked]
            found = torch.autograd.grad(made, inputs, gradient[part.first : part.last], allow_unused=True)
            for at, value in zip(asked, found, strict=True):
                if value is not None:
                    into[at] = _added(torch.zeros_like(values[at]) if into[at] is None else into[at], at, value, part)
        return None, None, None, *into


def _added(whole: Any, at: int, value: Tensor, part: Rows) -> Tensor:
    """A chunk's gradient added to the whole: x by row, y, f and weights by source, parameters as they are."""
    if at == 0:
        whole[part.first : part.last] += part.sum(value)
    elif at < 4:
        # Sorted accumulation: the same bits every time, on a GPU too, where atomics are not.
        whole.index_put_((part.sources().long(),), value, accumulate=True)
    else:
        whole += value
    return whole
