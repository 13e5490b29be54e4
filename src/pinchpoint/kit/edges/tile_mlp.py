"""A small MLP as one CUDA kernel forward and one backward, used by `flat_path` where it is supported.

The kernels take two to five linear layers of up to 128 columns, or two of up to 256, with GELU, SiLU, ReLU
or tanh between them, nothing after the last, and up to 63 inputs and 64 outputs. Networks whose values and
gradients were compared with float64 on an H200 are in `tile_kernels.tested`; others are compared when they
are first used (`first_use`). Nothing is stored between layers; backward passes the gradient of some edges
from one layer to the next in a buffer whose size does not depend on the edges.

float32 products are computed on the matrix units from fp16 parts, with the accuracy of float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.units import MIB
from pinchpoint.kit.edges.mlp_support import (
    HOPPER,
    MIN_TILE,
    NO_KERNELS,
    SHARED_BYTES,
    Capability,
    activation_code,
    compiled_misfit,
    disorder,
    dtype_name,
    pad_width,
)

Gradients = dict[int, Tensor]
# Whether 16-bit kernels use instructions that Triton's interpreter lacks, for activations of 16 bits.
_FAST = True
_BUFFER_BYTES = 32 * MIB  # of what backward passes from one layer to the next
_SUM_BYTES = 24 * MIB  # of the programs' own sums
_MOST_LAYERS = 5  # linear layers that the kernels have arguments for
_PARTS = {torch.float32: 2, torch.bfloat16: 1, torch.float16: 1}
_MOST_INPUTS, _MOST_OUTPUTS, _MOST_HIDDEN, _MOST_HIDDEN_ALONE = 63, 64, 128, 256
_MOST_INPUTS_ALONE = 31  # of one hidden layer of more than _MOST_HIDDEN columns: with 63, float32 crashed
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
    (1, 64): Plan(64, 4, 2, columns=True),
    (1, 128): Plan(64, 8, 1, columns=True),
    (1, 256): Plan(32, 8, 1, columns=True),
    (2, 16): Plan(32, 2, 8),
    (2, 32): Plan(32, 2, 4),
    (2, 64): Plan(64, 4, 2, columns=True),
    (2, 128): Plan(64, 8, 1, columns=True),
    (2, 256): Plan(32, 8, 1, columns=True),
}
# The same for larger networks, most of whose weights do not fit into shared memory together, by their size
# (`_size`) too.
# With 128 columns and many inputs or outputs, edges are rows in backward: as columns, the ptxas of Triton 3.6
# loads the address of an operand from local memory before it stores it, which is right only after the same
# kernel ran; and so with 64 columns in tiles of 32 edges.
_FORWARD_LARGER = {
    (2, 64, 2): Plan(64, 4, 2, columns=True),
    (2, 64, 3): Plan(64, 4, 2, columns=True),
    (2, 64, 4): Plan(64, 4, 2, columns=True),
    (2, 128, 2): Plan(64, 4, 1),
    (2, 128, 3): Plan(64, 4, 1),
    (2, 128, 4): Plan(64, 4, 1),
}
_BACKWARD_LARGER = {
    (2, 64, 4): Plan(64, 4, 1, columns=True),
    (2, 128, 1): Plan(32, 8, 1, columns=True),
    (2, 128, 2): Plan(32, 8, 1, columns=True, stored=True),
    (2, 128, 3): Plan(32, 8, 1, stored=True),
    (2, 128, 4): Plan(32, 8, 1, stored=True),
}
# The same on GPUs of other compute capabilities, if they differ. There, shared memory is smaller, and Triton
# multiplies with other instructions, for which some operands are in it twice.
_FORWARD_SMALLER = {(2, 64, size): Plan(32, 2, 6) for size in (2, 3, 4)}
_BACKWARD_SMALLER = {
    (1, 64, 0): Plan(32, 2, 4),
    (1, 64, 1): Plan(32, 2, 4),
    (1, 64, 2): Plan(32, 2, 4),
    (2, 64, 0): Plan(32, 2, 4),
    (2, 64, 1): Plan(32, 2, 4),
    (2, 64, 2): Plan(32, 2, 4),
    (1, 64, 3): Plan(32, 4, 2),
    (1, 64, 4): Plan(32, 4, 2),
    (1, 128, 0): Plan(64, 8, 1, columns=True, stored=True),
    (1, 128, 1): Plan(64, 8, 1, columns=True, stored=True),
    (1, 128, 2): Plan(64, 8, 1, columns=True, stored=True),
    (1, 128, 3): Plan(32, 8, 1, columns=True, stored=True),
    (1, 128, 4): Plan(32, 8, 1, columns=True, stored=True),
    (2, 64, 3): Plan(32, 2, 2, stored=True),
    (2, 64, 4): Plan(32, 2, 2, stored=True),
    (2, 128, 0): Plan(16, 8, 1, columns=True, stored=True),
    (2, 128, 1): Plan(16, 8, 1, columns=True, stored=True),
    (2, 128, 3): Plan(16, 8, 1, stored=True),
    (2, 128, 4): Plan(16, 8, 1, stored=True),
    (2, 256, 0): Plan(16, 8, 1, columns=True),
    (2, 256, 1): Plan(16, 8, 1, columns=True),
}


def refusal(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not support these modules on the device, a whole sentence; None if they do.

    parts: alternating linear layers and activations.
    """
    if (capability := torch.cuda.get_device_capability(device)) not in SHARED_BYTES:
        return NO_KERNELS
    if dtype not in _PARTS:
        return f"{dtype} is not {' or '.join(dtype_name(one) for one in _PARTS)}."
    if (problem := disorder(parts)) is not None:
        return problem
    linear: list[Any] = parts[0::2]
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    hidden, layers = max(widths[1:-1]), len(linear) - 1
    most = _MOST_HIDDEN_ALONE if layers == 1 else _MOST_HIDDEN
    if hidden > most:
        return f"A hidden layer has {hidden} columns, more than {most}."
    if layers >= _MOST_LAYERS:
        return f"There are {layers} hidden layers, more than {_MOST_LAYERS - 1}."
    if hidden > _MOST_HIDDEN and widths[0] > _MOST_INPUTS_ALONE:
        return f"There are {widths[0]} inputs, more than {_MOST_INPUTS_ALONE} with {hidden} columns."
    if widths[0] > _MOST_INPUTS or widths[-1] > _MOST_OUTPUTS:
        ends = f"{widths[0]} inputs and {widths[-1]} outputs"
        return f"There are {ends}; the kernels take up to {_MOST_INPUTS} and {_MOST_OUTPUTS}."
    return misfit(widths, dtype, capability)


