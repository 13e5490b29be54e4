"""The next step's points, made ready while this one computes: read, cropped, turned and, on a GPU, moved there and drawn.

A thread and not a process: numpy and the GPU let go of the interpreter, and nothing has to be copied. On a GPU it works on a
stream of its own, so that a draw's wait for its sizes holds up nothing but the thread. What a step gets is the same either way.
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
    """What `make(step)` gives, the next step's begun while this one's is used."""

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
    """Points on the device and the views drawn of them; done: what their kernels are over with, None on a CPU."""

    batch: Batch
    drawn: ViewDraw
    done: Any = None  # torch.cuda.Event


class Aside:
    """Work on a stream of its own on the device that is current here, from any thread."""

    def __init__(self) -> None:
        self.device = torch.cuda.current_device()  # threads begin with the first card
        self.stream = torch.cuda.Stream()

    def made(self, make: Callable[[], tuple[Batch, ViewDraw]]) -> Ready:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            batch, drawn = make()
            return Ready(batch, drawn, self.stream.record_event())


def taken(ready: Ready) -> tuple[Batch, ViewDraw]:
    """For the stream that is current: it waits for what is not done, and the memory is not used again before it is done with."""
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
