"""Stand-ins for the optimizers of bitsandbytes and for apex: the states and buffers by their sources.

bitsandbytes (optim/optimizer.py): a state of 8 bits has one byte per element, and in fp32 the largest
magnitude of every block of 256 elements; a tensor with fewer than 4,096 elements has a state in fp32. Updates
run in place. The states of paged optimizers with at least 100,000 elements are in unified memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages.unknown_kernels import forget

_BLOCK = 256  # elements that share one scale; 2,048 before version 0.44
_PAGED_FROM = 100_000  # elements
# Optimizers -> the number of their states; AdEMAMix has two averages in the first.
_STATES = {"Adam": 2, "AdamW": 2, "LAMB": 2, "AdEMAMix": 3, "Lion": 1, "SGD": 1, "LARS": 1, "RMSprop": 1}
_STATES["Adagrad"] = 1
_PAGED = ("Adam", "AdamW", "Lion", "AdEMAMix")
_HAS_NORMS = ("LAMB", "LARS")


class _Overrides:
    """`GlobalOptimManager`: settings of single parameters, such as 32 bits for an embedding."""

    instance: ClassVar[_Overrides | None] = None

    def __init__(self) -> None:
        self.by_parameter: dict[int, dict[str, Any]] = {}
        self.by_module: list[tuple[nn.Module, str, dict[str, Any]]] = []

    def register_parameters(self, params: Any) -> None:
        pass

    def override_config(
        self, parameters: Any, key: str | None = None, value: Any = None, key_value_dict: Any = None
    ) -> None:
        config: dict[Any, Any] = key_value_dict or {key: value}
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            self.by_parameter[id(parameter)] = {**self.by_parameter.get(id(parameter), {}), **config}

    def register_module_override(self, module: nn.Module, param_name: str, config: dict[str, Any]) -> None:
        self.by_module.append((module, param_name, config))

    def of(self, parameter: torch.Tensor) -> dict[str, Any]:
        for module, name, config in self.by_module:
            if getattr(module, name, None) is parameter:
                return config
        return self.by_parameter.get(id(parameter), {})


class _Optimizer(torch.optim.Optimizer):
    """All optimizers of bitsandbytes. kind: the name without its width."""

    kind, bits, paged = "Adam", 32, False
    observer: Observer
    overrides: _Overrides

    def __init__(self, params: Any, lr: float = 1e-3, *args: Any, **kwargs: Any) -> None:
        self.optim_bits = kwargs.get("optim_bits", self.bits) if self.bits == 32 else self.bits
        self.smallest = kwargs.get("min_8bit_size", 4096)
        self.is_paged = kwargs.get("is_paged", False) or self.paged
        self._maps: list[torch.Tensor] = []
        defaults = {"lr": lr, "betas": kwargs.get("betas", (0.9, 0.999)), "eps": kwargs.get("eps", 1e-8)}
        super().__init__(params, defaults | {"weight_decay": kwargs.get("weight_decay", 0.0)})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = _loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if not self.state[parameter]:
                        self._create(parameter)
                    parameter.grad = parameter.grad.contiguous()
                    forget(self.observer, parameter)
        return loss

    def _create(self, parameter: torch.Tensor) -> None:
        bits = self.overrides.of(parameter).get("optim_bits", self.optim_bits)
        small = parameter.numel() < self.smallest
        dtype = torch.float32 if bits == 32 or small else torch.uint8
        state = self.state[parameter]
        state["step"] = 0
        blocks = -(-parameter.numel() // _BLOCK)
        if dtype is torch.uint8 and not self._maps:
            self._maps = [
                torch.zeros(256, device=parameter.device) for _ in range(min(_STATES[self.kind], 2))
            ]
        count = _STATES[self.kind]
        for number, copies in enumerate((2, 1) if count == 3 else (1,) * count, 1):
            if dtype is torch.uint8:
                shape = (copies, blocks) if copies > 1 else (blocks,)
                state[f"absmax{number}"] = torch.zeros(shape, device=parameter.device)
            state[f"state{number}"] = self._state(parameter, dtype, copies)
        if self.kind in _HAS_NORMS:
            state["unorm_vec"] = torch.zeros(1, device=parameter.device)

    def _state(self, parameter: torch.Tensor, dtype: torch.dtype, copies: int) -> torch.Tensor:
        shape = (copies, *parameter.shape) if copies > 1 else parameter.shape
        if self.is_paged and parameter.numel() >= _PAGED_FROM:
            self.observer.note(
                "states of paged optimizers are in unified memory, which moves to the host if the card is "
                "full; it is not counted"
            )
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.zeros(shape, dtype=dtype, device=parameter.device)


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    """The loss that a closure computes, with its gradients, before a step."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _optimizers(observer: Observer) -> dict[str, Any]:
    overrides = _Overrides()
    manager = type("GlobalOptimManager", (), {"get_instance": staticmethod(lambda: overrides)})
    classes: dict[str, Any] = {"GlobalOptimManager": manager}
    for kind in _STATES:
        for prefix in ("", "Paged") if kind in _PAGED else ("",):
            for suffix, bits in (("", 32), ("8bit", 8), ("32bit", 32)):
                name = f"{prefix}{kind}{suffix}"
                attributes: dict[str, Any] = {"kind": kind, "bits": bits, "paged": bool(prefix)}
                attributes |= {"observer": observer, "overrides": overrides}
                # transformers looks for the package in the name of the class.
                attributes["__module__"] = "bitsandbytes.optim"
                classes[name] = type(name, (_Optimizer,), attributes)
    return classes