def misfit(widths: list[int], dtype: torch.dtype, capability: Capability = HOPPER) -> str | None:
    """Why a network of at most 128 columns does not fit into shared memory, a sentence; None if it may."""
    if capability != HOPPER:
        return compiled_misfit(widths, dtype, capability)
    most = SHARED_BYTES[HOPPER]
    if (need := _least_shared_bytes(widths, dtype)) <= most:
        return None
    return f"Its weights take {need // 2**10} KiB of shared memory, which has {most // 2**10} KiB."


def fixed_bytes(
    linear: list[nn.Linear], dtype: torch.dtype, device: torch.device, edges: int | None = None
) -> int:
    """The bytes that backward needs beside inputs and outputs, for any number of edges or for some."""
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    plan = backward_plan(widths, dtype, torch.cuda.get_device_capability(device))
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
    stored, edges: those of the `Plan`. chained: kernels wait for the launch before them by themselves.
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
    chained: bool = False


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
    capability = torch.cuda.get_device_capability(device)
    forward, backward = (plan(widths, dtype, capability) for plan in (forward_plan, backward_plan))
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

    launches: those of this network, if they are known. programs: how many there are, if not as many as the
    GPU runs at once.
    """

    adds_at_end = True

    def __init__(
        self,
        parts: list[nn.Module],
        dtype: torch.dtype,
        like: Tensor,
        launches: Launches | None = None,
        programs: int | None = None,
    ) -> None:
        layers: list[Any] = parts[0::2]
        self.dtype = dtype
        own = launches or launches_of(parts, dtype, like.device)
        if programs is not None:
            own = replace(own, forward_programs=programs, backward_programs=programs)
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
        widths, rest = self._widths, totals.sum(0)
        sizes = [size for below, above in pairwise(widths[1:]) for size in (above * below, above)]
        first, *others = rest.split([self._places[1], *sizes])
        pieces = [*first_sums(first, widths[0]), *others]  # each weight, then its bias
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


def forward_plan(widths: list[int], dtype: torch.dtype, capability: Capability = HOPPER) -> Plan:
    key = _PARTS[dtype], pad_width(max(widths[1:-1]))
    larger = (*key, _size(widths))
    plan = _FORWARD_LARGER.get(larger, _FORWARD[key])
    return plan if capability == HOPPER else _FORWARD_SMALLER.get(larger, plan)


def backward_plan(widths: list[int], dtype: torch.dtype, capability: Capability = HOPPER) -> Plan:
    key = _PARTS[dtype], pad_width(max(widths[1:-1]))
    larger = (*key, _size(widths))
    plan = _BACKWARD_LARGER.get(larger, _BACKWARD[key])
    if capability != HOPPER:
        plan = _BACKWARD_SMALLER.get(larger, plan)
    # With one hidden layer, no visit would store anything, nor add the gradients of the last layer.
    return plan._replace(stored=plan.stored and len(widths) > 3)


def _size(widths: list[int]) -> int:
    """How large a network is.

    0: one tile of inputs and of outputs, at most three hidden layers; 1: two tiles of inputs; 2: four hidden
    layers, or one with more inputs or outputs; 3: two with more inputs or outputs; 4: three or four of them.
    """
    hidden = len(widths) - 2
    if widths[0] >= 2 * MIN_TILE or widths[-1] > MIN_TILE:
        return min(hidden + 1, 4)
    return 2 if hidden > 3 else int(widths[0] >= MIN_TILE)


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


def _places(widths: list[int]) -> list[int]:
    """Where each layer's gradients begin among the sums, and the end.

    First its weight, then its bias; the first layer's weight is padded to whole tiles, with the bias in them:
    rows of other lengths take the kernels long to add to.
    """
    places = [0, widths[1] * pad_width(widths[0] + 1)]
    for below, above in pairwise(widths[1:]):
        places.append(places[-1] + above * (below + 1))
    return places


def first_sums(sums: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    """The gradients of the first layer's weight and bias from its part of the sums, (places,)."""
    padded = sums.view(-1, pad_width(inputs + 1))
    return padded[:, :inputs], padded[:, inputs]


def _backward_programs(widths: list[int], dtype: torch.dtype, device: torch.device) -> int:
    processors = _processors(device)
    plan = backward_plan(widths, dtype, torch.cuda.get_device_capability(device))
    most = max(1, _SUM_BYTES // (4 * _places(widths)[-1] * processors))
    return processors * min(plan.programs, most)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
