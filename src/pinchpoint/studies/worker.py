"""Measurement of one point in a fresh interpreter.

Run it as `python -m pinchpoint.studies.worker request.json result.json`.

A point takes two runs: one for the peak, in the fresh process, then one for the time, built anew,
because memory accounting slows the step down. A `check` request only tests whether the device is
available, so that the parent need not open it.
The result is ok, oom or failed, with its reason; nothing is printed. Errors that make every point
fail (no such device, a cap larger than the card) are returned as errors for the parent to raise.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pinchpoint.backends.base import Backend, backend, resolve_device
from pinchpoint.core import host_memory, targets
from pinchpoint.core.errors import BadInput, PinchpointError, first_line, to_dict
from pinchpoint.core.files import write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.workload import BuiltStep, build
from pinchpoint.studies.timing import measure

STEPS = 3  # for a peak: the first step creates the optimizer state, the later ones run with it
WHILE_TIMING = "while timing: "  # the prefix of a reason when the peak is already known
HOST_SHARE = 0.9  # share of the free host memory to use: beyond it the kernel may kill other processes


@dataclass(frozen=True)
class Request:
    """The task of one worker. `cap_bytes`: the bytes CUDA may reserve, or None for the whole card."""

    what: Literal["check", "point"]
    target: dict[str, str]  # the fields of targets.Target
    framework: str
    size: int
    mode: str | None  # None for a plain factory, whose step has no mode to choose
    variant: str | None
    device: str
    seed: int
    warmup: int = 3
    repeats: int = 10
    timed: bool = True
    cap_bytes: int | None = None
    settings: dict[str, str] = field(default_factory=dict)


def main(request_path: str, result_path: str) -> None:
    def save(result: dict[str, Any]) -> None:
        write_text(result_path, json.dumps(result))

    save(answer(Request(**json.loads(Path(request_path).read_text(encoding="utf-8"))), save))


def answer(request: Request, save: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """Return the result of one request as plain values.

    save: receives the peak before the timing starts, so that a crash during the timing does not lose it.
    """
    target = targets.Target(**request.target)  # pyright: ignore[reportArgumentType]
    try:
        limit = _guard_host() if request.device == "cpu" else None
        framework = backend(request.framework)
        if request.cap_bytes is not None:
            framework.cap(request.cap_bytes)  # before the device is opened, when JAX takes its memory
            limit = request.cap_bytes
        device = resolve_device(request.device, framework)
        if request.what == "check":
            return {"status": "ok", "machine": describe()}
        thing = targets.load(target)
        framework.seed(request.seed)
    except PinchpointError as error:
        return to_dict(error)
    result: dict[str, Any] = {"status": "ok", "limit_bytes": limit, "machine": describe()}
    try:
        result |= _peak(request, thing, framework, device)
        if request.timed:
            save(result)
            gc.collect()  # reference cycles left by the run for the peak would keep memory alive
            framework.seed(request.seed)
            result |= _time(request, thing, framework, device)
    except PinchpointError as error:
        return to_dict(error)
    except Exception as error:
        # Any failure of the target is this point's result; a peak measured before it is kept.
        oom = framework.is_oom(error)
        reason = first_line(error) if oom else targets.explain_failure(target.text, error, "running").what
        when = WHILE_TIMING if "peak_allocated_bytes" in result else ""
        result |= {"status": "oom" if oom else "failed", "reason": when + reason}
    return result


def _peak(request: Request, thing: Any, framework: Backend, device: str) -> dict[str, Any]:
    """Measure the peaks of building and a few steps: what a card needs, from the first tensor on."""
    processed: list[int | None] = []

    def run() -> None:
        case = _build(thing, request, device)
        processed.append(case.processed)
        for _ in range(STEPS):
            framework.wait(device, case.run())

    if device == "cpu" and request.framework == "jax":
        # JAX accounts for one traced program: a single step of a case that is already built.
        case = _build(thing, request, device)
        return {"peak_allocated_bytes": framework.account(case.run), "processed": case.processed}
    if device == "cpu":
        return {"peak_allocated_bytes": framework.account(run), "processed": processed[0]}
    framework.reset_peak(device)
    run()
    return {
        **{f"peak_{k}": v for k, v in dataclasses.asdict(framework.peaks(device)).items()},
        "processed": processed[0],
    }


def _time(request: Request, thing: Any, framework: Backend, device: str) -> dict[str, Any]:
    case = _build(thing, request, device)
    timing = measure(
        case.run,
        wait=lambda result: framework.wait(device, result),
        warmup=request.warmup,
        repeats=request.repeats,
    )
    return {"processed": case.processed, **dataclasses.asdict(timing)}


def _build(thing: Any, request: Request, device: str) -> BuiltStep:
    return build(
        thing,
        request.size,
        text=request.target["text"],
        device=device,
        mode=request.mode,
        variant=request.variant,
        seed=request.seed,
        settings=request.settings,
    )


def _guard_host() -> int | None:
    """Make allocations fail before the host is full, so that only this process runs out of memory."""
    if sys.platform != "linux":
        return None
    import resource

    limit = int(host_memory.available_bytes() * HOST_SHARE)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [value for value in (limit, soft, hard) if value != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    return min(limits)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        error = BadInput("A worker takes two paths.", hint="Give request.json and result.json.")
        raise SystemExit(str(error))
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
