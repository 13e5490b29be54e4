"""An MLP with hidden layers of 129 to 256 columns, one CUDA kernel per layer and slice of edges.

Its weights do not fit into the shared memory of a processor together, as those of `tile_mlp` do. The values
of the hidden layers of a slice of edges are in buffers whose size does not depend on the edges; a forward or
backward pass goes through one slice after another.

float32 products are computed on the matrix units from fp16 parts, with the accuracy of float32.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.units import MIB
from pinchpoint.kit.edges.tile_mlp import Gradients, Net, activation_code, pad_width

WIDTH = 256  # to which every hidden layer is padded
MIN_HIDDEN = 129  # narrower ones are those of `tile_mlp`
_MOST_INPUTS, _MOST_OUTPUTS = 31, 16
_MOST_HIDDEN_LAYERS = 4
_PARTS = {torch.float32: 2, torch.bfloat16: 1, torch.float16: 1}
_TESTED_DTYPES = (torch.float32, torch.bfloat16)
_TESTED_ACTIVATIONS = (nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh)  # GELU without approximation
_MOST_TILE = 128  # edges: slices are multiples of it
_FAST = True  # whether 16-bit kernels use instructions that Triton's interpreter lacks
_TESTED_CAPABILITY = (9, 0)  # compute capability on which they are tested; on others, layers run one by one


class Plan(NamedTuple):
    """How a kernel is launched: edges in a tile, columns of a block, warps, tiles on the chip."""

    edges: int
    columns: int
    warps: int
    stages: int = 1


# By the parts of a product. The bytes of the hidden layers of a slice: the more, the fewer launches; the sums
# of gradients and a chunk of some 200,000 edges fit beside them.
_BUFFER_BYTES = {1: 64 * MIB, 2: 96 * MIB}
_FIRST = {1: Plan(64, WIDTH, 8), 2: Plan(64, WIDTH, 8)}
_ENDS = {1: Plan(64, WIDTH, 8), 2: Plan(64, WIDTH, 8)}  # of backward
_OUTPUTS = {1: Plan(64, WIDTH, 8), 2: Plan(64, WIDTH, 8)}  # without a gradient
_LAST = {1: Plan(64, WIDTH, 8), 2: Plan(64, 128, 8)}  # without outputs
_MIDDLE = {1: Plan(128, WIDTH, 8), 2: Plan(64, 128, 8)}
_GRADIENT = {1: Plan(64, 128, 8), 2: Plan(32, 64, 8)}
BETWEEN = {1: Plan(64, 128, 8, 3), 2: Plan(64, 64, 8)}  # instead, where one kernel does two steps


def refusal(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not support these modules on the device, a whole sentence; None if they do.

    parts: alternating linear layers and activations.
    """
    if torch.cuda.get_device_capability(device) != _TESTED_CAPABILITY:
        return "The kernels are tested on GPUs of compute capability 9.0 alone (H100, H200)."
    if dtype not in _TESTED_DTYPES:
        return f"{dtype} is not {' or '.join(_name(tested) for tested in _TESTED_DTYPES)}."
    linear: list[Any] = parts[0::2]
    if len(parts) < 3 or len(parts) % 2 == 0 or any(type(layer) is not nn.Linear for layer in linear):
        return "The MLP does not alternate linear layers and activations, with a linear layer at both ends."
    if any(above.in_features != below.out_features for below, above in pairwise(linear)):
        return "The widths of two layers do not match."  # torch itself will raise the error
    hidden = [layer.out_features for layer in linear[:-1]]
    if not MIN_HIDDEN <= max(hidden) <= WIDTH:
        return f"The widest hidden layer has {max(hidden)} columns, not {MIN_HIDDEN} to {WIDTH}."
    if len(hidden) > _MOST_HIDDEN_LAYERS:
        return f"There are {len(hidden)} hidden layers, more than {_MOST_HIDDEN_LAYERS}."
    kinds = {type(act) for act in parts[1::2]}
    if len(kinds) > 1 or not kinds <= set(_TESTED_ACTIVATIONS):
        return f"The activations are not all {' or all '.join(act.__name__ for act in _TESTED_ACTIVATIONS)}."
    if any(getattr(act, "approximate", "none") != "none" for act in parts[1::2]):
        return "GELU is approximated by tanh."
    if len({layer.bias is None for layer in linear}) > 1:
        return "Some linear layers have a bias and some have none."
    inputs, outputs = linear[0].in_features, linear[-1].out_features
    if inputs > _MOST_INPUTS or outputs > _MOST_OUTPUTS:
        return (
            f"There are {inputs} inputs and {outputs} outputs, more than {_MOST_INPUTS} and {_MOST_OUTPUTS}."
        )
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def fixed_bytes(
    linear: list[nn.Linear],
    dtype: torch.dtype,
    device: torch.device,
    edges: int | None = None,
    *,
    pairs: bool,
) -> int:
    """The bytes that backward needs beside inputs and outputs, for any number of edges or for some.

    pairs: whether one kernel does two steps (`wide_pairs`).
    """
    parts = _PARTS[dtype]
    buffers = _BUFFER_BYTES[parts]
    if edges is not None:
        buffers = _buffer_bytes(parts, _held_layers(len(linear) - 1, parts, pairs), edges, dtype)
    sizes = _Sums.of([linear[0].in_features, *(layer.out_features for layer in linear)])
    cast = 0 if dtype is torch.float32 else 2 * sum(layer.weight.numel() for layer in linear)
    programs, groups = processors(device), _groups(dtype, device, pairs)
    return buffers + cast + 4 * (programs * sizes.ends[-1] + groups * sizes.between[-1])


