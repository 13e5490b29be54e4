"""Forecasts of targets that branch on device values: the other ways are run too, and the highest peak counts.

The first run takes the likely way at every branch whose value is unknown. If there are such branches, a
second run takes the other way at all of them. Where that changes a block, each line is tried alone. A loop
that runs until a value converges is run with two numbers of turns: if its peak grows with them, nothing is
said to fit.
"""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pinchpoint.core.errors import CannotFake, PinchpointError, TimedOut
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import Forecast
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.worker_process.calibration import Run

TURNS = (4, 8)  # of a loop whose count is unknown
_ALONE = 6  # lines that are tried alone; more of them would take too long
ENDED = "ended"  # key of an answer: this way of a branch ends the run, by `raise` or `exit`


class _RunEnded(Exception):
    pass


@dataclass(frozen=True)
class _Attempt:
    """A Forecast, the lines that branched on unknown values, and those whose loop was cut short."""

    forecast: Forecast
    flipped: frozenset[str]
    blocks: tuple[str, ...]  # hashes of the allocations of each run behind the forecast
    sites: frozenset[str]
    cut: frozenset[str]


def explore(predict: Callable[[Run], Forecast], run: Run) -> Forecast:
    """The forecast of `predict`, widened by what other ways of its branches need."""
    from pinchpoint.backends.torch.data_dependent.decisions import Decisions

    reasons: list[str] = []

    def attempt(flipped: Iterable[str] = (), turns: int = TURNS[0]) -> _Attempt:
        blocks: list[str] = []
        sites: set[str] = set()
        cut: set[str] = set()

        def recorded(known: dict[str, Any]) -> dict[str, Any]:
            decisions = Decisions(flipped=frozenset(flipped), patience=turns)
            answer = run({**known, "decisions": decisions})
            if ENDED in answer:
                raise _RunEnded
            asked = answer.get("decisions", {})
            sites.update(asked.get("sites", ()))
            cut.update(asked.get("cut", ()))
            blocks.append(answer.get("blocks", ""))
            return answer

        forecast = predict(recorded)
        return _Attempt(forecast, frozenset(flipped), tuple(blocks), frozenset(sites), frozenset(cut))

    def other(flipped: Iterable[str], turns: int = TURNS[0]) -> _Attempt | None:
        """An attempt that may fail: then the branch ends the run, or is unknown, which is a reason."""
        try:
            return attempt(flipped, turns)
        except _RunEnded:
            return None
        except PinchpointError as error:
            lines = ", ".join(sorted(_shown(site) for site in flipped))
            reasons.append(
                f"the branch at {lines} depends on a device value, and its other way {_why(error)}"
            )
            return None

    base = attempt()
    if not base.sites:
        return base.forecast
    attempts = [base]
    together = other(base.sites)
    if together is None or together.blocks != base.blocks:
        attempts += [together] if together is not None else []
        alone = sorted(base.sites | (together.sites if together is not None else frozenset()))
        if len(alone) > 1:
            reasons.clear()  # what cannot be run with all lines flipped may run with one
            attempts += filter(None, [other([site]) for site in alone[:_ALONE]])
        if len(alone) > _ALONE:
            reasons.append(
                f"{len(alone)} lines branch on device values, of which only {_ALONE} were tried alone: "
                f"not {_shown(alone[_ALONE])}"
            )
    for one in [one for one in attempts if one.cut]:
        longer = other(one.flipped, TURNS[1])
        if longer is None or longer.forecast.peak_allocated_bytes != one.forecast.peak_allocated_bytes:
            lines = ", ".join(sorted(map(_shown, one.cut)))
            reasons.append(f"the loop at {lines} ends by a device value, and memory grows with every turn")
        attempts += [longer] if longer is not None else []
    return _widen(attempts, reasons)


def _widen(attempts: list[_Attempt], reasons: list[str]) -> Forecast:
    base = attempts[0].forecast
    forecasts = [one.forecast for one in attempts]
    low = min(f.low_bytes or f.peak_allocated_bytes for f in forecasts)
    high = max(f.high_bytes or f.peak_allocated_bytes for f in forecasts)
    if high > low and (low, high) != (base.low_bytes, base.high_bytes):
        changed = [one for one in attempts if one.blocks != attempts[0].blocks]
        alone = [one for one in changed if len(one.flipped) <= 1]
        lines = sorted({_shown(site) for one in alone or changed for site in one.flipped or one.cut})
        shown = ", ".join(lines[:4]) + (", ..." if len(lines) > 4 else "")
        note = (
            f"branches at {shown} depend on device values: depending on their ways, "
            f"the peak is between {show_bytes(low)} and {show_bytes(high)}"
        )
        base = replace(base, low_bytes=low, high_bytes=high, notes=(*base.notes, note))
    fits = {name: _all([f.fits.get(name) for f in forecasts]) for name in base.fits}
    every = [reason for f in forecasts for reason in f.reasons]
    needs = max((f.needs_bytes or 0 for f in forecasts), default=0)
    widened = replace(base, fits=fits, needs_bytes=needs or None)
    return assembly.with_reasons(widened, (*every, *dict.fromkeys(reasons)))


def _all(answers: list[bool | None]) -> bool | None:
    if False in answers:
        return False
    return None if None in answers else True


def _shown(site: str) -> str:
    return shown_path(site)


def _why(error: PinchpointError) -> str:
    if isinstance(error, TimedOut):
        return "takes too long to follow"
    if isinstance(error, CannotFake):
        return f"is not supported by pinchpoint yet: {error.what}"
    return f"cannot be followed: {error.what}"


def ends_on_purpose(error: BaseException | None) -> bool:
    """Whether an exception comes from a `raise`, an `assert` or an exit outside the frameworks."""
    while error is not None and isinstance(error, PinchpointError):
        error = error.__cause__
    if error is None:
        return False
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or any(
        f"{os.sep}{part}{os.sep}" in frames[-1].filename for part in ("torch", "jax", "pinchpoint")
    ):
        return False
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
    return line.startswith(("raise", "assert"))