# --- apex


class _FusedAdam(torch.optim.Optimizer):
    """apex.optimizers.FusedAdam: both averages in fp32, updated in place; and a flag of one integer."""

    observer: Observer

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *args: Any,
        master_weights: bool = False,
        set_grad_none: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "bias_correction": bias_correction})
        self.set_grad_none = set_grad_none
        self.flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        if master_weights:
            self.masters = [
                p.detach().clone().float()
                for group in self.param_groups
                for p in group["params"]
                if p.dtype != torch.float32
            ]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=self.set_grad_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **_: Any) -> Any:  # type: ignore[override]
        loss = _loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    for name in ("exp_avg", "exp_avg_sq"):
                        if name not in state:
                            state[name] = torch.zeros_like(parameter.data).float()
                    forget(self.observer, parameter)
        return loss


class _Norm(torch.autograd.Function):
    """Layer norm (two statistics per row) or RMS norm (one), in fp32; parts of 16 rows for the weights."""

    @staticmethod
    def forward(ctx: Any, observer: Observer, count: int, width: int, source: Any, *weights: Any) -> Any:
        source = source.contiguous()
        out = torch.empty_like(source)
        statistics = [source.new_empty(source.numel() // width, dtype=torch.float32) for _ in range(count)]
        ctx.save_for_backward(source, *statistics, *weights)
        ctx.observer, ctx.count, ctx.width = observer, count, width
        forget(observer, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        source, *rest = ctx.saved_tensors
        weights = rest[ctx.count :]
        gradient = gradients[0].contiguous()
        result = torch.empty_like(source)
        of_weights = [torch.empty_like(weight) for weight in weights]
        parts = [source.new_empty((16, ctx.width), dtype=torch.float32) for _ in weights]
        del parts, gradient
        forget(ctx.observer, (result, of_weights))
        return None, None, None, result, *of_weights


def _norms(observer: Observer) -> dict[str, Any]:
    class FusedRMSNorm(nn.Module):
        statistics = 1

        def __init__(
            self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, **_: Any
        ) -> None:
            super().__init__()
            shape = [normalized_shape] if isinstance(normalized_shape, int) else normalized_shape
            self.normalized_shape = torch.Size(shape)
            self.eps, self.elementwise_affine = eps, elementwise_affine
            self.weight = nn.Parameter(torch.ones(*self.normalized_shape)) if elementwise_affine else None
            self.bias: nn.Parameter | None = None

        def forward(self, input: torch.Tensor) -> Any:
            tensors = [t for t in (input, self.weight, self.bias) if t is not None]
            if torch.is_autocast_enabled("cpu"):
                tensors = [t.to(torch.get_autocast_dtype("cpu")) for t in tensors]
            return _Norm.apply(observer, self.statistics, self.normalized_shape.numel(), *tensors)

    class FusedLayerNorm(FusedRMSNorm):
        statistics = 2

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.elementwise_affine:
                self.bias = nn.Parameter(torch.zeros(*self.normalized_shape))

    return {"FusedRMSNorm": FusedRMSNorm, "FusedLayerNorm": FusedLayerNorm}


def modules(observer: Observer) -> dict[str, dict[str, Any]]:
    norms = _norms(observer)
    return {
        "bitsandbytes": {},
        "bitsandbytes.optim": _optimizers(observer),
        "apex": {},
        "apex.optimizers": {"FusedAdam": type("FusedAdam", (_FusedAdam,), {"observer": observer})},
        "apex.normalization": norms,
        "apex.normalization.fused_layer_norm": norms,
    }
