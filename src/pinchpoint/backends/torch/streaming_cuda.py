"""`CudaLane`: two chunks in flight on a GPU, so that copies in and out run while the device computes.

Each of two slots holds pinned and device buffers for a chunk's points and results. The host lands chunk
k - 2 before it launches chunk k in the same slot, and landing waits for the last event of the chunk, so
a slot is never written while it is still read. Events order the work across streams:

    copy in   fill pinned, copy to device ......... input_event
    compute   wait for it, function, copy to slot . compute_event
    copy out  wait for it, copy to pinned ......... output_event     (landing waits for it on the host)

Results are copied to the slot on the computing stream, so a function that returns the same memory at every
call, as a CUDA graph does, may be called again at once. Peaks are torch's own counters of the whole process.
"""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.stream_backend import Function, Points, Room
from pinchpoint.backends.torch.streaming_cpu import CpuLane, fill

SHARE_OF_FREE = 0.8
SHARE_OF_BUDGET = 0.9  # the rest is left for the allocator's rounding and gaps


class Slot:
    """Buffers and events of one chunk. `None` marks a buffer that is not needed."""

    def __init__(self, inputs: list[Tensor], host_inputs: list[Tensor | None]) -> None:
        self.inputs = inputs  # (C, ...) on the device
        self.host_inputs = host_inputs  # (C, ...) pinned, for points on the host
        self.results: list[Tensor | None] | None = None  # (C, ...) on the device, once the form is known
        self.host_results: list[Tensor | None] = []  # (C, ...) pinned
        self.span: tuple[int, int] = (0, 0)
        self.input_event, self.compute_event, self.output_event = (torch.cuda.Event() for _ in range(3))


class CudaLane(CpuLane):
    """Keeps two chunks in flight on one GPU."""

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
        self._compute_stream = torch.cuda.current_stream(device)
        self._input_stream, self._output_stream = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._slots: list[Slot] = []
        self._in_flight: deque[Slot] = deque()
        self._launches = 0
        self._tracks_peak = False
        # Host points go through pinned buffers; points on a device are copied by the computing stream itself.
        self._is_host_input = [
            not isinstance(array, Tensor) or array.device.type == "cpu" for array in points.arrays
        ]

    def room(self, budget_bytes: int | None) -> Room:
        if budget_bytes is not None:
            return Room(int(SHARE_OF_BUDGET * budget_bytes), budget_bytes)
        free, in_use = self.free_bytes(), self.held_bytes()
        return Room(in_use + int(SHARE_OF_FREE * free), in_use + free)

    def free_bytes(self) -> int:
        """Bytes that are free in the driver plus those that torch's allocator caches but does not use."""
        cached_bytes = torch.cuda.memory_reserved(self.place) - self.held_bytes()
        return torch.cuda.mem_get_info(self.place)[0] + cached_bytes

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.place)

    def resize(self, chunk: int) -> None:
        self._drop()
        self.chunk = chunk
        for _ in range(self.depth):
            inputs = self.new_inputs(chunk, self.place)
            host_inputs = [
                _pinned_buffer(b.shape, b.dtype) if s else None
                for b, s in zip(inputs, self._is_host_input, strict=True)
            ]
            self._slots.append(Slot(inputs, host_inputs))
        if self.outputs.form is not None:
            self._open_results()
        # Earlier work of the computing stream may still use the memory of these buffers.
        self._input_stream.wait_stream(self._compute_stream)

    def launch(self, start: int, stop: int, *, watch: bool) -> None:
        slot, rows = self._slots[self._launches % self.depth], self.rows(start, stop)
        if watch:
            torch.cuda.reset_peak_memory_stats(self.place)
            self._tracks_peak = True
        with torch.cuda.device(self.place):
            self._copy_in(slot, start, stop, rows)
            inputs = [buffer[:rows] for buffer in slot.inputs] or [self.numbers(start, stop, rows)]
            parts = self.outputs.take(self.call(inputs), rows, self.place)
            if slot.results is None:
                self._open_results()
            self._copy_out(slot, parts, start, stop)
        slot.span = (start, stop)
        self._in_flight.append(slot)
        self._launches += 1

    def land(self) -> None:
        if not self._in_flight:
            return
        slot = self._in_flight[0]
        slot.output_event.synchronize()
        start, stop = slot.span
        for part, rows in enumerate(slot.host_results):
            if rows is not None:
                self.outputs.store(part, start, stop, rows[: stop - start])
        self._in_flight.popleft()

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.place) if self._tracks_peak else None

    def clear(self) -> None:
        self._drop()
        gc.collect()
        torch.cuda.empty_cache()

    def close(self) -> None:
        self._drop()

    def _copy_in(self, slot: Slot, start: int, stop: int, rows: int) -> None:
        """Copy points start..stop to the slot's device buffers."""
        for array, buffer, host_inputs in zip(self.points.arrays, slot.inputs, slot.host_inputs, strict=True):
            if host_inputs is None:
                fill(buffer[:rows], array, start, stop)
                continue
            fill(host_inputs[:rows], array, start, stop)
            with torch.cuda.stream(self._input_stream):
                buffer[:rows].copy_(host_inputs[:rows], non_blocking=True)
        slot.input_event.record(self._input_stream)
        self._compute_stream.wait_event(slot.input_event)

    def _copy_out(self, slot: Slot, parts: tuple[Tensor, ...], start: int, stop: int) -> None:
        """Store results that stay on a device, and start copying the others to the slot's pinned buffers."""
        assert slot.results is not None, "the result buffers exist after the first results"
        count = stop - start
        for part, (rows, buffer) in enumerate(zip(parts, slot.results, strict=True)):
            if buffer is None:
                self.outputs.store(part, start, stop, rows[:count])
            else:
                buffer[:count].copy_(rows[:count])
        slot.compute_event.record(self._compute_stream)
        self._output_stream.wait_event(slot.compute_event)
        with torch.cuda.stream(self._output_stream):
            for buffer, host_results in zip(slot.results, slot.host_results, strict=True):
                if buffer is not None and host_results is not None:
                    host_results[:count].copy_(buffer[:count], non_blocking=True)
        slot.output_event.record(self._output_stream)

    def _open_results(self) -> None:
        """Allocate buffers for the results of every slot; results that stay on a device need none."""
        assert self.outputs.form is not None, "the form is known from the first results"
        for slot in self._slots:
            slot.results, slot.host_results = [], []
            for part, (shape, name) in enumerate(self.outputs.form.rows):
                host, dtype = (
                    self.outputs.is_host(part),
                    self.outputs.fetched_type(part, getattr(torch, name)),
                )
                full = (self.chunk, *shape)
                slot.results.append(torch.empty(full, dtype=dtype, device=self.place) if host else None)
                slot.host_results.append(_pinned_buffer(full, dtype) if host else None)

    def _drop(self) -> None:
        """Release the buffers; later users of their memory wait for copies that still read or write it."""
        self._compute_stream.wait_stream(self._input_stream)
        self._compute_stream.wait_stream(self._output_stream)
        self._slots, self._launches = [], 0
        self._in_flight.clear()


def _pinned_buffer(shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
