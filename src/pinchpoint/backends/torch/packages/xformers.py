"""A stand-in for xformers: its attention, SwiGLU and unbind.

xformers runs flash attention for 16-bit types without a dense bias, and torch's memory-efficient kernel
otherwise. On Ampere and Hopper it may run the third version of flash attention, whose backward pass has one
more row of sums; it is counted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import nn

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages import flash_attn
from pinchpoint.backends.torch.packages.unknown_kernels import forget
from pinchpoint.core.errors import CannotFake

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)

# --- biases


class AttentionBias:
    """The base of all biases that are not tensors; none of them is materialised."""

    is_causal = False


class LowerTriangularMask(AttentionBias):
    is_causal = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class LowerTriangularFromBottomRightMask(LowerTriangularMask):
    pass


class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularMask):
    pass


class LocalAttentionFromBottomRightMask(AttentionBias):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class BlockDiagonalMask(AttentionBias):
    """Sequences packed one after the other: `starts` holds where each begins, on the device."""

    def __init__(self, queries: list[int], keys: list[int], device: Any = None) -> None:
        self.queries, self.keys = queries, keys
        self.starts = [_starts(lengths, device) for lengths in (queries, keys)]
        self._batch_sizes: list[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Iterable[int], kv_seqlen: Iterable[int] | None = None, *, device: Any = None
    ) -> Self:
        queries = list(q_seqlen)
        return cls(queries, queries if kv_seqlen is None else list(kv_seqlen), device)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[torch.Tensor]) -> tuple[Self, torch.Tensor]:
        sizes = [t.shape[0] for t in tensors]
        mask = cls.from_seqlens([t.shape[1] for t in tensors for _ in range(t.shape[0])])
        mask._batch_sizes = sizes
        return mask, torch.cat([t.reshape(1, -1, *t.shape[2:]) for t in tensors], 1)

    def _as(self, kind: type[BlockDiagonalMask]) -> BlockDiagonalMask:
        mask = kind.__new__(kind)
        vars(mask).update(vars(self))
        return mask

    def make_causal(self) -> BlockDiagonalMask:
        return self._as(BlockDiagonalCausalMask)

    def make_causal_from_bottomright(self) -> BlockDiagonalMask:
        return self._as(BlockDiagonalCausalFromBottomRightMask)

    def make_local_attention(self, window_size: int) -> BlockDiagonalMask:
        return self._as(BlockDiagonalCausalLocalAttentionMask)

    make_local_attention_from_bottomright = make_local_attention

    def split_queries(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._split(tensor, self.queries)

    def split_kv(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._split(tensor, self.keys)

    split = split_queries

    def _split(self, tensor: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
        parts, at, number = [], 0, 0
        for size in self._batch_sizes or [1] * len(lengths):
            length = lengths[number]
            parts.append(tensor[:, at : at + size * length].reshape(size, length, *tensor.shape[2:]))
            at, number = at + size * length, number + size
        return parts


class BlockDiagonalCausalMask(BlockDiagonalMask):
    is_causal = True


class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    is_causal = True


class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalMask):
    is_causal = True


def _starts(lengths: list[int], device: Any) -> torch.Tensor:
    total, starts = 0, [0]
    for length in lengths:
        starts.append(total := total + length)
    return torch.tensor(starts, dtype=torch.int32, device=device or "cuda")


# --- attention


class _Flash(torch.autograd.Function):
    """Flash attention; its random state is kept only for dropout, and packed inputs get packed gradients."""

    @staticmethod
    def forward(ctx: Any, call: flash_attn.Call, q: Any, k: Any, v: Any) -> Any:
        out, sums, _, state = flash_attn.forward_buffers(call, *_flat(call, q, k, v))
        out = out.reshape(q.shape)
        ctx.call, ctx.state = call, state if call.dropout_p else None
        # The stride of the heads in a tensor (..., heads, 3, width) that was split in three.
        ctx.is_packed = q.shape == k.shape == v.shape and q.stride(-2) == 3 * q.shape[-1]
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, out, sums = ctx.saved_tensors
        flat = _flat(ctx.call, q, k, v, out)
        dout = gradients[0].reshape(flat[3].shape).contiguous()
        if ctx.is_packed:
            results = list(q.new_empty((*q.shape[:-2], 3, *q.shape[-2:])).unbind(-3))
        else:
            results = [torch.empty_like(t) for t in (q, k, v)]
        more_sums = torch.empty_like(sums) if ctx.call.capability <= (9, 0) else None
        flash_attn.backward_buffers(ctx.call, dout, flat[0], flat[1], flat[2], flat[3], results)
        del more_sums
        return None, *results


def _flat(call: flash_attn.Call, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Packed sequences have no batch dimension in the kernel."""
    return [t.flatten(0, 1) for t in tensors] if call.lengths is not None else list(tensors)


