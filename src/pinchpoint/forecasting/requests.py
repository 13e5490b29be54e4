"""What the worker does with a request: load the target once, run it faked, assemble the Forecast.

Counts that depend on data are calibrated here: the same target at small sizes with every value
real, then the asked size with the law's middle, low and high.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import Forecast
from pinchpoint.core.targets import Target
from pinchpoint.core.workload import Workload, chosen_of
from pinchpoint.forecasting import allocator_settings, assembly, calibration, jax_forecast
from pinchpoint.forecasting.cards import Card, card

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
    if targets.likely_framework(target) == "torch":
        observer = _pretend(asked, stack)
        if target.kind == "script":
            return Prepared(target, None, "torch", asked, observer)
        thing = targets.load(target)
        if targets.framework_of(thing) == "torch":
            return Prepared(target, thing, "torch", asked, observer)
        stack.close()  # a JAX target whose file did not show it: no torch is pretended around it
    jax_forecast.load_observer()  # before any fork, so that every request finds it imported
    return Prepared(target, targets.load(target), "jax", asked)


def _pretend(asked: Card, stack: contextlib.ExitStack) -> Any:
    try:
        from pinchpoint.backends.torch.fake import runner
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Missing(
            "torch is not installed", hint="pip install 'pinchpoint[torch]' (the CPU build is enough)"
        ) from error
    device = runner.Device(
        title=asked.title,
        memory_bytes=asked.memory_bytes,
        capability=asked.capability,
        cublas_workspace_bytes=allocator_settings.cublas_workspace_bytes(asked.cublas_workspace_bytes),
        cublaslt_workspace_bytes=asked.cublaslt_workspace_bytes,
        processors=asked.processors,
    )
    return stack.enter_context(
        runner.pretending(device, dynamic=runner.Dynamic(), progress=runner.Progress())
    )


def serve(prepared: Prepared, request: dict[str, Any], fork: Fork) -> dict[str, Any]:
    """Answer one request with a Forecast as a dict, or raise."""
    start = time.perf_counter()
    if prepared.framework == "jax":
        forecast = jax_forecast.predict(prepared, request)
    elif prepared.target.kind == "script":
        from pinchpoint.forecasting import script_forecast

        forecast = script_forecast.predict(prepared, request, fork)
    else:
        forecast = _torch(prepared, request, fork)
    return replace(forecast, took_s=round(time.perf_counter() - start, 3)).to_dict()


def _torch(prepared: Prepared, request: dict[str, Any], fork: Fork) -> Forecast:
    from pinchpoint.backends.torch.data_dependent import count_laws

    def run(known: dict[str, Any]) -> dict[str, Any]:
        return fork(lambda: _one_torch_run(prepared, request, **known))

    answer = run({})
    if "needs" not in answer:
        return calibration.read(answer)
    found = calibration.matters(answer["needs"], run)
    if isinstance(found, Forecast):
        return found
    sizes = sorted({min(request["size"], size) for size in _CALIBRATE_AT})
    runs = [fork(lambda size=size: _calibrate(prepared, {**request, "size": size})) for size in sizes]
    for counted in runs:
        if "error" in counted:
            calibration.read(counted)
    small = " and ".join(f"{size:,}" for size in sizes)
    note = f"counts at {shown_path(found)} depend on the data: fitted from real runs of {small} points"
    return calibration.in_range(run, count_laws.known(runs), note)


def _one_torch_run(prepared: Prepared, request: dict[str, Any], **known: Any) -> dict[str, Any]:
    from pinchpoint.backends.torch.fake import runner

    observer = prepared.observer
    for name, value in known.items():
        setattr(observer.dynamic, name, value)
    try:
        ran = _run(prepared, request)
    except runner.NeedsCalibration as needs:
        return {"needs": needs.site}
    if not ran.seen.blocks:
        raise BadInput(
            f"a step of {prepared.target.text} put nothing on the device",
            hint="send model and data to the device that is given",
        )
    thing = prepared.thing
    variant = thing.variant(request.get("variant")).name if isinstance(thing, Workload) else None
    forecast = assembly.of_observation(
        ran.seen,
        card=prepared.card,
        target=prepared.target.text,
        mode=ran.mode,
        size=request["size"],
        variant=variant,
        processed=ran.processed,
    )
    forecast = replace(
        forecast, settings=chosen_of(thing, request.get("settings"), text=prepared.target.text)
    )
    if "bound" not in known:  # the law's own range says how far counts may go
        forecast = scattered(forecast, observer.dynamic, prepared.card)
    return calibration.with_blocks(forecast.to_dict(), ran.seen)


def scattered(forecast: Forecast, dynamic: Any, card: Card) -> Forecast:
    """With an interval, if counts were worked out from the data at hand."""
    count, site = dynamic.largest
    return assembly.with_scatter(forecast, count, shown_path(site), card) if count else forecast


def _calibrate(prepared: Prepared, request: dict[str, Any]) -> dict[str, Any]:
    prepared.observer.dynamic.calibrating = True
    _run(prepared, request)
    return prepared.observer.dynamic.learned()


def _run(prepared: Prepared, request: dict[str, Any]) -> Any:
    from pinchpoint.backends.torch.fake import runner

    return runner.run_steps(
        prepared.observer,
        prepared.thing,
        text=prepared.target.text,
        size=request["size"],
        mode=request.get("mode"),
        variant=request.get("variant"),
        chunk=request.get("chunk"),
        steps=request.get("steps", 2),
        seed=request.get("seed", 0),
        half=request.get("half", False),
        settings=request.get("settings"),
    )
