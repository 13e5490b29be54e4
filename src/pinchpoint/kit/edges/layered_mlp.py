"""Networks over edges: what all have in common, and linear layers that run one by one, without autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pinchpoint.kit.edges.autograd_mlp import Gradients

_aten = torch.ops.aten


class Network(Protocol):
    """What the flat transform needs from a network, which it calls for one chunk after another."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the outputs, and so of their gradient; None if it is known only after a call."""
        ...

    @property
    def adds_at_end(self) -> bool:
        """Whether only `finish` adds to `into`, which backward then does not read."""
        ...

    def forward(self, inputs: Tensor) -> Tensor:
        """(e, W) to (e, C); nothing is saved for backward."""
        ...

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Add the parameters' gradients to `into`; return the inputs' gradient (e, W) and the outputs (e, C).

        Each of the two is None unless it is requested. inputs and gradient, (e, C), may be overwritten.
        """
        ...

    def finish(self, into: Gradients) -> None:
        """End a pass: add deferred gradients to `into`, and free the memory of the chunks."""
        ...


@dataclass(frozen=True)
class Activation:
    """An activation and its derivative.

    value(z, out) writes the activation of z to `out`, which may be z; slope(g, z) multiplies g, in place, by
    the derivative at z.
    """

    value: Callable[[Tensor, Tensor], Any]
    slope: Callable[[Tensor, Tensor], Any]


Layers = list[tuple[nn.Linear, Activation | None]]


def activation_of(module: nn.Module) -> Activation | None:
    if type(module) is nn.GELU:
        how = module.approximate
        return Activation(
            lambda z, out: _aten.gelu.out(z, approximate=how, out=out),
            lambda g, z: _aten.gelu_backward.grad_input(g, z, approximate=how, grad_input=g),
        )
    if type(module) is nn.SiLU:
        return Activation(
            lambda z, out: _aten.silu.out(z, out=out),
            lambda g, z: _aten.silu_backward.grad_input(g, z, grad_input=g),
        )
    if type(module) is nn.ReLU:
        return Activation(
            lambda z, out: torch.clamp_min(z, 0, out=out),
            lambda g, z: _aten.threshold_backward.grad_input(g, z, 0, grad_input=g),
        )
    if type(module) is nn.Tanh:
        return Activation(
            lambda z, out: torch.tanh(z, out=out),
            lambda g, z: _aten.tanh_backward.grad_input(g, z.tanh_(), grad_input=g),
        )
    return None


@dataclass(frozen=True)
class Layer:
    weight: Tensor  # (out, in) in the dtype of the arithmetic
    bias: Tensor | None
    activation: Activation | None

    @staticmethod
    def of(layer: nn.Linear, activation: Activation | None, dtype: torch.dtype) -> Layer:
        bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        return Layer(layer.weight.detach().to(dtype), bias, activation)

    def apply(self, inputs: Tensor, out: Tensor) -> None:
        if self.bias is None:
            torch.mm(inputs, self.weight.t(), out=out)
        else:
            torch.addmm(self.bias, inputs, self.weight.t(), out=out)


@dataclass
class LayeredMLP:
    """A `Network` of linear layers with a handwritten backward pass.

    In backward, a chunk keeps the values before each activation and two buffers as wide as the widest layer:
    the input of the next layer, and its gradient.
    """

    adds_at_end = False
    layers: list[Layer]
    edges: int
    dtype: torch.dtype
    # (edges, width): the values before the activation of each layer except the last.
    _before: list[Tensor] = field(default_factory=list)
    # Two buffers of (edges * widest,).
    _spare: list[Tensor] = field(default_factory=list)

    @staticmethod
    def of(layers: Layers, edges: int, dtype: torch.dtype) -> LayeredMLP:
        """The network of these layers. edges: the largest number in a chunk; dtype: that of the products."""
        return LayeredMLP([Layer.of(layer, act, dtype) for layer, act in layers], edges, dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs.to(self.dtype)
        for at, layer in enumerate(self.layers):
            out = (
                self._output_buffer(at % 2, len(inputs), layer.weight)
                if at < len(self.layers) - 1
                else self._outputs(inputs, layer)
            )
            layer.apply(values, out)
            if layer.activation is not None:
                layer.activation.value(out, out)
            values = out
        return values

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        first_inputs = inputs.to(self.dtype)
        values = self._recompute(first_inputs, outputs=want_values)
        slope = gradient.to(self.dtype)
        number = sum(2 if layer.bias is not None else 1 for layer in self.layers)
        for at in reversed(range(len(self.layers))):
            layer = self.layers[at]
            if layer.activation is not None:
                layer.activation.slope(slope, self._before[at][: len(slope)])
            number -= 2 if layer.bias is not None else 1
            if number in into:
                _add_product(
                    into[number], slope, first_inputs if at == 0 else self._layer_inputs(at, len(slope))
                )
            if layer.bias is not None and number + 1 in into:
                into[number + 1].add_(slope.sum(0, dtype=into[number + 1].dtype))
            if at == 0:
                return torch.mm(slope, layer.weight) if want_inputs else None, values
            # Overwrites the layer's inputs, which are no longer needed.
            slope = torch.mm(slope, layer.weight, out=self._input_buffer(at % 2, len(slope), layer.weight))
        raise AssertionError("a network has layers")

    def finish(self, into: Gradients) -> None:
        """Free the buffers; no gradient is deferred."""
        self._before.clear()
        self._spare.clear()

    def _recompute(self, inputs: Tensor, *, outputs: bool) -> Tensor | None:
        """Recompute the values before each activation; the last layer runs only if its outputs are needed."""
        values = inputs
        for at, layer in enumerate(self.layers):
            last = at == len(self.layers) - 1
            if last and layer.activation is None:
                if not outputs:
                    return None
                out = self._outputs(inputs, layer)
                layer.apply(values, out)
                return out
            out = self._before_activation(at, inputs)
            layer.apply(values, out)
            values = out
            if layer.activation is not None:
                values = (
                    self._outputs(inputs, layer)
                    if last
                    else self._output_buffer(0, len(inputs), layer.weight)
                )
                layer.activation.value(out, values)
        return values

    def _layer_inputs(self, at: int, edges: int) -> Tensor:
        """The inputs of a layer other than the first, recomputed from the values before the activation."""
        below, before = self.layers[at - 1], self._before[at - 1][:edges]
        if below.activation is None:
            return before
        values = self._input_buffer(at % 2, edges, self.layers[at].weight)
        below.activation.value(before, values)
        return values

    def _before_activation(self, at: int, inputs: Tensor) -> Tensor:
        while len(self._before) <= at:
            width = self.layers[len(self._before)].weight.shape[0]
            self._before.append(inputs.new_empty(self.edges, width, dtype=self.dtype))
        return self._before[at][: len(inputs)]

    def _output_buffer(self, which: int, edges: int, weight: Tensor) -> Tensor:
        return self._buffer(which, edges, weight.shape[0], weight)

    def _input_buffer(self, which: int, edges: int, weight: Tensor) -> Tensor:
        return self._buffer(which, edges, weight.shape[1], weight)

    def _buffer(self, which: int, edges: int, width: int, like: Tensor) -> Tensor:
        while len(self._spare) <= which:
            widest = max(layer.weight.shape[0] for layer in self.layers[:-1])
            self._spare.append(like.new_empty(self.edges * widest))
        return self._spare[which][: edges * width].view(edges, width)

    def _outputs(self, inputs: Tensor, layer: Layer) -> Tensor:
        return inputs.new_empty(len(inputs), layer.weight.shape[0], dtype=self.dtype)


def _add_product(into: Tensor, slope: Tensor, values: Tensor) -> None:
    """Add the gradient of a weight, (out, in), in the dtype of the sum: bf16 chunks are summed in float32."""
    if into.dtype is slope.dtype:
        into.addmm_(slope.t(), values)
    else:
        into.add_(torch.mm(slope.t(), values))
