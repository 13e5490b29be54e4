"""scaled_dot_product_attention as a GPU runs it: the same choice of kernel, the same outputs.

On the host torch would choose its own CPU kernel, which uses other memory. The choice below is that of
torch 2.11 to 2.13: cuDNN on Hopper and data-centre Blackwell for 16-bit types, flash elsewhere, the
memory-efficient kernel for fp32 and for masks, and plain arithmetic if none of them applies.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.observer import Observer

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def install(patches: Patches, observer: Observer, *, capability: tuple[int, int]) -> None:
    original = F.scaled_dot_product_attention

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if not observer.on_device(query) or observer.dynamic.calibrating:
            return original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        query, key, value = _autocast(query, key, value)
        kernel = choose(
            query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, capability=capability
        )
        if kernel in ("plain", "efficient") and query.dim() == 4 and key.shape[1] != query.shape[1]:
            key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        if kernel == "plain":
            return _plain(query, key, value, attn_mask, dropout_p, is_causal, scale)
        needs_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        bias = _bias(attn_mask, query, key, kernel)
        if kernel == "cudnn":
            return _aten._scaled_dot_product_cudnn_attention(
                query, key, value, bias, needs_gradient, dropout_p, is_causal, False, scale=scale
            )[0]
        if kernel == "flash":
            width = query.shape[-1]
            if pad := -width % 8:
                query, key, value = (F.pad(t, (0, pad)) for t in (query, key, value))
            out = _aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale or 1 / math.sqrt(width)
            )[0]
            return out[..., :width]
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_gradient, dropout_p, is_causal, scale=scale
        )[0]

    for owner, name in (
        (F, "scaled_dot_product_attention"),
        (compat.attention_owner(), "scaled_dot_product_attention"),
    ):
        patches.set(owner, name, attention)


def choose(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    capability: tuple[int, int],
) -> str:
    """The kernel that CUDA uses ("cudnn", "flash", "efficient", "plain"), among those not switched off.

    Each kernel is refused for the same reasons as in torch's own choice; the first that is not is used.
    """
    switches = torch.backends.cuda
    shapes = [t.shape for t in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes) or not query.dtype == key.dtype == value.dtype:
        return "plain"
    if len({shape[0] for shape in shapes}) > 1 or not query.shape[2] or not key.shape[2]:
        return "plain"
    width, value_width = query.shape[-1], value.shape[-1]
    # A mask whose rows are not contiguous, such as a permuted bias, rules out every fused kernel.
    has_unit_strides = all(t.stride(-1) == 1 for t in (query, key, value))
    mask_is_contiguous = mask is None or mask.stride(-1) == 1
    if not mask_is_contiguous or not (has_unit_strides or width == 1):
        return "plain"
    half = query.dtype in _HALF
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    if (
        switches.cudnn_sdp_enabled()
        and half
        and capability[0] in (9, 10)
        and _fits_cudnn(shapes, mask, dropout_p)
    ):
        return "cudnn"
    flash = (
        half
        and capability >= (8, 0)
        and mask is None
        and width <= 256
        and width == key.shape[-1] == value_width
        and not (is_causal and query.shape[2] != key.shape[2])
        and not (trains and _lacks_wide_backward(capability) and _is_too_wide(width, dropout_p))
    )
    if flash and switches.flash_sdp_enabled():
        return "flash"
    tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and half)
    multiple = (8 if half else 4) if tensor_cores else 1
    efficient = (
        query.dtype in (torch.float16, torch.float32, *((torch.bfloat16,) if capability >= (8, 0) else ()))
        and width == key.shape[-1]
        and width % multiple == value_width % multiple == 0
        and has_unit_strides
        and same_heads
        and all(t.storage_offset() % multiple == 0 for t in (query, key, value))
    )
    if efficient and switches.mem_efficient_sdp_enabled():
        return "efficient"
    return "plain"


def _fits_cudnn(shapes: list[Any], mask: Any, dropout_p: float) -> bool:
    """Whether cuDNN takes these shapes; a mask must not be learned, and broadcasts whole dimensions."""
    (batch, heads, rows, width), (_, _, columns, _), (*_, value_width) = shapes
    if (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        return False
    if (
        max(width, value_width) > 256
        or width % 8
        or value_width % 8
        or columns == 1
        or (rows == 1 and dropout_p)
    ):
        return False
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    full = (batch, heads, rows, columns)[-mask.dim() :]
    return all(size in (1, most) for size, most in zip(mask.shape, full, strict=True))


def _lacks_wide_backward(capability: tuple[int, int]) -> bool:
    """Consumer Ampere, Ada and Blackwell have too little shared memory for flash's widest backward pass."""
    return (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)


def _is_too_wide(width: int, dropout_p: float) -> bool:
    return width > 192 and (width <= 224 or dropout_p > 0)


def _autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        return [
            t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t
            for t in reversed(tensors)  # in the order of torch's own casts
        ][::-1]
    return list(tensors)


def _bias(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, kernel: str
) -> torch.Tensor | None:
    """Turn a boolean mask into an additive one; rows are padded if the kernel needs aligned loads."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = _additive(mask, query)
    elif mask.dtype != query.dtype:
        mask = mask.to(query.dtype)
    columns = mask.shape[-1]
    align = 16 if query.dtype in _HALF else 8
    if kernel == "efficient" and columns % align and columns > 1:
        mask = F.pad(mask, (0, align - columns % align))[..., :columns]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _plain(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Attention composed from operations, with every intermediate result that CUDA's composition keeps."""
    dtype = query.dtype
    if mask is not None and mask.dtype is torch.bool:
        mask = _additive(mask, query)
    if dtype in _HALF and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = (t.float() for t in (query, key, value))
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        below = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _additive(below, query)
    scores = (query * root) @ (key.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    weights = _aten._safe_softmax(scores, -1)
    del scores
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    # torch returns the weights too, which for 16-bit types is a copy that nobody keeps.
    _copy = weights.detach().to(dtype)
    return (weights @ value).to(dtype)


def _additive(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    low = torch.full((), -math.inf, dtype=query.dtype, device=query.device)
    return torch.where(mask, zero, low)
