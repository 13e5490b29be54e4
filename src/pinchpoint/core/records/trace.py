"""`Trace`: what profile produces. Where the time and memory of a real run went, by phase, step and line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records.base import Record, now
from pinchpoint.core.units import show_bytes, show_count, show_seconds


@dataclass(frozen=True)
class TracePhase:
    """The time of one phase in all steps after the first.

    device_s: on CUDA, from the device's arrival at the beginning of the phase to its arrival at the end.
    """

    name: str
    host_s: float
    share: float  # of the host time of these steps
    device_s: float | None = None


@dataclass(frozen=True)
class TraceEvent:
    """What happened at one source line, in all: device waits, copies, recompilations, rebuilt objects."""

    kind: str  # wait, copy, compile, recompile, rebuild, build, cleanup
    what: str  # the call: Tensor.item, cpu -> cuda, Linear, gc.collect
    file: str
    line: int
    count: int
    steps: int  # in how many steps it happened
    host_s: float  # of all of them together; the program waited this long in these calls
    longest_s: float
    phase: str
    code: str = ""
    bytes: int | None = None
    detail: str = ""  # the reason of a recompilation, how a copy was made
    repeated: int = 0  # copies of data that had been copied before and was not changed since
    first_s: float = 0.0  # of host_s, before the end of the first step

    @property
    def later_s(self) -> float:
        """The time in the steps after the first, which is unlike the others."""
        return self.host_s - self.first_s

    @property
    def later_steps(self) -> int:
        """In how many steps after the first it took that time."""
        return self.steps - (self.first_s > 0)


@dataclass(frozen=True)
class Problem:
    """Something worth changing, and what it cost in this run; cost_s is None if that is not known."""

    kind: str
    what: str  # a sentence
    hint: str
    file: str = ""
    line: int = 0
    cost_s: float | None = None
    share: float | None = None  # of the time of the steps after the first
    bytes: int | None = None
    count: int = 0


@dataclass(frozen=True)
class Trace(Record):
    """Where the time and memory of a run went. See docs/toolkit/profile.md for what each number counts."""

    kind: ClassVar[str] = "trace"
    target: str
    framework: str  # that takes the steps: torch or jax; without steps, what was imported
    device: str  # cuda or cpu
    ended: str  # finished, stopped, exited, raised, timed out, interrupted, killed
    steps: int
    step_is: (
        str  # what counts as a step: optimizer step, backward pass, module call, call of a jitted function
    )
    took_s: float  # the whole script
    setup_s: float  # before the first step
    first_step_s: float | None
    # host seconds of the steps after the first: median_s, mean_s, low_s (10 %), high_s (90 %), longest_s
    step_times: dict[str, float]
    phases: tuple[TracePhase, ...]
    events: tuple[TraceEvent, ...]
    problems: tuple[Problem, ...]  # ranked by what they cost
    # {"step", "start_s", "host_s", "device_s", "phases", "memory_bytes"} of steps, thinned if there are many
    timeline: tuple[dict[str, Any], ...] = ()
    # allocated_bytes, reserved_bytes, growth_bytes_per_step, method, lines: see docs/reference/records.md
    memory: dict[str, Any] | None = None
    loaders: tuple[dict[str, Any], ...] = ()  # {"file", "line", "workers", "pinned", "batch_size", "host_s"}
    # {"name", "shape", "reason"} of parameters of an optimizer that never had a gradient
    without_gradient: tuple[dict[str, Any], ...] = ()
    # for check: {"file", "line", "samples", "share"} of lines on the stack, in the steps after the first
    lines: tuple[dict[str, Any], ...] = ()
    watched: tuple[dict[str, Any], ...] = ()  # for check: {"file", "line", "ran"}; null if it is not known
    idle_s: float | None = None  # on CUDA: how long the device waited for the host, at least
    exit_code: int = 0
    error: str = ""  # what the script raised, and where
    light: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [
            ("target", self.target),
            ("device", self.machine.get("gpu") or self.device if self.device == "cuda" else self.device),
            (
                "ended",
                f"{self.ended} after {show_count(self.steps, self.step_is)}, {show_seconds(self.took_s)}",
            ),
        ]
        if self.first_step_s is not None:
            rows.append(
                ("first step", f"{show_seconds(self.first_step_s)}, after {show_seconds(self.setup_s)}")
            )
        if self.step_times:
            low, high = (show_seconds(self.step_times[key]) for key in ("low_s", "high_s"))
            rows.append(("later steps", f"{show_seconds(self.step_times['median_s'])} [{low} to {high}]"))
        if self.idle_s is not None and self.idle_s >= 0.01 * sum(phase.host_s for phase in self.phases):
            rows.append(("device idle", f"at least {show_seconds(self.idle_s)}"))
        if self.memory:
            if (peak := self.memory.get("allocated_bytes")) is not None:
                rows.append(("peak allocated", show_bytes(peak)))
            if (reserved := self.memory.get("reserved_bytes")) is not None:
                rows.append(("peak reserved", show_bytes(reserved)))
        return rows
