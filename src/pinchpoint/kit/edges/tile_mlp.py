"""A small MLP as one CUDA kernel forward and one backward, used by `flat_path` where it is supported.

The kernels take two to five linear layers of up to 128 columns with GELU, SiLU, ReLU or tanh between them,
nothing after the last, and up to 63 inputs and 64 outputs. Only networks whose values and gradients were
compared with float64 on an H200, by shape and activation, are used (`tile_kernels.tested`). Nothing is stored
between layers; backward passes the gradient of some edges from one layer to the next in a buffer whose size
does not depend on the edges.

float32 products are computed on the matrix units from fp16 parts, with the accuracy of float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.units import MIB
from pinchpoint.kit.edges.tile_kernels import tested

Gradients = dict[int, Tensor]
# The numbers by which the kernels know the activations.
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.SiLU: 2, nn.ReLU: 3, nn.Tanh: 4}
_GELU, _GELU_BY_TANH = 1, 5
# Whether 16-bit kernels use instructions that Triton's interpreter lacks, for activations of 16 bits.
_FAST = True
_MIN_TILE = 16  # the narrowest tile of the matrix units
_BUFFER_BYTES = 32 * MIB  # of what backward passes from one layer to the next
_SUM_BYTES = 24 * MIB  # of the programs' own sums
_MOST_LAYERS = 5  # linear layers that the kernels have arguments for
_PARTS = {torch.float32: 2, torch.bfloat16: 1, torch.float16: 1}
_SHARED_BYTES = 227 * 2**10  # of one program on a GPU of compute capability 9.0
_TESTED_CAPABILITY = (9, 0)  # compute capability on which they are tested; on others, layers run one by one
_WITHOUT_BIAS = " without bias"  # follows an activation in the table of tested networks
_TESTED_TRITON = "3.6."  # other versions may compile some tiles wrongly
OVERWRITES = True  # backward writes the gradient of the inputs over them, and the values over their gradient


class Plan(NamedTuple):
    """How a kernel is launched: edges in a tile, warps, and programs per multiprocessor.

    columns: a tile's edges are columns, not rows. stored: backward computes the values of hidden layers by
    visits of their own, so that only one weight between hidden layers is in shared memory.
    """

    edges: int
    warps: int
    programs: int
    columns: bool = False
    stored: bool = False


# By the parts of a product and the padded width. Two warps use other instructions than four or eight, for
# which Triton 3.6 computes some tiles of several products wrongly (its issues 10486 and 11366).
_FORWARD = {
    (1, 16): Plan(64, 2, 8),
    (1, 32): Plan(64, 2, 8),
    (1, 64): Plan(32, 2, 8),
    (1, 128): Plan(64, 4, 3),
    (1, 256): Plan(32, 8, 2, columns=True),
    (2, 16): Plan(32, 2, 8),
    (2, 32): Plan(32, 2, 8),
    (2, 64): Plan(32, 2, 6),
    (2, 128): Plan(64, 8, 1, columns=True),
    (2, 256): Plan(32, 8, 1, columns=True),
}
_BACKWARD = {
    (1, 16): Plan(64, 2, 8),
    (1, 32): Plan(64, 2, 4),
    (1, 64): Plan(32, 2, 4),
    (1, 128): Plan(64, 8, 1, columns=True),
    (1, 256): Plan(32, 8, 1, columns=True),
    (2, 16): Plan(32, 2, 8),
    (2, 32): Plan(32, 2, 4),
    (2, 64): Plan(32, 2, 4),
    (2, 128): Plan(64, 8, 1, columns=True),
    (2, 256): Plan(32, 8, 1, columns=True),
}
# The same for networks whose weights do not fit into shared memory together, by their size (`_size`) too.
# With many inputs or outputs, edges are rows in backward: as columns, the ptxas of Triton 3.6 loads the
# address of an operand from local memory before it stores it, which is right only after the same kernel ran.
_FORWARD_LARGER = {(2, 128, 2): Plan(64, 4, 1), (2, 128, 3): Plan(64, 4, 1)}
_BACKWARD_LARGER = {
    (2, 128, 1): Plan(32, 8, 1, columns=True),
    (2, 128, 2): Plan(32, 8, 1, columns=True, stored=True),
    (2, 128, 3): Plan(32, 8, 1, stored=True),
}


def activation_code(act: nn.Module) -> int | None:
    """The number by which the kernels know an activation; None if they do not."""
    if type(act) is nn.GELU:
        return _GELU_BY_TANH if act.approximate == "tanh" else _GELU
    return _ACTIVATIONS.get(type(act))


def refusal(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not support these modules on the device, a whole sentence; None if they do.

    parts: alternating linear layers and activations.
    """
    if torch.cuda.get_device_capability(device) != _TESTED_CAPABILITY:
        return "The kernels are tested on GPUs of compute capability 9.0 alone (H100, H200)."
    if (name := _dtype_name(dtype)) not in tested.NETWORKS:
        return f"{dtype} is not {' or '.join(tested.NETWORKS)}."
    linear: list[Any] = parts[0::2]
    if len(parts) < 3 or len(parts) % 2 == 0 or any(type(layer) is not nn.Linear for layer in linear):
        return "The MLP does not alternate linear layers and activations, with a linear layer at both ends."
    if any(above.in_features != below.out_features for below, above in pairwise(linear)):
        return "The widths of two layers do not match."  # torch itself will raise the error
    if len({layer.bias is None for layer in linear}) > 1:
        return "Some linear layers have a bias, and others do not."
    networks, without = tested.NETWORKS[name], "" if linear[0].bias is not None else _WITHOUT_BIAS
    activations = {_activation_name(act) + without for act in parts[1::2]}
    hidden, layers = max(layer.out_features for layer in linear[:-1]), len(linear) - 1
    inputs, outputs = linear[0].in_features, linear[-1].out_features
    width = pad_width(hidden)
    tried = set(networks.get((width, layers, pad_width(inputs + 1), pad_width(outputs)), ()))
    if len(activations) == 1 and activations <= tried:
        return None
    alike = {act for every in networks.values() for act in every}
    alike = {act for act in alike if act.endswith(_WITHOUT_BIAS) == bool(without)}
    if not alike:
        return "A linear layer has no bias." if without else "The linear layers have a bias."
    if len(activations) > 1 or not activations <= alike:
        return f"The activations are not all {' or all '.join(sorted(alike))}."
    if hidden > (most := max(own[0] for own in networks)):
        return f"A hidden layer has {hidden} columns, more than {most}."
    if (problem := misfit([inputs, *(layer.out_features for layer in linear)], dtype)) is not None:
        return problem
    if not (ends := [own[2:] for own in networks if own[:2] == (width, layers)]):
        counts = " or ".join(str(count) for count in sorted({own[1] for own in networks if own[0] == width}))
        return (
            f"The number of hidden layers is {layers}, not {counts or 'any'} as tested with {hidden} columns."
        )
    if not tried:
        pairs = ", or ".join(f"{below - 1} and {above}" for below, above in ends)
        return f"There are {inputs} inputs and {outputs} outputs; the kernels are tested with up to {pairs}."
    return f"It has {activations.pop()}; such a network is tested with {' or '.join(sorted(tried))}."


