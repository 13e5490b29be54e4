"""scaled_dot_product_attention as a GPU runs it: the same choice of kernel, the same outputs.

On the host torch would choose its own CPU kernel, which uses other memory. The choice below is that of
torch 2.11 to 2.13: cuDNN on Hopper and later for 16-bit types, flash elsewhere, the memory-efficient
kernel for fp32 and for masks, and plain arithmetic if none of them applies.
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
        if query.dim() == 3:
            # Kernels need (batch, heads, rows, width); otherwise CUDA uses plain arithmetic.
            return _plain(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if enable_gqa and key.shape[1] != query.shape[1]:
            key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        kernel = choose(query, key, value, attn_mask, capability=capability)
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


def choose(query: Any, key: Any, value: Any, mask: Any, *, capability: tuple[int, int]) -> str:
    """The enabled kernel that CUDA uses: "cudnn", "flash", "efficient" or "plain"."""
    if any(t.stride(-1) != 1 for t in (query, key, value)):
        return "plain"  # every fused kernel needs a contiguous width
    switches = torch.backends.cuda
    width = query.shape[-1]
    half = query.dtype in _HALF
    masked = mask is not None
    learned_mask = masked and mask.requires_grad
    fits_cudnn = width % 8 == 0 and width <= 128 and not learned_mask and value.shape[-1] == width
    if half and capability >= (9, 0) and fits_cudnn and switches.cudnn_sdp_enabled():
        return "cudnn"
    flash = half and capability >= (8, 0) and width <= 256 and not masked and value.shape[-1] == width
    if flash and switches.flash_sdp_enabled():
        return "flash"
    efficient = (
        query.dtype in (*_HALF, torch.float32) and capability >= (5, 0) and width % (8 if half else 4) == 0
    )
    if efficient and switches.mem_efficient_sdp_enabled():
        return "efficient"
    return "plain"


def _autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        return [t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]
    return list(tensors)


def _bias(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, kernel: str
) -> torch.Tensor | None:
    """Turn a boolean mask into an additive one; rows are padded if the kernel needs aligned loads."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        low = torch.full((), -math.inf, dtype=query.dtype, device=query.device)
        mask = torch.where(mask, zero, low)
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
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    scores = (query * root) @ (key * root).transpose(-2, -1)
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return weights @ value
