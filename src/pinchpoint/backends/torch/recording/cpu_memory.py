"""`watch_cpu_memory`: which lines hold the memory of tensors at the peak of a step on the CPU.

Only the third step is looked at: torch's profiler reports each allocation of the CPU allocator, and a trace
function tells which line of the user ran at that time. Weights, gradients and optimizer states that are
alive before are added from the model and its optimizers. What else is alive before, such as a dataset, is
not counted.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.torch.recording import compat
from pinchpoint.backends.torch.recording.memory import rows_by_line
from pinchpoint.backends.torch.recording.phases import Watched

_LINES = 300_000  # that are traced at most
_CATEGORIES = ("weights", "gradients", "optimizer")
_STEP = 2  # steps before the one that is looked at: the optimizer has its state then


class _LineTrace:
    """The lines of the user's code that run, with their time. Debuggers use the same mechanism."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.lines: list[tuple[int, str, int]] = []
        self._clock_ns = clock_ns
        self._frames: dict[int, FrameType] = {}
        self._known: dict[Any, bool] = {}

    def start(self, frame: FrameType | None) -> None:
        while frame is not None:
            if self._is_user(frame):
                if not self._frames:
                    self.lines.append((self._clock_ns(), frame.f_code.co_filename, frame.f_lineno))
                frame.f_trace = self._inside
                self._frames[id(frame)] = frame
            frame = frame.f_back
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)
        for frame in self._frames.values():
            frame.f_trace = None
        self._frames.clear()

    def _is_user(self, frame: FrameType) -> bool:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = is_user_file(code.co_filename)
        return self._known[code]

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._inside if self._is_user(frame) else None

    def _inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return":
            self._frames.pop(id(frame), None)  # it would keep the variables of the function alive
            back = frame.f_back
            while back is not None and not self._is_user(back):
                back = back.f_back
            if back is None:
                return self._inside
            frame = back  # the rest of the caller's line
        if len(self.lines) >= _LINES:
            self.stop()  # a loop of Python: later allocations count to its last line
            return None
        self.lines.append((self._clock_ns(), frame.f_code.co_filename, frame.f_lineno))
        return self._inside


