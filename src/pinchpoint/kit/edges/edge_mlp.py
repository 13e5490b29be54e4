"""A network over edges whose backward pass is done by hand or by autograd, a chunk at a time.

`network_of` takes an `nn.Sequential` of linear layers and plain activations apart, so that a chunk
costs a few kernels and its buffers serve every chunk; any other module goes through autograd.
Both give the same numbers to rounding. Letters: e edges of a chunk, W wide inputs, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.kit.edges import fused_mlp
from pinchpoint.kit.edges.autograd_mlp import ByAutograd, Gradients, saved_bytes
from pinchpoint.kit.edges.edge_ops import own_kernels

_aten = torch.ops.aten
_SAMPLE = 64  # edges sent through a module that is not known, to see what it keeps


@dataclass(frozen=True)
class Activation:
    """value(z, out): the activation into `out`, which may be z; slope(g, z): g times its derivative at z, into g."""

    value: Callable[[Tensor, Tensor], Any]
    slope: Callable[[Tensor, Tensor], Any]


class Network(Protocol):
    """What the flat transform asks of a network, one chunk after the other."""

    @property
    def dtype(self) -> torch.dtype | None:
        """Of its outputs, and so of their gradient; None where only calling it tells."""
        ...

    def forward(self, inputs: Tensor) -> Tensor:
        """(e, W) to (e, C); nothing is kept."""
        ...

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Add the parameters' gradients to `into`; give the inputs' gradient (e, W) and the outputs (e, C) if wanted.

        gradient: (e, C), which may be written over.
        """
        ...

    def finish(self, into: Gradients) -> None:
        """After the last chunk of a pass: add to `into` what is still held back, and hold no chunk's memory any longer."""
        ...


def network_of(module: nn.Module, *, edges: int, inputs: Tensor) -> Network:
    """edges: most of a chunk. inputs: any tensor of the dtype and device that inputs will have."""
    device, dtype = inputs.device.type, arithmetic(inputs)
    layers = _by_hand(module, inputs)
    if layers is None:
        return ByAutograd(module, (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)))
    if is_one_kernel(module, like=inputs):
        return fused_mlp.Fused(list(cast("nn.Sequential", module)), dtype, inputs)
    return _Perceptron([_Layer.of(layer, act, dtype) for layer, act in layers], edges, dtype)


def _by_hand(module: nn.Module, inputs: Tensor) -> list[tuple[nn.Linear, Activation | None]] | None:
    """The layers of a module that need no autograd; None for others, and for weights of another dtype than the inputs'."""
    dtype, layers = arithmetic(inputs), layers_of(module)
    if layers is None or any(
        layer.weight.dtype is not dtype and dtype is inputs.dtype for layer, _ in layers
    ):
        return None
    return layers


def is_one_kernel(module: nn.Module, *, like: Tensor) -> bool:
    """Does the whole network run as one kernel? like: a tensor of the dtype and device of its inputs."""
    if not own_kernels(like) or type(module) is not nn.Sequential or _by_hand(module, like) is None:
        return False
    return fused_mlp.fits(list(module), arithmetic(like), like.device)


def edge_bytes(module: nn.Module, width: int, *, like: Tensor, by_hand: bool = True) -> int:
    """What an edge takes in a training chunk of `network_of(module)`, beside its inputs and what is made of its outputs.

    width: of the inputs; like: a tensor of the dtype and device that they will have. by_hand: not by autograd,
    where that can be.
    """
    layers = _by_hand(module, like) if by_hand else None
    if layers is not None:
        *between, last = (layer.out_features for layer, _ in layers)
        if is_one_kernel(module, like=like):
            between = []
        return (sum(between) + 2 * max(between, default=0) + last) * arithmetic(like).itemsize
    return saved_bytes(module, like.new_zeros(_SAMPLE, width)) // _SAMPLE


def arithmetic(inputs: Tensor) -> torch.dtype:
    """The dtype that products of these inputs are taken in: autocast's, where it is on. It leaves float64 alone."""
    device = inputs.device.type
    if inputs.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return inputs.dtype
    return torch.get_autocast_dtype(device)


