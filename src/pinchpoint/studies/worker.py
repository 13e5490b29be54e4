"""One measured point in a fresh interpreter: `python -m pinchpoint.studies.worker request.json result.json`.

A point is two runs: one for the peak, in the fresh process, then one for the time, built anew, since
what accounts for memory slows the clock. `check` only asks whether the device is there, so that the
parent need not open it.
The result says ok, oom or failed with its reason; nothing is printed. Errors that make every
point pointless (no such device, a cap beyond the card) come back as errors for the parent to raise.
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
from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput, PinchpointError, to_dict
from pinchpoint.core.files import write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.workload import BuiltStep, build
from pinchpoint.studies.timing import measure

STEPS = 3  # for a peak: the first makes the optimizer's state, the later ones meet it
WHILE_TIMING = "while timing: "  # begins the reason of a point whose peak is known
HOST_SHARE = 0.9  # of the memory left on the host: beyond it the kernel would end processes not ours


@dataclass(frozen=True)
class Request:
    """What one worker is asked for. `cap_bytes`: what CUDA may reserve, or None for all there is."""

    what: Literal["check", "point"]
    target: dict[str, str]  # discover.Target
    framework: str
    size: int
    mode: str | None  # None: a plain factory, whose step does what it does
    variant: str | None
    device: str
    seed: int
    warmup: int = 3
    repeats: int = 10
    timed: bool = True
    cap_bytes: int | None = None
    settings: dict[str, str] = field(default_factory=dict)


def main(request_path: str, result_path: str) -> None:
    def keep(found: dict[str, Any]) -> None:
        write_text(result_path, json.dumps(found))

    keep(answer(Request(**json.loads(Path(request_path).read_text(encoding="utf-8"))), keep))


def answer(request: Request, keep: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
    """The result of one request, as plain values. keep: is given the peak before the time is taken, lest it be lost."""
    target = targets.Target(**request.target)  # pyright: ignore[reportArgumentType]
    try:
        limit = _guard_host() if request.device == "cpu" else None
        used = backend(request.framework)
        if request.cap_bytes is not None:
            used.cap(request.cap_bytes)  # before the device is opened: JAX takes its memory then
            limit = request.cap_bytes
        device = resolve_device(request.device, used)
        if request.what == "check":
            return {"status": "ok", "machine": describe()}
        loaded = targets.load(target)
        used.seed(request.seed)
    except PinchpointError as error:
        return to_dict(error)
    found: dict[str, Any] = {"status": "ok", "limit_bytes": limit, "machine": describe()}
    try:
        found |= _peak(request, loaded, used, device)
        if request.timed:
            keep(found)
            gc.collect()  # what the peak's run left in cycles would share the memory
            used.seed(request.seed)
            found |= _time(request, loaded, used, device)
    except PinchpointError as error:
        return to_dict(error)
    except Exception as error:
        # The target's own failure, of any kind, is this point's result; a peak found before it stays.
        oom = used.is_oom(error)
        reason = _first_line(error) if oom else targets.explain_failure(target.text, error, "running").what
        when = WHILE_TIMING if "peak_allocated_bytes" in found else ""
        found |= {"status": "oom" if oom else "failed", "reason": when + reason}
    return found


def _peak(request: Request, loaded: Any, used: Backend, device: str) -> dict[str, Any]:
    """Peaks of building and a few steps: what a card must hold, from the first tensor on."""
    processed: list[int | None] = []

    def run() -> None:
        built = _build(loaded, request, device)
        processed.append(built.processed)
        for _ in range(STEPS):
            used.wait(device, built.run())

    if device == "cpu" and request.framework == "jax":
        # JAX traces what it accounts for as one program: a single step, of a case already built.
        built = _build(loaded, request, device)
        return {"peak_allocated_bytes": used.account(built.run), "processed": built.processed}
    if device == "cpu":
        return {"peak_allocated_bytes": used.account(run), "processed": processed[0]}
    used.reset_peak(device)
    run()
    return {
        **{f"peak_{k}": v for k, v in dataclasses.asdict(used.peaks(device)).items()},
        "processed": processed[0],
    }


def _time(request: Request, loaded: Any, used: Backend, device: str) -> dict[str, Any]:
    built = _build(loaded, request, device)
    timing = measure(
        built.run,
        wait=lambda result: used.wait(device, result),
        warmup=request.warmup,
        repeats=request.repeats,
    )
    return {"processed": built.processed, **dataclasses.asdict(timing)}


def _build(loaded: Any, request: Request, device: str) -> BuiltStep:
    return build(
        loaded,
        request.size,
        text=request.target["text"],
        device=device,
        mode=request.mode,
        variant=request.variant,
        seed=request.seed,
        settings=request.settings,
    )


def _guard_host() -> int | None:
    """Make allocations fail before the host is full, so that running out is an error here and no one else's."""
    if sys.platform != "linux":
        return None
    import resource

    limit = int(host_bytes_left() * HOST_SHARE)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [value for value in (limit, soft, hard) if value != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    return min(known)


def host_bytes_left() -> int:
    """Memory of the host that can be had without swapping."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    )
    return int(fields["MemAvailable"].split()[0]) * 1024


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(str(BadInput("a worker takes two paths", hint="give request.json and result.json")))
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
