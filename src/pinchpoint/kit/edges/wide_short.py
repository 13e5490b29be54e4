"""The kernels of `wide_mlp` in 16 bits, in the order in which a slice of edges needs them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pinchpoint.kit.edges import wide_mlp


class WideShort(wide_mlp.WideMLP):
    """16 bits. In memory is z of every hidden layer but the first, which dz replaces.

    If the inputs need a gradient, so is dz of the first hidden layer: it replaces that of the third one, or
    has a buffer of its own.
    """

    _converted: list[Tensor] | None = None

    def _convert(self, inputs: Tensor) -> None:
        if self._converted is None:  # the first as it is: its kernels convert it with the bias
            first, *others = (weight.detach() for weight, _ in self.weights)
            self._converted = [first, *(weight.to(self.dtype) for weight in others)]

    def _start_chunk(self, inputs: Tensor, gradient: Tensor | None) -> None:
        """Nothing: the kernels need no bounds."""

    def _turns(self) -> int:
        return min(2, self._layers_in_forward())

    def _layers_in_forward(self) -> int:
        """The hidden layers from layer 1 on whose values are in memory: all, or all but the last."""
        return max(1, self.last - self.plans.pair)

    def _layers_in_backward(self, *, want_inputs: bool) -> int:
        return max(self.last, 1 + want_inputs)

    def _forward_steps(self, buffers: list[Tensor]) -> list[wide_mlp.Step]:
        z = [buffers[at % len(buffers)] for at in range(self._layers_in_forward())]
        return [*self._hidden(z), self._outputs(z[-1])]

    def _hidden(self, z: list[Tensor]) -> list[wide_mlp.Step]:
        """z of hidden layer 1 and above, as many as there are buffers."""
        assert self._converted is not None
        first = "inputs", z[0], *self.weights[0], self._converted[1], self.weights[1][1]
        steps = [self.step(_kernels().first_two, first, self.plans.first)]
        for layer in range(2, len(z) + 1):
            tensors = z[layer - 2], z[layer - 1], self._converted[layer], self.weights[layer][1]
            steps.append(self.step(_kernels().middle_layer, tensors, self.plans.middle, layer))
        return steps

    def _outputs(self, z: Tensor) -> wide_mlp.Step:
        """The outputs from z of the highest hidden layer that is in memory."""
        assert self._converted is not None
        weights = self._converted[-2], self.weights[-2][1], self._converted[-1], self.weights[-1][1]
        two = self._layers_in_forward() < self.last
        return self.step(_kernels().last_two, (z, "out", *weights), self.plans.outputs, two)

    def _backward_steps(
        self, buffers: list[Tensor], *, want_inputs: bool, want_values: bool
    ) -> list[wide_mlp.Step]:
        assert self._converted is not None and self.sums is not None
        z, of_first, kernels = buffers[: self.last], buffers[min(1, len(buffers) - 1)], _kernels()
        steps = self._hidden(z)
        weights = self._converted[-1], self.weights[-1][1]
        tensors = z[-1], "gradient", "values" if want_values else "gradient", self.sums[0], *weights
        constants = *self.places.ends[1:], want_values
        steps.append(self.step(kernels.back_last, tensors, self.plans.back_last, *constants))
        plan = self.plans.between
        for layer in range(self.last, 0, -1):
            before = z[layer - 2] if layer > 1 else of_first
            sums = self.sums[1], self.sums[0]
            step = self.step(
                kernels.back_between,
                (z[layer - 1], "inputs", before, *sums, self._converted[layer], *self.weights[0]),
                plan,
                layer,
                self.places.between[layer - 1],
                self.places.between[-1],
                self.places.ends[-1],
                plan.columns,
                layer > 1 or want_inputs,
                plan.stages,
                programs=self.group_programs(plan),
            )
            steps.append(step)
        if want_inputs:
            last = "inputs", of_first, "of_inputs", self.sums[0], self.weights[0][0]
            ends = self.places.ends[-1]
            steps.append(self.step(kernels.first_gradient, last, self.plans.inputs, ends))
        return steps


def _kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_short_triton

    return wide_short_triton
