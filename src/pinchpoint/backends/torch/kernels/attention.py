"""scaled_dot_product_attention as a GPU runs it: the same choice of kernel, the same outputs.

On the host torch would choose its own CPU kernel, which uses other memory. The choice below is that of
torch's select_sdp_backend: flash for 16-bit types, the memory-efficient kernel for fp32 and for masks, plain
arithmetic if none of them applies, and before them cuDNN on Hopper and data-centre Blackwell in some versions
of torch (`versions.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat, versions
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.ranks.compat import local_part
from pinchpoint.backends.torch.versions import Rules

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def install(patches: Patches, observer: Observer, *, capability: tuple[int, int]) -> None:
    attention = attention_on(
        lambda tensor: observer.on_device(local_part(tensor)) and not observer.dynamic.calibrating,
        F.scaled_dot_product_attention,
        capability=capability,
    )
    for owner, name in (
        (F, "scaled_dot_product_attention"),
        (compat.attention_owner(), "scaled_dot_product_attention"),
    ):
        patches.set(owner, name, attention)


def attention_on(
    is_on_device: Callable[[torch.Tensor], bool],
    original: Callable[..., torch.Tensor],
    *,
    capability: tuple[int, int],
) -> Callable[..., torch.Tensor]:
    """Attention with the kernel of a GPU for tensors on the device, and the original for others."""
    rules = versions.rules()
    cudnn = compat.cudnn_version()

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
        if not is_on_device(query):
            return original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        query, key, value = _autocast(query, key, value)
        if rules.unbatched and query.dim() == key.dim() == value.dim() == 3:
            while attn_mask is not None and attn_mask.dim() < 4:
                attn_mask = attn_mask.unsqueeze(0)
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            out = attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return out.squeeze(0)
        kernel = choose(
            query,
            key,
            value,
            attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            enable_gqa=enable_gqa,
            capability=capability,
            rules=rules,
            cudnn=cudnn,
        )
        if kernel == "plain" and query.dim() == 4 and key.shape[1] != query.shape[1]:
            key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
        if kernel == "plain":
            # torch casts the arguments of the whole operation only, not those of the parts it consists of.
            with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext():
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
            return out[..., :width] if pad else out
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_gradient, dropout_p, is_causal, scale=scale
        )[0]

    return attention


def choose(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    capability: tuple[int, int],
    rules: Rules | None = None,
    cudnn: int | None = None,
) -> str:
    """The kernel that CUDA uses ("cudnn", "flash", "efficient", "plain"), among those not switched off.

    Each kernel is refused for the same reasons as in torch's own choice; the first that is not is used.
    rules, cudnn: of a version of torch, by default the installed one; of cuDNN, by default that of its wheel.
    """
    rules = rules or versions.rules()
    cudnn = cudnn or rules.cudnn
    tensors = (query, key, value)
    shapes = [t.shape for t in tensors]
    if any(len(shape) != 4 for shape in shapes) or not query.dtype == key.dtype == value.dtype:
        return "plain"
    if any(shape[0] != query.shape[0] for shape in shapes) or not query.shape[2] or not key.shape[2]:
        return "plain"
    # A mask whose rows are not contiguous, such as a permuted bias, rules out every fused kernel.
    has_unit_strides = all(t.stride(-1) == 1 for t in tensors)
    mask_is_contiguous = mask is None or mask.stride(-1) == 1
    if not mask_is_contiguous or not (has_unit_strides or query.shape[-1] == 1):
        return "plain"
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    switches = torch.backends.cuda
    for kernel in _order(rules, cudnn, capability):
        if kernel == "plain":
            if switches.math_sdp_enabled():
                return kernel
            continue
        if capability > rules.newest_fused or not _accepts_heads(kernel, shapes, enable_gqa, rules):
            continue
        if kernel == "cudnn":
            accepted = (
                switches.cudnn_sdp_enabled()
                and query.dtype in _HALF
                and capability >= (8, 0)
                and _fits_cudnn(shapes, mask, dropout_p, trains, capability, rules, cudnn)
            )
        elif kernel == "flash":
            accepted = (
                switches.flash_sdp_enabled()
                and query.dtype in _HALF
                and capability >= (8, 0)
                and mask is None
                and not (is_causal and query.shape[2] != key.shape[2])
                and _fits_flash(shapes, dropout_p, trains, capability, rules)
            )
        else:
            accepted = (
                switches.mem_efficient_sdp_enabled()
                and has_unit_strides
                and _fits_efficient(query, key, value, capability)
            )
        if accepted:
            return kernel
    return "plain"


def _order(rules: Rules, cudnn: int, capability: tuple[int, int]) -> list[str]:
    """The order in which kernels are tried; cuDNN is first on some GPUs, unless the program sets an order."""
    order = compat.attention_order()
    if order != compat.ATTENTION_ORDER or os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1":
        return order
    major, minor = capability
    is_first = (
        rules.cudnn_first is not None
        and cudnn >= rules.cudnn_first
        and major in (9, 10)
        and (rules.cudnn_first_minors is None or minor in rules.cudnn_first_minors)
    )
    return ["cudnn", "flash", "efficient", "plain"] if is_first else order


def _accepts_heads(kernel: str, shapes: list[Any], enable_gqa: bool, rules: Rules) -> bool:
    """Whether a kernel takes these numbers of heads of queries, keys and values."""
    queries, keys, values = (shape[1] for shape in shapes)
    if enable_gqa and (kernel != "efficient" or rules.groups_in_efficient):
        return queries % keys == queries % values == 0 and (keys == values or kernel == "cudnn")
    return queries == keys == values or (rules.groups_in_efficient and keys == values == 1)


def _fits_flash(
    shapes: list[Any], dropout_p: float, trains: bool, capability: tuple[int, int], rules: Rules
) -> bool:
    batch, heads, _, width = shapes[0]
    if rules.flash_most_heads is not None and max(batch, heads) > rules.flash_most_heads:
        return False
    if trains and _lacks_wide_backward(capability) and _is_too_wide(width, dropout_p):
        return False
    return width <= 256 and width == shapes[1][-1] == shapes[2][-1]


def _fits_efficient(query: Any, key: Any, value: Any, capability: tuple[int, int]) -> bool:
    half = query.dtype in _HALF
    tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and half)
    multiple = (8 if half else 4) if tensor_cores else 1
    dtypes = (torch.float16, torch.float32, *((torch.bfloat16,) if capability >= (8, 0) else ()))
    return (
        query.dtype in dtypes
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % multiple == value.shape[-1] % multiple == 0
        and (capability < (8, 0) or all(t.storage_offset() % multiple == 0 for t in (query, key, value)))
    )


def _fits_cudnn(
    shapes: list[Any],
    mask: Any,
    dropout_p: float,
    trains: bool,
    capability: tuple[int, int],
    rules: Rules,
    cudnn: int,
) -> bool:
    """Whether cuDNN takes these shapes; a mask must not be learned, and broadcasts whole dimensions."""
    (batch, heads, rows, width), (_, _, columns, _), (*_, value_width) = shapes
    if (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        return False
    if dropout_p and (91100 < cudnn < 91400 or (rules.cudnn_dropout_steps and dropout_p * 16 % 1)):
        return False
    if rules.cudnn_most_heads is not None and max(batch, heads) > rules.cudnn_most_heads:
        return False
    if columns == 1 or (rows == 1 and (dropout_p or not rules.cudnn_single_query)):
        return False
    if width % 8 or value_width % 8 or not _fits_cudnn_width(width, value_width, capability, rules, cudnn):
        return False
    widths = (width, value_width)
    is_limited = trains and rules.cudnn_backward_widths and max(widths) > 128
    if is_limited and widths not in ((192, 128), (256, 256)):
        return False
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    full = (batch, heads, rows, columns)[-mask.dim() :]
    return all(size in (1, most) for size, most in zip(mask.shape, full, strict=True))


def _fits_cudnn_width(
    width: int, value_width: int, capability: tuple[int, int], rules: Rules, cudnn: int
) -> bool:
    is_wide = rules.cudnn_wide is not None and cudnn >= rules.cudnn_wide
    if is_wide and capability[0] in rules.cudnn_wide_majors:
        return max(width, value_width) <= 256
    if (width, value_width) == (192, 128) and capability[0] in rules.cudnn_192_majors:
        return cudnn >= 91100
    return max(width, value_width) <= 128


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
    if kernel == "cudnn":
        return mask
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
