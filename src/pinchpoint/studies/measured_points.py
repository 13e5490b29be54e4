"""Measured points, each from a fresh interpreter.

Running out of memory, a crash, a signal or the time limit is the point's result, with its reason;
only input that no point could ever use is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pinchpoint.core.errors import TargetFailed
from pinchpoint.core.records import Point
from pinchpoint.studies.worker import Request


class Runner(Protocol):
    """Answers a request; `workers.Workers` is one."""

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Measured:
    """A point, and what its worker said of itself. `limit_bytes`: where memory ends, if known."""

    point: Point
    limit_bytes: int | None = None
    machine: dict[str, Any] | None = None


def measure_point(request: Request, *, label: str, mode: str, timeout_s: float, run: Runner) -> Measured:
    """`label` and `mode` name the point."""
    found = run(request, timeout_s=timeout_s)
    point = Point(
        size=request.size,
        mode=mode,
        variant=label,
        status=found["status"],
        processed=found.get("processed"),
        peak_allocated_bytes=found.get("peak_allocated_bytes"),
        peak_reserved_bytes=found.get("peak_reserved_bytes"),
        total_bytes=found.get("peak_total_bytes"),
        time_s=found.get("median_s"),
        time_low_s=found.get("low_s"),
        time_high_s=found.get("high_s"),
        reason=found.get("reason", ""),
    )
    return Measured(point, found.get("limit_bytes"), found.get("machine"))


def nothing_ran(text: str, points: list[Point]) -> TargetFailed:
    """Every point failed: the first reason is the error."""
    first = points[0]
    return TargetFailed(
        f"no size of {text} ran; size {first.size}: {first.reason}",
        hint="fix the target; --debug shows the whole traceback",
    )