def layers_of(module: nn.Module) -> list[tuple[nn.Linear, Activation | None]] | None:
    """Linear layers and the activation after each, or None where the module is, or may be, anything else."""
    found: list[tuple[nn.Linear, Activation | None]] = []
    parts = list(module) if type(module) is nn.Sequential else [module]
    if len(set(parts)) < len(parts) or any(compat.has_hooks(part) for part in {module, *parts}):
        return None  # a layer used twice adds to one gradient twice; a hook may do anything
    own = [
        parameter
        for part in parts
        for parameter in (getattr(part, "weight", None), getattr(part, "bias", None))
    ]
    if sum(parameter is not None for parameter in own) != len(list(module.parameters())):
        return None  # layers that share a weight add to one gradient too
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
class _Layer:
    weight: Tensor  # (out, in) in the dtype of the arithmetic
    bias: Tensor | None
    activation: Activation | None

    @staticmethod
    def of(layer: nn.Linear, activation: Activation | None, dtype: torch.dtype) -> _Layer:
        bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        return _Layer(layer.weight.detach().to(dtype), bias, activation)

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
    _kept: list[Tensor] = field(
        default_factory=list
    )  # (edges, width) before the activation of each layer but the last
    _spare: list[Tensor] = field(default_factory=list)  # two, (edges * widest,)

    def forward(self, inputs: Tensor) -> Tensor:
        values = inputs.to(self.dtype)
        for at, layer in enumerate(self.layers):
            out = (
                self._place(at % 2, len(inputs), layer.weight)
                if at < len(self.layers) - 1
                else self._made(inputs, layer)
            )
            layer.apply(values, out)
            if layer.activation is not None:
                layer.activation.value(out, out)
            values = out
        return values

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        entered = inputs.to(self.dtype)
        values = self._again(entered, outputs=want_values)
        slope = gradient.to(self.dtype)
        number = sum(2 if layer.bias is not None else 1 for layer in self.layers)
        for at in reversed(range(len(self.layers))):
            layer = self.layers[at]
            if layer.activation is not None:
                layer.activation.slope(slope, self._kept[at][: len(slope)])
            number -= 2 if layer.bias is not None else 1
            if number in into:
                _add_product(into[number], slope, entered if at == 0 else self._entering(at, len(slope)))
            if layer.bias is not None and number + 1 in into:
                into[number + 1].add_(slope.sum(0))
            if at == 0:
                return torch.mm(slope, layer.weight) if want_inputs else None, values
            # Over the place of what entered: that has served.
            slope = torch.mm(slope, layer.weight, out=self._wide(at % 2, len(slope), layer.weight))
        raise AssertionError("a network has layers")

    def finish(self, into: Gradients) -> None:
        """Nothing is held back; the buffers go."""
        self._kept.clear()
        self._spare.clear()

    def _again(self, inputs: Tensor, *, outputs: bool) -> Tensor | None:
        """Go forward, keeping what comes before each activation; the last layer only where it is needed."""
        values = inputs
        for at, layer in enumerate(self.layers):
            last = at == len(self.layers) - 1
            if last and layer.activation is None:
                if not outputs:
                    return None
                out = self._made(inputs, layer)
                layer.apply(values, out)
                return out
            out = self._before(at, inputs)
            layer.apply(values, out)
            values = out
            if layer.activation is not None:
                values = self._made(inputs, layer) if last else self._place(0, len(inputs), layer.weight)
                layer.activation.value(out, values)
        return values

    def _entering(self, at: int, edges: int) -> Tensor:
        """What went into a layer that is not the first, made again from what is kept."""
        below, kept = self.layers[at - 1], self._kept[at - 1][:edges]
        if below.activation is None:
            return kept
        values = self._wide(at % 2, edges, self.layers[at].weight)
        below.activation.value(kept, values)
        return values

    def _before(self, at: int, inputs: Tensor) -> Tensor:
        while len(self._kept) <= at:
            self._kept.append(
                inputs.new_empty(self.edges, self.layers[len(self._kept)].weight.shape[0], dtype=self.dtype)
            )
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