def misfit(widths: list[int], dtype: torch.dtype) -> str | None:
    """Why a network of at most 128 columns does not fit into shared memory, a sentence; None if it may."""
    if (need := _least_shared_bytes(widths, dtype)) <= _SHARED_BYTES:
        return None
    return f"Its weights take {need // 2**10} KiB of shared memory, which has {_SHARED_BYTES // 2**10} KiB."


def slowness(parts: list[nn.Module], dtype: torch.dtype) -> str:
    """A sentence on how much slower than eager a supported network was on an H200; "" if it was not."""
    linear: list[Any] = parts[0::2]
    shape = pad_width(max(layer.out_features for layer in linear[:-1])), len(linear) - 1
    ratio = tested.SLOWER.get(_dtype_name(dtype), {}).get(shape)
    return "" if ratio is None else f"On an H200, such a network takes {ratio:.2f} times as long as eager."


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _activation_name(act: nn.Module) -> str:
    by_tanh = getattr(act, "approximate", "none") == "tanh"
    return f"{type(act).__name__} by tanh" if by_tanh else type(act).__name__


def has_triton() -> bool:
    """Whether Triton is installed, so that its version is known."""
    return bool(_triton_version())


def triton_refusal() -> str | None:
    """Why the Triton of this machine is not used; None if it is."""
    own = _triton_version()
    if own.startswith(_TESTED_TRITON):
        return None
    return f"The kernels are tested with Triton {_TESTED_TRITON}x; this machine has {own or 'none'}."


