"""`watch_memory`: the memory of a run per step, its peak, and the lines that held it.

On CUDA, the allocator's history of the first steps gives the lines at the peak; recording it for a whole run
would cost too much. Without CUDA, the memory of the process is read at the end of each step: it includes
Python, libraries, and memory that was freed but not returned to the system.
"""

from __future__ import annotations

import bisect
import linecache
import time
from collections.abc import Iterable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.process_memory import ProcessMemory
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.recording.steps import OTHER
from pinchpoint.backends.torch.recording import compat

_STEPS = 3  # whose allocations are recorded; later steps of most loops are the same
_LINES = 40


class _History:
    """Events of the CUDA allocator in the first steps, with the phases at their time."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.is_on = False
        self.events: list[dict[str, Any]] = []
        self.device = 0
        # The allocator has the time of the day; the log has a clock that never jumps.
        self.offset_ns = time.time_ns() - recorder.clock_ns()
        self.bounds: list[tuple[int, str]] = []

    def start(self) -> None:
        self.device = torch.cuda.current_device()
        compat.start_history()
        self.is_on = True

    def stop(self) -> None:
        if not self.is_on:
            return
        self.is_on = False
        with self.recorder.paused():
            self.events = compat.take_history(self.device)
            self.bounds = [(row.at_ns, row.phase) for row in self.recorder.rows if row.mark is None]

    def stop_after_steps(self) -> None:
        if self.is_on and self.recorder.has_passed(_STEPS):
            self.stop()

    def phase_at(self, time_us: int) -> str:
        at = bisect.bisect_right(self.bounds, (time_us * 1000 - self.offset_ns, "~")) - 1
        return self.bounds[at][1] if at >= 0 else OTHER


def watch_memory(recorder: Recorder, patches: Patches) -> None:
    process = ProcessMemory()

    def now() -> int | None:
        if recorder.device != "cuda":
            return process.resident_bytes()
        # memory_allocated() would convert all statistics, which takes ten times as long.
        return torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"]

    recorder.memory_now = now
    history = _History(recorder)
    if torch.backends.cuda.is_built() and not recorder.light:
        compat.after_cuda_starts(patches, history.start)
        recorder.on_step.append(history.stop_after_steps)

    def report() -> None:
        history.stop()
        recorder.parts["memory"] = _of_cuda(history) if recorder.device == "cuda" else process.report()

    recorder.on_finish.append(report)


def _of_cuda(history: _History) -> dict[str, Any]:
    stats = torch.cuda.memory_stats()
    result: dict[str, Any] = {
        "method": "CUDA allocator",
        "allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "inactive_split_bytes": stats.get("inactive_split_bytes.all.peak", 0),
        "retries": stats.get("num_alloc_retries", 0),
        "per_step_is": "allocated at the end of each step",
        "lines": [],
    }
    if history.events:
        peak_bytes, lines = peak_by_line(history.events, history.phase_at)
        result["lines"] = lines
        result["lines_bytes"] = peak_bytes
        result["lines_steps"] = _STEPS
    return result


def peak_by_line(events: list[dict[str, Any]], phase_at: Any) -> tuple[int, list[dict[str, Any]]]:
    """The bytes alive at the peak of a history, by the user's line and phase that allocated them.

    events: `alloc` and `free_completed` with addr, size, frames (innermost first) and time_us
    """
    live: dict[int, dict[str, Any]] = {}
    now = peak = 0
    peak_at = -1
    for number, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = event
            now += event["size"]
            if now > peak:
                peak, peak_at = now, number
        elif event["action"] == "free_completed" and (block := live.pop(event["addr"], None)):
            now -= block["size"]
    live.clear()
    for event in events[: peak_at + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    blocks = (
        (*_line(event.get("frames") or ()), phase_at(event.get("time_us", 0)), event["size"])
        for event in live.values()
    )
    return peak, rows_by_line(blocks)


def rows_by_line(blocks: Iterable[tuple[str, int, str, int]]) -> list[dict[str, Any]]:
    """Blocks summed by line and phase, the largest first. blocks: file, line, phase, bytes"""
    sums: dict[tuple[str, int, str], list[int]] = {}
    for file, line, phase, size in blocks:
        entry = sums.setdefault((file, line, phase), [0, 0])
        entry[0] += size
        entry[1] += 1
    rows = [
        {
            "file": file,
            "line": line,
            "bytes": size,
            "blocks": count,
            "phase": phase,
            "code": linecache.getline(file, line).strip() if file else "",
        }
        for (file, line, phase), (size, count) in sums.items()
    ]
    return sorted(rows, key=lambda row: -row["bytes"])[:_LINES]


def _line(frames: Any) -> tuple[str, int]:
    for frame in frames:
        if is_user_file(frame["filename"]):
            return frame["filename"], frame["line"]
    return "", 0
