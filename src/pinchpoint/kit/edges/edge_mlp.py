"""Networks over edges, evaluated and differentiated one chunk at a time.

`network_of` splits an `nn.Sequential` of linear layers and plain activations into its layers, so that a chunk
costs a few kernels and its buffers are reused for every chunk; any other module goes through autograd.
Both give the same results up to rounding. Letters: e edges of a chunk, W input width, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.kit.edges import fused_mlp, tile_mlp, wide_mlp
from pinchpoint.kit.edges.autograd_mlp import AutogradMLP, Gradients, saved_bytes
from pinchpoint.kit.edges.edge_ops import is_fake, own_kernels
from pinchpoint.kit.validation import require_module, require_tensor

_aten = torch.ops.aten
_SAMPLE = 64  # edges sent through a module of unknown type, to measure what autograd saves
_NOT_PLAIN = "It is not an nn.Sequential of linear layers with GELU, SiLU, ReLU or tanh."
_TF32 = "TF32 is allowed, in which torch multiplies; the kernels of wide MLPs do not."
_OLDER = "Its kernels are older ones; with three hidden layers, an H200 takes 1.2 times as long as for eager."
_NO_KERNELS = "Triton, a C compiler or a GPU of compute capability 8.0 is missing."


@dataclass(frozen=True)
class Activation:
    """An activation and its derivative.

    value(z, out) writes the activation of z to `out`, which may be z; slope(g, z) multiplies g, in place, by
    the derivative at z.
    """

    value: Callable[[Tensor, Tensor], Any]
    slope: Callable[[Tensor, Tensor], Any]


Layers = list[tuple[nn.Linear, Activation | None]]


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


def network_of(module: nn.Module, *, edges: int, inputs: Tensor, path: FlatPath | None = None) -> Network:
    """The fastest `Network` for a module.

    edges: the largest number of edges in a chunk. inputs: any tensor with the dtype and device of the inputs.
    path: `flat_path` of the module and these inputs, if it is known.
    """
    device, dtype = inputs.device.type, arithmetic(inputs)
    path = path or flat_path(module, like=inputs)
    if path.perhaps is not None and _peak(path.perhaps, edges, inputs) > _peak(path, edges, inputs):
        path = path.perhaps
    if path.layers is None:
        return AutogradMLP(module, (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)))
    if path.name == "one kernel":
        parts = list(cast("nn.Sequential", module))
        if path.wide:
            return wide_mlp.wide_network(parts, dtype, inputs, edges)
        if path.in_tiles:
            return tile_mlp.TileMLP(parts, dtype, inputs, path.launches)
        return fused_mlp.FusedMLP(parts, dtype, inputs)
    return _Perceptron([_Layer.of(layer, act, dtype) for layer, act in path.layers], edges, dtype)


def _peak(path: FlatPath, edges: int, inputs: Tensor) -> int:
    """About the bytes of a training chunk of some edges; `path` has layers."""
    assert path.layers is not None
    own = _bytes_between(path.layers, inputs, one_kernel=path.name == "one kernel")
    if not path.is_flat:  # the gradient of the inputs and the values have memory of their own
        ends = path.layers[0][0].in_features + path.layers[-1][0].out_features
        own += ends * arithmetic(inputs).itemsize
    return fixed_bytes(path, like=inputs, edges=edges) + edges * own


@dataclass(frozen=True)
class FlatPath:
    """How `flat` runs a network. reason: why it is not the fastest way on this device; "" if it is.

    name: "one kernel", all layers at once; "layers", torch layer by layer with a backward pass by hand;
    "autograd", any module, chunk by chunk. layers: None for autograd. in_tiles: one kernel with its weights
    in shared memory (`tile_mlp`, not `fused_mlp`). wide: so wide that it takes several kernels (`wide_mlp`).
    launches: those of the kernels in tiles.
    perhaps: how it runs with the tested Triton, if a forecast does not know the version; the larger peak
    counts, which depends on the edges.
    """

    name: Literal["one kernel", "layers", "autograd"]
    reason: str = ""
    layers: Layers | None = field(default=None, repr=False, compare=False)
    in_tiles: bool = field(default=False, repr=False, compare=False)
    wide: bool = field(default=False, repr=False, compare=False)
    launches: tile_mlp.Launches | None = field(default=None, repr=False, compare=False)
    perhaps: FlatPath | None = field(default=None, repr=False, compare=False)

    @property
    def is_flat(self) -> bool:
        """Whether an edge takes its inputs and outputs alone, beside buffers of a fixed size."""
        return self.in_tiles or self.wide

    def __str__(self) -> str:
        words = {"one kernel": "as one kernel", "layers": "layer by layer", "autograd": "through autograd"}
        way = "as a few kernels" if self.wide else words[self.name]
        return way + (f", which may be slower than eager. {self.reason}" if self.reason else ".")


def flat_path(module: nn.Module, *, like: Tensor) -> FlatPath:
    """How `flat` runs this network. like: a tensor with the dtype and device of its inputs."""
    require_module("module", module, reads="(e, 2d) to (e, C)")
    require_tensor("like", like, hint="Give a tensor with the dtype and device of the inputs, such as x.")
    return path_of(module, layers_of(module), like)


def path_of(module: nn.Module, layers: Layers | None, like: Tensor) -> FlatPath:
    """`flat_path` of a module whose layers are known."""
    dtype = arithmetic(like)
    if any(layer.weight.dtype is not dtype and dtype is like.dtype for layer, _ in layers or ()):
        layers = None
    if layers is None:
        return FlatPath("autograd", _NOT_PLAIN if like.is_cuda else "")
    if not own_kernels(like):
        return FlatPath("layers", _NO_KERNELS if like.is_cuda else "", layers)
    parts = list(module) if type(module) is nn.Sequential else [module]
    reason = tile_mlp.refusal(parts, dtype, like.device)
    tf32 = dtype is torch.float32 and compat.products_use_tf32()
    if reason is None and not tf32 and tile_mlp.triton_refusal() is None:  # the usual case, which is short
        launches = tile_mlp.launches_of(parts, dtype, like.device)
        return FlatPath(
            "one kernel", tile_mlp.slowness(parts, dtype), layers, in_tiles=True, launches=launches
        )
    fused = fused_mlp.refusal(parts, dtype, like.device)
    if tf32 and fused is None:
        return FlatPath("one kernel", _OLDER, layers)  # in tf32, which the tiles do not use
    # A forecast on a machine without Triton does not know its version elsewhere, and takes the larger peak:
    # that of the tiles where the fused kernel would run, else that of the layers or of the kernels.
    unknown = is_fake(like) and not tile_mlp.has_triton()
    wide = reason is not None and any(layer.out_features >= wide_mlp.MIN_HIDDEN for layer, _ in layers[:-1])
    if wide:
        reason = wide_mlp.refusal(parts, dtype, like.device) or (_TF32 if tf32 else None)
    perhaps = None
    if reason is None:
        slow = tile_mlp.slowness(parts, dtype)
        launches = None if wide else tile_mlp.launches_of(parts, dtype, like.device)
        kernels = FlatPath("one kernel", slow, layers, in_tiles=not wide, wide=wide, launches=launches)
        reason = tile_mlp.triton_refusal()
        if reason is None or (unknown and fused is None):
            return kernels
        perhaps = kernels if unknown else None
    if fused is None:
        return FlatPath("one kernel", _OLDER, layers)
    return FlatPath("layers", reason, layers, perhaps=perhaps)


def is_one_kernel(module: nn.Module, *, like: Tensor) -> bool:
    """Whether the whole network runs as one kernel, so that its memory does not grow with the edges.

    like: a tensor with the dtype and device of its inputs.
    """
    return flat_path(module, like=like).name == "one kernel"


def edge_bytes(module: nn.Module, width: int, *, like: Tensor, path: FlatPath | None) -> int:
    """Bytes per edge in a training chunk of a network, without inputs and uses of the outputs.

    width: the width of the inputs; like: a tensor with their dtype and device. path: how it runs, or None
    if autograd differentiates it in any case.
    """
    if path is not None and path.layers is not None:
        return _bytes_between(path.layers, like, one_kernel=path.name == "one kernel")
    return saved_bytes(module, like.new_zeros(_SAMPLE, width)) // _SAMPLE


def _bytes_between(layers: Layers, like: Tensor, *, one_kernel: bool) -> int:
    """`edge_bytes` of layers that autograd does not differentiate."""
    *between, last = (layer.out_features for layer, _ in layers)
    if one_kernel:
        between = []
    return (sum(between) + 2 * max(between, default=0) + last) * arithmetic(like).itemsize


def fixed_bytes(path: FlatPath, *, like: Tensor, edges: int | None = None) -> int:
    """Bytes that the backward pass of a network takes beside its inputs and outputs.

    like: a tensor with the dtype and device of its inputs. edges: those of a chunk; None: any number.
    """
    if path.layers is None or not path.is_flat:
        return 0
    linear, dtype = [layer for layer, _ in path.layers], arithmetic(like)
    if path.wide:
        return wide_mlp.fixed_bytes(linear, dtype, like.device, edges)
    return tile_mlp.fixed_bytes(linear, dtype, like.device, edges)


def arithmetic(inputs: Tensor) -> torch.dtype:
    """The dtype in which these inputs are multiplied: that of autocast if it is on (never for float64)."""
    device = inputs.device.type
    if inputs.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return inputs.dtype
    return torch.get_autocast_dtype(device)


def layers_of(module: nn.Module) -> Layers | None:
    """The linear layers and the activation after each, or None if the module is, or may be, anything else."""
    layers: Layers = []
    sequence = type(module) is nn.Sequential
    parts = list(module) if sequence else [module]
    if sequence and (compat.has_hooks(module) or compat.own_parameters(module)):
        return None
    own: list[int] = []
    for part in parts:
        if compat.has_hooks(part) or compat.has_parts(part):
            return None  # a hook may do anything
        parameters = compat.own_parameters(part)
        if type(part) is nn.Linear:
            if len(parameters) != 2:
                return None
            own += [id(one) for one in parameters.values() if one is not None]
            layers.append((part, None))
        elif parameters:
            return None
        elif (activation := _activation(part)) is not None and layers and layers[-1][1] is None:
            layers[-1] = layers[-1][0], activation
        elif type(part) is not nn.Identity:
            return None
    if len(set(parts)) < len(parts) or len(set(own)) < len(own):
        return None  # a layer used twice, or a weight that layers share, adds to one gradient twice
    return layers or None


def parameters_of(layers: Layers) -> list[nn.Parameter]:
    """The parameters of a module in its own order, for the layers that `layers_of` returns."""
    every = (one for layer, _ in layers for one in compat.own_parameters(layer).values())
    return [one for one in every if one is not None]


def structure_of(module: nn.Module) -> tuple[Any, ...]:
    """What `flat_path` depends on, for a module with layers (`layers_of`): equal for equal networks."""
    parts = list(module) if type(module) is nn.Sequential else [module]
    return tuple(
        (type(part), part.in_features, part.out_features, part.bias is None, part.weight.dtype)
        if isinstance(part, nn.Linear)
        else (type(part), getattr(part, "approximate", None))
        for part in parts
    )


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
    """A `Network` of linear layers with a handwritten backward pass.

    In backward, a chunk keeps the values before each activation and two buffers as wide as the widest layer:
    the input of the next layer, and its gradient.
    """

    adds_at_end = False
    layers: list[_Layer]
    edges: int
    dtype: torch.dtype
    # (edges, width): the values before the activation of each layer except the last.
    _before: list[Tensor] = field(default_factory=list)
    # Two buffers of (edges * widest,).
    _spare: list[Tensor] = field(default_factory=list)

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
                into[number + 1].add_(slope.sum(0))
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

    def _outputs(self, inputs: Tensor, layer: _Layer) -> Tensor:
        return inputs.new_empty(len(inputs), layer.weight.shape[0], dtype=self.dtype)


def _add_product(into: Tensor, slope: Tensor, values: Tensor) -> None:
    """Add the gradient of a weight, (out, in), in the dtype of the sum: bf16 chunks are summed in float32."""
    if into.dtype is slope.dtype:
        into.addmm_(slope.t(), values)
    else:
        into.add_(torch.mm(slope.t(), values))
