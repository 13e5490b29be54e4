"""Shape rules of operations for which torch has none, or one that fails: `RULES`, by operation.

The CTC loss keeps a table with two entries per target symbol; targets that are concatenated to one row count
as if one of them had all symbols. A product with `out_dtype` returns the tensor that it writes to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten


def _ctc_loss(log_probs: Any, targets: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    steps, batch = log_probs.shape[0], log_probs.shape[1]
    longest = targets.shape[-1]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * longest + 1)


def _ctc_loss_backward(gradient: Any, log_probs: Any, *_: Any, **__: Any) -> Any:
    return torch.empty_like(log_probs)


def _written(*_: Any, out: Any, **__: Any) -> Any:
    return out


RULES: dict[Any, Callable[..., Any]] = {
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss.Tensor: _ctc_loss,
    _aten._ctc_loss_backward.default: _ctc_loss_backward,
    _aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
    **{
        operation.dtype_out: _written
        for operation in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm)
        if "dtype_out" in operation.overloads()
    },
}
