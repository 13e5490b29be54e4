"""The kernels of `wide_mlp` in float32, as fp16 parts, in the order in which a slice of edges needs them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat
from pinchpoint.kit.edges import wide_mlp


class WideParts(wide_mlp.WideMLP):
    """float32. In memory is z of every hidden layer but the first, which dz replaces in fp16 parts.

    The activations of a layer, in parts, are in memory until those of the next one are computed.
    """

    _packed: tuple[Tensor, Tensor] | None = None
    _bounds: Tensor | None = None

    def _convert(self, inputs: Tensor) -> None:
        if self._packed is not None:
            return
        shape = self.last, 2, self.width, self.width
        packed = torch.empty(shape, dtype=torch.float16, device=inputs.device)
        norms = torch.empty(self.last + 2, 4, dtype=torch.float32, device=inputs.device)
        self._packed = packed, norms
        if not isinstance(inputs, compat.FakeTensor):
            weights = [one for pair in self.weights for one in pair]
            weights += weights[:2] * (wide_mlp.MOST_HIDDEN_LAYERS + 1 - len(self.weights))  # not read
            tensors = packed, norms, *weights
            _kernels().pack(self.last + 2, tensors, (), self.net(self.plans.middle), warps=8, stages=1)

    def _start_chunk(self, inputs: Tensor, gradient: Tensor | None) -> None:
        if self._bounds is None:  # its address stays, with which the launches of a slice are made
            self._bounds = torch.zeros(2 * self.last + 4, dtype=torch.float32, device=inputs.device)
        else:
            self._bounds.zero_()
        if isinstance(inputs, compat.FakeTensor):
            return
        for at, values in enumerate((inputs, gradient)):
            if values is not None:
                numbers = values.numel(), 2 * self.programs
                _kernels().largest(numbers[1], (values, self._bounds), numbers, at, warps=8, stages=1)

    def _turns(self) -> int:
        return 2

    def _layers_in_backward(self, *, want_inputs: bool) -> int:
        return self.last + 1

    def _forward_steps(self, buffers: list[Tensor]) -> list[wide_mlp.Step]:
        steps = [self._first(buffers[0])]
        for layer in range(1, self.last + 1):
            below, here = buffers[(layer + 1) % 2], buffers[layer % 2]
            steps.append(self._middle(layer, below, None, here))
        return [*steps, self._outputs(buffers[self.last % 2], "out", apply=False)]

    def _backward_steps(
        self, buffers: list[Tensor], *, want_inputs: bool, want_values: bool
    ) -> list[wide_mlp.Step]:
        assert self.sums is not None and self._packed is not None and self._bounds is not None
        free = list(buffers)
        z: dict[int, Tensor] = {}
        activations = free.pop(0)
        steps = [self._first(activations)]
        for layer in range(1, self.last + 1):
            z[layer] = free.pop(0)
            after = free.pop(0) if layer < self.last else None
            steps.append(self._middle(layer, activations, z[layer], after))
            free.insert(0, activations)
            if after is not None:
                activations = after
        spare, known, kernels = free[0], (self._packed[1], self._bounds), _backward_kernels()
        width = self.widths[-1]
        outputs = spare.view(-1)[: spare.shape[0] * width].view(-1, width)
        if want_values:
            steps.append(self._outputs(z[self.last], outputs, apply=True))
        plan, top = self.plans.back_last, z[self.last]
        step = self.step(
            kernels.back_last,
            (top, _parts_of(top), "gradient", self.sums[0], self.weights[-1][0], *known),
            plan,
            *self.places.ends[1:],
            plan.columns,
            programs=self.block_programs(plan),
        )
        steps.append(step)
        if want_values:
            steps.append(_copy_to_values(outputs))  # which may replace the gradient
        plan = self.plans.between
        narrow = self.net(plan).inputs_padded == wide_mlp.TILE
        for layer in range(self.last, 0, -1):
            below = z[layer - 1] if layer > 1 else spare
            lower = "inputs", below, _parts_of(below), self.sums[1], self.sums[0]
            step = self.step(
                kernels.back_between,
                (_parts_of(z[layer]), *lower, self._packed[0], *self.weights[0], *known),
                plan,
                layer,
                self.places.between[layer - 1],
                self.places.between[-1],
                self.places.ends[-1],
                plan.columns,
                layer > 1 or want_inputs,
                # Of 256 columns, more inputs than one tile leave no room for a second tile of dz.
                plan.stages if layer > 1 or self.width < 256 or narrow else 1,
                plan.turned,
                programs=self.group_programs(plan),
            )
            steps.append(step)
        if want_inputs:
            tensors = "inputs", _parts_of(spare), "of_inputs", self.sums[0], self.weights[0][0], *known
            plan, ends = self.plans.inputs, self.places.ends[-1]
            steps.append(self.step(kernels.first_gradient, tensors, plan, ends, plan.stages))
        return steps

    def _first(self, after: Tensor) -> wide_mlp.Step:
        assert self._packed is not None and self._bounds is not None
        tensors = "inputs", _parts_of(after), *self.weights[0], self._packed[1], self._bounds
        return self.step(_kernels().first_layer, tensors, self.plans.first)

    def _middle(
        self, layer: int, values: Tensor, before: Tensor | None, after: Tensor | None
    ) -> wide_mlp.Step:
        """A hidden layer from the activations below: z to `before`, activations to `after`."""
        assert self._packed is not None and self._bounds is not None
        plan = self.plans.middle
        tensors = (
            _parts_of(values),
            values if before is None else before,
            _parts_of(values if after is None else after),
            self._packed[0],
            self.weights[layer][1],
            self._packed[1],
            self._bounds,
        )
        constants = layer, plan.columns, before is not None, after is not None
        programs = self.block_programs(plan)
        return self.step(_kernels().middle_layer, tensors, plan, *constants, programs=programs)

    def _outputs(self, values: Tensor, out: Tensor | str, *, apply: bool) -> wide_mlp.Step:
        """The outputs of a slice from activations, or from z of the last hidden layer if `apply`."""
        assert self._packed is not None and self._bounds is not None
        tensors = _parts_of(values), values, out, *self.weights[-1], self._packed[1], self._bounds
        return self.step(_kernels().outputs, tensors, self.plans.outputs, apply)


def _copy_to_values(rows: Tensor) -> wide_mlp.Step:
    """Copies the rows of a slice to their place among the values of a chunk."""

    def copy(chunk: wide_mlp.Chunk, begin: int, count: int) -> None:
        assert chunk.values is not None
        chunk.values[begin : begin + count] = rows[:count]

    return copy


def _parts_of(values: Tensor) -> Tensor:
    """The memory of float32 numbers as that of twice as many fp16 numbers."""
    return values.view(torch.float16)


def _kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_parts_triton

    return wide_parts_triton


def _backward_kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_parts_backward_triton

    return wide_parts_backward_triton
