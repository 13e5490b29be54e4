"""torch.autocast("cuda") on host tensors: CPU autocast with the operator lists of CUDA.

The kernels at the CPU's autocast key are replaced: those of products because torch as built for the machines
that hold GPUs (x86-64, gcc) casts the last argument first, while other builds cast the first one first, and
the order decides which cached blocks are used; the others because CUDA runs other operations in fp32.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)

# CUDA autocast runs these in fp32; CPU autocast does not change most of them.
_RAISED_OPERATIONS = (
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)
# CUDA autocast runs these in the lower precision.
_LOWERED_OPERATIONS = (
    "_convolution",
    "_convolution.deprecated",
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "conv1d",
    "conv1d.padding",
    "conv2d",
    "conv2d.padding",
    "conv3d",
    "conv3d.padding",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "einsum",
    "linalg_multi_dot",
    "linalg_vecdot",
    "linear",
    "matmul",
    "mm",
    "mv",
    "prelu",
)
# These run in the widest dtype of their inputs.
_WIDENED_OPERATIONS = (
    "grid_sampler",
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "index_put",
    "scatter_add",
    "tensordot",
)
# These run with dtype=float32 if no dtype is requested.
_FLOAT_RESULT = (
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "sum",
    "sum.dim_IntList",
    "prod",
    "prod.dim_int",
    "linalg_vector_norm",
)


# CPU autocast runs these in fp32, but CUDA autocast does not change them.
_LEFT_ALONE = (
    "cat",
    "stack",
    "index_copy",
    "cross_entropy_loss",
    "avg_pool3d",
    "max_pool3d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool3d",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
)


def install(patches: Patches) -> torch.library.Library:
    """Register the kernels; returns the library object, which must outlive the run."""
    _contexts(patches)
    copies = _WeightCopies()
    patches.set(torch, "clear_autocast_cache", copies.clear)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced, which is intended
        for name in filter(compat.cuda_autocasts, _RAISED_OPERATIONS):
            _register(library, name, _raise)
        for name in _LOWERED_OPERATIONS:
            _register(library, name, copies.lower)
        for name in _WIDENED_OPERATIONS:
            _register(library, name, _widen)
        for name in _FLOAT_RESULT:
            _register(library, name, _float_result)
        for name in _LEFT_ALONE:
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")
    return library


def _register(library: torch.library.Library, name: str, policy: Callable[[Any, Any, Any], Any]) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(_aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with compat.without_autocast():
            return policy(op, args, kwargs)

    library.impl(op, kernel, "AutocastCPU")


class _WeightCopies:
    """Casts arguments to the lower precision, and keeps the copies of weights until autocast is left."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def lower(self, op: Any, args: Any, kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        kwargs = {name: self._cast(value, dtype) for name, value in reversed(kwargs.items())}
        return op(*[self._cast(value, dtype) for value in reversed(args)][::-1], **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._cast(item, dtype) for item in value]
        if (
            not isinstance(value, torch.Tensor)
            or value.dtype in (dtype, torch.float64)
            or not value.is_floating_point()
        ):
            return value
        source, copy = self._copies.get(id(value), (None, None))
        if source is not None and source() is value:
            return copy
        copy = value.to(dtype)
        is_weight = value.dtype is torch.float32 and value.requires_grad and value.is_leaf
        if is_weight and not compat.is_view(value) and torch.is_autocast_cache_enabled():
            self._copies[id(value)] = weakref.ref(value), copy
        return copy

    def clear(self) -> None:
        while self._copies:
            self._copies.popitem()


def _raise(op: Any, args: Any, kwargs: Any) -> Any:
    kwargs = {name: _to_float(value) for name, value in reversed(kwargs.items())}
    return op(*[_to_float(value) for value in reversed(args)][::-1], **kwargs)


def _widen(op: Any, args: Any, kwargs: Any) -> Any:
    wide = any(isinstance(a, torch.Tensor) and a.dtype is torch.float32 for a in args)
    return _raise(op, args, kwargs) if wide else op(*args, **kwargs)


def _float_result(op: Any, args: Any, kwargs: Any) -> Any:
    """Request a float32 result unless a dtype is given; cross_entropy requests that of its input."""
    source = args[0]
    at = compat.argument_names(op).index("dtype")
    dtype = args[at] if at < len(args) else kwargs.get("dtype")
    if isinstance(source, torch.Tensor) and source.dtype in _HALF and dtype is None:
        if at < len(args):
            args = (*args[:at], torch.float32, *args[at + 1 :])
        else:
            kwargs = {**kwargs, "dtype": torch.float32}
    return op(*args, **kwargs)


def _to_float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALF else value


def _contexts(patches: Patches) -> None:
    """Redirect queries about CUDA autocast to CPU autocast, which replaces it."""
    original_init = torch.amp.autocast_mode.autocast.__init__

    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type.startswith("cuda"):
            device_type, dtype = "cpu", dtype or torch.float16
        original_init(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    patches.set(torch.amp.autocast_mode.autocast, "__init__", init)
    patches.set(
        torch.cuda.amp.autocast,
        "__init__",
        lambda self, enabled=True, dtype=torch.float16, cache_enabled=True: init(
            self, "cuda", dtype, enabled, cache_enabled
        ),
    )
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        patches.set(torch, name, _on_cpu(getattr(torch, name)))
    patches.set(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))


def _on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def ask(device_type: Any = "cuda", *args: Any) -> Any:
        if isinstance(device_type, str):
            return original("cpu" if device_type.startswith("cuda") else device_type, *args)
        return original("cpu", device_type)

    return ask
