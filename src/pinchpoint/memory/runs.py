"""What the worker does with a request: load the target once, run it faked, assemble the Forecast.

Counts that depend on data are calibrated here: the same target at small sizes with every value
real, then the asked size with the law's middle, low and high.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinchpoint.core import discover
from pinchpoint.core.discover import Target
from pinchpoint.core.errors import Missing
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import Forecast
from pinchpoint.core.workload import Workload
from pinchpoint.memory import assemble, jax_runs
from pinchpoint.memory.cards import Card, card

_CALIBRATE_AT = (2048, 16384)  # points: small enough to run for real in a moment
Fork = Callable[[Callable[[], dict[str, Any]]], dict[str, Any]]


@dataclass(frozen=True)
class Prepared:
    """A loaded target, and the pretended device it was loaded under (None for JAX)."""

    target: Target
    thing: Any
    framework: str
    card: Card
    observer: Any = None


def prepare(hello: dict[str, Any], stack: contextlib.ExitStack) -> Prepared:
    """Import the target. For torch the device is pretended from before the first import on."""
    target = Target(**hello["target"])
    asked = card(hello["card"])
    framework = framework_of(target)
    if framework == "jax":
        jax_runs.load_observer()  # before any fork, so that every request finds it imported
        return Prepared(target, discover.load(target), "jax", asked)
    observer = _pretend(asked, stack)
    if target.kind == "script":
        return Prepared(target, None, "torch", asked, observer)
    return Prepared(target, discover.load(target), "torch", asked, observer)


def _pretend(asked: Card, stack: contextlib.ExitStack) -> Any:
    try:
        from pinchpoint.backends.torch import runner
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Missing("torch is not installed", mend="pip install 'pinchpoint[torch]' (the CPU build is enough)") from error
    device = runner.Device(
        title=asked.title, memory_bytes=asked.memory_bytes, capability=asked.capability,
        cublas_workspace_bytes=asked.cublas_workspace_bytes,
        cublaslt_workspace_bytes=asked.cublaslt_workspace_bytes, processors=asked.processors,
    )  # fmt: skip
    return stack.enter_context(runner.pretending(device, dynamic=runner.Dynamic(), progress=runner.Progress()))


def framework_of(target: Target) -> str:
    """The workload's own word, else what the target's file imports; torch when both or neither."""
    if target.kind == "workload":
        return discover.shipped()[target.where].framework
    path = Path(target.where)
    if not target.where.endswith(".py"):
        return "torch"
    named = set(re.findall(r"^\s*(?:import|from)\s+(\w+)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE))
    return "jax" if "jax" in named and "torch" not in named else "torch"


def serve(prepared: Prepared, request: dict[str, Any], fork: Fork) -> dict[str, Any]:
    """Answer one request with a Forecast as a dict, or raise."""
    start = time.perf_counter()
    if prepared.framework == "jax":
        forecast = jax_runs.predict(prepared, request)
    elif prepared.target.kind == "script":
        from pinchpoint.memory import scripts

        forecast = scripts.predict(prepared, request, fork)
    else:
        forecast = _torch(prepared, request, fork)
    return replace(forecast, took_s=round(time.perf_counter() - start, 3)).to_dict()


def _torch(prepared: Prepared, request: dict[str, Any], fork: Fork) -> Forecast:
    from pinchpoint.backends.torch.laws import fit

    answer = fork(lambda: _one_torch_run(prepared, request))
    if "needs" not in answer:
        return read(answer)
    sizes = sorted({min(request["size"], size) for size in _CALIBRATE_AT})
    runs = [fork(lambda size=size: _calibrate(prepared, {**request, "size": size})) for size in sizes]
    for run in runs:
        if "error" in run:
            read(run)
    laws = fit([{site: [tuple(pair) for pair in pairs] for site, pairs in run["seen"].items()} for run in runs])  # type: ignore[misc]
    values = {site: found[-1] for run in runs for site, found in run["values"].items()}
    small = " and ".join(f"{size:,}" for size in sizes)
    note = f"counts at {shown_path(answer['needs'])} depend on the data: fitted from real runs of {small} points"
    middle, low, high = (
        read(fork(lambda bound=bound: _one_torch_run(prepared, request, laws=laws, values=values, bound=bound)))
        for bound in ("mid", "low", "high")
    )
    return with_interval(middle, low, high, note)


def with_interval(middle: Forecast, low: Forecast, high: Forecast, note: str) -> Forecast:
    """One Forecast of three runs: fits only what the high one fits."""
    return replace(
        middle,
        low_bytes=min(low.low_bytes or low.peak_allocated_bytes, middle.peak_allocated_bytes),
        high_bytes=max(high.high_bytes or high.peak_allocated_bytes, middle.peak_allocated_bytes),
        fits=high.fits,
        needs_bytes=high.needs_bytes,
        notes=(*middle.notes, note),
    )


def read(answer: dict[str, Any]) -> Forecast:
    """A child's answer: its Forecast, or its error raised again."""
    from pinchpoint.core import errors

    if "error" in answer:
        raise errors.from_dict(answer)
    return Forecast.from_dict(answer)


def _one_torch_run(prepared: Prepared, request: dict[str, Any], **known: Any) -> dict[str, Any]:
    from pinchpoint.backends.torch import runner

    observer = prepared.observer
    for name, value in known.items():
        setattr(observer.dynamic, name, value)
    try:
        ran = _run(prepared, request)
    except runner.NeedsCalibration as needs:
        return {"needs": needs.site}
    thing = prepared.thing
    variant = thing.variant(request.get("variant")).name if isinstance(thing, Workload) else None
    forecast = assemble.of_observation(
        ran.seen, card=prepared.card, target=prepared.target.text, mode=ran.mode, size=request["size"], variant=variant,
        processed=ran.processed,
    )  # fmt: skip
    if known:
        return forecast.to_dict()  # the law's own range says how far counts may go
    return scattered(forecast, observer.dynamic).to_dict()


def scattered(forecast: Forecast, dynamic: Any) -> Forecast:
    """With an interval, if counts were worked out from the data at hand."""
    count, site = dynamic.largest
    return assemble.with_scatter(forecast, count, shown_path(site)) if count else forecast


def _calibrate(prepared: Prepared, request: dict[str, Any]) -> dict[str, Any]:
    prepared.observer.dynamic.calibrating = True
    _run(prepared, request)
    return {"seen": prepared.observer.dynamic.seen, "values": prepared.observer.dynamic.seen_values}


def _run(prepared: Prepared, request: dict[str, Any]) -> Any:
    from pinchpoint.backends.torch import runner

    return runner.run_steps(
        prepared.observer, prepared.thing, text=prepared.target.text, size=request["size"], mode=request.get("mode"),
        variant=request.get("variant"), chunk=request.get("chunk"), steps=request.get("steps", 2), seed=request.get("seed", 0),
        half=request.get("half", False),
    )  # fmt: skip
