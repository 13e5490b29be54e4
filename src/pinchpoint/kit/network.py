"""A network over edges whose backward pass is done by hand or by autograd, a chunk at a time.

`network_of` takes an `nn.Sequential` of linear layers and plain activations apart, so that a chunk
costs a few kernels and its buffers serve every chunk; any other module goes through autograd.
Both give the same numbers to rounding. Letters: e edges of a chunk, W wide inputs, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat

Gradients = dict[int, Tensor]  # by the parameter's place among the module's parameters, added to chunk by chunk
_aten = torch.ops.aten


@dataclass(frozen=True)
class Activation:
    """value(z, out): the activation into `out`, which may be z; slope(g, z): g times its derivative at z, into g."""

    value: Callable[[Tensor, Tensor], Any]
    slope: Callable[[Tensor, Tensor], Any]


class Network(Protocol):
    """What the flat transform asks of a network, one chunk after the other."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(e, W) to (e, C); nothing is kept."""
        ...

    def again(self, inputs: Tensor, *, want_inputs: bool) -> Tensor:
        """The same, keeping what `backward` needs until it is called."""
        ...

    def backward(self, gradient: Tensor, into: Gradients) -> Tensor | None:
        """Add the parameters' gradients to `into`; give that of the inputs, (e, W), if it was wanted."""
        ...


