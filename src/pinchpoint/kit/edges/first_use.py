"""The kernels of an MLP, compared with float64 on the CPU before a process uses them.

Triton computes some tiles of several products wrongly on some GPUs (its issues 10486 and 11366). Networks
that were compared beforehand are in `tile_kernels.tested`. The kernels of any other network run on a few
edges, with weights of their own, when they are first needed. If they are right, they are used; if they are
not, or cannot be compiled, the network runs layer by layer, in slices that take about the memory that the
kernels would take.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.autograd_mlp import Gradients
from pinchpoint.kit.edges.layered_mlp import LayeredMLP, Layers, Network, activation_of

_EDGES = 2085  # several tiles for each of `PROGRAMS`; the last one is not full
PROGRAMS = 8
_LEAST_SLICE = 1024  # edges that run layer by layer at a time
# The largest error of any result. A number of 16 bits may be on the other side of a ReLU's kink.
_MOST_ERROR = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.01}
_MOST_RELU_ERROR = {torch.float32: 1e-5, torch.bfloat16: 0.15, torch.float16: 0.06}
_KINK = 1e-5  # share of a sum's terms within which float32 may be on the other side

FORWARD = "forward"
# What is known in this process: the sentence that says what is wrong; None if nothing is.
_known: dict[Hashable, str | None] = {}


# Makes the kernels of an MLP from its modules, any tensor with the dtype and device of its inputs, and the
# number of programs; None: as many as the GPU runs at once.
Maker = Callable[[list[nn.Module], Tensor, int | None], Network]


class CheckedMLP:
    """A `Network` of kernels, or of layers where the kernels are wrong.

    dtype: that of the products. like: as for `make`; it is kept. key: what the kernels are compiled for.
    slice_bytes: of what runs layer by layer at a time.
    """

    adds_at_end = True

    def __init__(
        self,
        parts: list[nn.Module],
        layers: Layers,
        like: Tensor,
        dtype: torch.dtype,
        key: Hashable,
        make: Maker,
        slice_bytes: Callable[[], int],
    ) -> None:
        self._kernels = make(parts, like, None)
        self.dtype = dtype
        self._parts, self._linear, self._make, self._like = parts, layers, make, like
        self._key = key, like.dtype, parts[0].weight.dtype, like.device
        self._slice_bytes = slice_bytes
        self._layers: LayeredMLP | None = None  # if they are needed
        self._sums: Gradients = {}

    def forward(self, inputs: Tensor) -> Tensor:
        if self._right(FORWARD):
            return self._kernels.forward(inputs)
        layers = self._by_layers()
        out = inputs.new_empty(len(inputs), layers.layers[-1].weight.shape[0], dtype=self.dtype)
        for begin in range(0, len(inputs), layers.edges):
            part = slice(begin, begin + layers.edges)
            out[part] = layers.forward(inputs[part])
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        wants = {"want_inputs": want_inputs, "want_values": want_values}
        if self._right((want_inputs, want_values)):
            return self._kernels.backward(inputs, gradient, into, **wants)
        layers = self._by_layers()
        if not self._sums:  # of all parameters: which are wanted is known at the end
            parameters = (one for layer, _ in self._linear for one in layer.parameters())
            self._sums = {
                at: torch.zeros(one.shape, dtype=torch.float32, device=inputs.device)
                for at, one in enumerate(parameters)
            }
        values = gradient if gradient.dtype is self.dtype else torch.empty_like(gradient, dtype=self.dtype)
        for begin in range(0, len(inputs), layers.edges):
            part = slice(begin, begin + layers.edges)
            of_inputs, own = layers.backward(inputs[part], gradient[part], self._sums, **wants)
            if of_inputs is not None:
                inputs[part] = of_inputs
            if own is not None:
                values[part] = own
        return inputs if want_inputs else None, values if want_values else None

    def finish(self, into: Gradients) -> None:
        self._kernels.finish(into)
        self._layers = None
        for at, one in into.items():
            if at in self._sums:
                one += self._sums[at]
        self._sums = {}

    def _by_layers(self) -> LayeredMLP:
        if self._layers is None:
            widths = [layer.out_features for layer, _ in self._linear]
            edge_bytes = (sum(widths) + 2 * max(widths)) * self.dtype.itemsize
            edges = max(_LEAST_SLICE, self._slice_bytes() // edge_bytes)
            self._layers = LayeredMLP.of(self._linear, edges, self.dtype)
        return self._layers

    def _right(self, what: Hashable) -> bool:
        """Whether these kernels are right: those of forward, or of backward with these results."""
        key = self._key, what
        if key not in _known:
            if self._like.is_cuda and torch.cuda.is_current_stream_capturing():
                return False  # a comparison cannot be recorded; the next call may be another one
            _known[key] = problem = _problem(self._parts, self._like, self.dtype, self._make, what)
            if problem is not None:
                way = "forward pass" if what == FORWARD else "backward pass"
                warnings.warn(
                    f"The {way} of an MLP runs layer by layer, which may be slower than eager. {problem}",
                    stacklevel=2,
                )
        return _known[key] is None


@dataclass(frozen=True)
class _Truth:
    """An MLP with weights, inputs and a gradient of its outputs, and its results in float64, on the CPU."""

    parts: list[nn.Module]
    inputs: Tensor
    gradient: Tensor
    values: Tensor
    of_inputs: Tensor
    of_parameters: Gradients

    @staticmethod
    def of(parts: list[nn.Module], like: Tensor, dtype: torch.dtype) -> _Truth:
        random = torch.Generator().manual_seed(0)  # of our own: the caller's numbers stay the same
        layers: Layers = []
        own: list[nn.Module] = []
        for linear, act in zip(parts[0::2], [*parts[1::2], None], strict=True):
            layer = _linear(linear, random)
            layers.append((layer, None if act is None else activation_of(act)))
            own += [layer] if act is None else [layer, act]
        widths = [layers[0][0].in_features, layers[-1][0].out_features]
        inputs, gradient = (
            torch.rand(_EDGES, width, generator=random, device="cpu", dtype=torch.float32) * 2 - 1
            for width in widths
        )
        inputs, gradient = inputs.to(like.dtype), gradient.to(dtype)
        if type(parts[1]) is nn.ReLU and dtype is torch.float32:
            gradient[_near_kinks(layers, inputs)] = 0
        network = LayeredMLP.of(layers, _EDGES, torch.float64)
        sums = dict(enumerate(torch.zeros_like(one) for layer, _ in layers for one in layer.parameters()))
        of_inputs, values = network.backward(
            inputs.double(), gradient.double(), sums, want_inputs=True, want_values=True
        )
        assert of_inputs is not None and values is not None
        return _Truth(own, inputs, gradient, values, of_inputs, sums)


def _linear(like: Any, random: torch.Generator) -> nn.Linear:
    """A layer in float64 on the CPU with other weights."""
    sizes, bias = (like.in_features, like.out_features), like.bias is not None
    layer: Any = nn.utils.skip_init(nn.Linear, *sizes, bias=bias, device="cpu", dtype=torch.float64)
    for one in layer.parameters():
        numbers = torch.rand(one.shape, generator=random, device="cpu", dtype=torch.float32) * 2 - 1
        one.data.copy_((numbers * like.in_features**-0.5).to(like.weight.dtype))
    return layer  # type: ignore[no-any-return]


def _near_kinks(layers: Layers, inputs: Tensor) -> Tensor:
    """(edges,) whether float32 may find the input of a ReLU on the other side of zero."""
    hidden = inputs.double()
    near = torch.zeros(len(inputs), dtype=torch.bool)
    for layer, _ in layers[:-1]:
        bias = None if layer.bias is None else layer.bias.detach()
        z = nn.functional.linear(hidden, layer.weight.detach(), bias)
        terms = hidden.abs() @ layer.weight.detach().abs().T
        near |= (z.abs() < _KINK * terms).any(1)
        hidden = z.relu()
    return near


def _problem(
    parts: list[nn.Module], like: Tensor, dtype: torch.dtype, make: Maker, what: Hashable
) -> str | None:
    """What is wrong with kernels, a sentence; None if nothing is."""
    truth = _Truth.of(parts, like, dtype)
    try:
        own = [_copy(new, old, like.device) for new, old in zip(truth.parts, parts, strict=True)]
        results = [_run(truth, own, like.device, make, what) for _ in range(2)]
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # whatever Triton raises: the layers run without it
        _require_working(like.device, problem)
        text = str(problem).strip().partition("\n")[0][:200]
        return f"Its kernels fail on this GPU: {type(problem).__name__}: {text}"
    expected: dict[str, Tensor] = {"values": truth.values, "of_inputs": truth.of_inputs}
    expected |= {str(at): one for at, one in truth.of_parameters.items()}
    bars = _MOST_RELU_ERROR if type(parts[1]) is nn.ReLU else _MOST_ERROR
    for name, value in results[0].items():
        error = float((value.double() - expected[name]).norm() / expected[name].norm())
        if not error < bars[dtype]:
            return f"Its kernels are wrong on this GPU: an error of {error:.1e} beside float64."
        if not torch.equal(value, results[1][name]):
            return "Its kernels give other results the second time on this GPU."
    return None


def _require_working(device: torch.device, problem: Exception) -> None:
    """Raise `BadInput` if CUDA cannot go on after a kernel."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        raise BadInput(
            "A kernel of an MLP crashed on this GPU, and CUDA cannot go on in this process.",
            hint="Start again with memory='checkpoint', and report the MLP and the GPU.",
        ) from problem


