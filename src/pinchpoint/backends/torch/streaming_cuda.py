"""Chunks on a GPU: two under way, so that copies in and out run while the device computes.

Each of two slots holds pinned and device buffers for a chunk's points and results. The host lands chunk
k - 2 before it launches chunk k in the same slot, and landing waits for the last event of the chunk; a
slot is therefore never written while anything still reads it. Across streams events order the rest:

    copy in   fill pinned, copy to device ......... sent
    compute   wait sent, function, copy to slot ... computed
    copy out  wait computed, copy to pinned ....... fetched     (the host waits here when landing)

Results are copied to the slot on the computing stream: a function that hands out the same memory at every
call, as a CUDA graph does, may be called again at once. Peaks are torch's own counters, all of the process.
"""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.stream_backend import Function, Points, Room
from pinchpoint.backends.torch.streaming import CpuLane, fill

SHARE_OF_FREE = 0.8
SHARE_OF_BUDGET = 0.9  # the rest is left to the allocator's rounding and gaps


class Slot:
    """Buffers and events of one chunk. `None` stands where a buffer is not needed."""

    def __init__(self, inputs: list[Tensor], staged: list[Tensor | None]) -> None:
        self.inputs = inputs  # (C, ...) on the device
        self.staged = staged  # (C, ...) pinned, for points on the host
        self.results: list[Tensor | None] | None = None  # (C, ...) on the device, made when the form is known
        self.fetched: list[Tensor | None] = []  # (C, ...) pinned
        self.span: tuple[int, int] = (0, 0)
        self.sent, self.computed, self.done = (torch.cuda.Event() for _ in range(3))


class CudaLane(CpuLane):
    """Two chunks under way on one GPU."""

    depth = 2

    def __init__(
        self,
        function: Function,
        points: Points,
        *,
        device: torch.device,
        out: Any,
        extra: tuple[Any, ...],
        pad: bool,
    ) -> None:
        super().__init__(function, points, device=device, out=out, extra=extra, pad=pad)
        self._computing = torch.cuda.current_stream(device)
        self._bringing, self._fetching = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._slots: list[Slot] = []
        self._flying: deque[Slot] = deque()
        self._turn = 0
        self._watched = False
        # Host points through pinned buffers; points on a device are copied by the computing stream itself.
        self._staged = [
            not isinstance(array, Tensor) or array.device.type == "cpu" for array in points.arrays
        ]

    def room(self, budget_bytes: int | None) -> Room:
        if budget_bytes is not None:
            return Room(int(SHARE_OF_BUDGET * budget_bytes), budget_bytes)
        free, held = self.free_bytes(), self.held_bytes()
        return Room(held + int(SHARE_OF_FREE * free), held + free)

    def free_bytes(self) -> int:
        """What the driver has left, and what torch's allocator keeps without using it."""
        cached = torch.cuda.memory_reserved(self.place) - self.held_bytes()
        return torch.cuda.mem_get_info(self.place)[0] + cached

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.place)

    def resize(self, chunk: int) -> None:
        self._drop()
        self.chunk = chunk
        for _ in range(self.depth):
            inputs = self.new_inputs(chunk, self.place)
            staged = [
                _pinned(b.shape, b.dtype) if s else None for b, s in zip(inputs, self._staged, strict=True)
            ]
            self._slots.append(Slot(inputs, staged))
        if self.outputs.form is not None:
            self._open_results()
        # The buffers may lie where earlier work of the computing stream still runs.
        self._bringing.wait_stream(self._computing)

    def launch(self, start: int, stop: int, *, watch: bool) -> None:
        slot, rows = self._slots[self._turn % self.depth], self.rows(start, stop)
        if watch:
            torch.cuda.reset_peak_memory_stats(self.place)
            self._watched = True
        with torch.cuda.device(self.place):
            self._bring(slot, start, stop, rows)
            inputs = [buffer[:rows] for buffer in slot.inputs] or [self.numbers(start, stop, rows)]
            parts = self.outputs.take(self.call(inputs), rows, self.place)
            if slot.results is None:
                self._open_results()
            self._fetch(slot, parts, start, stop)
        slot.span = (start, stop)
        self._flying.append(slot)
        self._turn += 1

    def land(self) -> None:
        if not self._flying:
            return
        slot = self._flying[0]
        slot.done.synchronize()
        start, stop = slot.span
        for part, rows in enumerate(slot.fetched):
            if rows is not None:
                self.outputs.store(part, start, stop, rows[: stop - start])
        self._flying.popleft()

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.place) if self._watched else None

    def clear(self) -> None:
        self._drop()
        gc.collect()
        torch.cuda.empty_cache()

    def close(self) -> None:
        self._drop()

    def _bring(self, slot: Slot, start: int, stop: int, rows: int) -> None:
        """Points start..stop into the slot's device buffers."""
        for array, buffer, staged in zip(self.points.arrays, slot.inputs, slot.staged, strict=True):
            if staged is None:
                fill(buffer[:rows], array, start, stop)
                continue
            fill(staged[:rows], array, start, stop)
            with torch.cuda.stream(self._bringing):
                buffer[:rows].copy_(staged[:rows], non_blocking=True)
        slot.sent.record(self._bringing)
        self._computing.wait_event(slot.sent)

    def _fetch(self, slot: Slot, parts: tuple[Tensor, ...], start: int, stop: int) -> None:
        """Results to where they belong, or on their way to the slot's pinned buffers."""
        assert slot.results is not None, "opened with the first results"
        count = stop - start
        for part, (rows, buffer) in enumerate(zip(parts, slot.results, strict=True)):
            if buffer is None:
                self.outputs.store(part, start, stop, rows[:count])
            else:
                buffer[:count].copy_(rows[:count])
        slot.computed.record(self._computing)
        self._fetching.wait_event(slot.computed)
        with torch.cuda.stream(self._fetching):
            for buffer, fetched in zip(slot.results, slot.fetched, strict=True):
                if buffer is not None and fetched is not None:
                    fetched[:count].copy_(buffer[:count], non_blocking=True)
        slot.done.record(self._fetching)

    def _open_results(self) -> None:
        """Buffers for the results of every slot; results that stay on a device need none."""
        assert self.outputs.form is not None, "known from the first results"
        for slot in self._slots:
            slot.results, slot.fetched = [], []
            for part, (shape, name) in enumerate(self.outputs.form.rows):
                host, dtype = (
                    self.outputs.is_host(part),
                    self.outputs.fetched_type(part, getattr(torch, name)),
                )
                full = (self.chunk, *shape)
                slot.results.append(torch.empty(full, dtype=dtype, device=self.place) if host else None)
                slot.fetched.append(_pinned(full, dtype) if host else None)

    def _drop(self) -> None:
        """Let the buffers go; what comes to lie there must wait for copies that still read or write them."""
        self._computing.wait_stream(self._bringing)
        self._computing.wait_stream(self._fetching)
        self._slots, self._turn = [], 0
        self._flying.clear()


def _pinned(shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype).pin_memory()