def network_of(module: nn.Module, *, edges: int, inputs: Tensor) -> Network:
    """edges: most of a chunk. inputs: any tensor of the dtype and device that inputs will have."""
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype
    layers = layers_of(module)
    if layers is None or any(layer.weight.dtype is not dtype and dtype is inputs.dtype for layer, _ in layers):
        return _Autograd(module, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
    return _Perceptron([_Layer.of(layer, act, dtype) for layer, act in layers], edges, dtype)


def layers_of(module: nn.Module) -> list[tuple[nn.Linear, Activation | None]] | None:
    """Linear layers and the activation after each, or None where the module is, or may be, anything else."""
    found: list[tuple[nn.Linear, Activation | None]] = []
    parts = list(module) if type(module) is nn.Sequential else [module]
    if len(set(parts)) < len(parts) or any(compat.has_hooks(part) for part in {module, *parts}):
        return None  # a layer used twice adds to one gradient twice; a hook may do anything
    for part in parts:
        if type(part) is nn.Linear:
            found.append((part, None))
        elif (activation := _activation(part)) is not None and found and found[-1][1] is None:
            found[-1] = found[-1][0], activation
        elif type(part) is not nn.Identity:
            return None
    return found or None


def _activation(module: nn.Module) -> Activation | None:
    if type(module) is nn.GELU:
        how = module.approximate
        return Activation(
            lambda z, out: _aten.gelu.out(z, approximate=how, out=out),
            lambda g, z: _aten.gelu_backward.grad_input(g, z, approximate=how, grad_input=g),
        )
    if type(module) is nn.SiLU:
        return Activation(
            lambda z, out: _aten.silu.out(z, out=out), lambda g, z: _aten.silu_backward.grad_input(g, z, grad_input=g)
        )
    if type(module) is nn.ReLU:
        return Activation(
            lambda z, out: torch.clamp_min(z, 0, out=out),
            lambda g, z: _aten.threshold_backward.grad_input(g, z, 0, grad_input=g),
        )
    if type(module) is nn.Tanh:
        return Activation(
            lambda z, out: torch.tanh(z, out=out), lambda g, z: _aten.tanh_backward.grad_input(g, z.tanh_(), grad_input=g)
        )
    return None


@dataclass(frozen=True)
class _Layer:
    weight: Tensor  # (out, in) in the dtype of the arithmetic
    bias: Tensor | None
    activation: Activation | None
    trained: tuple[bool, bool]  # weight, bias

    @staticmethod
    def of(layer: nn.Linear, activation: Activation | None, dtype: torch.dtype) -> _Layer:
        bias = layer.bias
        return _Layer(
            layer.weight.detach().to(dtype),
            None if bias is None else bias.detach().to(dtype),
            activation,
            (layer.weight.requires_grad, bias is not None and bias.requires_grad),
        )

    def apply(self, inputs: Tensor, out: Tensor) -> None:
        if self.bias is None:
            torch.mm(inputs, self.weight.t(), out=out)
        else:
            torch.addmm(self.bias, inputs, self.weight.t(), out=out)


@dataclass
class _Perceptron:
    """Linear layers by hand.

    A chunk in backward holds the values before each activation and two more of the widest: what one
    layer hands the next, and its gradient.
    """

    layers: list[_Layer]
    edges: int
    dtype: torch.dtype
    _kept: list[Tensor] = field(default_factory=list)  # (edges, width) before the activation of each layer but the last
    _spare: list[Tensor] = field(default_factory=list)  # two, (edges * widest,)
    _inputs: Tensor | None = None
    _want_inputs: bool = False

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs.to(self.dtype)
        for at, layer in enumerate(self.layers):
            out = self._place(at % 2, len(inputs), layer.weight) if at < len(self.layers) - 1 else self._made(inputs, layer)
            layer.apply(values, out)
            if layer.activation is not None:
                layer.activation.value(out, out)
            values = out
        return values

    def again(self, inputs: Tensor, *, want_inputs: bool) -> Tensor:
        self._want_inputs, self._inputs = want_inputs, inputs.to(self.dtype)
        values = self._inputs
        for at, layer in enumerate(self.layers):
            before = self._before(at, inputs) if layer.activation is not None or at < len(self.layers) - 1 else None
            out = self._made(inputs, layer) if before is None else before
            layer.apply(values, out)
            values = out
            if layer.activation is not None:
                last = at == len(self.layers) - 1
                values = self._made(inputs, layer) if last else self._place(0, len(inputs), layer.weight)
                layer.activation.value(out, values)
        return values

    def backward(self, gradient: Tensor, into: Gradients) -> Tensor | None:
        assert self._inputs is not None
        slope = gradient.to(self.dtype)
        number = sum(2 if layer.bias is not None else 1 for layer in self.layers)
        for at in reversed(range(len(self.layers))):
            layer = self.layers[at]
            if layer.activation is not None:
                layer.activation.slope(slope, self._kept[at][: len(slope)])
            number -= 2 if layer.bias is not None else 1
            if layer.trained[0]:
                _add_product(into[number], slope, self._entering(at, len(slope), spare=at % 2))
            if layer.trained[1]:
                into[number + 1].add_(slope.sum(0))
            if at == 0 and not self._want_inputs:
                return None
            # Over the place of what entered: that has served.
            before = (
                slope.new_empty(len(slope), layer.weight.shape[1]) if at == 0 else self._wide(at % 2, len(slope), layer.weight)
            )
            slope = torch.mm(slope, layer.weight, out=before)
        return slope

    def _entering(self, at: int, edges: int, *, spare: int) -> Tensor:
        """What went into a layer, made again from what is kept."""
        if at == 0:
            assert self._inputs is not None
            return self._inputs
        below, kept = self.layers[at - 1], self._kept[at - 1][:edges]
        if below.activation is None:
            return kept
        values = self._wide(spare, edges, self.layers[at].weight)
        below.activation.value(kept, values)
        return values

    def _before(self, at: int, inputs: Tensor) -> Tensor:
        while len(self._kept) <= at:
            self._kept.append(inputs.new_empty(self.edges, self.layers[len(self._kept)].weight.shape[0], dtype=self.dtype))
        return self._kept[at][: len(inputs)]

    def _place(self, which: int, edges: int, weight: Tensor) -> Tensor:
        return self._buffer(which, edges, weight.shape[0], weight)

    def _wide(self, which: int, edges: int, weight: Tensor) -> Tensor:
        return self._buffer(which, edges, weight.shape[1], weight)

    def _buffer(self, which: int, edges: int, width: int, like: Tensor) -> Tensor:
        while len(self._spare) <= which:
            widest = max(layer.weight.shape[0] for layer in self.layers[:-1])
            self._spare.append(like.new_empty(self.edges * widest))
        return self._spare[which][: edges * width].view(edges, width)

    def _made(self, inputs: Tensor, layer: _Layer) -> Tensor:
        return inputs.new_empty(len(inputs), layer.weight.shape[0], dtype=self.dtype)


def _add_product(into: Tensor, slope: Tensor, values: Tensor) -> None:
    """The gradient of a weight, (out, in), added in the dtype of the sum: chunks in bf16 add up in float32."""
    if into.dtype is slope.dtype:
        into.addmm_(slope.t(), values)
    else:
        into.add_(torch.mm(slope.t(), values))


@dataclass
class _Autograd:
    """Any module, through torch's own backward pass."""

    module: nn.Module
    autocast: bool
    autocast_dtype: torch.dtype
    _leaf: Tensor | None = None
    _made: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        return self.module(inputs)

    def again(self, inputs: Tensor, *, want_inputs: bool) -> Tensor:
        self._leaf = inputs.detach().requires_grad_(want_inputs)
        with torch.enable_grad(), torch.autocast(inputs.device.type, self.autocast_dtype, enabled=self.autocast):
            self._made = self.module(self._leaf)
        return self._made.detach()

    def backward(self, gradient: Tensor, into: Gradients) -> Tensor | None:
        assert self._made is not None and self._leaf is not None
        made, leaf, parameters = self._made, self._leaf, list(self.module.parameters())
        self._made = self._leaf = None
        asked = [at for at in into if at >= 0]
        inputs = [parameters[at] for at in asked] + ([leaf] if leaf.requires_grad else [])
        if not inputs:
            return None
        found = torch.autograd.grad(made, inputs, gradient.to(made.dtype), allow_unused=True)
        for at, value in zip(asked, found, strict=False):
            if value is not None:
                into[at].add_(value)
        return found[-1] if leaf.requires_grad else None