def fixed_bytes(
    linear: list[nn.Linear], dtype: torch.dtype, device: torch.device, edges: int | None = None
) -> int:
    """The bytes that backward needs beside inputs and outputs, for any number of edges or for some."""
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    plan = backward_plan(widths, dtype)
    layers = _passed_layers(widths, plan)
    buffers = _BUFFER_BYTES if layers else 0
    if edges is not None:
        tile_bytes = layers * plan.edges * pad_width(max(widths[1:-1])) * dtype.itemsize
        buffers = min(buffers, -(-edges // plan.edges) * tile_bytes)
    return buffers + 4 * _places(widths)[-1] * _backward_programs(widths, dtype, device)


@dataclass(frozen=True)
class Net:
    """What the kernels are compiled for.

    widths: those of the hidden layers, of which the last has the number `last`. padded: the width as tiles of
    the matrix units, that of the inputs with a column of ones. places: where each layer's gradients begin
    among the sums, its weight before its bias, and the end. bf16: products of bf16 numbers, else of fp16.
    parts: how many of them add up to a number. fast: activations with the accuracy of 16 bits. columns,
    stored, edges: those of the `Plan`.
    """

    inputs: int
    widths: tuple[int, ...]
    outputs: int
    inputs_padded: int
    hidden_padded: int
    outputs_padded: int
    last: int
    places: tuple[int, ...]
    activation: int | None
    bias: bool
    bf16: bool
    parts: int
    fast: bool
    columns: bool
    stored: bool
    edges: int


@dataclass(frozen=True)
class Launches:
    """How the kernels of a network are launched: what depends on its shape and the GPU alone."""

    widths: list[int]
    places: list[int]
    forward: Plan
    backward: Plan
    forward_net: Net
    backward_net: Net
    forward_programs: int
    backward_programs: int


def launches_of(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> Launches:
    """The launches of modules that `refusal` does not refuse."""
    layers: list[Any] = parts[0::2]
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    forward, backward = forward_plan(widths, dtype), backward_plan(widths, dtype)
    own = activation_code(parts[1]), layers[0].bias is not None, dtype
    return Launches(
        widths,
        _places(widths),
        forward,
        backward,
        _net(widths, forward, *own),
        _net(widths, backward, *own),
        _processors(device) * forward.programs,
        _backward_programs(widths, dtype, device),
    )


def _net(widths: list[int], plan: Plan, activation: int | None, bias: bool, dtype: torch.dtype) -> Net:
    assert not plan.stored or len(widths) > 3
    parts = _PARTS[dtype]
    return Net(
        inputs=widths[0],
        widths=tuple(widths[1:-1]),
        outputs=widths[-1],
        inputs_padded=pad_width(widths[0] + 1),
        hidden_padded=pad_width(max(widths[1:-1])),
        outputs_padded=pad_width(widths[-1]),
        last=len(widths) - 3,
        places=tuple(_places(widths)),
        activation=activation,
        bias=bias,
        bf16=dtype is torch.bfloat16,
        parts=parts,
        fast=_FAST and parts == 1,
        columns=plan.columns,
        stored=plan.stored,
        edges=plan.edges,
    )


class TileMLP:
    """A `Network` in Triton. Each program sums its gradients in float32, and `finish` adds the sums up.

    launches: those of this network, if they are known.
    """

    adds_at_end = True

    def __init__(
        self, parts: list[nn.Module], dtype: torch.dtype, like: Tensor, launches: Launches | None = None
    ) -> None:
        layers: list[Any] = parts[0::2]
        self.dtype = dtype
        own = launches or launches_of(parts, dtype, like.device)
        self._launches, self._widths, self._places = own, own.widths, own.places
        self._has_bias = own.forward_net.bias
        weights: list[Tensor] = []
        for layer in layers:
            weights += [layer.weight, layer.bias if self._has_bias else layer.weight]
        weights += weights[:2] * (_MOST_LAYERS - len(layers))  # arguments that are not read
        self._weights = tuple(one.contiguous() for one in weights)
        self._sums: Tensor | None = None
        self._packed: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        edges, plan, net = inputs.shape[0], self._launches.forward, self._launches.forward_net
        out = torch.empty(edges, self._widths[-1], dtype=self.dtype, device=inputs.device)
        packed = self._pack(net)
        if not isinstance(inputs, compat.FakeTensor):
            from pinchpoint.kit.edges.tile_kernels import mlp_triton

            programs = min(self._launches.forward_programs, -(-edges // plan.edges))
            tensors = inputs, out, *packed, *self._weights
            mlp_triton.forward(programs, tensors, (edges, programs), net, warps=plan.warps, stages=1)
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """As a `Network`; the results replace the inputs and, in the same dtype, the gradient."""
        edges, plan, net = inputs.shape[0], self._launches.backward, self._launches.backward_net
        of_inputs = inputs if want_inputs else None
        values = gradient if want_values and gradient.dtype is self.dtype else None
        if want_values and values is None:
            values = torch.empty(gradient.shape, dtype=self.dtype, device=inputs.device)
        if self._sums is None:
            shape = self._launches.backward_programs, self._places[-1]
            self._sums = torch.zeros(shape, dtype=torch.float32, device=inputs.device)
        packed = self._pack(net)
        tiles = -(-edges // plan.edges)
        round_tiles = self._round_tiles(tiles)
        buffer = None
        if layers := _passed_layers(self._widths, plan):
            shape = layers, round_tiles, plan.edges * net.hidden_padded
            buffer = torch.empty(shape, dtype=self.dtype, device=inputs.device)
        if not isinstance(inputs, compat.FakeTensor):
            from pinchpoint.kit.edges.tile_kernels import mlp_triton

            programs = min(self._launches.backward_programs, tiles)
            mlp_triton.backward(
                programs,
                (
                    inputs,
                    gradient,
                    gradient if buffer is None else buffer,
                    inputs,
                    gradient if values is None else values,
                    self._sums,
                    *packed,
                    *self._weights,
                ),
                (edges, programs, round_tiles),
                net,
                want_inputs,
                want_values,
                warps=plan.warps,
                stages=1,
            )
        return of_inputs, values

    def finish(self, into: Gradients) -> None:
        """Add the sums of all programs to `into`."""
        if self._sums is None:
            return
        totals, self._sums = self._sums, None
        if not into:
            return
        sizes = [size for below, above in pairwise(self._widths) for size in (above * below, above)]
        pieces = totals.sum(0).split(sizes)  # each weight, then its bias
        if not self._has_bias:
            pieces = pieces[0::2]
        own = list(into.values())
        sums = [pieces[number].view_as(one) for number, one in into.items()]
        torch.ops.aten._foreach_add_.List(own, sums)  # named: a search for it prints the tensors

    def _round_tiles(self, tiles: int) -> int:
        """The tiles of a round: all, if nothing is passed on; else rounds of about the same length."""
        plan, programs = self._launches.backward, self._launches.backward_programs
        layers = _passed_layers(self._widths, plan)
        if not layers:
            return tiles
        tile_bytes = layers * plan.edges * self._launches.backward_net.hidden_padded * self.dtype.itemsize
        most = max(1, _BUFFER_BYTES // (tile_bytes * programs))  # of one program
        rounds = -(-tiles // (most * programs))
        return min(tiles, -(-tiles // (rounds * programs)) * programs)

    def _pack(self, net: Net) -> tuple[Tensor, ...]:
        """The weights between hidden layers, padded and converted once for all chunks, if they are read."""
        layers, wide = net.last, net.hidden_padded
        if not net.columns or not layers:
            return self._weights[:2]
        if self._packed is None:
            device = self._weights[0].device
            kind = self.dtype if net.parts == 1 else torch.float16
            packed = torch.empty(layers, net.parts, wide, wide, dtype=kind, device=device)
            self._packed = packed, torch.empty(layers, dtype=torch.float32, device=device)
            if not isinstance(packed, compat.FakeTensor):
                from pinchpoint.kit.edges.tile_kernels import mlp_triton

                tensors = *self._packed, *self._weights
                mlp_triton.pack(layers, tensors, (), net, warps=8, stages=1)
        return self._packed


def forward_plan(widths: list[int], dtype: torch.dtype) -> Plan:
    key = _PARTS[dtype], pad_width(max(widths[1:-1]))
    return _FORWARD_LARGER.get((*key, _size(widths)), _FORWARD[key])


def backward_plan(widths: list[int], dtype: torch.dtype) -> Plan:
    key = _PARTS[dtype], pad_width(max(widths[1:-1]))
    plan = _BACKWARD_LARGER.get((*key, _size(widths)), _BACKWARD[key])
    # With one hidden layer, no visit would store anything, nor add the gradients of the last layer.
    return plan._replace(stored=plan.stored and len(widths) > 3)


def _size(widths: list[int]) -> int:
    """How large a network is.

    0: one tile of inputs and of outputs, at most three hidden layers; 1: two tiles of inputs; 2: four hidden
    layers, or one with more inputs or outputs; 3: several hidden layers with more inputs or outputs.
    """
    if widths[0] >= 2 * _MIN_TILE or widths[-1] > _MIN_TILE:
        return 3 if len(widths) > 3 else 2
    return 2 if len(widths) > 5 else int(widths[0] >= _MIN_TILE)


def _least_shared_bytes(widths: list[int], dtype: torch.dtype) -> int:
    """The shared memory of weights that a kernel reads in one visit, and forward of a tile of inputs."""
    wide, inputs = pad_width(max(widths[1:-1])), pad_width(widths[0] + 1)
    first, last, between = wide * inputs, wide * pad_width(widths[-1]), wide * wide
    layers = len(widths) - 3
    forward = first + last + layers * between + forward_plan(widths, dtype).edges * inputs
    backward = first + last + layers * between
    if backward_plan(widths, dtype).stored:  # one weight between hidden layers, and what is next to it
        backward = between + (first + last if layers == 1 else max(first, last))
    return 2 * _PARTS[dtype] * max(forward, backward)


def _passed_layers(widths: list[int], plan: Plan) -> int:
    """The number of hidden layers of which backward holds z or dz of a round in memory."""
    between = len(widths) - 3
    return between if plan.stored else min(1, max(0, between - 1))


def pad_width(width: int) -> int:
    """The width of the tile of the matrix units that holds `width` columns."""
    return max(_MIN_TILE, 1 << (width - 1).bit_length())


def _places(widths: list[int]) -> list[int]:
    """Where each layer's gradients begin among the sums: its weight, then its bias; and the end."""
    places = [0]
    for below, above in pairwise(widths):
        places.append(places[-1] + above * (below + 1))
    return places


def _backward_programs(widths: list[int], dtype: torch.dtype, device: torch.device) -> int:
    processors = _processors(device)
    most = max(1, _SUM_BYTES // (4 * _places(widths)[-1] * processors))
    return processors * min(backward_plan(widths, dtype).programs, most)


@cache
def _triton_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
