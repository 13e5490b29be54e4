"""Prefetch of the next step's points: read, cropped, augmented and, on a GPU, copied there and drawn.

Prefetching uses a thread, not a process: numpy and the GPU release the interpreter lock, and nothing is
copied. On a GPU it has its own stream, so a draw that waits for its sizes blocks only the thread. Steps
receive the same points.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from pinchpoint.systems.cloud.model.views import Batch, ViewDraw

Made = TypeVar("Made")


class Ahead(Generic[Made]):
    """Results of `make(step)`; the next step's result is computed while this one is in use."""

    def __init__(self, make: Callable[[int], Made], *, last: int) -> None:
        self.make, self.last = make, last
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cloud-data")
        self._next: tuple[int, Future[Made]] | None = None

    def get(self, step: int) -> Made:
        begun = self._next
        made = begun[1].result() if begun is not None and begun[0] == step else self.make(step)
        self._next = (step + 1, self._pool.submit(self.make, step + 1)) if step < self.last else None
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Ready:
    """Points on the device and the views drawn from them; done: event after their kernels, None on a CPU."""

    batch: Batch
    drawn: ViewDraw
    done: Any = None  # torch.cuda.Event


class Aside:
    """A separate stream on the current device, usable from any thread."""

    def __init__(self) -> None:
        self.device = torch.cuda.current_device()  # new threads start with device 0
        self.stream = torch.cuda.Stream()

    def made(self, make: Callable[[], tuple[Batch, ViewDraw]]) -> Ready:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            batch, drawn = make()
            return Ready(batch, drawn, self.stream.record_event())


def taken(ready: Ready) -> tuple[Batch, ViewDraw]:
    """Hand the points to the current stream, which waits for them and keeps their memory from early reuse."""
    if ready.done is not None:
        current = torch.cuda.current_stream()
        current.wait_event(ready.done)
        for tensor in _tensors(ready):
            tensor.record_stream(current)
    return ready.batch, ready.drawn


def _tensors(ready: Ready) -> list[Tensor]:
    cells = ready.drawn.segments
    held = [*vars(ready.batch).values(), *vars(ready.drawn).values(), *vars(cells).values()]
    return [value for value in held if isinstance(value, Tensor)]
