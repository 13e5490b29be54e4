"""A Forecast of a torch target: its steps run on the simulated device, and the observed blocks are replayed.

Where counts depend on the data, the same target first runs at small sizes with real values, and
the requested size is then forecast with the middle, low and high counts of the fitted law.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import shown_operation
from pinchpoint.core.records import Forecast
from pinchpoint.core.workload import Workload, settings_of
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.worker_process import branches, calibration
from pinchpoint.forecasting.worker_process.target_loading import NEEDED, Fork, LoadedTarget, with_stand_ins

_CALIBRATION_SIZES = (2048, 16384)  # points: small enough to run with real values in a moment


def predict(loaded_target: LoadedTarget, request: dict[str, Any], fork: Fork) -> Forecast:
    packages: list[str] = []  # stand-ins that a step needs, besides those of the target's own imports

    def run(dynamic_options: dict[str, Any]) -> dict[str, Any]:
        return with_stand_ins(
            lambda names: fork(lambda: _forecast_once(loaded_target, request, names, **dynamic_options)),
            packages,
        )

    limit_s = request.get("timeout_s", math.inf)
    return branches.explore(lambda run: _predict(loaded_target, request, fork, run), run, limit_s=limit_s)


def _predict(
    loaded_target: LoadedTarget, request: dict[str, Any], fork: Fork, run: calibration.Run
) -> Forecast:
    from pinchpoint.backends.torch.data_dependent import count_laws

    site = calibration.forecast_or_site(run)
    if isinstance(site, Forecast):
        return site
    sizes = sorted({min(request["size"], size) for size in _CALIBRATION_SIZES})
    runs = [fork(lambda size=size: _count(loaded_target, {**request, "size": size})) for size in sizes]
    for counts in runs:
        if "error" in counts:
            calibration.read(counts)
    small = " and ".join(f"{size:,}" for size in sizes)
    where = shown_operation(site)
    note = f"counts at {where} depend on the data: they are fitted to real runs of {small} points"
    return calibration.in_range(run, count_laws.dynamic_options(runs), note)


def _forecast_once(
    loaded_target: LoadedTarget, request: dict[str, Any], packages: list[str], **dynamic_options: Any
) -> dict[str, Any]:
    from pinchpoint.backends.torch.fake import runner

    observer = loaded_target.observer
    observer.stand_ins.serve(packages)
    for name, value in dynamic_options.items():
        setattr(observer.dynamic, name, value)
    if loaded_target.shapes is not None:
        observer.shapes.read(loaded_target.shapes)
    try:
        run = _run_steps(loaded_target, request)
    except runner.NeedsCalibration as needs:
        return {"needs": needs.site}
    except (PinchpointError, ModuleNotFoundError) as error:
        if needed := observer.stand_ins.wanted(error):
            return {NEEDED: needed}
        if observer.dynamic.decisions.flipped and branches.ends_on_purpose(error):
            return {branches.ENDED: True}
        raise
    if not run.observation.blocks:
        raise BadInput(
            f"A step of {loaded_target.target.text} allocates nothing on the GPU.",
            hint="Move the model and the data to the `device` that is passed in.",
        )
    if loaded_target.shapes is not None:
        observer.shapes.write(loaded_target.shapes)
    run.observation.seen = observer.progress.seen(trained=run.observation.trained)
    thing = loaded_target.thing
    variant = thing.variant(request.get("variant")).name if isinstance(thing, Workload) else None
    forecast = assembly.of_observation(
        run.observation,
        card=loaded_target.card,
        only_card=loaded_target.only_card,
        find_least=loaded_target.find_least,
        target=loaded_target.target.text,
        mode=run.mode,
        size=request["size"],
        variant=variant,
        processed=run.processed,
    )
    forecast = replace(
        forecast, settings=settings_of(thing, request.get("settings"), text=loaded_target.target.text)
    )
    if "bound" not in dynamic_options:  # otherwise the range of the law says how far counts may vary
        forecast = assembly.with_count_interval(forecast, observer.dynamic, loaded_target.card)
    return calibration.with_blocks(forecast.to_dict(), run.observation) | {
        "decisions": observer.dynamic.decisions.results(partial(runner.peaks_between, run.observation))
    }


def _count(loaded_target: LoadedTarget, request: dict[str, Any]) -> dict[str, Any]:
    """Run the target with real values and return the counts that depend on them."""
    loaded_target.observer.dynamic.calibrating = True
    _run_steps(loaded_target, request)
    return loaded_target.observer.dynamic.calibration_results()


def _run_steps(loaded_target: LoadedTarget, request: dict[str, Any]) -> Any:
    from pinchpoint.backends.torch.fake import runner

    return runner.run_steps(
        loaded_target.observer,
        loaded_target.thing,
        text=loaded_target.target.text,
        size=request["size"],
        mode=request.get("mode"),
        variant=request.get("variant"),
        chunk=request.get("chunk"),
        steps=request.get("steps", 2),
        seed=request.get("seed", 0),
        half=request.get("half", False),
        settings=request.get("settings"),
    )
