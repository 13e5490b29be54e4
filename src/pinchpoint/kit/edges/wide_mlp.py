"""An MLP with two to four hidden layers, the widest of 65 to 256 columns, in a few CUDA kernels per slice.

It need not fit into the shared memory and the registers of a processor as a whole, as the MLPs of `tile_mlp`
must: with more than 128 columns none does; with more than 64 some of float32 do not, or are slow there
(`suits_better`). The values of the hidden layers of a slice of edges are in buffers whose size does not
depend on the edges; a forward or backward pass goes through one slice after another. The values of the first
hidden layer are not kept: they are computed from the inputs again. For the formulas, see
`tile_kernels.wide_triton`.

float32 products are computed on the matrix units from fp16 parts. Numbers have the accuracy of float32 down
to a thousandth of the largest one of their layer in the chunk; the errors of smaller ones are about 1e-10 of
the largest. An infinite input or gradient makes the results of its whole chunk NaN.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.units import MIB
from pinchpoint.kit.edges.mlp_support import (
    GELU_BY_TANH,
    HOPPER,
    NO_KERNELS,
    SHARED_BYTES,
    Capability,
    activation_code,
    compiled_misfit,
    disorder,
    pad_width,
    was_tested_on,
)
from pinchpoint.kit.edges.tile_mlp import Gradients, Net, first_sums
from pinchpoint.kit.edges.wide_plans import PLANS, Plan, Plans, plans_of
from pinchpoint.kit.edges.wide_steps import Chunk, KernelStep, SlicePass, Slot, Step
from pinchpoint.kit.triton_launch import Launcher

MIN_HIDDEN = 129  # narrower ones are those of `tile_mlp` except in float32; single hidden layers always are
_MIN_HIDDEN_PARTS, _MOST_HIDDEN = 65, 256
_MIN_WIDTH = 128  # to which narrower hidden layers are padded
_MOST_INPUTS, _MOST_OUTPUTS = 63, 64
MOST_HIDDEN_LAYERS = 4
_DTYPES = (torch.float32, torch.bfloat16)
TILE = 16  # the narrowest tile of the matrix units
_MOST_TILE = 128  # edges: slices are multiples of it
# Whether 16-bit kernels use instructions, and all a way to be launched, that Triton's interpreter lacks.
_FAST = _CHAINED = True


# By the bytes of a number. Limits of the hidden layers of a slice: the more, the fewer launches; the sums of
# gradients and a chunk of some 200,000 edges fit beside them.
_BUFFER_BYTES = {2: 75 * MIB, 4: 99 * MIB}
# The same for networks with more inputs or outputs than these. Each of their edges takes many bytes, so that
# larger buffers would leave room for few edges in a chunk.
_SMALLER_BUFFER_BYTES = {2: 50 * MIB, 4: 66 * MIB}
_TWO_LAYERS_BYTES = 50 * MIB  # of two hidden layers, whose slices are long enough
_FEW_INPUTS, _FEW_OUTPUTS = 31, 16
_EVEN_ROUNDS = 4  # of tiles in a chunk, from which on leaving some edges out saves more than it costs
# Hidden layers and the sums of gradients together take no more than this.
_MOST_FIXED_BYTES = 120 * MIB


def refusal(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not support these modules on the device, a whole sentence; None if they do.

    parts: alternating linear layers and activations.
    """
    if (capability := torch.cuda.get_device_capability(device)) not in SHARED_BYTES:
        return NO_KERNELS
    if dtype not in _DTYPES:
        return f"{dtype} is not {' or '.join(_name(one) for one in _DTYPES)}."
    if (problem := disorder(parts)) is not None:
        return problem
    linear: list[Any] = parts[0::2]
    hidden = [layer.out_features for layer in linear[:-1]]
    least = _MIN_HIDDEN_PARTS if dtype is torch.float32 and capability == HOPPER else MIN_HIDDEN
    if not least <= max(hidden) <= _MOST_HIDDEN:
        return f"The widest hidden layer has {max(hidden)} columns, not {least} to {_MOST_HIDDEN}."
    if not 2 <= len(hidden) <= MOST_HIDDEN_LAYERS:
        return f"The number of hidden layers is {len(hidden)}, not 2 to {MOST_HIDDEN_LAYERS}."
    inputs, outputs = linear[0].in_features, linear[-1].out_features
    if inputs > _MOST_INPUTS or outputs > _MOST_OUTPUTS:
        return (
            f"There are {inputs} inputs and {outputs} outputs, more than {_MOST_INPUTS} and {_MOST_OUTPUTS}."
        )
    return None if capability == HOPPER else compiled_misfit([inputs, *hidden, outputs], dtype, capability)