class _Accounting:
    """The allocations of one step, and what was alive before it."""

    def __init__(self, recorder: Recorder, watched: Watched) -> None:
        self.recorder, self.watched = recorder, watched
        self.optimizers: dict[int, weakref.ref[Optimizer]] = {}
        self.is_done = False
        self.base: dict[int, tuple[str, int]] = {}
        self._profiler: Any = None
        self._trace: _LineTrace | None = None
        self._offset_ns = self._started_at = 0
        self.allocations: list[
            tuple[int, int, int]
        ] = []  # time on our clock, address, bytes; negative: freed
        self.lines: list[tuple[int, str, int]] = []
        self.bounds: list[tuple[int, str]] = []

    def remember(self, optimizer: Optimizer) -> None:
        if len(self.optimizers) < 16:
            self.optimizers.setdefault(id(optimizer), weakref.ref(optimizer))

    def at_step(self) -> None:
        if self._profiler is not None:
            if self.recorder.step > self._started_at:  # with several optimizers, all have stepped since
                self.stop()
        elif not self.is_done and self.recorder.has_passed(_STEP):
            self.is_done = True
            # A debugger, a coverage tool or compiled code would be disturbed.
            is_compiled = any(kind in ("compile", "recompile") for kind, _, _ in self.recorder.events)
            if self.recorder.device == "cpu" and sys.gettrace() is None and not is_compiled:
                with self.recorder.paused():
                    self._start(sys._getframe(1))

    def _start(self, frame: FrameType) -> None:
        self.base = _alive(self.watched, [r() for r in self.optimizers.values()])
        profiler = compat.allocation_profiler()
        try:
            # torch warns, at most once a second, when memory from before is freed; let it do so here.
            old = torch.empty(1)
            with _quiet():
                profiler.start()
                del old
        except RuntimeError:
            return  # the program uses the profiler itself
        self._profiler, self._started_at = profiler, self.recorder.step
        self._offset_ns = time.time_ns() - self.recorder.clock_ns()
        self._trace = _LineTrace(self.recorder.clock_ns)
        self._trace.start(frame)

    def stop(self) -> None:
        profiler, trace = self._profiler, self._trace
        if profiler is None or trace is None:
            return
        self._profiler = self._trace = None
        trace.stop()
        with self.recorder.paused():
            with _quiet():
                profiler.stop()
            self.allocations = [
                (at_ns - self._offset_ns, address, size)
                for at_ns, address, size in compat.allocations(profiler)
            ]
            self.lines = trace.lines
            self.bounds = [(row.at_ns, row.phase) for row in self.recorder.rows if row.mark is None]

    def report(self) -> dict[str, Any] | None:
        """The part of a Trace about the memory of tensors; None if no step was looked at."""
        if not self.allocations:
            return None
        live: dict[int, tuple[int, str, int, str]] = {}
        base = dict(self.base)
        now = peak = sum(size for _, size in base.values())
        at_peak: dict[int, tuple[int, str, int, str]] = {}
        base_at_peak = dict(base)
        for at_ns, address, size in self.allocations:
            if size > 0:
                live[address] = (size, *self._line_at(at_ns), self._phase_at(at_ns))
                now += size
                if now > peak:
                    peak, at_peak, base_at_peak = now, dict(live), dict(base)
            elif block := live.pop(address, None):
                now -= block[0]
            elif known := base.pop(address, None):
                now -= known[1]
        rows = rows_by_line((file, line, phase, size) for size, file, line, phase in at_peak.values())
        shares: dict[str, int] = dict.fromkeys(_CATEGORIES, 0)
        for name, size in base_at_peak.values():
            shares[name] += size
        return {
            "method": "tensors of the third step",
            "allocated_bytes": peak,
            "before_bytes": shares,
            "lines": rows,
            "lines_bytes": peak,
        }

    def _line_at(self, at_ns: int) -> tuple[str, int]:
        index = bisect.bisect_right(self.lines, at_ns, key=lambda entry: entry[0]) - 1
        return self.lines[index][1:] if index >= 0 else ("", 0)

    def _phase_at(self, at_ns: int) -> str:
        index = bisect.bisect_right(self.bounds, at_ns, key=lambda entry: entry[0]) - 1
        return self.bounds[index][1] if index >= 0 else "other"


def watch_cpu_memory(recorder: Recorder, watched: Watched) -> None:
    accounting = _Accounting(recorder, watched)

    def report() -> None:
        accounting.stop()
        tensors = accounting.report() if recorder.device == "cpu" else None
        if tensors is not None:
            recorder.parts["memory"] = {**recorder.parts.get("memory", {}), **tensors}

    watched.before_step.append(accounting.remember)
    recorder.on_step.append(accounting.at_step)
    recorder.on_finish.append(report)
    recorder.on_close.append(accounting.stop)


def _alive(watched: Watched, optimizers: Iterable[Optimizer | None]) -> dict[int, tuple[str, int]]:
    """Category and bytes of each storage of weights, gradients and states on the CPU, by address."""
    present = [optimizer for optimizer in optimizers if optimizer is not None]
    parameters = [p for optimizer in present for group in optimizer.param_groups for p in group["params"]]
    for model in list(watched.models):
        parameters += [*model.parameters(), *model.buffers()]
    gradients = [parameter.grad for parameter in parameters]
    states = [value for o in present for state in o.state.values() for value in _values(state)]
    alive: dict[int, tuple[str, int]] = {}
    for name, tensors in zip(_CATEGORIES, (parameters, gradients, states), strict=True):
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
                continue
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                alive.setdefault(storage.data_ptr(), (name, storage.nbytes()))
    return alive


def _values(state: Any) -> Iterator[Any]:
    yield from state.values() if isinstance(state, dict) else ()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the profiler prints to standard error when it starts and stops."""
    sys.stderr.flush()
    copy, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        os.dup2(copy, 2)
        os.close(copy)
