"""Networks over edges, evaluated and differentiated one chunk at a time.

`network_of` splits an `nn.Sequential` of linear layers and plain activations into its layers, so that a chunk
costs a few kernels and its buffers are reused for every chunk; any other module goes through autograd.
Both give the same results up to rounding. Letters: e edges of a chunk, W input width, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.kit.edges import (
    first_use,
    fused_mlp,
    mlp_support,
    tile_mlp,
    wide_mlp,
    wide_parts,
    wide_short,
)
from pinchpoint.kit.edges.autograd_mlp import AutogradMLP, saved_bytes
from pinchpoint.kit.edges.edge_ops import is_fake, own_kernels
from pinchpoint.kit.edges.layered_mlp import LayeredMLP, Layers, Network, activation_of
from pinchpoint.kit.validation import require_module, require_tensor

_SAMPLE = 64  # edges sent through a module of unknown type, to measure what autograd saves
_NOT_PLAIN = "It is not an nn.Sequential of linear layers with GELU, SiLU, ReLU or tanh."
_TF32 = "TF32 is allowed, in which torch multiplies; the kernels of wide MLPs do not."
_OLDER = "Its kernels are older ones; with three hidden layers, an H200 takes 1.2 times as long as for eager."
_NO_KERNELS = "Triton, a C compiler or a GPU of compute capability 8.0 is missing."


def network_of(module: nn.Module, *, edges: int, inputs: Tensor, path: FlatPath | None = None) -> Network:
    """The fastest `Network` for a module.

    edges: the largest number of edges in a chunk. inputs: any tensor with the dtype and device of the inputs.
    path: `flat_path` of the module and these inputs, if it is known.
    """
    device, dtype = inputs.device.type, arithmetic(inputs)
    path = path or flat_path(module, like=inputs)
    if path.layers is None:
        return AutogradMLP(module, (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)))
    if path.name == "layers":
        return LayeredMLP.of(path.layers, edges, dtype)
    parts = list(cast("nn.Sequential", module))
    if not path.is_flat:
        return fused_mlp.FusedMLP(parts, dtype, inputs)

    def make(parts: list[nn.Module], like: Tensor, programs: int | None) -> Network:
        if path.wide:
            return wide_network(parts, dtype, like, edges if programs is None else 0, programs)
        return tile_mlp.TileMLP(parts, dtype, like, path.launches, programs)

    if path.compared or is_fake(inputs):
        return make(parts, inputs, None)
    key, like = (structure_of(module), dtype), inputs.new_empty(0)  # the inputs themselves need not be kept
    slice_bytes = partial(fixed_bytes, path, like=inputs.new_empty(0, dtype=dtype))
    return first_use.CheckedMLP(parts, path.layers, like, dtype, key, make, slice_bytes)


def wide_network(
    parts: list[nn.Module], dtype: torch.dtype, like: Tensor, edges: int = 0, programs: int | None = None
) -> wide_mlp.WideMLP:
    """The network for an MLP that `wide_mlp.refusal` does not refuse. The arguments are those of WideMLP."""
    kind = wide_parts.WideParts if dtype is torch.float32 else wide_short.WideShort
    return kind(parts, dtype, like, edges, programs)


@dataclass(frozen=True)
class FlatPath:
    """How `flat` runs a network. reason: why it is not the fastest way on this device; "" if it is.

    name: "one kernel", all layers at once; "layers", torch layer by layer with a backward pass by hand;
    "autograd", any module, chunk by chunk. layers: None for autograd. in_tiles: one kernel with its weights
    in shared memory (`tile_mlp`, not `fused_mlp`). wide: so wide that it takes several kernels (`wide_mlp`).
    launches: those of the kernels in tiles. compared: whether its kernels were compared with float64 on such
    a GPU beforehand; others are when they are first used (`first_use`).
    """

    name: Literal["one kernel", "layers", "autograd"]
    reason: str = ""
    layers: Layers | None = field(default=None, repr=False, compare=False)
    in_tiles: bool = field(default=False, repr=False, compare=False)
    wide: bool = field(default=False, repr=False, compare=False)
    launches: tile_mlp.Launches | None = field(default=None, repr=False, compare=False)
    compared: bool = field(default=True, repr=False, compare=False)

    @property
    def is_flat(self) -> bool:
        """Whether an edge takes its inputs and outputs alone, beside buffers of a fixed size."""
        return self.in_tiles or self.wide

    def input_dtype(self, inputs: Tensor) -> torch.dtype:
        """The dtype in which the network reads its inputs, which are like these.

        Kernels read 16 bits, if they multiply in 16 bits, so that the inputs take less memory.
        """
        dtype = arithmetic(inputs)
        return dtype if self.is_flat and dtype.itemsize < inputs.dtype.itemsize else inputs.dtype

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
    tf32 = dtype is torch.float32 and compat.products_use_tf32()
    if tf32 and fused_mlp.refusal(parts, dtype, like.device) is None:
        return FlatPath("one kernel", _OLDER, layers)
    reason, wide = choose_kernels(parts, dtype, like.device)
    if reason is not None:
        return FlatPath("layers", reason, layers)
    return FlatPath(
        "one kernel",
        mlp_support.slowness(parts, dtype, like.device),
        layers,
        in_tiles=not wide,
        wide=wide,
        launches=None if wide else tile_mlp.launches_of(parts, dtype, like.device),
        compared=(wide_mlp if wide else mlp_support).is_compared(parts, dtype, like.device),
    )


def choose_kernels(
    parts: list[nn.Module], dtype: torch.dtype, device: torch.device
) -> tuple[str | None, bool]:
    """Why no kernels support an MLP on this device, a sentence, or None; and whether they are those of
    `wide_mlp`.
    """
    reason = tile_mlp.refusal(parts, dtype, device)
    linear = [part for part in parts if isinstance(part, nn.Linear)]  # whatever is between them
    if reason is None:
        widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
        if not wide_mlp.suits_better(widths, dtype, torch.cuda.get_device_capability(device)):
            return None, False
    tf32 = dtype is torch.float32 and compat.products_use_tf32()
    other = wide_mlp.refusal(parts, dtype, device) or (_TF32 if tf32 else None)
    if other is None:
        return None, True
    wide = reason is not None and any(layer.out_features >= wide_mlp.MIN_HIDDEN for layer in linear[:-1])
    return (other if wide else reason), False


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
        elif (activation := activation_of(part)) is not None and layers and layers[-1][1] is None:
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
