"""A Forecast of an unmodified script: which of its runs are needed, and what they say together."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinchpoint.core.files import shown_operation
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.worker_process import (
    branches,
    calibration,
    conditions,
    late_numbers,
    other_ranks,
    script_end,
    script_run,
)
from pinchpoint.forecasting.worker_process.target_loading import Fork, LoadedTarget, with_stand_ins

_FEW = 10_000  # elements of a mask, of which the count may not matter: that is tried before a real run


def predict(loaded_target: LoadedTarget, request: dict[str, Any], fork: Fork) -> Forecast:
    """Run the script on fake tensors; where counts depend on its data, run it once with real values first."""

    request = {**request, "end_s": time.monotonic() + request["timeout_s"]}
    packages: list[str] = list(request["packages"])  # stand-ins that the script needs
    others = other_ranks.OtherRanks()
    real_runs: list[dict[str, Any]] = []
    asked: list[dict[str, Any]] = []  # conditions of the first run
    # Options and answer of the first run that guessed a number, and of the first that guessed floats.
    guessed: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def run(dynamic_options: dict[str, Any]) -> dict[str, Any]:
        if dynamic_options.get("calibrating") and real_runs:
            return real_runs[0]
        options = dict(dynamic_options)
        answer = others.run(
            lambda changes: with_stand_ins(
                lambda names: _in_scratch(
                    loaded_target, {**request, **changes}, fork, dict(dynamic_options), names
                ),
                packages,
            )
        )
        if conditions.ASKED in answer and not asked:
            asked.append(answer[conditions.ASKED])
        for kind in (late_numbers.READ, late_numbers.FLOATS, late_numbers.RECEIVED):
            if answer.get(kind):
                guessed.setdefault(kind, (options, answer))
        if dynamic_options.get("calibrating"):  # real values decide branches: one run serves every forecast
            real_runs.append(answer)
        return answer

    start_s = time.monotonic()
    forecast = branches.explore(_predict, run, limit_s=request.get("timeout_s", math.inf))
    forecast = replace(forecast, notes=(*forecast.notes, *others.notes()))
    if late_numbers.READ in guessed:
        forecast = late_numbers.try_others(forecast, run, *guessed[late_numbers.READ])
    if late_numbers.FLOATS in guessed:
        forecast = late_numbers.try_other_floats(forecast, run, *guessed[late_numbers.FLOATS])
    if late_numbers.RECEIVED in guessed:
        forecast = late_numbers.try_larger_received(forecast, run, *guessed[late_numbers.RECEIVED])
    left_s = request["end_s"] - time.monotonic()
    return conditions.try_others(
        forecast, asked[0] if asked else {}, _predict, run, is_time_left=left_s > time.monotonic() - start_s
    )


def _predict(run: calibration.Run) -> Forecast:
    limits: list[int | None] = []  # of the count that needs a calibration, in each run
    missed: dict[str, None] = {}  # lines that get unknown numbers of other ranks, in order

    def watched_run(dynamic_options: dict[str, Any]) -> dict[str, Any]:
        answer = run(dynamic_options)
        limits.append(answer.get("limit"))
        missed.update(dict.fromkeys(answer.get(late_numbers.MISSED, ())))
        return answer

    site = calibration.forecast_or_site(watched_run)
    if isinstance(site, Forecast):
        return site
    where = shown_operation(site)
    if limits[-1] is not None and limits[-1] <= _FEW:
        forecast = calibration.whatever_the_counts(run, where)
        if forecast is not None:
            return forecast
    counts = run({"calibrating": True})
    if "seen" not in counts:
        note = f"counts at {where} depend on unknown values: the interval covers everything from none to all"
        dynamic_options: dict[str, Any] = {"assume": True}
    else:
        from pinchpoint.backends.torch.data_dependent import count_laws

        dynamic_options = count_laws.dynamic_options([counts])
        note = (
            f"counts at {where} depend on the data: they are those of the script's first steps, "
            "which were run on the CPU"
        )
    return late_numbers.without_others(calibration.in_range(watched_run, dynamic_options, note), list(missed))


def _in_scratch(
    loaded_target: LoadedTarget,
    request: dict[str, Any],
    fork: Fork,
    dynamic_options: dict[str, Any],
    packages: list[str],
) -> dict[str, Any]:
    """One run of the script in a fork, with a scratch folder that is removed afterwards."""
    scratch = Path(tempfile.mkdtemp(prefix="pinchpoint-script-"))
    try:
        answer = fork(lambda: script_run.run(loaded_target, request, scratch, dynamic_options, packages))
        return script_end.with_last_output(answer, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