def _attend(observer: Observer, query: Any, key: Any, value: Any, bias: Any, p: float, scale: Any) -> Any:
    if query.dim() == 5:
        raise CannotFake(
            "xformers.ops.memory_efficient_attention of tensors with 5 dimensions (grouped heads) is not "
            "supported by pinchpoint yet.",
            hint="Expand the key heads to the query heads, or use flash-attn, for the prediction.",
        )
    if query.dim() == 3:
        query, key, value = (t.unsqueeze(2) for t in (query, key, value))
        return _attend(observer, query, key, value, bias, p, scale).squeeze(2)
    capability = observer.kernel_model.capability
    is_dense = isinstance(bias, torch.Tensor)
    if (
        query.dtype in _HALF
        and capability >= (8, 0)
        and not is_dense
        and query.shape[-1] == value.shape[-1] <= 256
        and query.shape[-1] % 8 == 0
    ):
        packed = isinstance(bias, BlockDiagonalMask)
        call = flash_attn.Call(
            observer,
            dropout_p=p,
            lengths=bias.starts[0] if packed else None,
            longest=(max(bias.queries), max(bias.keys)) if packed else (0, 0),
        )
        return _Flash.apply(call, query, key, value)
    causal = getattr(bias, "is_causal", False)
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    mask = bias.expand(query.shape[0], query.shape[2], query.shape[1], -1) if is_dense else None
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    out = _aten._scaled_dot_product_efficient_attention(q, k, v, mask, trains, p, causal, scale=scale)[0]
    return out.transpose(1, 2)


# --- unbind and SwiGLU


class _Unbind(torch.autograd.Function):
    """`unbind` whose gradients are stacked only if they do not lie in one storage already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> Any:
        ctx.dim = dim % x.dim()
        return x.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        first, second = gradients[0], gradients[1]
        step = second.storage_offset() - first.storage_offset()
        keys = {compat.storage_key(g.untyped_storage()) for g in gradients}
        offsets = [g.storage_offset() for g in gradients]
        in_place = [first.storage_offset() + i * step for i in range(len(gradients))]
        if len(keys) > 1 or offsets != in_place or len({g.stride() for g in gradients}) > 1:
            return torch.stack(gradients, ctx.dim), None
        shape, strides = list(first.shape), list(first.stride())
        shape.insert(ctx.dim, len(gradients))
        strides.insert(ctx.dim, step)
        return first.as_strided(shape, strides), None


def _swiglu(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, *, op: Any = None) -> Any:
    flat = x.reshape(-1, x.shape[-1])
    hidden = F.silu(F.linear(flat, w1, b1)) * F.linear(flat, w2, b2)
    return F.linear(hidden, w3, b3).reshape(*x.shape[:-1], -1)


class SwiGLU(nn.Module):
    """Its default is plain torch since 0.0.31; `w12` holds the weights of both gates."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        **_: Any,
    ) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w1, w2 = _Unbind.apply(self.w12.weight.unflatten(0, (2, -1)), 0)  # type: ignore[misc]
        bias = self.w12.bias
        b1, b2 = (None, None) if bias is None else _Unbind.apply(bias.unflatten(0, (2, -1)), 0)  # type: ignore[misc]
        return _swiglu(x, w1, b1, w2, b2, self.w3.weight, self.w3.bias)


def modules(observer: Observer) -> dict[str, dict[str, Any]]:
    def memory_efficient_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: Any = None,
        p: float = 0.0,
        scale: float | None = None,
        *,
        op: Any = None,
        output_dtype: Any = None,
    ) -> torch.Tensor:
        out = _attend(observer, query, key, value, attn_bias, p, scale)
        forget(observer, out)
        return out

    biases = {
        kind.__name__: kind
        for kind in (
            AttentionBias,
            LowerTriangularMask,
            LowerTriangularFromBottomRightMask,
            LowerTriangularFromBottomRightLocalAttentionMask,
            LocalAttentionFromBottomRightMask,
            BlockDiagonalMask,
            BlockDiagonalCausalMask,
            BlockDiagonalCausalFromBottomRightMask,
            BlockDiagonalCausalLocalAttentionMask,
        )
    }
    attention = {"memory_efficient_attention": memory_efficient_attention, **biases}
    operations = {**attention, "unbind": _Unbind.apply, "SwiGLU": SwiGLU, "swiglu": _swiglu}
    return {
        "xformers": {},
        "xformers.ops": operations,
        "xformers.ops.fmha": attention,
        "xformers.ops.fmha.attn_bias": biases,
        "xformers.ops.swiglu_op": {"SwiGLU": SwiGLU, "swiglu": _swiglu},
    }
