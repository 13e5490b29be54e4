"""A stand-in for flash-attn 2: the buffers that its kernels allocate, by its source (csrc/flash_attn).

Forward: the output, the logarithms of the row sums in fp32, and a random state of two integers; small
problems are split over the keys, which takes partial outputs in fp32. Backward: the gradients, the row sums
of dO * O, and the query gradient accumulated in fp32; with fewer key heads than query heads, also the
gradients of all heads before they are summed.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages import flash_attn_layers
from pinchpoint.backends.torch.packages.unknown_kernels import forget, overwritten

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Call:
    """One call: `lengths` are the cumulative lengths of sequences that are packed without padding."""

    observer: Observer
    dropout_p: float = 0.0
    deterministic: bool = False
    with_probabilities: bool = False
    window: tuple[int, int] = (-1, -1)
    has_slopes: bool = False
    lengths: torch.Tensor | None = None
    longest: tuple[Any, Any] = (0, 0)  # the longest query and key sequence

    @property
    def processors(self) -> int:
        return self.observer.kernel_model.processors

    @property
    def capability(self) -> tuple[int, int]:
        return self.observer.kernel_model.capability


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _row_contiguous(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t.contiguous() if t.stride(-1) != 1 else t for t in tensors]


def _wide(head: int) -> int:
    return _up(head, 32 if head <= 128 else 64)


def splits(blocks: int, processors: int, key_blocks: int) -> int:
    """How many parts the keys are split into, so that small problems use every processor."""
    if blocks >= 0.8 * processors:
        return 1
    efficiency = {}
    for count in range(1, min(128, processors, key_blocks) + 1):
        if count == 1 or -(-key_blocks // count) != -(-key_blocks // (count - 1)):
            waves = blocks * count / processors
            efficiency[count] = waves / math.ceil(waves)
    most = max(efficiency.values())
    return next(count for count, value in efficiency.items() if value >= 0.85 * most)


def _partial_outputs(
    q: torch.Tensor, batch: int, heads: int, rows: int, columns: int, processors: int, count: int = 0
) -> list[torch.Tensor]:
    """Row sums and outputs of each part in fp32, if the keys are split."""
    head = q.shape[-1]
    key_blocks = -(-columns // (256 if head <= 64 else 128 if head <= 128 else 64))
    count = count or splits(batch * heads * -(-rows // 64), 2 * processors, key_blocks)
    if count <= 1:
        return []
    shape = (count, batch, heads, rows)
    return [
        q.new_empty(shape, dtype=torch.float32),
        q.new_empty((*shape, _wide(head)), dtype=torch.float32),
    ]


def forward_buffers(
    call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """(output, row sums, probabilities, random state), as the compiled kernel allocates them."""
    if q.dtype not in _HALF:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    q, k, v = _row_contiguous(q, k, v)
    heads, key_heads, head = q.shape[-2], k.shape[-2], q.shape[-1]
    if head > 256:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")
    batch = q.shape[0] if call.lengths is None else call.lengths.shape[0] - 1
    rows, columns = (q.shape[1], k.shape[1]) if call.lengths is None else call.longest
    out = torch.empty_like(q)
    if call.lengths is None:
        sums = q.new_empty((batch, heads, q.shape[1]), dtype=torch.float32)
    else:
        sums = q.new_empty((heads, q.shape[0]), dtype=torch.float32)
    probabilities = None  # the kernel writes them only for tests of dropout
    if call.with_probabilities:
        shape = (batch, heads, _up(rows, 128), _up(columns, 128)) if call.dropout_p else (0,)
        probabilities = q.new_empty(shape)
    # A single query with grouped heads is computed as several queries of the key heads.
    is_swapped = (
        (call.lengths is None or heads > key_heads)
        and rows == 1
        and heads > key_heads
        and call.window == (-1, -1)
        and not call.dropout_p
        and not call.has_slopes
    )
    partial: list[torch.Tensor] = []
    if not call.dropout_p and (call.lengths is None or is_swapped):
        queries, groups = (heads // key_heads, key_heads) if is_swapped else (rows, heads)
        partial = _partial_outputs(q, batch, groups, queries, columns, call.processors)
    state = q.new_empty(2, dtype=torch.int64)
    del partial
    forget(call.observer, (out, sums, probabilities, state))
    return out, sums, probabilities, state


def backward_buffers(
    call: Call, dout: torch.Tensor, q: Any, k: Any, v: Any, out: Any, gradients: list[torch.Tensor]
) -> None:
    """What the compiled kernel allocates while it fills `gradients`."""
    dout, q, k, v, out = _row_contiguous(dout, q, k, v, out)
    heads, key_heads, head = q.shape[-2], k.shape[-2], q.shape[-1]
    if call.lengths is None:
        batch, rows = q.shape[0], _up(q.shape[1], 128)
        sums = q.new_empty((batch, heads, rows), dtype=torch.float32)
        accumulated = (batch, rows, heads, _wide(head))
    else:
        # Each sequence is padded by up to 128 rows.
        batch = call.lengths.shape[0] - 1
        sums = q.new_empty((heads, q.shape[0] + 128 * batch), dtype=torch.float32)
        accumulated = (q.shape[0] + 128 * batch, heads, _wide(head))
    if call.deterministic:
        accumulated = (-(-call.processors // (batch * heads)), *accumulated)
    query_gradient = q.new_empty(accumulated, dtype=torch.float32)
    if key_heads != heads:
        expanded = [k.new_empty((*k.shape[:-2], heads, head)) for _ in range(2)]
        for every, gradient in zip(expanded, gradients[1:], strict=True):
            parts = every.unflatten(-2, (key_heads, heads // key_heads))
            torch.sum(parts, -2, out=gradient)
    del sums, query_gradient
    forget(call.observer, gradients)


class _Attention(torch.autograd.Function):
    """sources: q, k, v; or q and packed k, v; or all three packed in one tensor."""

    @staticmethod
    def forward(ctx: Any, call: Call, *sources: torch.Tensor) -> Any:
        q, k, v = ctx.parts = _parts(sources)
        width = q.shape[-1]
        if width % 8:
            q, k, v = (F.pad(t, [0, 8 - width % 8]) for t in (q, k, v))
        out, sums, probabilities, state = forward_buffers(call, q, k, v)
        ctx.call, ctx.count = call, len(sources)
        del ctx.parts
        if any(ctx.needs_input_grad):
            lengths = [] if call.lengths is None else [call.lengths]
            ctx.save_for_backward(q, k, v, out, sums, state, *lengths)
        out = out[..., :width]
        return (out, sums, probabilities) if call.with_probabilities else out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        dout = gradients[0]
        q, k, v, out, *_ = ctx.saved_tensors
        width = dout.shape[-1]
        if ctx.count == 1:
            results = [q.new_empty((*q.shape[:-2], 3, *q.shape[-2:]))]
            parts = [results[0].select(-3, i) for i in range(3)]
        elif ctx.count == 2:
            results = [torch.empty_like(q), k.new_empty((*k.shape[:-2], 2, *k.shape[-2:]))]
            parts = [results[0], *(results[1].select(-3, i) for i in range(2))]
        else:
            results = parts = [torch.empty_like(t) for t in (q, k, v)]
        padded = F.pad(dout, [0, 8 - width % 8]) if width % 8 else dout
        backward_buffers(ctx.call, padded, q, k, v, out, parts)
        forget(ctx.call.observer, results)
        return None, *(result[..., :width] for result in results)


def _parts(sources: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if len(sources) == 1:
        q, k, v = sources[0].detach().unbind(-3)
    elif len(sources) == 2:
        q, (k, v) = sources[0], sources[1].detach().unbind(-3)
    else:
        q, k, v = sources
    return q, k, v


def modules(observer: Observer) -> dict[str, dict[str, Any]]:
    def attend(
        *sources: torch.Tensor,
        dropout_p: float,
        window_size: tuple[int, int],
        alibi_slopes: Any,
        deterministic: bool,
        return_attn_probs: bool,
        lengths: torch.Tensor | None = None,
        longest: tuple[Any, Any] = (0, 0),
    ) -> Any:
        call = Call(
            observer,
            dropout_p,
            deterministic,
            return_attn_probs,
            (window_size[0], window_size[1]),
            alibi_slopes is not None,
            lengths,
            longest,
        )
        return _Attention.apply(call, *sources)

    def fixed(*sources: str) -> Any:
        signature = _signature(*sources, **_OPTIONS)

        def function(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            values = call.arguments
            tensors = [values.pop(name) for name in sources]
            return attend(*tensors, **_that_matter(values))

        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def packed(*sources: str) -> Any:
        names = ("cu_seqlens", "max_seqlen") if len(sources) == 1 else _LENGTHS
        signature = _signature(
            *sources, *names, **_OPTIONS, **({"block_table": None} if len(sources) == 3 else {})
        )

        def function(*args: Any, **kwargs: Any) -> Any:
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            values = call.arguments
            lengths, *rest = (values.pop(name) for name in names)
            longest = (rest[0], rest[0]) if len(rest) == 1 else (rest[1], rest[2])
            tensors = [values.pop(name) for name in sources]
            return attend(*tensors, **_that_matter(values), lengths=lengths, longest=longest)

        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def flash_attn_with_kvcache(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: torch.Tensor | None = None,
        v: torch.Tensor | None = None,
        *args: Any,
        block_table: torch.Tensor | None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
        **kwargs: Any,
    ) -> Any:
        (q,) = _row_contiguous(q)
        batch, rows, heads, head = q.shape
        key_heads = k_cache.shape[-2]
        columns = k_cache.shape[1] if block_table is None else block_table.shape[1] * k_cache.shape[1]
        padded = [F.pad(t, [0, 8 - head % 8]) for t in (q, k_cache, v_cache)] if head % 8 else [q]
        out = torch.empty_like(padded[0])
        if rows == 1 and heads > key_heads and not head % 8:
            rows, heads = heads // key_heads, key_heads
        sums = q.new_empty((batch, heads, rows), dtype=torch.float32)
        partial = _partial_outputs(
            padded[0], batch, heads, rows, columns, observer.kernel_model.processors, num_splits
        )
        del partial
        forget(observer, (out, sums))
        if k is not None:
            overwritten(observer, (k_cache, v_cache))
        return (out[..., :head], sums) if return_softmax_lse else out[..., :head]

    attention = {
        "flash_attn_func": fixed("q", "k", "v"),
        "flash_attn_kvpacked_func": fixed("q", "kv"),
        "flash_attn_qkvpacked_func": fixed("qkv"),
        "flash_attn_varlen_func": packed("q", "k", "v"),
        "flash_attn_varlen_kvpacked_func": packed("q", "kv"),
        "flash_attn_varlen_qkvpacked_func": packed("qkv"),
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
    }
    for name, function in attention.items():
        function.__name__ = name
    return {
        "flash_attn": attention,
        "flash_attn.flash_attn_interface": attention,
        **flash_attn_layers.modules(observer),
    }


_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_OPTIONS = {
    "dropout_p": 0.0,
    "softmax_scale": None,
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "alibi_slopes": None,
    "deterministic": False,
    "return_attn_probs": False,
}


def _signature(*names: str, **defaults: Any) -> inspect.Signature:
    """A signature as in the package; libraries read the names of its arguments."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    required = [inspect.Parameter(name, kind) for name in names]
    return inspect.Signature(
        [*required, *(inspect.Parameter(name, kind, default=value) for name, value in defaults.items())]
    )


def _that_matter(values: dict[str, Any]) -> dict[str, Any]:
    """Without the options that change no allocation."""
    without = ("softmax_scale", "causal", "softcap", "block_table")
    return {name: value for name, value in values.items() if name not in without}
