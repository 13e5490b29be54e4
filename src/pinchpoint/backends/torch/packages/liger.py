"""A stand-in for liger-kernel, used where the package is absent; otherwise its own Python runs.

By its source (version 0.8): norms keep their input and statistics in fp32, and sum weight gradients in one
row per processor; SwiGLU and GEGLU keep both inputs and write their gradients over them; cross entropy
writes the gradient over the logits. The fused linear cross entropy computes logits in chunks whose size is
about that of the input, and all gradients in the forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages import liger_models
from pinchpoint.backends.torch.packages.unknown_kernels import forget
from pinchpoint.core.errors import CannotFake

_HALF = (torch.float16, torch.bfloat16)
Tensor = torch.Tensor


class _Norm(torch.autograd.Function):
    """RMS norm, or layer norm with a bias; in_place: the gradient is written over that of the output."""

    @staticmethod
    def forward(
        ctx: Any, observer: Observer, dtypes: Any, in_place: bool, x: Tensor, *weights: Any
    ) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        rows = x.numel() // x.shape[-1]
        statistics = [x.new_empty(rows, dtype=dtype) for dtype in dtypes]
        ctx.save_for_backward(x, *weights, *statistics)
        ctx.observer, ctx.in_place, ctx.count = observer, in_place, len(weights)
        forget(observer, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, *rest = ctx.saved_tensors
        weights = rest[: ctx.count]
        gradient = gradients[0].contiguous()
        processors = ctx.observer.kernel_model.processors
        needs = ctx.needs_input_grad[4 : 4 + ctx.count]
        parts = [
            x.new_empty((processors, x.shape[-1]), dtype=torch.float32) if need else None for need in needs
        ]
        # A view: autograd takes over a new tensor object, but would copy one that its caller holds.
        result = gradient.view_as(gradient) if ctx.in_place else torch.empty_like(gradient)
        sums = [
            None if part is None else part.sum(0).to(weight.dtype)
            for part, weight in zip(parts, weights, strict=True)
        ]
        forget(ctx.observer, (result, sums))
        return None, None, None, result, *sums


class _GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, observer: Observer, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(a)
        ctx.observer = observer
        ctx.save_for_backward(a, b)
        forget(observer, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        a, b = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        del gradient
        forget(ctx.observer, (a, b))
        return None, a, b


class _Rotary(torch.autograd.Function):
    """Rotates in place what is contiguous after the heads are moved behind the positions."""

    @staticmethod
    def forward(ctx: Any, observer: Observer, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        cos, sin = cos.contiguous(), sin.contiguous()
        q, k = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k))
        ctx.observer = observer
        ctx.save_for_backward(cos, sin)
        forget(observer, (q, k))
        return q, k

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        dq, dk = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in gradients)
        forget(ctx.observer, (dq, dk))
        return None, dq, dk, None, None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, observer: Observer, logits: Tensor, target: Tensor, ignore: int, how: str
    ) -> Tensor:
        losses = logits.new_zeros(logits.shape[0])
        mask = target != ignore
        mask.sum()
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        ctx.observer = observer
        if ctx.needs_input_grad[1]:
            ctx.save_for_backward(logits.detach())
        forget(observer, (logits, losses))
        return losses if how == "none" else losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (logits,) = ctx.saved_tensors
        if gradients[0].dim():
            logits = logits * gradients[0].unsqueeze(1)
        forget(ctx.observer, logits)
        return None, logits, None, None, None


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        observer: Observer,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Any,
        ignore: int,
        reduction: str,
        accumulate: Any,
    ) -> Tensor:
        if reduction == "none":
            raise CannotFake(
                "LigerFusedLinearCrossEntropyLoss with reduction='none' is not supported by pinchpoint yet.",
                hint=liger_models.INSTALL,
            )
        needs_x, needs_weight = ctx.needs_input_grad[1], ctx.needs_input_grad[2]
        (rows, width), vocabulary = x.shape, weight.shape[0]
        chunk = -(-rows // -(-vocabulary // width))
        chunk = min(1 << max(chunk - 1, 0).bit_length(), rows)
        dx = torch.zeros_like(x)
        dweight = torch.zeros_like(weight, dtype=accumulate) if needs_x and needs_weight else None
        dbias = torch.zeros_like(bias, dtype=accumulate) if needs_x and bias is not None else None
        losses = x.new_zeros(rows, dtype=torch.float32)
        mask = target != ignore
        mask.sum()
        autocast = torch.is_autocast_enabled("cpu")
        plain = (
            x.dtype == weight.dtype
            and x.dtype in (*_HALF, torch.float32)
            and (not autocast or x.dtype == torch.get_autocast_dtype("cpu"))
        )
        reused = (
            x.new_empty((chunk, vocabulary)) if plain and (bias is None or bias.dtype == x.dtype) else None
        )
        for start in range(0, rows, chunk):
            part = x[start : start + chunk]
            if reused is not None:
                logits = reused[: part.shape[0]]
                torch.mm(part, weight.t(), out=logits)
                if bias is not None:
                    logits.add_(bias)
            else:
                logits = part @ weight.t()
                if bias is not None:
                    logits = logits + bias
            if needs_x:
                of_part = dx[start : start + chunk]
                if plain and logits.dtype == dx.dtype:
                    torch.mm(logits, weight, out=of_part)
                else:
                    of_part.copy_(logits @ weight)
            if dweight is not None:
                _accumulate(dweight, logits, part, observer.kernel_model.capability)
            if dbias is not None:
                torch.add(dbias, logits.sum(0), out=dbias)
            del logits, part
        del reused
        loss = losses.sum()
        dweight = None if dweight is None else dweight.to(weight.dtype)
        dbias = None if dbias is None or bias is None else dbias.to(bias.dtype)
        ctx.observer = observer
        ctx.has = dweight is not None, dbias is not None
        ctx.save_for_backward(*(t for t in (dx, dweight, dbias) if t is not None))
        forget(observer, (loss, dx, dweight, dbias))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        dx, *rest = ctx.saved_tensors
        dweight, dbias = (rest.pop(0) if has else None for has in ctx.has)
        return None, dx, dweight, None, dbias, None, None, None


def _accumulate(dweight: Tensor, logits: Tensor, x: Tensor, capability: tuple[int, int]) -> None:
    """Add a chunk's product to the weight gradient, without a temporary copy where cuBLAS can."""
    mixed = dweight.dtype == torch.float32 and logits.dtype in _HALF
    if capability[0] >= 8 and logits.dtype in _HALF and (dweight.dtype == logits.dtype or mixed):
        x = x if x.dtype == logits.dtype else x.to(logits.dtype)
        if not mixed:
            torch.addmm(dweight, logits.t(), x, out=dweight)
            return
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8):
            torch.addmm(dweight, logits.t(), x, out_dtype=torch.float32, out=dweight)
            return
    dweight += torch.mm(logits.t(), x).float()


