"""The padding functions, rotary embeddings and cross entropy of flash-attn, by its source."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages.unknown_kernels import forget


def modules(observer: Observer) -> dict[str, dict[str, Any]]:
    rotary = {"apply_rotary_emb": lambda x, *args, **kwargs: _rotate(observer, x, *args, **kwargs)}
    rotary["apply_rotary_emb_func"] = rotary["apply_rotary_emb"]
    return {
        "flash_attn.bert_padding": {
            "index_first_axis": _TakeRows.apply,
            "index_put_first_axis": _PutRows.apply,
            "unpad_input": _unpad_input,
            "pad_input": _pad_input,
        },
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": rotary,
        "flash_attn.losses": {},
        "flash_attn.losses.cross_entropy": {"CrossEntropyLoss": _loss_layer(observer)},
        "flash_attn.ops": {},
    }


class _TakeRows(torch.autograd.Function):
    """`index_first_axis`: a gather whose index is expanded without a copy."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.rows = source.shape[0]
        flat = source.flatten(1)
        index = indices.unsqueeze(1).expand(-1, flat.shape[1])
        return torch.gather(flat, 0, index).reshape(-1, *source.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (indices,) = ctx.saved_tensors
        gradient = gradients[0].flatten(1)
        result = gradient.new_zeros(ctx.rows, gradient.shape[1])
        result.scatter_(0, indices.unsqueeze(1).expand(-1, gradient.shape[1]), gradient)
        return result.reshape(ctx.rows, *gradients[0].shape[1:]), None


class _PutRows(torch.autograd.Function):
    """`index_put_first_axis`: rows written into zeros."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, rows: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        result = values.new_zeros(rows, *values.shape[1:])
        result[indices] = values
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (indices,) = ctx.saved_tensors
        return gradients[0][indices], None, None


def _unpad_input(hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: Any = None) -> Any:
    every = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = every.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    indices = torch.nonzero(every.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    starts = F.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    return _TakeRows.apply(hidden_states.flatten(0, 1), indices), indices, starts, longest, used


def _pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    return _PutRows.apply(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


class _Rotary(torch.autograd.Function):
    """A Triton kernel: the output is new unless `inplace`; only the tables are kept."""

    @staticmethod
    def forward(ctx: Any, observer: Observer, x: torch.Tensor, cos: Any, sin: Any, inplace: bool) -> Any:
        ctx.save_for_backward(cos, sin)
        ctx.observer, ctx.inplace = observer, inplace
        if inplace:
            ctx.mark_dirty(x)
        out = x if inplace else torch.empty_like(x)
        if not inplace and 2 * cos.shape[-1] < x.shape[-1]:
            out[..., 2 * cos.shape[-1] :].copy_(x[..., 2 * cos.shape[-1] :])
        forget(observer, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        out = gradients[0] if ctx.inplace else torch.empty_like(gradients[0])
        forget(ctx.observer, out)
        return None, out, None, None, None


def _rotate(
    observer: Observer,
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    return _Rotary.apply(observer, x, cos, sin, inplace)  # type: ignore[return-value]


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits and their sums in fp32; the gradient is new, or written over the logits."""

    @staticmethod
    def forward(ctx: Any, observer: Observer, logits: torch.Tensor, labels: Any, in_place: bool) -> Any:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        losses, sums, squares = (logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3))
        ctx.observer, ctx.in_place = observer, in_place
        ctx.save_for_backward(logits, sums, labels)
        ctx.mark_non_differentiable(squares)
        forget(observer, (losses, squares))
        return losses, squares

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits = ctx.saved_tensors[0]
        result = logits if ctx.in_place else torch.empty_like(logits)
        forget(ctx.observer, result)
        return None, result, None, None


def _loss_layer(observer: Observer) -> type[nn.Module]:
    class CrossEntropyLoss(nn.Module):
        def __init__(
            self,
            ignore_index: int = -100,
            reduction: str = "mean",
            inplace_backward: bool = False,
            return_z_loss: bool = False,
            **_: Any,
        ) -> None:
            super().__init__()
            self.ignore_index, self.reduction = ignore_index, reduction
            self.inplace_backward, self.return_z_loss = inplace_backward, return_z_loss

        def forward(self, input: torch.Tensor, target: torch.Tensor, precomputed_lse: Any = None) -> Any:
            parts: Any = _CrossEntropy.apply(observer, input, target, self.inplace_backward)
            if self.reduction != "none":
                parts = [part.sum() for part in parts]
            if self.reduction == "mean":
                parts = [part / (target != self.ignore_index).sum() for part in parts]
            return tuple(parts) if self.return_z_loss else parts[0]

    return CrossEntropyLoss
