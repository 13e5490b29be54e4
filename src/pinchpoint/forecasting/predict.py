"""predict: the peak of a training step on any card, with no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Forecast
from pinchpoint.core.settings import Overrides
from pinchpoint.core.targets import Factory, find
from pinchpoint.core.units import check_seconds, parse_size
from pinchpoint.core.workload import MODES, Workload
from pinchpoint.forecasting import cards, gpu_measurement, levers
from pinchpoint.forecasting.forecaster import Forecaster


def predict(
    target: str | Workload | Factory,
    *,
    size: int | str | None = None,
    mode: str | None = None,
    variant: str | None = None,
    chunk: int | None = None,
    card: str | None = None,
    args: Sequence[str] = (),
    steps: int = 2,
    seed: int = 0,
    timeout_s: float = 300.0,
    measure: bool = False,
    settings: Overrides | None = None,
) -> Forecast:
    """Predict the peak of a target at a size, or of an unmodified script with its arguments.

    card: the GPU to model (default h200, and every known card is answered in `fits`); when one is
    named and the step does not fit it, the Forecast carries levers.
    measure: also run it on this machine's GPU and keep what was measured. settings: of a workload that declares some.
    """
    found = find(target)
    if found.kind == "script":
        if size is not None or variant is not None or chunk is not None or settings:
            raise BadInput(
                f"{found.text} is a script: it has no size, variant, chunk or settings",
                hint="pass its own arguments after --",
            )
    elif size is None:
        raise BadInput(f"no size was given for {found.text}", hint="add --size, such as --size 100k")
    if args and found.kind != "script":
        raise BadInput(f"{found.text} takes no arguments after --", hint="arguments after -- are for scripts")
    if mode is not None and mode not in MODES:
        raise BadInput(f"unknown mode {mode!r}", hint=f"use one of: {', '.join(MODES)}")
    if steps < 2:
        raise BadInput(
            f"{steps} steps do not show the peak",
            hint="take at least 2: optimizer state appears after the first",
        )
    check_seconds("timeout", timeout_s)
    points = None if size is None else parse_size(size)
    asked = cards.card(card) if card is not None else None
    with Forecaster(
        target, card=card or "h200", seed=seed, timeout_s=timeout_s, settings=settings
    ) as forecaster:
        forecast = forecaster.predict(
            size=points,
            mode=mode,
            variant=variant,
            chunk=chunk,
            steps=steps,
            args=tuple(args),
            chunk_must_apply=True,
        )
        if asked is not None and not forecast.fits[asked.name]:
            found_levers = levers.find(forecaster, forecast, chunk=chunk, args=tuple(args))
            forecast = replace(forecast, levers=found_levers)
    if measure:
        forecast = replace(
            forecast,
            measured=gpu_measurement.measure(
                found, forecast, chunk=chunk, steps=steps, seed=seed, timeout_s=timeout_s
            ),
        )
    return forecast
