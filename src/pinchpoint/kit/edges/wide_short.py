"""The kernels of `wide_mlp` in 16 bits, in the order in which a slice of edges needs them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pinchpoint.kit.edges import wide_mlp


class WideShort(wide_mlp.WideMLP):
    """16 bits. In memory is z of every hidden layer but the first, which dz replaces."""

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
        return self.last + want_inputs  # dz of the first layer, if its gradient is passed on

    def _forward_slice(
        self, inputs: Tensor, begin: int, count: int, buffers: list[Tensor], out: Tensor
    ) -> None:
        z = [buffers[at % len(buffers)] for at in range(self._layers_in_forward())]
        self._hidden(inputs, begin, count, z)
        self._outputs(begin, count, z[-1], out)

    def _hidden(self, inputs: Tensor, begin: int, count: int, z: list[Tensor]) -> None:
        """z of hidden layer 1 and above, as many as there are buffers."""
        assert self._converted is not None
        plan = self.plans.first
        programs = self.programs_of(plan, count)
        _kernels().first_two(
            programs,
            (inputs, z[0], *self.weights[0], self._converted[1], self.weights[1][1]),
            (begin, count, programs),
            self.net(plan),
            warps=plan.warps,
            stages=1,
        )
        plan = self.plans.middle
        programs = self.programs_of(plan, count)
        for layer in range(2, len(z) + 1):
            _kernels().middle_layer(
                programs,
                (z[layer - 2], z[layer - 1], self._converted[layer], self.weights[layer][1]),
                (count, programs),
                self.net(plan),
                layer,
                warps=plan.warps,
                stages=1,
            )

    def _outputs(self, begin: int, count: int, z: Tensor, out: Tensor) -> None:
        """The outputs from z of the highest hidden layer that is in memory."""
        assert self._converted is not None
        plan = self.plans.outputs
        programs = self.programs_of(plan, count)
        weights = self._converted[-2], self.weights[-2][1], self._converted[-1], self.weights[-1][1]
        _kernels().last_two(
            programs,
            (z, out, *weights),
            (begin, count, programs),
            self.net(plan),
            self._layers_in_forward() < self.last,
            warps=plan.warps,
            stages=1,
        )

    def _backward_slice(
        self,
        inputs: Tensor,
        gradient: Tensor,
        begin: int,
        count: int,
        buffers: list[Tensor],
        of_inputs: Tensor | None,
        values: Tensor | None,
    ) -> None:
        assert self._converted is not None and self.sums is not None
        z = buffers[: self.last]
        self._hidden(inputs, begin, count, z)
        plan, kernels = self.plans.back_last, _kernels()
        programs = self.programs_of(plan, count)
        out, weights = gradient if values is None else values, (self._converted[-1], self.weights[-1][1])
        kernels.back_last(
            programs,
            (z[-1], gradient, out, self.sums[0], *weights),
            (begin, count, programs),
            self.net(plan),
            *self.places.ends[1:],
            values is not None,
            warps=plan.warps,
            stages=1,
        )
        plan = self.plans.between
        programs = self.group_programs(plan)
        for layer in range(self.last, 0, -1):
            before = z[layer - 2] if layer > 1 else buffers[-1]
            sums = self.sums[1], self.sums[0]
            kernels.back_between(
                programs,
                (z[layer - 1], inputs, before, *sums, self._converted[layer], *self.weights[0]),
                (begin, self.places.between[layer - 1], count, programs),
                self.net(plan),
                layer,
                self.places.between[-1],
                self.places.ends[-1],
                plan.columns,
                layer > 1 or of_inputs is not None,
                plan.stages,
                warps=plan.warps,
                stages=1,
            )
        if of_inputs is not None:
            plan = self.plans.inputs
            kernels.first_gradient(
                self.programs_of(plan, count),
                (inputs, buffers[-1], of_inputs, self.sums[0], self.weights[0][0]),
                (begin, count, self.programs_of(plan, count)),
                self.net(plan),
                self.places.ends[-1],
                warps=plan.warps,
                stages=1,
            )


def _kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_short_triton

    return wide_short_triton
