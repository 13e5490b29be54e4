"""The kernels of `wide_mlp` in 16 bits, in the order in which a slice of edges needs them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pinchpoint.kit.edges import wide_mlp
from pinchpoint.kit.edges.wide_steps import Slot, Step


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

    def _tensors(self) -> dict[str, list[Tensor]]:
        assert self._converted is not None
        return {"converted": self._converted}

    def _forward_steps(self) -> list[Step]:
        turns, layers = self._turns(), self._layers_in_forward()
        z = [at % turns for at in range(layers)]
        return [*self._hidden(z), self._outputs(z[-1])]

    def _hidden(self, z: list[int]) -> list[Step]:
        """z of hidden layer 1 and above, to these buffers."""
        first = "inputs", ("buffer", z[0]), ("weight", 0), ("bias", 0), ("converted", 1), ("bias", 1)
        steps: list[Step] = [self.step(_kernels().first_two, first, self.plans.first)]
        for layer in range(2, len(z) + 1):
            below, here = ("buffer", z[layer - 2]), ("buffer", z[layer - 1])
            tensors = below, here, ("converted", layer), ("bias", layer)
            steps.append(self.step(_kernels().middle_layer, tensors, self.plans.middle, layer))
        return steps

    def _outputs(self, z: int) -> Step:
        """The outputs from z of the highest hidden layer that is in memory."""
        top = self.last + 1
        weights = ("converted", top - 1), ("bias", top - 1), ("converted", top), ("bias", top)
        two = self._layers_in_forward() < self.last
        return self.step(_kernels().last_two, (("buffer", z), "out", *weights), self.plans.outputs, two)

    def _backward_steps(self, *, want_inputs: bool, want_values: bool) -> list[Step]:
        kernels, top = _kernels(), self.last + 1
        of_first = min(1, self._layers_in_backward(want_inputs=want_inputs) - 1)
        steps = self._hidden(list(range(self.last)))
        values = "values" if want_values else "gradient"
        tensors: tuple[Slot, ...] = ("buffer", self.last - 1), "gradient", values, ("sums", 0)
        weights = ("converted", top), ("bias", top)
        constants = *self.places.ends[1:], want_values
        steps.append(self.step(kernels.back_last, (*tensors, *weights), self.plans.back_last, *constants))
        plan = self.plans.between
        for layer in range(self.last, 0, -1):
            before = layer - 2 if layer > 1 else of_first
            tensors = ("buffer", layer - 1), "inputs", ("buffer", before), ("sums", 1), ("sums", 0)
            step = self.step(
                kernels.back_between,
                (*tensors, ("converted", layer), ("weight", 0), ("bias", 0)),
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
            last = "inputs", ("buffer", of_first), "of_inputs", ("sums", 0), ("weight", 0)
            ends = self.places.ends[-1]
            steps.append(self.step(kernels.first_gradient, last, self.plans.inputs, ends))
        return steps


def _kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_short_triton

    return wide_short_triton
