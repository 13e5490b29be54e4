"""A small MLP as one CUDA kernel forward and a few backward, used by `network_of` where it is supported.

Supported are two to four linear layers with GELU between them and none at the end, the widest hidden layer
between 65 and 128, at most 32 inputs and outputs, in float32, bf16 or float16: the shapes whose results were
verified. The kernels themselves also implement SiLU and ReLU. Nothing is stored between layers, so an edge
costs only its inputs and outputs.

float32 products are computed on the matrix units from bf16 parts, with the accuracy of float32, or in tf32
if torch is allowed to (`torch.backends.cuda.matmul`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat

Gradients = dict[int, Tensor]
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.GELU: 0, nn.SiLU: 1, nn.ReLU: 2}
_MAX_HIDDEN = 128
# Edges per tile, warps per program, pipeline stages: the fastest on an H200 of those with correct results.
_FORWARD = {"BE": 64, "num_warps": 8, "num_stages": 3}
_BACKWARD = {"BE": 32, "num_warps": 8, "num_stages": 1}
_TESTED_CAPABILITY = (9, 0)  # compute capability on which they are tested; on others, layers run one by one
_MIN_TILE = 16  # the narrowest tile of the matrix units
# Triton 3.6 silently computes some tiles of several products wrongly on sm_90 (its issues 10486 and 11366):
# only shapes that were compared with float64 on an H200 are used.
_MIN_HIDDEN = 65
_MAX_ENDS = 32  # limit on the inputs and on the outputs
_TESTED_LENGTHS, _TESTED_DTYPES = (3, 5, 7), (torch.float32, torch.bfloat16, torch.float16)


def refusal(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernels do not support these modules on the device, a whole sentence; None if they do.

    parts: alternating linear layers and activations.
    """
    if torch.cuda.get_device_capability(device) != _TESTED_CAPABILITY:
        return "The kernels are tested on GPUs of compute capability 9.0 alone (H100, H200)."
    if dtype not in _TESTED_DTYPES:
        return f"{dtype} is not float32, bfloat16 or float16."
    linear: list[Any] = parts[0::2]
    if len(parts) not in _TESTED_LENGTHS or any(type(layer) is not nn.Linear for layer in linear):
        return "The MLP is not two to four linear layers with activations between them."
    if any(layer.bias is None for layer in linear):
        return "A linear layer has no bias."
    if any(type(act) is not nn.GELU or act.approximate != "none" for act in parts[1::2]):
        return "An activation is not GELU with approximate='none'."
    widths = [layer.in_features for layer in linear] + [linear[-1].out_features]
    if any(above.in_features != below.out_features for below, above in pairwise(linear)):
        return "The widths of two layers do not match."  # torch itself will raise the error
    if not _MIN_HIDDEN <= (widest := max(widths[1:-1])) <= _MAX_HIDDEN:
        return f"The widest hidden layer has {widest} columns, not {_MIN_HIDDEN} to {_MAX_HIDDEN}."
    ends = max(widths[0], widths[-1])
    return None if ends <= _MAX_ENDS else f"There are {ends} inputs or outputs, more than {_MAX_ENDS}."


@dataclass(frozen=True)
class _PaddedWeights:
    """The weights of one or several layers, padded with zeros, in the dtype of the products.

    parts: 3 if a weight is the sum of three bf16 numbers, else 1.
    """

    weight: Tensor  # (parts, layers, rows, columns)
    transpose: Tensor  # (parts, layers, columns, rows)
    bias: Tensor  # (layers, rows) in float32

    @staticmethod
    def of(
        layers: list[nn.Linear], rows: int, columns: int, dtype: torch.dtype, parts: int, like: Tensor
    ) -> _PaddedWeights:
        count = max(len(layers), 1)  # a kernel accepts no empty tensor
        weight = like.new_empty(parts, count, rows, columns, dtype=torch.bfloat16 if parts == 3 else dtype)
        transpose = like.new_empty(parts, count, columns, rows, dtype=weight.dtype)
        bias = like.new_empty(count, rows, dtype=torch.float32)
        if not isinstance(like, compat.FakeTensor):
            from pinchpoint.kit.edges import fused_mlp_triton

            kernel = cast("Any", fused_mlp_triton.pack)
            for at, layer in enumerate(layers):
                own = layer.weight.detach().contiguous(), layer.bias.detach().contiguous()
                kernel[(rows,)](
                    *own,
                    weight[:, at],
                    transpose[:, at],
                    bias[at],
                    *layer.weight.shape,
                    layer.in_features,
                    count * rows * columns,
                    ROWS=rows,
                    COLUMNS=columns,
                    PARTS=parts,
                    num_warps=1,
                )
        return _PaddedWeights(weight, transpose, bias)


