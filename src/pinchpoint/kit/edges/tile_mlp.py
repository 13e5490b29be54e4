"""A small MLP as one CUDA kernel forward and a few backward, used by `flat_path` where it is supported.

The kernels take two to five linear layers of up to 128 columns with GELU, SiLU, ReLU or tanh between them,
nothing after the last, and up to 63 inputs and 64 outputs. Only shapes whose values and gradients were
compared with float64 on an H200 are used (`_TESTED`). Nothing is stored between layers; backward passes the
gradient of a slice of edges from one layer to the next in buffers whose size does not depend on the edges.

float32 products are computed on the matrix units from bf16 parts, with the accuracy of float32.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.units import MIB

Gradients = dict[int, Tensor]
# The numbers by which the kernels know the activations.
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.SiLU: 2, nn.ReLU: 3, nn.Tanh: 4}
_GELU, _GELU_BY_TANH = 1, 5
# Whether 16-bit kernels use instructions that Triton's interpreter lacks, for activations of 16 bits.
_FAST = True
_MIN_TILE = 16  # the narrowest tile of the matrix units
_BUFFER_BYTES = 32 * MIB  # of what backward passes from one layer to the next
_STORED_BYTES = 40 * MIB  # the same, where it holds several layers in float32
_SUM_BYTES = 24 * MIB  # of the programs' own sums
_MOST_BETWEEN = 3  # weights between hidden layers that the kernels have arguments for
_PARTS = {torch.float32: 3, torch.bfloat16: 1, torch.float16: 1}
_TESTED_DTYPES = (torch.float32, torch.bfloat16)
_TESTED_CAPABILITY = (9, 0)  # compute capability on which they are tested; on others, layers run one by one
_TESTED_TRITON = "3.6."  # other versions may compile some tiles wrongly


# By the padded width and the number of the hidden layers: the most inputs and outputs that were compared with
# float64 on an H200, in float32 and in bf16.
_TESTED = {
    (16, 1): (15, 16),
    (16, 2): (15, 16),
    (32, 1): (15, 16),
    (32, 2): (31, 16),
    (64, 2): (31, 16),
    (128, 3): (31, 16),
}
_MAX_HIDDEN = max(width for width, _ in _TESTED)
_TESTED_ACTIVATIONS = (nn.GELU, nn.SiLU)


class Plan(NamedTuple):
    """How a kernel is launched: edges in a tile, warps, and programs per multiprocessor.

    columns: a tile's edges are columns, not rows. stored: backward computes the values of hidden layers in
    launches of their own, so that only one weight between hidden layers is in shared memory (with columns).
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
    (3, 16): Plan(32, 2, 8),
    (3, 32): Plan(32, 2, 8),
    (3, 64): Plan(32, 2, 4),
    (3, 128): Plan(64, 4, 1),
}
_BACKWARD = {
    (1, 16): Plan(64, 2, 8),
    (1, 32): Plan(64, 2, 4),
    (1, 64): Plan(32, 2, 4),
    (1, 128): Plan(64, 8, 1, columns=True),
    (3, 16): Plan(32, 2, 8),
    (3, 32): Plan(32, 2, 4),
    (3, 64): Plan(32, 2, 4),
    (3, 128): Plan(32, 8, 1, columns=True, stored=True),
}


def activation_code(act: nn.Module) -> int | None:
    """The number by which the kernels know an activation; None if they do not."""
    if type(act) is nn.GELU:
        return _GELU_BY_TANH if act.approximate == "tanh" else _GELU
    return _ACTIVATIONS.get(type(act))


