"""Conditions of a script that had one answer only in the turns that were run: the other answer is tried too.

So are the largest numbers that a script may draw at random, if they did not come up. What is reached that way
may not happen. It counts for the high end of the interval and for what fits, but not for the peak and the low
end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.worker_process import branches
from pinchpoint.forecasting.worker_process.calibration import Run

ASKED = "conditions"  # key of an answer: what `Conditions` recorded
TRIED = "tried_conditions"  # key of a run's options: conditions to try
_MOST = 6  # conditions that are tried


def try_others(
    forecast: Forecast,
    asked: dict[str, Any],
    predict: Callable[[Run], Forecast],
    run: Run,
    *,
    is_time_left: bool,
) -> Forecast:
    """The forecast, widened by what other answers of its conditions need. asked: of the first run."""
    from pinchpoint.backends.torch.data_dependent.decisions import Decisions

    draws: dict[str, list[str]] = {group[0]: group for group in asked.get("draws", ())}
    what = partial(_what, draws)
    sites: list[str] = [*draws, *asked.get("sites", [])[:_MOST]]
    reasons: list[str] = []
    if len(asked.get("needed", ())) > _MOST:
        reasons.append(
            f"{len(asked['needed'])} conditions had one answer only in the turns that were run, and only "
            f"{_MOST} of them were tried the other way"
        )
    if sites and not is_time_left:
        reasons.append(f"{what(sites[:1])}, and there was no time left to try it")
        sites = []
    forecasts = [forecast]
    done: list[str] = []
    while sites:
        answers: list[dict[str, Any]] = []

        def recorded(
            options: dict[str, Any], sites: list[str] = sites, answers: Any = answers
        ) -> dict[str, Any]:
            answer = run({**options, "decisions": Decisions(), TRIED: sites})
            answers.append(answer)
            return answer

        try:
            other = predict(recorded)
        except PinchpointError as error:
            reasons.append(f"{what(sites)}, and this cannot be followed: {error.what}")
            break
        tried = [site for answer in answers for site in answer.get(ASKED, {}).get("tried", ())]
        done += tried
        missed = [site for answer in answers for site in answer.get(ASKED, {}).get("missed", ())]
        forecasts.append(other)
        if not tried or not any(answer.get(branches.RAISED) for answer in answers):
            reasons += [f"{what([site])}, and was not reached again to try it" for site in missed]
            break
        # The other answer does not go with what the script holds: the ones after it are tried without it.
        reasons.append(f"{what(tried[-1:])}, and the script raised an error when it was tried")
        sites = [site for site in sites if site not in tried]
    return _widened(forecasts, list(dict.fromkeys(done)), draws, reasons)


def _what(draws: dict[str, list[str]], sites: list[str]) -> str:
    """What did not happen in the turns that were run. draws: the first line that draws -> all of its loop."""
    if sites[0] in draws:
        return f"the largest number at {_shown(draws, sites[:1])} was not drawn in the turns that were run"
    return f"the condition at {_shown(draws, sites)} had one answer only in the turns that were run"


def _widened(
    forecasts: list[Forecast], tried: list[str], draws: dict[str, list[str]], reasons: list[str]
) -> Forecast:
    base = forecasts[0]
    peak = max(one.peak_allocated_bytes for one in forecasts)
    if peak > base.peak_allocated_bytes:
        high = max(one.high_bytes or one.peak_allocated_bytes for one in forecasts)
        base = replace(base, low_bytes=base.low_bytes or base.peak_allocated_bytes, high_bytes=high)
        needs = max((one.needs_bytes or 0 for one in forecasts), default=0)
        base = replace(
            base,
            fits=assembly.fits_of_all(forecasts),
            needs_bytes=needs or None,
            completes_bytes=assembly.completes_of_all(forecasts),
        )
        if drawn := [site for site in tried if site in draws]:
            note = f"the high end is for the largest numbers that may be drawn at {_shown(draws, drawn)}"
            base = replace(base, notes=(*base.notes, note))
    if answered := [site for site in tried if site not in draws]:
        note = (
            "these conditions had one answer only in the turns that were run, and were also tried the other "
            f"way: {_shown(draws, answered)}"
        )
        base = replace(base, notes=(*base.notes, note))
    every = [reason for one in forecasts[1:] for reason in one.reasons]
    return assembly.with_reasons(base, (*every, *reasons))


def _shown(draws: dict[str, list[str]], sites: list[str]) -> str:
    places = [place for site in sites for place in draws.get(site, [site])]  # "file:line:column"
    return ", ".join(dict.fromkeys(shown_path(place.rpartition(":")[0]) for place in places))
