"""Packed sequences on the simulated device: packing, padding, and their backward passes.

The lengths are host data, so counts are exact. torch's own kernels read the padded tensor on the
host, which is not possible with a fake tensor.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.utils.rnn as rnn_utils

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import CannotFake

_VALUE_LIMIT = 1_000_000  # elements whose values are computed before they are read


def install(patches: Patches, observer: Observer) -> None:
    functions = compat.variable_functions()
    original_pack, original_pad = functions["_pack_padded_sequence"], functions["_pad_packed_sequence"]

    def pack(
        source: torch.Tensor, lengths: torch.Tensor, batch_first: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not observer.on_device(source):
            return original_pack(source, lengths, batch_first)
        if observer.on_device(lengths):
            raise RuntimeError(
                f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D cuda:0 tensor"
            )
        steps, batch = source.shape[:2][:: -1 if batch_first else 1]
        small = torch.empty(steps, batch, 1)
        _, batch_sizes = original_pack(small, _real_values(observer, lengths, "lengths"), False)
        return _Pack.apply(observer, original_pack, source, lengths, batch_first, batch_sizes), batch_sizes  # type: ignore[return-value]

    def pad(
        data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding: float, total_length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not observer.on_device(data):
            return original_pad(data, batch_sizes, batch_first, padding, total_length)
        batch_sizes = _real_values(observer, batch_sizes, "batch sizes")
        _, lengths = original_pad(torch.empty(data.shape[0], 1), batch_sizes, False, padding, total_length)
        out = _pad(data, batch_sizes.tolist(), padding, max(total_length, batch_sizes.shape[0]))
        return out.transpose(0, 1) if batch_first else out, lengths

    replacements = {"_pack_padded_sequence": pack, "_pad_packed_sequence": pad}
    compat.set_variable_functions(
        patches.set, rnn_utils, types.SimpleNamespace(**{**functions, **replacements})
    )


def _real_values(observer: Observer, tensor: torch.Tensor, what: str) -> torch.Tensor:
    real = observer.shadow(tensor)
    if real is None:
        site = observer.ledger.site()
        raise CannotFake(
            f"The {what} of packed sequences at {site.file}:{site.line} are computed by the model, "
            "which pinchpoint does not support yet.",
            hint="Predict the step with lengths from the data, or without packing.",
        )
    return real


class _Pack(torch.autograd.Function):
    """Gathers the valid steps, run by run, and then joins them: two copies exist for a moment."""

    @staticmethod
    def forward(
        ctx: Any,
        observer: Observer,
        original: Callable[..., Any],
        source: torch.Tensor,
        lengths: torch.Tensor,
        batch_first: bool,
        batch_sizes: torch.Tensor,
    ) -> torch.Tensor:
        ctx.observer, ctx.shape, ctx.batch_first, ctx.batch_sizes = (
            observer,
            tuple(source.shape),
            batch_first,
            batch_sizes,
        )
        out = source.new_empty(int(batch_sizes.sum()), *source.shape[2:])
        real = _values(observer, source)
        _set_values(
            observer,
            out,
            None
            if real is None
            else original(real, _real_values(observer, lengths, "lengths"), batch_first)[0],
        )
        ledger = observer.ledger
        size, phase = out.numel() * out.element_size(), ledger.phase or "forward"
        ledger.free_temporary(
            ledger.add_temporary(size, phase=phase, site=ledger.site(), op="pack_padded_sequence")
        )
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        steps, batch = ctx.shape[:2][:: -1 if ctx.batch_first else 1]
        source_gradient = gradients[0].new_zeros(steps, batch, *ctx.shape[2:])
        real = _values(ctx.observer, gradients[0])
        if real is not None:
            real = _pad(real, ctx.batch_sizes.tolist(), 0.0, steps)
        _set_values(ctx.observer, source_gradient, real)
        return (
            None,
            None,
            source_gradient.transpose(0, 1) if ctx.batch_first else source_gradient,
            None,
            None,
            None,
        )


def _values(observer: Observer, tensor: torch.Tensor) -> torch.Tensor | None:
    """Known values, if they are few enough to compute before they are read."""
    if tensor.numel() > observer.dynamic.shadow_limit(_VALUE_LIMIT):
        return None
    real = observer.shadow(tensor)
    return None if real is None else real.detach()


def _set_values(observer: Observer, tensor: Any, real: torch.Tensor | None) -> None:
    if real is None:
        observer.shadows.forget(tensor)
    else:
        observer.shadows.set_value(tensor, real)


def _pad(data: torch.Tensor, batch_sizes: list[int], padding: float, steps: int) -> torch.Tensor:
    """Pad (total, ...) to (steps, batch, ...): steps with the same batch size are one write, as in torch."""
    out = data.new_full((steps, batch_sizes[0], *data.shape[1:]), padding)
    start = row = 0
    for step in range(1, len(batch_sizes) + 1):
        if step < len(batch_sizes) and batch_sizes[step] == batch_sizes[start]:
            continue
        batch = batch_sizes[start]
        rows = batch * (step - start)
        out[start:step, :batch].copy_(data[row : row + rows].view(step - start, batch, *data.shape[1:]))
        start, row = step, row + rows
    return out
