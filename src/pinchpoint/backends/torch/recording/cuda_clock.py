"""`watch_device`: times of the device's own clock at the bounds of phases, read without waiting for it.

An event is recorded in the current stream whenever a phase changes. Its time is read when the run is over, or
much later, so that the program never waits for it. One synchronisation, when CUDA is first used, relates the
clocks of host and device.
"""

from __future__ import annotations

from typing import Any

import torch

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.torch.recording import compat

_wait_for = torch.cuda.synchronize  # before it is watched


class CudaClock:
    """Events on the device, and their times on the host's clock."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._first: Any = None
        self._first_ns = 0
        self._free: list[Any] = []
        self._stream: Any = None
        self._stream_key: Any = None

    def stamp(self) -> Any:
        """Record the time at which the device reaches this point; None before CUDA is used."""
        if self._first is None:
            if not torch.cuda.is_initialized():
                return None
            self._begin()
        if torch.cuda.is_current_stream_capturing():
            return None  # an event would become a part of the graph
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        # Event.record() would build an object of the current stream each time.
        key = compat.current_stream_key()
        if key is None or key != self._stream_key:
            self._stream, self._stream_key = torch.cuda.current_stream(), key
        event.record(self._stream)
        return event

    def time_ns(self, event: Any) -> float:
        """When the device reached an event. The event may be used again afterwards."""
        if not event.query():
            _wait(event)
        elapsed_ns = self._first.elapsed_time(event) * 1e6
        if len(self._free) < 1000:
            self._free.append(event)
        return self._first_ns + elapsed_ns

    def _begin(self) -> None:
        self._recorder.device = "cuda"
        self._first = torch.cuda.Event(enable_timing=True)
        self._first.record()
        _wait(self._first)
        self._first_ns = self._recorder.clock_ns()


def _wait(event: Any) -> None:
    """Wait for an event by the method of its base class, which is not watched."""
    base: Any = super(torch.cuda.Event, event)
    base.synchronize()


def _synchronize() -> bool:
    """Wait for all work on the GPUs that this process uses; False while a CUDA graph is captured."""
    if not torch.cuda.is_initialized():
        return True
    if torch.cuda.is_current_stream_capturing():
        return False
    for device in range(torch.cuda.device_count()):
        if device == torch.cuda.current_device() or torch.cuda.memory_reserved(device):
            _wait_for(device)
    return True


def watch_device(recorder: Recorder) -> None:
    if not torch.backends.cuda.is_built():
        return
    recorder.synchronize.append(_synchronize)
    clock = CudaClock(recorder)
    recorder.stamp, recorder.device_ns = clock.stamp, clock.time_ns
