"""The kernels of `wide_mlp` in float32, as fp16 parts, in the order in which a slice of edges needs them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat
from pinchpoint.kit.edges import wide_mlp
from pinchpoint.kit.edges.wide_steps import CopyStep, Slot, Step

_SCALES = ("norms", 0), ("bounds", 0)  # from which the powers of 2 of a chunk follow


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

    def _tensors(self) -> dict[str, list[Tensor]]:
        assert self._packed is not None and self._bounds is not None
        return {"packed": [self._packed[0]], "norms": [self._packed[1]], "bounds": [self._bounds]}

    def _forward_steps(self) -> list[Step]:
        steps: list[Step] = [self._first(0)]
        for layer in range(1, self.last + 1):
            steps.append(self._middle(layer, (layer + 1) % 2, None, layer % 2))
        return [*steps, self._outputs(self.last % 2, "out", apply=False)]

    def _backward_steps(self, *, want_inputs: bool, want_values: bool) -> list[Step]:
        kernels = _backward_kernels()
        free = list(range(self.last + 1))  # buffers
        z: dict[int, int] = {}
        activations = free.pop(0)
        steps: list[Step] = [self._first(activations)]
        for layer in range(1, self.last + 1):
            z[layer] = free.pop(0)
            after = free.pop(0) if layer < self.last else None
            steps.append(self._middle(layer, activations, z[layer], after))
            free.insert(0, activations)
            if after is not None:
                activations = after
        spare, top = free[0], z[self.last]
        if want_values:
            steps.append(self._outputs(top, ("buffer", spare), apply=True))
        plan = self.plans.back_last
        tensors: tuple[Slot, ...] = ("buffer", top), ("parts", top), "gradient", ("sums", 0)
        step = self.step(
            kernels.back_last,
            (*tensors, ("weight", self.last + 1), *_SCALES),
            plan,
            *self.places.ends[1:],
            plan.columns,
            programs=self.block_programs(plan),
        )
        steps.append(step)
        if want_values:
            steps.append(CopyStep(spare))  # which may replace the gradient
        plan = self.plans.between
        narrow = self.net(plan).inputs_padded == wide_mlp.TILE
        for layer in range(self.last, 0, -1):
            below = z[layer - 1] if layer > 1 else spare
            lower: tuple[Slot, ...] = "inputs", ("buffer", below), ("parts", below), ("sums", 1), ("sums", 0)
            step = self.step(
                kernels.back_between,
                (("parts", z[layer]), *lower, ("packed", 0), ("weight", 0), ("bias", 0), *_SCALES),
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
            tensors = "inputs", ("parts", spare), "of_inputs", ("sums", 0), ("weight", 0), *_SCALES
            plan, ends = self.plans.inputs, self.places.ends[-1]
            steps.append(self.step(kernels.first_gradient, tensors, plan, ends, plan.stages))
        return steps

    def _first(self, after: int) -> Step:
        tensors = "inputs", ("parts", after), ("weight", 0), ("bias", 0), *_SCALES
        return self.step(_kernels().first_layer, tensors, self.plans.first)

    def _middle(self, layer: int, values: int, before: int | None, after: int | None) -> Step:
        """A hidden layer from the activations below: z to `before`, activations to `after`."""
        plan = self.plans.middle
        tensors = (
            ("parts", values),
            ("buffer", values if before is None else before),
            ("parts", values if after is None else after),
            ("packed", 0),
            ("bias", layer),
            *_SCALES,
        )
        constants = layer, plan.columns, before is not None, after is not None
        programs = self.block_programs(plan)
        return self.step(_kernels().middle_layer, tensors, plan, *constants, programs=programs)

    def _outputs(self, values: int, out: Slot, *, apply: bool) -> Step:
        """The outputs of a slice from activations, or from z of the last hidden layer if `apply`."""
        top = self.last + 1
        tensors = ("parts", values), ("buffer", values), out, ("weight", top), ("bias", top), *_SCALES
        return self.step(_kernels().outputs, tensors, self.plans.outputs, apply)


def _kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_parts_triton

    return wide_parts_triton


def _backward_kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_parts_backward_triton

    return wide_parts_backward_triton