def is_compared(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels of modules that `refusal` does not refuse were compared with float64 beforehand."""
    linear: list[Any] = parts[0::2]
    ends = pad_width(linear[0].in_features + 1) <= 2 * TILE and linear[-1].out_features <= TILE
    known = activation_code(parts[1]) != GELU_BY_TANH and linear[0].bias is not None
    return ends and known and was_tested_on(device)


def suits_better(widths: list[int], dtype: torch.dtype, capability: Capability) -> bool:
    """Whether these kernels are faster than those of `tile_mlp`, for a network that both support.

    They are in float32 where those have too few registers for all layers.
    """
    inputs, *hidden, outputs = widths
    if dtype is not torch.float32 or not hidden or not _MIN_HIDDEN_PARTS <= max(hidden) < MIN_HIDDEN:
        return False
    larger = inputs > _FEW_INPUTS or outputs > _FEW_OUTPUTS
    layers = len(hidden)
    return capability == HOPPER and (layers == MOST_HIDDEN_LAYERS or (larger and layers > 2))


def _padded(widths: list[int]) -> int:
    """The width to which every hidden layer is padded."""
    return max(_MIN_WIDTH, pad_width(max(widths[1:-1])))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def fixed_bytes(
    linear: list[nn.Linear], dtype: torch.dtype, device: torch.device, edges: int | None = None
) -> int:
    """The bytes that backward needs beside inputs and outputs, for any number of edges or for some."""
    hidden, size, programs = len(linear) - 1, dtype.itemsize, processors(device)
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    width = _padded(widths)
    sums = _Sums.of(widths)
    converted = size * sum(layer.weight.numel() for layer in linear[1:])
    if dtype is torch.float32:  # the weights between hidden layers, and the norms and bounds of all layers
        converted = 4 * ((hidden - 1) * width * width + 6 * len(linear))
    plan = plans_of(size, width, torch.cuda.get_device_capability(device)).between
    groups = _groups(programs, width, plan)
    sum_bytes = sums.bytes_of(programs, groups)
    return _buffer_bytes(widths, edges, size, programs, sum_bytes) + converted + sum_bytes


def _buffer_limit(widths: list[int], size: int, sum_bytes: int) -> int:
    """The most bytes that the hidden layers of a slice take. size: the bytes of a number."""
    most = _BUFFER_BYTES[size]
    if widths[0] > _FEW_INPUTS or widths[-1] > _FEW_OUTPUTS:
        most = _SMALLER_BUFFER_BYTES[size]
        most = min(most, _TWO_LAYERS_BYTES) if len(widths) == 4 else most
    return min(most, _MOST_FIXED_BYTES - sum_bytes)


def _buffer_bytes(widths: list[int], edges: int | None, size: int, programs: int, sum_bytes: int) -> int:
    """The bytes of the buffers of a network, for any number of edges or for some.

    size: the bytes of a number. They are those of backward, which forward does not exceed.
    """
    hidden, width, limit_bytes = len(widths) - 2, _padded(widths), _buffer_limit(widths, size, sum_bytes)
    layers = {hidden}
    if size == 2:  # without and with the gradient of the inputs
        layers = {hidden - 1, max(hidden - 1, 2)}
    most = max(one * _slice_edges(one, edges, size, width, programs, limit_bytes) for one in layers)
    return most * width * size


def _slice_edges(
    layers: int, edges: int | None, size: int, width: int, programs: int, limit_bytes: int
) -> int:
    """The edges of a slice of some layers, for any number of edges or for some.

    If there are several slices, every program has the same number of tiles in all but the last.
    """
    most = max(1, limit_bytes // (layers * width * size) // _MOST_TILE) * _MOST_TILE
    most = _whole_rounds(most, PLANS[size, width], programs)
    return most if edges is None else min(most, max(1, -(-edges // _MOST_TILE)) * _MOST_TILE)


def _whole_rounds(edges: int, plans: Plans, programs: int, least: int = 1) -> int:
    """The most of these edges with which every program has the same number of tiles.

    All, if the tiles would be fewer than `least` for each program.
    """
    unit = programs * max(plans.first.edges, plans.middle.edges)
    return edges // unit * unit if edges >= least * unit and unit % _MOST_TILE == 0 else edges


def even_chunk(linear: list[nn.Linear], dtype: torch.dtype, device: torch.device, edges: int) -> int:
    """The edges of a chunk, at most these, so that in 16 bits no program waits for others in its last slice.

    float32 kernels have more and smaller tiles; more chunks would take longer.
    """
    if dtype.itemsize > 2:
        return edges
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    plans = plans_of(dtype.itemsize, _padded(widths), torch.cuda.get_device_capability(device))
    return _whole_rounds(edges, plans, processors(device), least=_EVEN_ROUNDS)


class _Sums(NamedTuple):
    """Where the gradients begin among the sums, each weight before its bias, and the end.

    ends: of the first layer, as in `tile_mlp.first_sums`, and of the last; between: of the others.
    """

    ends: list[int]
    between: list[int]

    @staticmethod
    def of(widths: list[int]) -> _Sums:
        sizes = [above * (below + 1) for below, above in pairwise(widths)]
        between = [0]
        for size in sizes[1:-1]:
            between.append(between[-1] + size)
        first = widths[1] * pad_width(widths[0] + 1)
        return _Sums([0, first, first + sizes[-1]], between)

    def bytes_of(self, programs: int, groups: int) -> int:
        """Those of all programs and groups."""
        return 4 * (programs * self.ends[-1] + groups * self.between[-1])


class WideMLP(ABC):
    """A `Network` in Triton. Programs sum their gradients in float32, and `finish` adds the sums up.

    edges: of the largest chunk, if that is known, so that the buffers are no larger than it needs. programs:
    how many there are, if not as many as the GPU has multiprocessors.
    """

    adds_at_end = True

    def __init__(
        self,
        parts: list[nn.Module],
        dtype: torch.dtype,
        like: Tensor,
        edges: int = 0,
        programs: int | None = None,
    ) -> None:
        layers: list[Any] = parts[0::2]
        self.dtype = dtype
        self._size = size = dtype.itemsize
        self._edges = edges
        self.widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self.width = _padded(self.widths)
        capability = torch.cuda.get_device_capability(like.device)
        self.plans = plans = plans_of(size, self.width, capability)
        # Programs load their weights while the launch before ends; older GPUs cannot.
        self._chained = _CHAINED and capability == HOPPER
        # Each kernel writes whole tiles; a larger tile of the next one would have rows that nothing wrote.
        order = plans.inputs, plans.between, plans.back_last, plans.middle, plans.first
        tiles = [plan.edges for plan in order]
        assert tiles == sorted(tiles) and max(tiles[-1], plans.outputs.edges) <= _MOST_TILE
        self._act = activation_code(parts[1])
        self._has_bias = layers[0].bias is not None
        self.last = len(layers) - 2  # the number of the last hidden layer, from 0
        self.weights = [
            (layer.weight.contiguous(), (layer.bias if self._has_bias else layer.weight).contiguous())
            for layer in layers
        ]
        self.places = _Sums.of(self.widths)
        self.programs = programs or processors(like.device)
        self.groups = _groups(self.programs, self.width, plans.between)
        self._sum_bytes = self.places.bytes_of(self.programs, self.groups)
        self._nets: dict[Plan, Net] = {}
        self._buffers: list[Tensor] = []
        self._buffers_for = -1  # edges
        shape = (
            self.dtype,
            tuple(self.widths),
            self._act,
            self._has_bias,
            plans,
            self.programs,
            _FAST,
            self._chained,
        )
        dtypes = tuple(one.dtype for pair in self.weights for one in pair)
        self._steps = _steps_of(type(self), like.device, *shape, *dtypes)
        self._passes: dict[tuple[Any, ...], SlicePass] = {}
        self.sums: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        out = torch.empty(inputs.shape[0], self.widths[-1], dtype=self.dtype, device=inputs.device)
        if not inputs.shape[0]:
            return out
        self._prepare(inputs)
        self._start_chunk(inputs, None)
        if isinstance(inputs, compat.FakeTensor):
            return out
        most = self._most_edges(self._turns(), inputs.shape[0], self._buffers[0].numel())
        self._run(("forward", inputs.dtype), most, Chunk(inputs, out), self._forward_steps)
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        of_inputs = inputs if want_inputs else None
        values = gradient if want_values else None
        if gradient.dtype is not self.dtype and want_values:
            values = torch.empty(gradient.shape, dtype=self.dtype, device=inputs.device)
        if not inputs.shape[0]:
            return of_inputs, values
        if not self.sums:
            shapes = (self.programs, self.places.ends[-1]), (self.groups, self.places.between[-1])
            self.sums = [torch.zeros(shape, dtype=torch.float32, device=inputs.device) for shape in shapes]
        self._prepare(inputs)
        self._start_chunk(inputs, gradient)
        if isinstance(inputs, compat.FakeTensor):
            return of_inputs, values
        layers, edges = self._layers_in_backward(want_inputs=want_inputs), inputs.shape[0]
        most = self._most_edges(layers, edges, _buffer_limit(self.widths, self._size, self._sum_bytes))
        make = partial(self._backward_steps, want_inputs=want_inputs, want_values=want_values)
        key = want_inputs, want_values, inputs.dtype, gradient.dtype
        self._run(key, most, Chunk(inputs, None, gradient, of_inputs, values), make)
        return of_inputs, values

    def finish(self, into: Gradients) -> None:
        """Add the sums of all programs to `into`, and free the buffers."""
        self._buffers.clear()
        self._passes.clear()
        sums, self.sums = self.sums, []
        if not sums or not into:
            return
        ends, between = (one.sum(0) for one in sums)
        own, totals, number = [], [], 0
        for at, (below, above) in enumerate(pairwise(self.widths)):
            if 0 < at <= self.last:
                total = between[self.places.between[at - 1] : self.places.between[at]]
            else:
                total = ends[self.places.ends[min(at, 1)] : self.places.ends[min(at, 1) + 1]]
            if at:
                pair = total[: above * below].view(above, below), total[above * below :]
            else:
                pair = first_sums(total, below)
            for one in pair if self._has_bias else pair[:1]:
                if number in into:
                    own.append(into[number])
                    totals.append(one)
                number += 1
        torch.ops.aten._foreach_add_.List(own, totals)

    def _prepare(self, inputs: Tensor) -> None:
        """Allocate the buffers, and convert the weights."""
        edges = max(self._edges, inputs.shape[0])
        if not self._buffers or edges > self._buffers_for:
            self._buffers.clear()
            self._passes.clear()
            size = _buffer_bytes(self.widths, edges, self._size, self.programs, self._sum_bytes)
            self._buffers.append(torch.empty(size, dtype=torch.uint8, device=inputs.device))
            self._buffers_for = edges
        self._convert(inputs)

    @abstractmethod
    def _convert(self, inputs: Tensor) -> None:
        """Convert the weights as the kernels read them, unless that is done."""

    @abstractmethod
    def _start_chunk(self, inputs: Tensor, gradient: Tensor | None) -> None:
        """Compute what the kernels of a chunk need to know of its inputs and gradients."""

    @abstractmethod
    def _turns(self) -> int:
        """The number of buffers that forward uses in turn."""

    @abstractmethod
    def _layers_in_backward(self, *, want_inputs: bool) -> int:
        """The number of layers of which backward holds values."""

    @abstractmethod
    def _tensors(self) -> dict[str, list[Tensor]]:
        """What the kernels read beside chunks, buffers, the layers as they are, and the sums."""

    @abstractmethod
    def _forward_steps(self) -> list[Step]:
        """What writes the outputs of a slice, with as many buffers as there are turns."""

    @abstractmethod
    def _backward_steps(self, *, want_inputs: bool, want_values: bool) -> list[Step]:
        """What adds the gradients of a slice to the sums, and writes that of its inputs, and its outputs, if
        they are wanted.
        """

    def step(
        self,
        kernel: Launcher,
        slots: tuple[Slot, ...],
        plan: Plan,
        *constants: Any,
        programs: int | None = None,
    ) -> KernelStep:
        """The launch of a kernel for a slice. programs: how many, if not one for each tile up to the most."""
        bound = kernel.bind(self.net(plan), *constants, warps=plan.warps, stages=1, chained=self._chained)
        return KernelStep(bound, slots, plan.edges, programs)

    def _run(self, key: tuple[Any, ...], most: int, chunk: Chunk, make: Callable[[], list[Step]]) -> None:
        """Run the steps that `make` makes for slices of at most `most` edges. key: on what the steps depend,
        beside the network's own shape.
        """
        own = self._passes.get((key, most))
        if own is None:
            steps = self._steps.get(key)
            if steps is None:
                steps = self._steps[key] = make()
            weights, biases = ([pair[at] for pair in self.weights] for at in range(2))
            tensors = {"weight": weights, "bias": biases, "sums": self.sums, **self._tensors()}
            memory = self._buffers[0]
            own = SlicePass(steps, memory, most, self.width, self.dtype, tensors, self.programs)
            self._passes[key, most] = own
        own.run(chunk)

    def _most_edges(self, layers: int, edges: int, limit_bytes: int) -> int:
        """`_slice_edges` of this network."""
        return _slice_edges(layers, edges, self._size, self.width, self.programs, limit_bytes)

    def block_programs(self, plan: Plan) -> int:
        """All programs, less those that would not have all blocks of columns together."""
        blocks = self.width // plan.columns
        return self.programs // blocks * blocks

    def group_programs(self, plan: Plan) -> int:
        """All programs of all groups."""
        return self.groups * (self.width // plan.columns)

    def net(self, plan: Plan) -> Net:
        if plan not in self._nets:
            widths, short = self.widths, self.dtype is not torch.float32
            self._nets[plan] = Net(
                inputs=widths[0],
                widths=tuple(widths[1:-1]),
                outputs=widths[-1],
                inputs_padded=pad_width(widths[0] + 1),
                hidden_padded=self.width,
                outputs_padded=pad_width(widths[-1]),
                last=self.last,
                places=(),
                activation=self._act,
                bias=self._has_bias,
                bf16=self.dtype is torch.bfloat16,
                parts=1 if short else 2,
                fast=_FAST and short,
                columns=False,
                stored=False,
                edges=plan.edges,
                chained=self._chained,
            )
        return self._nets[plan]


@lru_cache(maxsize=64)
def _steps_of(*_kind: Hashable) -> dict[tuple[Any, ...], list[Step]]:
    """The steps of all networks of a kind, which they add to."""
    return {}


def _groups(programs: int, width: int, between: Plan) -> int:
    """Groups of programs that have all blocks of a weight's gradient together."""
    return max(1, programs // (width // between.columns))


def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
