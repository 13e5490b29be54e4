"""Forecasts of targets whose counts (tensor sizes) depend on the data: do they matter, and their range."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pinchpoint.core import errors
from pinchpoint.core.events import Observation
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.cards import card

# Options of `Dynamic`, such as what is known about the data -> the answer of a fake run with them.
Run = Callable[[dict[str, Any]], dict[str, Any]]
_SLIGHT = 0.005  # share of the peak by which unknown counts may change it without a real run
_BLUR = 0.002  # share of the peak
_READ = ("item", "int", "array")  # the end of a site at which Python reads values of a tensor


def forecast_or_site(run: Run) -> Forecast | str:
    """The Forecast of a fake run, or the first site whose counts matter and depend on the data."""
    answer = run({})
    return check_guesses(answer["needs"], run) if "needs" in answer else read(answer)


def check_guesses(site: str, run: Run) -> Forecast | str:
    """Return the Forecast if two guesses for the values give the same blocks, else the site to count.

    Most values that a target reads are metrics. This check costs two extra fake runs, but no real run.
    """
    if site.rsplit(":", 1)[-1] not in _READ:
        return site
    answers = []
    for guess in (1, 2):
        answer = run({"guess": guess})
        if "needs" in answer or "error" in answer:
            return answer.get("needs", site)
        answers.append(answer)
    return Forecast.from_dict(answers[0]) if answers[0]["blocks"] == answers[1]["blocks"] else site


def with_blocks(answer: dict[str, Any], observation: Observation) -> dict[str, Any]:
    """Add a hash of all allocations and frees to the answer."""
    blocks = hashlib.sha256(
        repr(([block.bytes for block in observation.blocks], observation.events)).encode()
    ).hexdigest()
    return {**answer, "blocks": blocks}


def whatever_the_counts(run: Run, where: str) -> Forecast | None:
    """The Forecast if it is nearly the same whether masks are true in one element or in all; else None.

    This takes seconds, a run with real values minutes.
    """
    answers = [run({"assume": True, "bound": bound}) for bound in ("low", "high")]
    if any("error" in answer or "needs" in answer for answer in answers):
        return None
    low, high = map(read, answers)
    least, most = low.peak_allocated_bytes, high.peak_allocated_bytes
    if abs(most - least) > _SLIGHT * most or (low.reasons, low.fits) != (high.reasons, high.fits):
        return None
    blur = int(_BLUR * most)  # other data of the same kind changes sizes a little more than masks do
    return replace(
        assembly.with_higher_end(high, blur, card(high.card)),
        low_bytes=min(low.low_bytes or least, most) - blur,
        notes=(*high.notes, f"counts at {where} depend on the data, but hardly change the peak"),
    )


def in_range(run: Run, dynamic_options: dict[str, Any], note: str) -> Forecast:
    """One Forecast from runs with middle, low and high counts; it fits only what the high one fits."""
    middle = read(run({**dynamic_options, "bound": "mid"}))
    ends: list[Forecast | None] = []
    notes = [note]
    for bound in ("low", "high"):
        answer = run({**dynamic_options, "bound": bound})
        if "error" in answer:
            # Counts that must be consistent with each other may be inconsistent at the ends of their ranges.
            notes.append(f"the step cannot be run with the {bound}est counts: {answer['what']}")
        ends.append(None if "error" in answer else read(answer))
    low = ends[0] or middle
    # Assume the high end as far above as the low end is below: a failed run must not make more cards fit.
    high = ends[1] or assembly.with_higher_end(
        middle, max(middle.peak_allocated_bytes - low.peak_allocated_bytes, 0), card(middle.card)
    )
    return replace(
        middle,
        low_bytes=min(low.low_bytes or low.peak_allocated_bytes, middle.peak_allocated_bytes),
        high_bytes=max(high.high_bytes or high.peak_allocated_bytes, middle.peak_allocated_bytes),
        fits=high.fits,
        needs_bytes=high.needs_bytes,
        completes_bytes=high.completes_bytes,
        notes=(*middle.notes, *notes),
    )


def read(answer: dict[str, Any]) -> Forecast:
    """The Forecast in the answer of a child process; an error in it is raised again."""
    if "error" in answer:
        raise errors.from_dict(answer)
    return Forecast.from_dict(answer)
