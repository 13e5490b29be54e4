"""A player's turn as one CUDA graph: recorded when it has run a few times, replayed from then on.

An iteration of the GAN is some thousand short kernels, and to launch them one by one takes the host longer than they run. A
graph holds its memory between replays; turns that are recorded into one pool share it, as they never run at one time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_FIRST = 3  # runs before one is recorded: libraries choose their kernels, ours are compiled

Turn = Callable[..., tuple[Tensor, ...]]


class _Recording(NamedTuple):
    graph: Any  # torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]


class Replayed:
    """run(*tensors) as a graph for each kind of tensors; what it gives, and the gradients it leaves at the parameters.

    The run must find no gradients there, read nothing but tensors that stay where they are (parameters, buffers, the ones it is
    given), wait for nothing, and give tensors without a graph. Gradients lie in the graph's memory until the next replay.
    """

    def __init__(self, run: Turn, parameters: Iterable[nn.Parameter] = (), *, pool: Any = None) -> None:
        self.run, self.parameters = run, tuple(parameters)
        self.pool = pool
        self._seen: Counter[Any] = Counter()
        self._recorded: dict[Any, _Recording] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        kind = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        self._seen[kind] += 1
        if self._seen[kind] <= _FIRST:
            return self.run(*tensors)
        if kind not in self._recorded:
            self._recorded[kind] = self._record(tensors)
        made = self._recorded[kind]
        for held, given in zip(made.inputs, tensors, strict=True):
            held.copy_(given)
        made.graph.replay()
        for parameter, gradient in zip(self.parameters, made.gradients, strict=True):
            parameter.grad = gradient
        return tuple(value.clone() for value in made.outputs)  # the next replay writes over its own

    def _record(self, tensors: tuple[Tensor, ...]) -> _Recording:
        for parameter in self.parameters:
            parameter.grad = None
        inputs = tuple(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            outputs = self.run(*inputs)
        return _Recording(graph, inputs, outputs, tuple(parameter.grad for parameter in self.parameters))


def pool() -> Any:
    """Memory for graphs to share."""
    return torch.cuda.graph_pool_handle()