class FusedMLP:
    """A `Network` in Triton. Each program sums its gradients in float32, and `finish` adds the sums up."""

    adds_at_end = True

    def __init__(self, parts: list[nn.Module], dtype: torch.dtype, like: Tensor) -> None:
        self.layers: list[Any] = parts[0::2]
        self.dtype = dtype
        self._parts = 3 if dtype is torch.float32 and not compat.products_use_tf32() else 1
        self._act = _ACTIVATIONS[type(parts[1])]
        self._mid = len(self.layers) - 2
        first, *mid, last = self.layers
        self._wide = _pad_width(max(layer.out_features for layer in self.layers[:-1]))
        self._kin, self._cout = _pad_width(first.in_features), _pad_width(last.out_features)
        self._in = _PaddedWeights.of([first], self._wide, self._kin, dtype, self._parts, like)
        self._between = _PaddedWeights.of(mid, self._wide, self._wide, dtype, self._parts, like)
        self._out = _PaddedWeights.of([last], self._cout, self._wide, dtype, self._parts, like)
        self._sums: dict[tuple[str, int], Tensor] = {}

    def forward(self, inputs: Tensor) -> Tensor:
        out = torch.empty(len(inputs), self.layers[-1].out_features, dtype=self.dtype, device=inputs.device)
        if not isinstance(inputs, compat.FakeTensor):
            from pinchpoint.kit.edges import fused_mlp_triton

            kernel = cast("Any", fused_mlp_triton.forward)
            kernel[(-(-len(inputs) // _FORWARD["BE"]),)](
                inputs,
                out,
                *self._weights(),
                len(inputs),
                inputs.shape[1],
                out.shape[1],
                **_FORWARD,
                **self._constants(),
            )
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        of_inputs = torch.empty_like(inputs) if want_inputs else None
        values = torch.empty(gradient.shape, dtype=self.dtype, device=inputs.device) if want_values else None
        for low in range(self._mid, min(self._mid, 1) - 1, -1):
            self._pass(low, inputs, gradient, of_inputs, values)
        return of_inputs, values

    def finish(self, into: Gradients) -> None:
        """Add the sums of all programs to `into`."""
        for (name, at), partial in self._sums.items():
            layer, number = self.layers[at], 2 * at + (name == "bias")
            if number in into:
                total = partial.sum(0)[: layer.out_features]
                into[number].add_(total if name == "bias" else total[:, : layer.in_features])
        self._sums = {}

    def _pass(
        self, low: int, inputs: Tensor, gradient: Tensor, of_inputs: Tensor | None, values: Tensor | None
    ) -> None:
        programs = torch.cuda.get_device_properties(inputs.device).multi_processor_count
        top, bottom = low == self._mid, low <= 1
        shapes = [  # in the order of the kernel's arguments; the last entry says whether this pass writes it
            ("weight", 0, (self._wide, self._kin), bottom),
            ("bias", 0, (self._wide,), bottom),
            ("weight", low, (self._wide, self._wide), self._mid > 0),
            ("bias", low, (self._wide,), self._mid > 0),
            ("weight", self._mid + 1, (self._cout, self._wide), top),
            ("bias", self._mid + 1, (self._cout,), top),
        ]
        sums = [inputs] * len(shapes)
        for at, (name, layer, shape, writes) in enumerate(shapes):
            if writes:
                if (name, layer) not in self._sums:
                    self._sums[name, layer] = inputs.new_zeros(programs, *shape, dtype=torch.float32)
                sums[at] = self._sums[name, layer]
        if not isinstance(inputs, compat.FakeTensor):
            from pinchpoint.kit.edges import fused_mlp_triton

            kernel = cast("Any", fused_mlp_triton.backward)
            kernel[(programs,)](
                inputs,
                gradient,
                inputs if of_inputs is None else of_inputs,
                inputs if values is None else values,
                *self._weights(),
                self._between.transpose,
                self._in.transpose,
                self._out.transpose,
                *sums,
                len(inputs),
                inputs.shape[1],
                gradient.shape[1],
                0,
                LOW=low,
                WANT_INPUTS=of_inputs is not None,
                WANT_VALUES=values is not None,
                RELOAD=self.dtype is torch.float32,
                **_BACKWARD,
                **self._constants(),
            )

    def _weights(self) -> tuple[Tensor, ...]:
        return (
            self._in.weight,
            self._in.bias,
            self._between.weight,
            self._between.bias,
            self._out.weight,
            self._out.bias,
        )

    def _constants(self) -> dict[str, Any]:
        import triton.language as tl  # pyright: ignore[reportMissingImports]

        kinds = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
        return {
            "KIN": self._kin,
            "H": self._wide,
            "COUT": self._cout,
            "MID": self._mid,
            "ACT": self._act,
            "DTYPE": kinds[self.dtype],
            "PARTS": self._parts,
        }


def _pad_width(width: int) -> int:
    return max(_MIN_TILE, 1 << (width - 1).bit_length())
