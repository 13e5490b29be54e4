"""A `wide_mlp.WideMLP` of which one kernel does two steps, so that fewer values go through memory.

`wide_network` returns it for the networks of `uses_pairs`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pinchpoint.kit.edges import wide_mlp
from pinchpoint.kit.edges.wide_mlp import Plan, WideMLP

# Whether these kernels are used, for networks like those that were compared with float64 on an H200: of
# several hidden layers, with one of these activations.
PAIRS = True
_PAIRED_ACTIVATIONS = (nn.GELU, nn.SiLU, nn.Tanh)
_FIRST_TWO = Plan(128, wide_mlp.WIDTH, 8)
_LAST_TWO = Plan(128, wide_mlp.WIDTH, 8)
_BACK_LAST = Plan(64, wide_mlp.WIDTH, 8)


def uses_pairs(parts: list[nn.Module]) -> bool:
    """Whether one kernel does two steps of a network that `wide_mlp.refusal` does not refuse."""
    return PAIRS and len(parts) > 3 and type(parts[1]) in _PAIRED_ACTIVATIONS


def wide_network(parts: list[nn.Module], dtype: torch.dtype, like: Tensor, edges: int = 0) -> WideMLP:
    """The fastest network for an MLP that `wide_mlp.refusal` does not refuse. Arguments: those of WideMLP."""
    kind = WideMLP
    if uses_pairs(parts):
        kind = _Float32Pairs if dtype is torch.float32 else _ShortPairs
    return kind(parts, dtype, like, edges)


class _Pairs(WideMLP):
    """The gradient of a weight between hidden layers and dz of the layer below by one kernel."""

    pairs = True

    def _pair_kernels(self) -> Any:
        return _kernels()

    def _back(self, at: int, count: int, before: list[Tensor], after: list[Tensor]) -> None:
        plan = wide_mlp.BETWEEN[self.parts]
        programs = self.groups * (wide_mlp.WIDTH // plan.columns)
        assert self.sums is not None
        self._pair_kernels().back_between(
            programs,
            (before[at], before[at - 1], self.sums[1], self.cast[at]),
            (self.places.between[at - 1], count, programs),
            self.net(plan),
            self.widths[at + 1],
            self.widths[at],
            self.places.between[-1],
            plan.columns,
            plan.stages,
            warps=plan.warps,
            stages=1,
        )


class _ShortPairs(_Pairs):
    """16 bits: the first two layers together, the last two in forward, and two steps of backward."""

    def _turns(self) -> int:
        return 1 if self.last in (1, 2) else 2  # the second hidden layer alone is passed on

    def _forward_slice(
        self, inputs: Tensor, begin: int, count: int, layers: list[Tensor], out: Tensor
    ) -> None:
        if self.last < 1:
            super()._forward_slice(inputs, begin, count, layers, out)
            return
        z = [layers[(at + 1) % len(layers)] for at in range(self.last + 1)]
        self._first_two(inputs, begin, count, z, store_first=False)
        if self.last == 1:
            self._end(begin, count, z[1], z[1], None, out)
            return
        for at in range(2, self.last):
            self._middle(at, count, z[at - 1], z[at], z[at], z=True)
        programs = self.programs_of(_LAST_TWO, count)
        weights = self.cast[-2], self.weights[-2][1], self.cast[-1], self.weights[-1][1]
        _kernels().last_two(
            programs,
            (z[-2], out, *weights),
            (begin, count, programs),
            self.net(_LAST_TWO),
            warps=_LAST_TWO.warps,
            stages=1,
        )

    def _hidden(
        self, inputs: Tensor, begin: int, count: int, before: list[Tensor], after: list[Tensor]
    ) -> None:
        if self.last < 1:
            super()._hidden(inputs, begin, count, before, after)
            return
        self._first_two(inputs, begin, count, before, store_first=True)
        for at in range(2, self.last + 1):
            self._middle(at, count, before[at - 1], before[at], before[at], z=True)

    def _first_two(
        self, inputs: Tensor, begin: int, count: int, z: list[Tensor], *, store_first: bool
    ) -> None:
        programs = self.programs_of(_FIRST_TWO, count)
        _kernels().first_two(
            programs,
            (inputs, z[0], z[1], *self.weights[0], self.cast[1], self.weights[1][1]),
            (begin, count, programs),
            self.net(_FIRST_TWO),
            store_first,
            warps=_FIRST_TWO.warps,
            stages=1,
        )

    def _end(
        self,
        begin: int,
        count: int,
        after: Tensor,
        before: Tensor,
        gradient: Tensor | None,
        values: Tensor | None,
    ) -> None:
        if gradient is None:
            super()._end(begin, count, after, before, gradient, values)
            return
        # It writes whole tiles; more rows than theirs would be those of another slice.
        assert wide_mlp.BETWEEN[1].edges <= _BACK_LAST.edges <= _FIRST_TWO.edges
        assert self.sums is not None
        programs = self.programs_of(_BACK_LAST, count)
        outputs, weights = gradient if values is None else values, (self.cast[-1], self.weights[-1][1])
        _kernels().back_last(
            programs,
            (before, gradient, outputs, self.sums[0], *weights),
            (begin, count, programs),
            self.net(_BACK_LAST),
            *self.places.ends[1:],
            values is not None,
            warps=_BACK_LAST.warps,
            stages=1,
        )


class _Float32Pairs(_Pairs):
    """float32: two steps of backward, and products that all warps share."""

    def _pair_kernels(self) -> Any:
        from pinchpoint.kit.edges.tile_kernels import wide_parts_triton

        return wide_parts_triton

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
        assert not back
        plan = self.middle_plan()
        programs = self.block_programs(plan)
        self._pair_kernels().middle_layer(
            programs,
            (below, before, after, self.cast[at], self.weights[at][1]),
            (count, programs),
            self.net(plan),
            self.widths[at + 1],
            self.widths[at],
            plan.columns,
            z,
            warps=plan.warps,
            stages=1,
        )


def _kernels() -> Any:
    from pinchpoint.kit.edges.tile_kernels import wide_pairs_triton

    return wide_pairs_triton