def _held_layers(hidden: int, parts: int, pairs: bool) -> int:
    """The layers of which a slice holds values: all hidden ones in backward, two in turn in forward.

    With two parts, activations are held too: of two layers in turn if one kernel does several steps.
    """
    return max(2, hidden + (parts > 1) * min(hidden, 2 if pairs else hidden))


def _buffer_bytes(parts: int, layers: int, edges: int, dtype: torch.dtype) -> int:
    """The bytes of some layers of a chunk, at most those of a slice."""
    whole = layers * -(-edges // _MOST_TILE) * _MOST_TILE * WIDTH * dtype.itemsize
    return min(_BUFFER_BYTES[parts], whole)


class _Sums(NamedTuple):
    """Where the gradients begin among the sums, each weight before its bias, and the end.

    ends: of the first and the last layer; between: of the others.
    """

    ends: list[int]
    between: list[int]

    @staticmethod
    def of(widths: list[int]) -> _Sums:
        sizes = [above * (below + 1) for below, above in pairwise(widths)]
        between = [0]
        for size in sizes[1:-1]:
            between.append(between[-1] + size)
        return _Sums([0, sizes[0], sizes[0] + sizes[-1]], between)


class WideMLP:
    """A `Network` in Triton. Programs sum their gradients in float32, and `finish` adds the sums up.

    edges: of the largest chunk, if that is known, so that the buffers are no larger than it needs. Its public
    attributes are for `wide_pairs`.
    """

    pairs = False  # whether one kernel does two steps
    adds_at_end = True

    def __init__(self, parts: list[nn.Module], dtype: torch.dtype, like: Tensor, edges: int = 0) -> None:
        layers: list[Any] = parts[0::2]
        self.dtype = dtype
        self.parts = _PARTS[dtype]
        self._edges = edges
        # Each kernel writes whole tiles; more rows than theirs would be those of another slice.
        assert _gradient_plan(self.parts, self.pairs).edges <= _LAST[self.parts].edges
        assert _ENDS[self.parts].edges <= _FIRST[self.parts].edges
        assert self.parts == 1 or _MIDDLE[self.parts].edges <= _LAST[self.parts].edges
        self._keep = self.parts > 1  # activations in float32 take long to compute
        self._act = activation_code(parts[1])
        self._has_bias = layers[0].bias is not None
        self.widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self.last = len(layers) - 2  # the number of the last hidden layer, from 0
        self.weights = [
            (layer.weight.contiguous(), (layer.bias if self._has_bias else layer.weight).contiguous())
            for layer in layers
        ]
        self.places = _Sums.of(self.widths)
        self._programs = processors(like.device)
        self.groups = _groups(dtype, like.device, self.pairs)
        self.cast: list[Tensor] = []
        self._nets: dict[Plan, Net] = {}
        self._buffers: list[Tensor] = []
        self.sums: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        out = torch.empty(inputs.shape[0], self.widths[-1], dtype=self.dtype, device=inputs.device)
        self._allocate(inputs)
        if isinstance(inputs, compat.FakeTensor):
            return out
        turns = self._turns()
        step = self._slice_edges(turns, inputs.shape[0])
        layers = self._views(turns, step)
        for begin in range(0, inputs.shape[0], step):
            count = min(step, inputs.shape[0] - begin)
            self._forward_slice(inputs, begin, count, layers, out)
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        of_inputs = inputs if want_inputs else None
        values = gradient if want_values else None
        if gradient.dtype is not self.dtype and want_values:
            values = torch.empty(gradient.shape, dtype=self.dtype, device=inputs.device)
        if self.sums is None:
            shapes = (self._programs, self.places.ends[-1]), (self.groups, self.places.between[-1])
            first, second = (
                torch.zeros(shape, dtype=torch.float32, device=inputs.device) for shape in shapes
            )
            self.sums = first, second
        self._allocate(inputs)
        if isinstance(inputs, compat.FakeTensor):
            return of_inputs, values
        layers = self.last + 1
        most = self._most_views()
        step = self._slice_edges(most, inputs.shape[0])
        buffers = self._views(most, step)
        before, after = buffers[:layers], buffers[layers:] or buffers
        after = [after[at % len(after)] for at in range(layers)]
        for begin in range(0, inputs.shape[0], step):
            count = min(step, inputs.shape[0] - begin)
            self._hidden(inputs, begin, count, before, after)
            self._end(begin, count, after[-1], before[-1], gradient, values)
            for at in range(self.last, 0, -1):
                self._back(at, count, before, after)
            self._add_first(inputs, begin, count, before[0], of_inputs)
        return of_inputs, values

    def finish(self, into: Gradients) -> None:
        """Add the sums of all programs to `into`, and free the buffers."""
        self._buffers.clear()
        if self.sums is None:
            return
        (ends, between), self.sums = (sums.sum(0) if into else sums for sums in self.sums), None
        if not into:
            return
        own, sums, number = [], [], 0
        for at, (below, above) in enumerate(pairwise(self.widths)):
            if 0 < at <= self.last:
                total = between[self.places.between[at - 1] : self.places.between[at]]
            else:
                total = ends[self.places.ends[min(at, 1)] : self.places.ends[min(at, 1) + 1]]
            pair = total[: above * below].view(above, below), total[above * below :]
            for one in pair if self._has_bias else pair[:1]:
                if number in into:
                    own.append(into[number])
                    sums.append(one)
                number += 1
        torch.ops.aten._foreach_add_.List(own, sums)

    def _allocate(self, inputs: Tensor) -> None:
        """Allocate the buffers, and convert the weights to 16 bits if they are multiplied so."""
        layers = _held_layers(self.last + 1, self.parts, self.pairs)
        edges = max(self._edges, inputs.shape[0])
        size = _buffer_bytes(self.parts, layers, edges, self.dtype)
        if not self._buffers or self._buffers[0].numel() < size:
            self._buffers.clear()
            self._buffers.append(torch.empty(size, dtype=torch.uint8, device=inputs.device))
        if not self.cast:
            # Those of the first layer are converted as they are read, with the bias.
            kind = torch.float32 if self.parts > 1 else self.dtype
            self.cast = [weight.detach().to(kind) for weight, _ in self.weights]

    def _turns(self) -> int:
        """The buffers that forward uses in turn, of activations or of z."""
        return 2

    def _forward_slice(
        self, inputs: Tensor, begin: int, count: int, layers: list[Tensor], out: Tensor
    ) -> None:
        self._first(inputs, begin, count, layers[0], layers[0], z=not self._keep)
        for at in range(1, self.last + 1):
            below, here = layers[(at + 1) % 2], layers[at % 2]
            self._middle(at, count, below, here, here, z=not self._keep)
        values = layers[self.last % 2]
        self._end(begin, count, values, values, None, out)

    def _hidden(
        self, inputs: Tensor, begin: int, count: int, before: list[Tensor], after: list[Tensor]
    ) -> None:
        """z of all hidden layers of a slice to `before`, and with two parts their activations to `after`."""
        self._first(inputs, begin, count, before[0], after[0], z=True)
        for at in range(1, self.last + 1):
            self._middle(at, count, after[at - 1], before[at], after[at], z=True)

    def _back(self, at: int, count: int, before: list[Tensor], after: list[Tensor]) -> None:
        """The gradient of the weight of hidden layer `at`, and dz of the layer below in place of its z."""
        self._add_between(at, count, before[at], after[at - 1])
        below = before[at - 1]
        self._middle(at, count, before[at], below, below, z=False, back=True)

    def _most_views(self) -> int:
        """The layers of which backward holds values: z of all, and with two parts the activations."""
        layers = self.last + 1
        return layers + (min(layers, 2 if self.pairs else layers) if self._keep else 0)

    def _slice_edges(self, layers: int, edges: int) -> int:
        """The edges of a slice for which some layers fit into the buffers; slices are about equally long.

        With pairs of layers, every program has the same number of tiles in all slices but the last.
        """
        most = _BUFFER_BYTES[self.parts] // (layers * WIDTH * self.dtype.itemsize) // _MOST_TILE * _MOST_TILE
        if edges > most and self.pairs:
            whole = self._programs * _ENDS[self.parts].edges
            rounds = self._programs * _MOST_TILE
            for unit in (rounds, whole):
                if most >= 2 * unit:
                    return most // unit * unit
        slices = max(1, -(-edges // most))
        return -(-edges // (slices * _MOST_TILE)) * _MOST_TILE

    def _views(self, layers: int, edges: int) -> list[Tensor]:
        size = edges * WIDTH * self.dtype.itemsize
        return [
            self._buffers[0][at * size : (at + 1) * size].view(self.dtype).view(edges, WIDTH)
            for at in range(layers)
        ]

    def _first(
        self, inputs: Tensor, begin: int, count: int, before: Tensor, after: Tensor, *, z: bool
    ) -> None:
        plan = _FIRST[self.parts]
        tensors = inputs, before, after, *self.weights[0]
        numbers = begin, count, self._programs
        _kernels().first_layer(
            self.programs_of(plan, count),
            tensors,
            numbers,
            self.net(plan),
            z,
            self._keep,
            warps=plan.warps,
            stages=1,
        )

    def _middle(
        self,
        at: int,
        count: int,
        below: Tensor,
        before: Tensor,
        after: Tensor,
        *,
        z: bool,
        back: bool = False,
    ) -> None:
        """Hidden layer `at` from the one below; or back, dz of the layer below from `below`, that of it."""
        plan = self.middle_plan()
        programs = self.block_programs(plan)
        tensors = below, before, after, self.cast[at], self.weights[at][1]
        widths = self.widths[at + 1], self.widths[at]
        constants = self.net(plan), *widths, plan.columns, back, z, self._keep
        _kernels().middle_layer(programs, tensors, (count, programs), *constants, warps=plan.warps, stages=1)

    def _end(
        self,
        begin: int,
        count: int,
        after: Tensor,
        before: Tensor,
        gradient: Tensor | None,
        values: Tensor | None,
    ) -> None:
        """The outputs of the last layer, and with its gradient, dz of the last hidden layer."""
        if gradient is not None and values is not None and self._keep:
            # In two launches, because the parts of a product need many registers.
            self._end(begin, count, after, before, gradient, None)
            self._end(begin, count, after, before, None, values)
            return
        plans = _LAST if values is None else _OUTPUTS if gradient is None else _ENDS
        plan, unused = plans[self.parts], self.weights[-1][0]
        programs = self.block_programs(plan)
        tensors = (
            after,
            before,
            unused if gradient is None else gradient,
            unused if values is None else values,
            unused if self.sums is None else self.sums[0],
            self.cast[-1],
            self.weights[-1][1],
        )
        constants = gradient is not None, values is not None, self._keep
        _kernels().last_layer(
            programs,
            tensors,
            (begin, count, programs),
            self.net(plan),
            *self.places.ends[1:],
            plan.columns,
            *constants,
            warps=plan.warps,
            stages=1,
        )

    def _add_between(self, at: int, count: int, above: Tensor, below: Tensor) -> None:
        plan = _GRADIENT[self.parts]
        programs = self.groups * (WIDTH // plan.columns)
        assert self.sums is not None
        begin, total = self.places.between[at - 1], self.places.between[-1]
        _kernels().weight_gradient(
            programs,
            (above, below, self.sums[1]),
            (begin, count, programs),
            self.net(plan),
            self.widths[at + 1],
            self.widths[at],
            total,
            plan.columns,
            self._keep,
            warps=plan.warps,
            stages=1,
        )

    def _add_first(
        self, inputs: Tensor, begin: int, count: int, above: Tensor, of_inputs: Tensor | None
    ) -> None:
        plan = _ENDS[self.parts]
        assert self.sums is not None
        tensors = (
            inputs,
            above,
            inputs if of_inputs is None else of_inputs,
            self.sums[0],
            self.weights[0][0],
        )
        _kernels().first_gradient(
            self.programs_of(plan, count),
            tensors,
            (begin, count, self._programs),
            self.net(plan),
            self.places.ends[-1],
            of_inputs is not None,
            warps=plan.warps,
            stages=1,
        )

    def middle_plan(self) -> Plan:
        return _MIDDLE[self.parts]

    def programs_of(self, plan: Plan, count: int) -> int:
        return min(self._programs, -(-count // plan.edges))

    def block_programs(self, plan: Plan) -> int:
        """All programs, less those that would not have all blocks of columns together."""
        blocks = WIDTH // plan.columns
        return self._programs // blocks * blocks

    def net(self, plan: Plan) -> Net:
        if plan not in self._nets:
            widths = self.widths
            self._nets[plan] = Net(
                inputs=widths[0],
                widths=tuple(widths[1:-1]),
                outputs=widths[-1],
                inputs_padded=pad_width(widths[0] + 1),
                hidden_padded=WIDTH,
                outputs_padded=pad_width(widths[-1]),
                last=self.last,
                places=(),
                activation=self._act,
                bias=self._has_bias,
                bf16=self.dtype is torch.bfloat16,
                parts=self.parts,
                fast=_FAST and self.parts == 1,
                columns=False,
                stored=False,
                edges=plan.edges,
            )
        return self._nets[plan]


def _kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_triton

    return wide_triton


def _gradient_plan(parts: int, pairs: bool) -> Plan:
    return (BETWEEN if pairs else _GRADIENT)[parts]


def _groups(dtype: torch.dtype, device: torch.device, pairs: bool) -> int:
    """Groups of programs that have all blocks of a weight's gradient together."""
    return max(1, processors(device) // (WIDTH // _gradient_plan(_PARTS[dtype], pairs).columns))


def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
