"""A player's turn as one CUDA graph: recorded after a few eager runs, replayed from then on.

An iteration of the GAN is about a thousand short kernels, and launching them one by one takes the host longer
than they run. A graph keeps its memory between replays; turns recorded into one pool share it, because they
never run at the same time. A turn that cannot be recorded is run eagerly, with a warning.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.systems.common.training.recording import recording_into

_FIRST = 3  # eager runs before recording: libraries choose their kernels and ours are compiled

Turn = Callable[..., tuple[Tensor, ...]]


@dataclass
class Pool:
    """What turns share: the memory of their graphs, and the stream on which they first run
    and are recorded.
    """

    memory: Any
    stream: Any  # torch.cuda.Stream
    is_limited: bool = False  # by a budget, which counts the memory of one pool
    recordings: int = 0
    is_closed: bool = False

    @contextmanager
    def use_side_stream(self) -> Iterator[None]:
        """Run work on the pool's stream, after everything queued before it and before everything queued
        later.
        """
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream().wait_stream(self.stream)

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        """Record what is done meanwhile. After one that fails, later turns are recorded into other memory.

        With a limit they are not: earlier recordings keep the memory of the first pool.
        """
        try:
            with recording_into(graph, pool=self.memory, stream=self.stream):
                yield
        except RuntimeError:
            self.memory = torch.cuda.graph_pool_handle()
            self.is_closed = self.is_limited and self.recordings > 0
            raise
        self.recordings += 1


class _Recording(NamedTuple):
    graph: Any  # torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]


class ReplayedTurn:
    """run(*tensors) as one graph per combination of shapes and types, with the gradients it leaves on the
    parameters.

    The run must find no gradients on the parameters, read only tensors that stay in place (parameters,
    buffers, its inputs), copy nothing from the host, wait for nothing, and return tensors without an autograd
    graph. Gradients lie in the graph's memory until the next replay of any turn of the pool.
    """

    def __init__(self, run: Turn, parameters: Iterable[nn.Parameter] = (), *, pool: Pool) -> None:
        self.run, self.parameters, self.pool = run, tuple(parameters), pool
        self._runs: Counter[Any] = Counter()
        self._recordings: dict[Any, _Recording] = {}
        self._is_over = False  # after a recording that failed

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        kind = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        self._runs[kind] += 1
        if self._runs[kind] > _FIRST and kind not in self._recordings and not self._stays_eager:
            self._record(kind, tensors)
        recording = self._recordings.get(kind)
        if recording is None:
            return self._run_eagerly(tensors)
        for buffer, tensor in zip(recording.inputs, tensors, strict=True):
            buffer.copy_(tensor)
        recording.graph.replay()
        for parameter, gradient in zip(self.parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        # the next replay overwrites the recorded outputs
        return tuple(value.clone() for value in recording.outputs)

    @property
    def _stays_eager(self) -> bool:
        return self._is_over or self.pool.is_closed

    def _run_eagerly(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run under recording conditions: the same stream, and inputs laid out alike, so that everything is
        allocated.
        """
        copies = tuple(tensor.clone() for tensor in tensors)
        with self.pool.use_side_stream():
            return self.run(*copies)

    def _record(self, kind: Any, tensors: tuple[Tensor, ...]) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        inputs = tuple(tensor.clone() for tensor in tensors)
        graph = torch.cuda.CUDAGraph()
        try:
            with self.pool.recording(graph):
                outputs = self.run(*inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # of the turn itself: the eager run that follows raises it again
            self._is_over = True
            for parameter in self.parameters:
                parameter.grad = None
            first_line, _, _ = str(error).strip().partition("\n")
            warnings.warn(
                f"A step could not be recorded as a CUDA graph ({first_line.rstrip('.')}). Its kernels are "
                "launched every time, which takes longer; --set graphs=false does so from the start.",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        self._recordings[kind] = _Recording(
            graph, inputs, outputs, tuple(parameter.grad for parameter in self.parameters)
        )


def new_pool(*, is_limited: bool = False) -> Pool:
    """A new pool for turns that never run at the same time."""
    return Pool(torch.cuda.graph_pool_handle(), torch.cuda.Stream(), is_limited)
