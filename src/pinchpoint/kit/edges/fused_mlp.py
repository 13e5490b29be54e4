"""A small perceptron as one kernel forward and a few back, for CUDA: what `network_of` gives where it fits.

Fits: two to four linear layers with GELU between them and none at the end, the widest hidden one between
65 and 128, at most 32 inputs and outputs, in float32, bf16 or float16: what has been seen to come out right.
The kernels themselves take SiLU and ReLU too. Between layers nothing is stored, so an edge costs its inputs
and outputs alone.

float32 products are made on the matrix units from bf16 parts, to float32's own accuracy, or in tf32
where `torch.backends.cuda.matmul.allow_tf32` asks for it.
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
_WIDEST = 128
# Edges a tile, warps a program, loads ahead: the fastest of those tried on an H200 that come out right.
_FORWARD = {"BE": 64, "num_warps": 8, "num_stages": 3}
_BACKWARD = {"BE": 32, "num_warps": 8, "num_stages": 1}
_TESTED = (9, 0)  # the compute capability these are tested on; elsewhere layers go one by one
_LEAST = 16  # the matrix units take no narrower tile
# Some tiles of several products come out of Triton 3.6 wrong on sm_90 (its issues 10486 and 11366), silently: taken is
# only what was compared with float64 on an H200.
_NARROWEST = 65
_MOST_ENDS = 32  # inputs, and outputs
_SEEN_PARTS, _SEEN_DTYPES = (3, 5, 7), (torch.float32, torch.bfloat16, torch.float16)


def fits(parts: list[nn.Module], dtype: torch.dtype, device: torch.device) -> bool:
    """Is this run of modules one that the kernels compute there? parts: linear layers and activations in turn."""
    if torch.cuda.get_device_capability(device) != _TESTED:
        return False
    linear: list[Any] = parts[0::2]
    between = parts[1::2]
    if len(parts) not in _SEEN_PARTS or dtype not in _SEEN_DTYPES:
        return False
    if not all(type(layer) is nn.Linear and layer.bias is not None for layer in linear):
        return False
    if any(type(act) is not nn.GELU or act.approximate != "none" for act in between):
        return False
    widths = [layer.in_features for layer in linear] + [linear[-1].out_features]
    if any(above.in_features != below.out_features for below, above in pairwise(linear)):
        return False  # for torch to refuse
    return _NARROWEST <= max(widths[1:-1]) <= _WIDEST and max(widths[0], widths[-1]) <= _MOST_ENDS


@dataclass(frozen=True)
class _Packed:
    """The weights of one or several layers, padded with zeros, in the dtype of the products.

    parts: 3 where a weight is the sum of three bf16 ones; else 1.
    """

    weight: Tensor  # (parts, layers, rows, columns)
    turned: Tensor  # (parts, layers, columns, rows)
    bias: Tensor  # (layers, rows) in float32

    @staticmethod
    def of(
        layers: list[nn.Linear], rows: int, columns: int, dtype: torch.dtype, parts: int, like: Tensor
    ) -> _Packed:
        count = max(len(layers), 1)  # a kernel takes no empty tensor
        weight = like.new_empty(parts, count, rows, columns, dtype=torch.bfloat16 if parts == 3 else dtype)
        turned = like.new_empty(parts, count, columns, rows, dtype=weight.dtype)
        bias = like.new_empty(count, rows, dtype=torch.float32)
        if not isinstance(like, compat.FakeTensor):
            from pinchpoint.kit.edges import fused_mlp_triton

            kernel = cast("Any", fused_mlp_triton.pack)
            for at, layer in enumerate(layers):
                own = layer.weight.detach().contiguous(), layer.bias.detach().contiguous()
                kernel[(rows,)](
                    *own,
                    weight[:, at],
                    turned[:, at],
                    bias[at],
                    *layer.weight.shape,
                    layer.in_features,
                    count * rows * columns,
                    ROWS=rows,
                    COLUMNS=columns,
                    PARTS=parts,
                    num_warps=1,
                )
        return _Packed(weight, turned, bias)


class Fused:
    """A `Network` in Triton. Gradients are summed in float32, by program, and handed over by `finish`."""

    def __init__(self, parts: list[nn.Module], dtype: torch.dtype, like: Tensor) -> None:
        self.layers: list[Any] = parts[0::2]
        self.dtype = dtype
        self._parts = 3 if dtype is torch.float32 and not torch.backends.cuda.matmul.allow_tf32 else 1
        self._act = _ACTIVATIONS[type(parts[1])]
        self._mid = len(self.layers) - 2
        first, *mid, last = self.layers
        self._wide = _padded(max(layer.out_features for layer in self.layers[:-1]))
        self._kin, self._cout = _padded(first.in_features), _padded(last.out_features)
        self._in = _Packed.of([first], self._wide, self._kin, dtype, self._parts, like)
        self._between = _Packed.of(mid, self._wide, self._wide, dtype, self._parts, like)
        self._out = _Packed.of([last], self._cout, self._wide, dtype, self._parts, like)
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
        """Add up what the programs have summed."""
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
        shapes = [  # in the order of the kernel's arguments
            ("weight", 0, (self._wide, self._kin), bottom),
            ("bias", 0, (self._wide,), bottom),
            ("weight", low, (self._wide, self._wide), self._mid > 0),
            ("bias", low, (self._wide,), self._mid > 0),
            ("weight", self._mid + 1, (self._cout, self._wide), top),
            ("bias", self._mid + 1, (self._cout,), top),
        ]
        sums = [inputs] * len(shapes)
        for at, (name, layer, shape, written) in enumerate(shapes):
            if written:
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
                self._between.turned,
                self._in.turned,
                self._out.turned,
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


def _padded(width: int) -> int:
    return max(_LEAST, 1 << (width - 1).bit_length())