def _run(
    truth: _Truth, parts: list[nn.Module], device: torch.device, make: Maker, what: Hashable
) -> dict[str, Tensor]:
    """The results of the kernels, on the CPU."""
    inputs, gradient = truth.inputs.to(device), truth.gradient.to(device)
    network = make(parts, inputs, PROGRAMS)
    if device.type == "cuda":
        from pinchpoint.kit.edges.tile_kernels.local_memory_triton import fill_local_memory

        fill_local_memory(device)
    if what == FORWARD:
        return {"values": network.forward(inputs).cpu()}
    want_inputs, want_values = what  # type: ignore[misc]
    into = {at: torch.zeros(one.shape, device=device) for at, one in truth.of_parameters.items()}
    of_inputs, values = network.backward(
        inputs, gradient, into, want_inputs=want_inputs, want_values=want_values
    )
    results = {"of_inputs": of_inputs, "values": values}
    kept = {name: one.cpu() for name, one in results.items() if one is not None}
    network.finish(into)
    return kept | {str(at): one.cpu() for at, one in into.items()}


def _copy(part: nn.Module, like: Any, device: torch.device) -> nn.Module:
    """A layer on the device with the dtype of another one; an activation itself."""
    if not isinstance(part, nn.Linear):
        return part
    sizes, bias = (part.in_features, part.out_features), part.bias is not None
    layer = nn.utils.skip_init(nn.Linear, *sizes, bias=bias, device=device, dtype=like.weight.dtype)
    for one, value in zip(layer.parameters(), part.parameters(), strict=True):
        one.data.copy_(value.data)
    return layer
