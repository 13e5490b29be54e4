"""Measured points: each asked of a fresh interpreter, whatever becomes of it.

A point is two runs, one for the peak and one for the time. Running out of memory, a crash, a
signal or the time limit is the point's result, with its reason; only input that no point could
ever use is raised. A worker is ended by its own process group, on the time limit and on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pinchpoint.core.errors import BadInput, Missing, TargetFailed, from_dict
from pinchpoint.core.records import Point, Status
from pinchpoint.measure.worker import Request

SOURCE = Path(__file__).resolve().parents[2]


class Runner(Protocol):
    """Answers a request; `run_worker` is one."""

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Measured:
    """A point, and what its worker said of itself. `limit_bytes`: where memory ends, if known."""

    point: Point
    limit_bytes: int | None = None
    machine: dict[str, Any] | None = None


def measure_point(
    request: Request, *, label: str, mode: str, timeout_s: float, timed: bool = True, run: Runner | None = None
) -> Measured:
    """Peak first: a size that does not fit is not timed. `label` and `mode` name the point."""
    run = run or run_worker
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


def run_worker(request: Request, *, timeout_s: float) -> dict[str, Any]:
    """One fresh interpreter. Raises only what would make every other point fail as well."""
    with tempfile.TemporaryDirectory(prefix="pinchpoint-") as folder:
        asked, answered, said = (Path(folder) / name for name in ("request.json", "result.json", "output.txt"))
        asked.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
        with said.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "pinchpoint.measure.worker", str(asked), str(answered)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=_environment(), start_new_session=True,
            )  # fmt: skip
            try:
                worker.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return {"status": "timeout", "reason": f"took longer than {timeout_s:g} s"}
            finally:
                _end(worker)
        if not answered.exists():
            return {"status": "failed", "reason": _death(worker.returncode, said.read_text(encoding="utf-8", errors="replace"))}
        result = json.loads(answered.read_text(encoding="utf-8"))
    if "error" in result:
        error = from_dict(result)
        if isinstance(error, (BadInput, Missing)):
            raise error
        return {"status": "failed", "reason": error.what, "mend": error.mend}
    return result


def nothing_ran(text: str, points: list[Point]) -> TargetFailed:
    """Every point failed: the first reason is the error."""
    first = points[0]
    return TargetFailed(
        f"no size of {text} ran; size {first.size}: {first.reason}", mend="mend the target; --debug shows the whole traceback"
    )


def _status(result: dict[str, Any]) -> Status:
    return result["status"]


def _environment() -> dict[str, str]:
    """The child finds this pinchpoint, also where it runs from a checkout."""
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Also what the target itself has started: loaders and compilers share the worker's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _death(code: int, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f": {lines[-1][:200]}" if lines else ""
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), most likely because the host ran out of memory"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}{last}"
    return f"exited with code {code} before it finished{last}"
