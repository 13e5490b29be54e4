"""A small MLP as one CUDA kernel forward and a few backward, used by `flat_path` where it is supported.

Supported are linear layers with biases and GELU, SiLU, ReLU or tanh between them in bf16, at most 15 inputs
and 16 outputs, with two hidden layers of up to 64 columns, or three or four of up to 128: the tiles whose
gradients were compared with float64 on an H200. The inputs get no gradient.

Nothing is stored between layers; backward passes the gradient of a slice of edges from one layer to the next
in a buffer whose size does not depend on the edges.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.units import MIB

Gradients = dict[int, Tensor]
# The numbers by which the kernels know the activations.
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.GELU: 1, nn.SiLU: 2, nn.ReLU: 3, nn.Tanh: 4}
_FAST = True  # activations with the accuracy of 16 bits, by instructions that Triton's interpreter lacks
_MIN_TILE = 16  # the narrowest tile of the matrix units
_BUFFER_BYTES = 32 * MIB  # of the gradients that backward passes on
_SUM_BYTES = 24 * MIB  # of the programs' own sums
_MOST_BETWEEN = 3  # weights between hidden layers that the kernels have arguments for
_MAX_INPUTS, _MAX_OUTPUTS = 15, 16
# By their padded width: the numbers of hidden layers that were compared with float64 on an H200.
_TESTED_HIDDEN = {16: (2,), 32: (2,), 64: (2,), 128: (3, 4)}
TESTED_DTYPE = torch.bfloat16
_TESTED_CAPABILITY = (9, 0)  # compute capability on which they are tested; on others, layers run one by one


class Plan(NamedTuple):
    """How a kernel is launched: edges in a tile, warps, and programs per multiprocessor.

    columns: a tile's edges are columns, not rows.
    """

    edges: int
    warps: int
    programs: int
    columns: bool = False


# By the padded width of the hidden layers. Two warps use other instructions than four or eight, for which
# Triton 3.6 computes some tiles of several products wrongly (its issues 10486 and 11366).
_FORWARD = {16: Plan(64, 2, 8), 32: Plan(64, 2, 8), 64: Plan(32, 2, 8), 128: Plan(128, 8, 2)}
_BACKWARD = {16: Plan(64, 2, 8), 32: Plan(64, 2, 4), 64: Plan(32, 2, 4), 128: Plan(64, 8, 1, columns=True)}


def refusal(
    parts: list[nn.Module], dtype: torch.dtype, device: torch.device, *, of_inputs: bool
) -> str | None:
    """Why the kernels do not support these modules on the device, a whole sentence; None if they do.

    parts: alternating linear layers and activations. of_inputs: whether the inputs need a gradient.
    """
    if torch.cuda.get_device_capability(device) != _TESTED_CAPABILITY:
        return "The kernels are tested on GPUs of compute capability 9.0 alone (H100, H200)."
    if dtype is not TESTED_DTYPE:
        return f"{dtype} is not bfloat16."
    if of_inputs:
        return "The coordinates or features that the MLP reads need a gradient."
    linear: list[Any] = parts[0::2]
    if len(parts) < 3 or len(parts) % 2 == 0 or any(type(layer) is not nn.Linear for layer in linear):
        return "The MLP does not alternate linear layers and activations, with a linear layer at both ends."
    kinds = {type(act) for act in parts[1::2]}
    by_tanh = any(getattr(act, "approximate", "none") != "none" for act in parts[1::2])
    if len(kinds) > 1 or not kinds <= _ACTIVATIONS.keys() or by_tanh:
        return "The activations are not all GELU (approximate='none'), all SiLU, all ReLU or all tanh."
    if any(above.in_features != below.out_features for below, above in pairwise(linear)):
        return "The widths of two layers do not match."  # torch itself will raise the error
    if any(layer.bias is None for layer in linear):
        return "A linear layer has no bias."
    inputs, outputs = linear[0].in_features, linear[-1].out_features
    if inputs > _MAX_INPUTS or outputs > _MAX_OUTPUTS:
        return f"There are {inputs} inputs and {outputs} outputs, more than {_MAX_INPUTS} and {_MAX_OUTPUTS}."
    hidden = max(layer.out_features for layer in linear[:-1])
    if hidden > max(_TESTED_HIDDEN):
        return f"A hidden layer has {hidden} columns, more than {max(_TESTED_HIDDEN)}."
    layers = _TESTED_HIDDEN[pad_width(hidden)]
    if len(linear) - 1 not in layers:
        words = " or ".join(map(str, layers))
        return f"There are {len(linear) - 1} hidden layers with up to {hidden} columns, not {words}."
    return None


class TileMLP:
    """A `Network` in Triton. Each program sums its gradients in float32, and `finish` adds the sums up."""

    def __init__(self, parts: list[nn.Module], dtype: torch.dtype, like: Tensor) -> None:
        layers: list[Any] = parts[0::2]
        self.dtype = dtype
        self._act = _ACTIVATIONS[type(parts[1])]
        self._mid = len(layers) - 2
        self._widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self._kin = pad_width(self._widths[0] + 1)  # with a column of ones
        self._wide, self._cout = pad_width(max(self._widths[1:-1])), pad_width(self._widths[-1])
        self._weights: list[tuple[Tensor, Tensor]] = [
            (layer.weight.detach().contiguous(), layer.bias.detach().contiguous()) for layer in layers
        ]
        # Where each layer's gradients begin among the sums: its weight, then its bias.
        self._places = [0]
        for below, above in zip(self._widths[:-1], self._widths[1:], strict=True):
            self._places.append(self._places[-1] + above * (below + 1))
        self._forward = _FORWARD[self._wide]
        self._backward = _BACKWARD[self._wide]
        processors = torch.cuda.get_device_properties(like.device).multi_processor_count
        self._forward_programs = processors * self._forward.programs
        most = max(1, _SUM_BYTES // (4 * self._places[-1] * processors))
        self._backward_programs = processors * min(self._backward.programs, most)
        self._packed: list[tuple[Tensor, Tensor]] = []
        self._sums: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        out = torch.empty(len(inputs), self._widths[-1], dtype=self.dtype, device=inputs.device)
        if not isinstance(inputs, compat.FakeTensor):
            from pinchpoint.kit.edges import tile_mlp_triton

            plan, between = self._forward, self._weights[1:-1]
            between += self._weights[:1] * (_MOST_BETWEEN - len(between))
            hidden = self._widths[1:-1]
            tile_mlp_triton.forward(
                min(self._forward_programs, -(-len(inputs) // plan.edges)),
                (
                    inputs,
                    out,
                    *self._weights[0],
                    *(tensor for pair in between for tensor in pair),
                    *self._weights[-1],
                ),
                (len(inputs), self._forward_programs),
                self._widths[0],
                *hidden,
                *[hidden[0]] * (_MOST_BETWEEN + 1 - len(hidden)),
                self._widths[-1],
                self._kin,
                self._wide,
                self._cout,
                self._mid,
                *self._constants(),
                plan.edges,
                warps=plan.warps,
                stages=1,
            )
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        assert not want_inputs, "refused by `refusal`"
        values = torch.empty(gradient.shape, dtype=self.dtype, device=inputs.device)
        if self._sums is None:
            shape = self._backward_programs, self._places[-1]
            self._sums = torch.zeros(shape, dtype=torch.float32, device=inputs.device)
        step = self._slice_edges(len(inputs))
        passed_on = inputs
        if self._mid > 1:
            passed_on = torch.empty(step, self._wide, dtype=self.dtype, device=inputs.device)
        for low in range(0, len(inputs), step):
            here = slice(low, low + step)
            for layer in range(self._mid, 0, -1):
                self._visit(layer, inputs[here], gradient[here], passed_on, values[here])
        return None, values if want_values else None

    def finish(self, into: Gradients) -> None:
        """Add the sums of all programs to `into`."""
        if self._sums is None:
            return
        totals = self._sums.sum(0)
        own, sums = [], []
        number = 0
        for at, (below, above) in enumerate(zip(self._widths[:-1], self._widths[1:], strict=True)):
            split = self._places[at] + above * below
            pair = totals[self._places[at] : split].view(above, below), totals[split : self._places[at + 1]]
            for total in pair:
                if number in into:
                    own.append(into[number])
                    sums.append(total)
                number += 1
        if own:
            torch.ops.aten._foreach_add_(own, sums)
        self._sums = None

    def _slice_edges(self, edges: int) -> int:
        """The edges of a slice: all, if no gradient is passed on; else slices of about the same length."""
        most = _BUFFER_BYTES // (self._wide * self.dtype.itemsize)
        slices = 1 if self._mid < 2 else max(1, -(-edges // most))
        return -(-edges // (slices * self._backward.edges)) * self._backward.edges

    def _visit(
        self,
        low: int,
        inputs: Tensor,
        gradient: Tensor,
        passed_on: Tensor,
        values: Tensor,
    ) -> None:
        """Compute the gradients of layer `low`, and of the last and the first layer next to it."""
        if isinstance(inputs, compat.FakeTensor):
            return
        from pinchpoint.kit.edges import tile_mlp_triton

        plan, hidden = self._backward, self._widths[1:-1]
        kernel = tile_mlp_triton.backward_columns if plan.columns else tile_mlp_triton.backward
        weights = self._pack() if plan.columns else self._weights
        below = [weights[at] if at < low else weights[0] for at in (1, 2)]
        assert self._sums is not None
        kernel(
            min(self._backward_programs, -(-len(inputs) // plan.edges)),
            (
                inputs,
                gradient,
                passed_on,
                values,
                self._sums,
                *self._weights[0],
                *below[0],
                *below[1],
                *weights[low],
                *self._weights[-1],
            ),
            (len(inputs), self._backward_programs),
            self._widths[0],
            hidden[0],
            hidden[1],
            hidden[min(2, self._mid)],
            hidden[low - 1],
            hidden[low],
            self._widths[-1],
            self._places[low],
            self._places[-2],
            self._places[-1],
            self._kin,
            self._wide,
            self._cout,
            low,
            low == self._mid,
            *self._constants(),
            plan.edges,
            warps=plan.warps,
            stages=1,
        )

    def _pack(self) -> list[tuple[Tensor, Tensor]]:
        """The weights, of which those between hidden layers are padded and converted, once for all chunks."""
        if not self._packed:
            from pinchpoint.kit.edges import tile_mlp_triton

            self._packed = list(self._weights)
            _, dtype, _ = self._constants()
            for at, (weight, bias) in list(enumerate(self._weights))[1:-1]:
                to = torch.empty(self._wide, self._wide, dtype=self.dtype, device=weight.device)
                tile_mlp_triton.pack(self._wide, (weight, to), (), *weight.shape, self._wide, dtype, warps=1)
                self._packed[at] = to, bias
        return self._packed

    def _constants(self) -> tuple[Any, ...]:
        import triton.language as tl  # pyright: ignore[reportMissingImports]

        kinds = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
        return self._act, kinds[self.dtype], _FAST


def pad_width(width: int) -> int:
    """The width of the tile of the matrix units that holds `width` columns."""
    return max(_MIN_TILE, 1 << (width - 1).bit_length())
