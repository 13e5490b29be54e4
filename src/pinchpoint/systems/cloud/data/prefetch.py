"""Prefetch of the next step's points: read, cropped, augmented and, on a GPU, copied there, drawn and sorted
into voxels.

Prefetching uses a thread, not a process: NumPy and the GPU release the interpreter lock, and nothing is
copied. On a GPU it has its own stream, so a draw that waits for its sizes blocks only the thread. Each step
receives the same points as without prefetching. However far the host is ahead of the device, the points of at
most two steps are on the device: those of the step in progress and those of the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from pinchpoint.systems.cloud.model.views import Batch, ViewDraw

Result = TypeVar("Result")


class Prefetcher(Generic[Result]):
    """Results of `make(step)`; a thread computes the next step's result while this one is in use.

    side_stream: the stream on which `make` prepares; it then waits until the step before this one is done.
    """

    def __init__(
        self, make: Callable[[int], Result], *, last: int, side_stream: SideStream | None = None
    ) -> None:
        self.make, self.last, self.side_stream = make, last, side_stream
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cloud-data")
        self._next: tuple[int, Future[Result]] | None = None

    def get(self, step: int) -> Result:
        """Return the result of a step, and start to compute that of the next one.

        The caller has queued the step before this one, and no longer holds its points. If this raises an
        error, another call computes the result anew.
        """
        result = self._take(step)
        if self.side_stream is not None:
            # The thread has returned a result and has no next task yet, so it does not read the mark now.
            self.side_stream.mark_queued_work()
        self._next = (step + 1, self._pool.submit(self.make, step + 1)) if step < self.last else None
        return result

    def _take(self, step: int) -> Result:
        """Wait for the result of a step, or compute it if the thread does not."""
        pending, self._next = self._next, None
        try:
            return pending[1].result() if pending is not None and pending[0] == step else self.make(step)
        finally:
            # An error holds this frame: with the future, which holds the error, it would keep itself alive.
            del pending

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class PreparedStep:
    """Points on the device and the views drawn from them.

    done: an event recorded after their kernels, or None on a CPU.
    """

    batch: Batch
    draw: ViewDraw
    done: Any = None  # torch.cuda.Event


class SideStream:
    """A separate stream on the current device, usable from any thread."""

    def __init__(self) -> None:
        self.device = torch.cuda.current_device()  # new threads start with device 0
        self.stream = torch.cuda.Stream()
        self._queued_work: torch.cuda.Event | None = None

    def mark_queued_work(self) -> None:
        """Let the next `prepare` wait until the device has done all that the current stream contains now."""
        self._queued_work = torch.cuda.Event(blocking=True)
        self._queued_work.record()

    def prepare(self, make: Callable[[], tuple[Batch, ViewDraw]]) -> PreparedStep:
        """Call `make` on this stream, after the marked work."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if self._queued_work is not None:
                # The host waits, not the stream: the allocator reuses the memory of an earlier step's points
                # only if the device has finished that step when the new points are allocated.
                self._queued_work.synchronize()
            batch, draw = make()
            return PreparedStep(batch, draw, self.stream.record_event())


def receive(prepared: PreparedStep) -> tuple[Batch, ViewDraw]:
    """Hand the points to the current stream, which waits for them and keeps their memory from early reuse."""
    if prepared.done is not None:
        current = torch.cuda.current_stream()
        current.wait_event(prepared.done)
        for tensor in _tensors(prepared):
            tensor.record_stream(current)
    return prepared.batch, prepared.draw


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a dataclass and of everything in it."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for part in vars(value).values():
            yield from _tensors(part)