def refusal(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not support these modules on the device, a whole sentence; None if they do.

    parts: alternating linear layers and activations.
    """
    if torch.cuda.get_device_capability(device) != _TESTED_CAPABILITY:
        return "The kernels are tested on GPUs of compute capability 9.0 alone (H100, H200)."
    if dtype not in _TESTED_DTYPES:
        return f"{dtype} is not float32 or bfloat16."
    linear: list[Any] = parts[0::2]
    if len(parts) < 3 or len(parts) % 2 == 0 or any(type(layer) is not nn.Linear for layer in linear):
        return "The MLP does not alternate linear layers and activations, with a linear layer at both ends."
    if any(above.in_features != below.out_features for below, above in pairwise(linear)):
        return "The widths of two layers do not match."  # torch itself will raise the error
    if any(layer.bias is None for layer in linear):
        return "A linear layer has no bias."
    if (
        any(type(act) not in _TESTED_ACTIVATIONS for act in parts[1::2])
        or len(set(map(type, parts[1::2]))) > 1
    ):
        return "The activations are not all GELU or all SiLU."
    if any(getattr(act, "approximate", "none") != "none" for act in parts[1::2]):
        return "GELU is approximated by tanh."
    hidden = max(layer.out_features for layer in linear[:-1])
    if hidden > _MAX_HIDDEN:
        return f"A hidden layer has {hidden} columns, more than {_MAX_HIDDEN}."
    tested = _TESTED.get((pad_width(hidden), len(linear) - 1))
    if tested is None:
        layers = [str(count) for width, count in _TESTED if width == pad_width(hidden)]
        words = " or ".join(layers)
        return (
            f"The number of hidden layers is {len(linear) - 1}, not {words} as tested with {hidden} columns."
        )
    inputs, outputs = linear[0].in_features, linear[-1].out_features
    if inputs > tested[0] or outputs > tested[1]:
        return f"There are {inputs} inputs and {outputs} outputs, more than {tested[0]} and {tested[1]}."
    return None


def has_triton() -> bool:
    """Whether Triton is installed, so that its version is known."""
    return bool(_triton_version())


def triton_refusal() -> str | None:
    """Why the Triton of this machine is not used; None if it is."""
    own = _triton_version()
    if own.startswith(_TESTED_TRITON):
        return None
    return f"The kernels are tested with Triton {_TESTED_TRITON}x; this machine has {own or 'none'}."


def fixed_bytes(linear: list[nn.Linear], dtype: torch.dtype, device: torch.device) -> int:
    """The bytes that backward needs for any number of edges."""
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    plan = _BACKWARD[_PARTS[dtype], pad_width(max(widths[1:-1]))]
    buffers = _buffer_bytes(plan) if len(linear) > (2 if plan.stored else 3) else 0
    return buffers + 4 * _places(widths)[-1] * _backward_programs(widths, dtype, device)


class TileMLP:
    """A `Network` in Triton. Each program sums its gradients in float32, and `finish` adds the sums up."""

    def __init__(self, parts: list[nn.Module], dtype: torch.dtype, like: Tensor) -> None:
        layers: list[Any] = parts[0::2]
        self.dtype = dtype
        self._parts = _PARTS[dtype]
        self._act = activation_code(parts[1])
        self._mid = len(layers) - 2
        self._has_bias = layers[0].bias is not None
        self._widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        self._kin = pad_width(self._widths[0] + 1)  # with a column of ones
        self._wide, self._cout = pad_width(max(self._widths[1:-1])), pad_width(self._widths[-1])
        self._weights: list[tuple[Tensor, Tensor]] = [
            (layer.weight.contiguous(), (layer.bias if self._has_bias else layer.weight).contiguous())
            for layer in layers
        ]
        self._places = _places(self._widths)
        self._forward = _FORWARD[self._parts, self._wide]
        self._backward = _BACKWARD[self._parts, self._wide]
        self._stored = self._backward.stored and self._mid > 0
        self._forward_programs = _processors(like.device) * self._forward.programs
        self._backward_programs = _backward_programs(self._widths, dtype, like.device)
        self._fixed: tuple[Any, ...] = ()
        self._packed: list[tuple[Tensor, Tensor]] = []
        self._sums: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        out = torch.empty(inputs.shape[0], self._widths[-1], dtype=self.dtype, device=inputs.device)
        step = self._slice_edges(inputs.shape[0])
        buffers = self._buffers(inputs, step, self._mid - 1) if self._stored else []
        if self._stored:
            self._pack()
        if isinstance(inputs, compat.FakeTensor):
            return out
        if not self._stored:
            self._run_forward(inputs, out)
            return out
        for low in range(0, inputs.shape[0], step):
            here = slice(low, low + step)
            for layer in range(1, self._mid + 1):
                self._run_layer(layer, inputs[here], buffers, None, out[here])
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        of_inputs = torch.empty_like(inputs) if want_inputs else None
        values = torch.empty(gradient.shape, dtype=self.dtype, device=inputs.device) if want_values else None
        if self._sums is None:
            shape = self._backward_programs, self._places[-1]
            self._sums = torch.zeros(shape, dtype=torch.float32, device=inputs.device)
        step = self._slice_edges(inputs.shape[0])
        buffers = self._buffers(inputs, step, self._passed())
        if self._backward.columns:
            self._pack()
        if isinstance(inputs, compat.FakeTensor):
            return of_inputs, values
        for low in range(0, inputs.shape[0], step):
            here = slice(low, low + step)
            edges, of_edges = inputs[here], gradient[here]
            of_here = None if of_inputs is None else of_inputs[here]
            values_here = None if values is None else values[here]
            if self._stored:
                for layer in range(1, self._mid + 1):
                    self._run_layer(layer, edges, buffers, of_edges, values_here)
            for layer in range(self._mid, min(self._mid, 1) - 1, -1):
                self._visit(layer, edges, of_edges, buffers, of_here, values_here)
        return of_inputs, values

    def finish(self, into: Gradients) -> None:
        """Add the sums of all programs to `into`."""
        if self._sums is None:
            return
        totals, self._sums = self._sums, None
        if not into:
            return
        totals = totals.sum(0)
        own, sums = [], []
        number = 0
        for at, (below, above) in enumerate(pairwise(self._widths)):
            split = self._places[at] + above * below
            pair = totals[self._places[at] : split].view(above, below), totals[split : self._places[at + 1]]
            for total in pair if self._has_bias else pair[:1]:
                if number in into:
                    own.append(into[number])
                    sums.append(total)
                number += 1
        torch.ops.aten._foreach_add_.List(own, sums)  # named: a search for it prints the tensors

    def _passed(self) -> int:
        """The number of hidden layers of which backward holds z or dz of a slice in memory."""
        return self._mid if self._stored else min(1, max(0, self._mid - 1))

    def _buffers(self, inputs: Tensor, edges: int, layers: int) -> list[Tensor]:
        """Memory for z or dz of some hidden layers; the first is that of layer 1."""
        if not layers:
            return []
        shape = layers, edges, self._wide
        return list(torch.empty(shape, dtype=self.dtype, device=inputs.device).unbind())

    def _slice_edges(self, edges: int) -> int:
        """The edges of a slice: all, if no gradient is passed on; else slices of about the same length."""
        tile, layers = self._backward.edges, self._passed()
        most = _buffer_bytes(self._backward) // (max(1, layers) * self._wide * self.dtype.itemsize)
        most = max(1, most // tile) * tile
        slices = max(1, -(-edges // most)) if layers else 1
        return -(-edges // (slices * tile)) * tile

    def _run_forward(self, inputs: Tensor, out: Tensor) -> None:
        from pinchpoint.kit.edges.tile_kernels import rows_triton

        plan, between = self._forward, self._weights[1:-1]
        between += self._weights[:1] * (_MOST_BETWEEN - len(between))
        hidden = self._widths[1:-1]
        rows_triton.forward(
            min(self._forward_programs, -(-inputs.shape[0] // plan.edges)),
            (
                inputs,
                out,
                *self._weights[0],
                *(tensor for pair in between for tensor in pair),
                *self._weights[-1],
            ),
            (inputs.shape[0], self._forward_programs),
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

    def _run_layer(
        self,
        layer: int,
        inputs: Tensor,
        buffers: list[Tensor],
        gradient: Tensor | None,
        values: Tensor | None,
    ) -> None:
        """Compute z of a hidden layer; of the last one, the outputs and, with a gradient, dz."""
        from pinchpoint.kit.edges.tile_kernels import columns_triton

        plan, hidden = self._backward, self._widths[1:-1]
        top = layer == self._mid
        of_outputs = gradient if top else None
        back = of_outputs is not None
        columns_triton.layer_columns(
            min(self._backward_programs, -(-inputs.shape[0] // plan.edges)),
            (
                inputs,
                inputs if of_outputs is None else of_outputs,
                buffers[layer - 2] if layer > 1 else inputs,
                buffers[layer - 1] if back or not top else inputs,
                values if top and values is not None else inputs,
                inputs if self._sums is None else self._sums,
                *self._weights[0],
                *self._pack()[layer],
                *self._weights[-1],
            ),
            (inputs.shape[0], self._backward_programs),
            self._widths[0],
            hidden[0],
            hidden[layer - 1],
            hidden[layer],
            self._widths[-1],
            self._places[-2],
            self._places[-1],
            self._kin,
            self._wide,
            self._cout,
            layer,
            top,
            back,
            top and values is not None,
            *self._constants(),
            plan.edges,
            warps=plan.warps,
            stages=1,
        )

    def _visit(
        self,
        low: int,
        inputs: Tensor,
        gradient: Tensor,
        buffers: list[Tensor],
        of_inputs: Tensor | None,
        values: Tensor | None,
    ) -> None:
        """Compute the gradients of layer `low`, and of the last and the first layer next to it."""
        from pinchpoint.kit.edges.tile_kernels import columns_triton, rows_triton

        plan, hidden = self._backward, self._widths[1:-1]
        top, bottom = low == self._mid and not self._stored, low <= 1
        kernel = columns_triton.backward_columns if plan.columns else rows_triton.backward
        weights = self._pack() if plan.columns else self._weights
        below = [weights[at] if at < low else weights[0] for at in (1, 2)]
        # dz of layer `low`, if it is not computed here; then dz or z of the layer below.
        passed = [buffers[low - 1 if self._stored else 0] if buffers else inputs]
        if plan.columns:
            passed.append(buffers[low - 2] if self._stored and not bottom else passed[0])
        assert self._sums is not None
        kernel(
            min(self._backward_programs, -(-inputs.shape[0] // plan.edges)),
            (
                inputs,
                gradient,
                *passed,
                inputs if of_inputs is None else of_inputs,
                gradient if values is None else values,
                self._sums,
                *self._weights[0],
                *below[0],
                *below[1],
                *weights[low],
                *self._weights[-1],
            ),
            (inputs.shape[0], self._backward_programs),
            self._widths[0],
            hidden[0],
            hidden[min(1, self._mid)],
            hidden[min(2, self._mid)],
            hidden[max(low - 1, 0)],
            hidden[low],
            self._widths[-1],
            self._places[low],
            self._places[-2],
            self._places[-1],
            self._kin,
            self._wide,
            self._cout,
            low,
            top,
            bottom and of_inputs is not None,
            top and values is not None,
            *self._constants(),
            *([self._stored] if plan.columns else []),
            plan.edges,
            warps=plan.warps,
            stages=1,
        )

    def _pack(self) -> list[tuple[Tensor, Tensor]]:
        """The weights, of which those between hidden layers are padded and converted, once for all chunks."""
        if not self._packed:
            self._packed = list(self._weights)
            kind = torch.bfloat16 if self._parts == 3 else self.dtype
            for at, (weight, bias) in list(enumerate(self._weights))[1:-1]:
                to = torch.empty(self._parts, self._wide, self._wide, dtype=kind, device=weight.device)
                self._packed[at] = to, bias
                if not isinstance(to, compat.FakeTensor):
                    from pinchpoint.kit.edges.tile_kernels import columns_triton

                    _, _, dtype, parts, _ = self._constants()
                    sizes = (*weight.shape, self._wide, self._wide)
                    columns_triton.pack(self._wide, (weight, to), (), *sizes, dtype, parts, warps=1)
        return self._packed

    def _constants(self) -> tuple[Any, ...]:
        if not self._fixed:
            import triton.language as tl  # pyright: ignore[reportMissingImports]

            kinds = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
            fast = _FAST and self._parts == 1
            self._fixed = self._act, self._has_bias, kinds[self.dtype], self._parts, fast
        return self._fixed


def _buffer_bytes(plan: Plan) -> int:
    return _STORED_BYTES if plan.stored else _BUFFER_BYTES


def pad_width(width: int) -> int:
    """The width of the tile of the matrix units that holds `width` columns."""
    return max(_MIN_TILE, 1 << (width - 1).bit_length())


def _places(widths: list[int]) -> list[int]:
    """Where each layer's gradients begin among the sums: its weight, then its bias; and the end."""
    places = [0]
    for below, above in pairwise(widths):
        places.append(places[-1] + above * (below + 1))
    return places


def _backward_programs(widths: list[int], dtype: torch.dtype, device: torch.device) -> int:
    processors = _processors(device)
    most = max(1, _SUM_BYTES // (4 * _places(widths)[-1] * processors))
    return processors * min(_BACKWARD[_PARTS[dtype], pad_width(max(widths[1:-1]))].programs, most)


@cache
def _triton_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