def _layers(observer: Observer) -> dict[str, Any]:
    class LigerRMSNorm(nn.Module):
        def __init__(
            self,
            hidden_size: int,
            eps: float = 1e-6,
            offset: float = 0.0,
            casting_mode: str = "llama",
            init_fn: str = "ones",
            in_place: bool = True,
            row_mode: Any = None,
            elementwise_affine: bool = True,
        ) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden_size)) if elementwise_affine else None
            self.casting_mode, self.in_place = casting_mode, in_place

        def forward(self, hidden_states: Tensor) -> Any:
            dtype = torch.float32 if self.casting_mode in ("llama", "gemma") else hidden_states.dtype
            weights = [] if self.weight is None else [self.weight]
            return _Norm.apply(observer, (dtype,), self.in_place, hidden_states, *weights)

    class LigerLayerNorm(nn.Module):
        def __init__(self, hidden_size: int, eps: float = 1e-6, bias: bool = False, **_: Any) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden_size))
            self.bias = nn.Parameter(torch.zeros(hidden_size))

        def forward(self, hidden_states: Tensor) -> Any:
            return _Norm.apply(observer, (torch.float32,) * 2, False, hidden_states, self.weight, self.bias)

    class LigerSwiGLUMLP(nn.Module):
        def __init__(self, config: Any, intermediate_size: int | None = None) -> None:
            super().__init__()
            width, inner = config.hidden_size, intermediate_size or config.intermediate_size
            self.gate_proj = nn.Linear(width, inner, bias=False)
            self.up_proj = nn.Linear(width, inner, bias=False)
            self.down_proj = nn.Linear(inner, width, bias=False)

        def forward(self, x: Tensor) -> Any:
            return self.down_proj(_GatedProduct.apply(observer, self.gate_proj(x), self.up_proj(x)))

    class LigerGEGLUMLP(LigerSwiGLUMLP):
        pass

    class LigerCrossEntropyLoss(nn.Module):
        def __init__(
            self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", **_: Any
        ) -> None:
            super().__init__()
            self.ignore_index, self.reduction = ignore_index, reduction

        def forward(self, _input: Tensor, target: Tensor) -> Any:
            return _CrossEntropy.apply(observer, _input, target, self.ignore_index, self.reduction)

    class LigerFusedLinearCrossEntropyLoss(nn.Module):
        def __init__(
            self, ignore_index: int = -100, reduction: str = "mean", accum_dtype: Any = None, **_: Any
        ) -> None:
            super().__init__()
            self.ignore_index, self.reduction, self.accum_dtype = ignore_index, reduction, accum_dtype

        def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Any = None) -> Any:
            return _FusedLinearCrossEntropy.apply(
                observer,
                _input,
                lin_weight,
                target,
                bias,
                self.ignore_index,
                self.reduction,
                self.accum_dtype,
            )

    def liger_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
    ) -> Any:
        return _Rotary.apply(observer, q, k, cos, sin)

    functions = (liger_rotary_pos_emb, LigerRMSNorm, LigerLayerNorm, LigerSwiGLUMLP, LigerGEGLUMLP)
    losses = (LigerCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss)
    return {item.__name__: item for item in (*functions, *losses)}


def modules(observer: Observer) -> dict[str, dict[str, Any]]:
    layers = _layers(observer)
    names = {
        "rms_norm": ("LigerRMSNorm",),
        "layer_norm": ("LigerLayerNorm",),
        "swiglu": ("LigerSwiGLUMLP",),
        "geglu": ("LigerGEGLUMLP",),
        "rope": ("liger_rotary_pos_emb",),
        "cross_entropy": ("LigerCrossEntropyLoss",),
        "fused_linear_cross_entropy": ("LigerFusedLinearCrossEntropyLoss",),
    }
    patches = liger_models.patches(layers)
    return {
        "liger_kernel": {},
        "liger_kernel.transformers": {**layers, **patches},
        "liger_kernel.transformers.monkey_patch": patches,
        **{
            f"liger_kernel.transformers.{module}": {name: layers[name] for name in contents}
            for module, contents in names.items()
        },
    }
