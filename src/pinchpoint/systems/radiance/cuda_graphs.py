"""A player's turn as one CUDA graph: recorded when it has run a few times, replayed from then on.

An iteration of the GAN is some thousand short kernels, and to launch them one by one takes the host longer than they run. A
graph holds its memory between replays; turns that are recorded into one pool share it, as they never run at one time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import TargetFailed

_FIRST = 3  # runs before one is recorded: libraries choose their kernels, ours are compiled

Turn = Callable[..., tuple[Tensor, ...]]


class Pool(NamedTuple):
    """What turns share: memory of their graphs, and the stream they first run on and are recorded on."""

    memory: Any
    stream: Any  # torch.cuda.Stream

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within, work goes to the stream: after all that was asked for before, and before all that is asked for later."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    def recording(self, graph: Any) -> AbstractContextManager[Any]:
        # Other threads may ask the device: NCCL's does so all the time, to see whether messages arrived.
        return torch.cuda.graph(
            graph, pool=self.memory, stream=self.stream, capture_error_mode="thread_local"
        )


class _Recording(NamedTuple):
    graph: Any  # torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]


class Replayed:
    """run(*tensors) as a graph for each kind of tensors; what it gives, and the gradients it leaves at the parameters.

    The run must find no gradients there, read nothing but tensors that stay where they are (parameters, buffers, the ones it is
    given), copy nothing from the host, wait for nothing, and give tensors without a graph. Gradients lie in the graph's memory
    until the next replay of any turn of the pool.
    """

    def __init__(self, run: Turn, parameters: Iterable[nn.Parameter] = (), *, pool: Pool) -> None:
        self.run, self.parameters, self.pool = run, tuple(parameters), pool
        self._seen: Counter[Any] = Counter()
        self._recorded: dict[Any, _Recording] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        kind = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        self._seen[kind] += 1
        if self._seen[kind] <= _FIRST:
            return self._first(tensors)
        if kind not in self._recorded:
            self._recorded[kind] = self._record(tensors)
        made = self._recorded[kind]
        for held, given in zip(made.inputs, tensors, strict=True):
            held.copy_(given)
        made.graph.replay()
        for parameter, gradient in zip(self.parameters, made.gradients, strict=True):
            parameter.grad = gradient
        return tuple(value.clone() for value in made.outputs)  # the next replay writes over its own

    def _first(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A run as it will be recorded, on the same stream and with tensors that lie alike: all it needs is then there."""
        held = tuple(tensor.clone() for tensor in tensors)
        with self.pool.aside():
            return self.run(*held)

    def _record(self, tensors: tuple[Tensor, ...]) -> _Recording:
        for parameter in self.parameters:
            parameter.grad = None
        inputs = tuple(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        try:
            with self.pool.recording(graph):
                outputs = self.run(*inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise TargetFailed(
                f"a step could not be recorded as a CUDA graph: {error}",
                hint="train with --set graphs=false, which runs it every time",
            ) from error
        return _Recording(graph, inputs, outputs, tuple(parameter.grad for parameter in self.parameters))


def new_pool() -> Pool:
    """For turns that never run at one time."""
    return Pool(torch.cuda.graph_pool_handle(), torch.cuda.Stream())
