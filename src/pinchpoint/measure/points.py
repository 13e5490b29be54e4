"""Measured points: a point is two runs, one for the peak and one for the time, each in a fresh interpreter.

Running out of memory, a crash, a signal or the time limit is the point's result, with its reason;
only input that no point could ever use is raised.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from pinchpoint.core.errors import TargetFailed
from pinchpoint.core.records import Point, Status
from pinchpoint.measure.worker import Request


class Runner(Protocol):
    """Answers a request; `workers.Workers` is one."""

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Measured:
    """A point, and what its worker said of itself. `limit_bytes`: where memory ends, if known."""

    point: Point
    limit_bytes: int | None = None
    machine: dict[str, Any] | None = None


def measure_point(request: Request, *, label: str, mode: str, timeout_s: float, run: Runner, timed: bool = True) -> Measured:
    """Peak first: a size that does not fit is not timed. `label` and `mode` name the point."""
    peak = run(dataclasses.replace(request, what="peak"), timeout_s=timeout_s)
    point = Point(
        size=request.size,
        mode=mode,
        variant=label,
        status=_status(peak),
        processed=peak.get("processed"),
        peak_allocated_bytes=peak.get("peak_allocated_bytes"),
        peak_reserved_bytes=peak.get("peak_reserved_bytes"),
        total_bytes=peak.get("peak_total_bytes"),
        reason=peak.get("reason", ""),
    )
    if point.status == "ok" and timed:
        time = run(dataclasses.replace(request, what="time"), timeout_s=timeout_s)
        if _status(time) == "ok":
            point = dataclasses.replace(
                point, time_s=time["median_s"], time_low_s=time["low_s"], time_high_s=time["high_s"]
            )  # fmt: skip
        else:
            # The peak was found and stays; the point is not ok, for it has no time.
            point = dataclasses.replace(point, status=_status(time), reason=f"while timing: {time['reason']}")
    return Measured(point, peak.get("limit_bytes"), peak.get("machine"))


def nothing_ran(text: str, points: list[Point]) -> TargetFailed:
    """Every point failed: the first reason is the error."""
    first = points[0]
    return TargetFailed(
        f"no size of {text} ran; size {first.size}: {first.reason}", mend="mend the target; --debug shows the whole traceback"
    )


def _status(result: dict[str, Any]) -> Status:
    return result["status"]
