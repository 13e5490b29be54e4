"""Forecasts of targets that branch on device values: the other ways are run too, and the highest peak counts.

The first run takes the likely way at every branch whose value is unknown. If there are such branches, a
second run takes the other way at all of them. Where that changes a block, each line is tried alone. A loop
that runs until a value converges is run with two numbers of turns: if its peak grows with them, nothing is
said to fit.
"""

from __future__ import annotations

import linecache
import math
import os
import time
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
_ALONE = 6  # lines that are tried alone at once; more of them are tried in groups first
_GROUPS = 3
_SLIGHT = 0.01
_TOO_SLOW = "branches depend on device values, and not all their ways were followed within the time limit"
_SPARE = 2.5  # times the slowest way so far must remain before the time limit to follow another one
ENDED = "ended"  # key of an answer: this way of a branch ends the run, by `raise` or `exit`
RAISED = "raised"  # key of an answer: whether the run ended with an error after its training steps


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
    has_raised: bool = False  # after its training steps, so that its peak is not that of a whole run


def explore(predict: Callable[[Run], Forecast], run: Run, *, limit_s: float = math.inf) -> Forecast:
    """The forecast of `predict`, widened by what other ways of its branches need.

    limit_s: the time limit of the whole forecast; ways that may not end before it are not followed.
    """
    from pinchpoint.backends.torch.data_dependent.decisions import Decisions

    reasons: list[str] = []
    start_s = time.monotonic()
    slowest_s = 0.0

    def attempt(flipped: Iterable[str] = (), turns: int = TURNS[0]) -> _Attempt:
        blocks: list[str] = []
        sites: set[str] = set()
        cut: set[str] = set()
        raised: list[bool] = []

        def recorded(known: dict[str, Any]) -> dict[str, Any]:
            decisions = Decisions(flipped=frozenset(flipped), patience=turns)
            answer = run({**known, "decisions": decisions})
            if ENDED in answer:
                raise _RunEnded
            asked = answer.get("decisions", {})
            sites.update(asked.get("sites", ()))
            cut.update(asked.get("cut", ()))
            blocks.append(answer.get("blocks", ""))
            raised.append(answer.get(RAISED, False))
            return answer

        forecast = predict(recorded)
        return _Attempt(
            forecast, frozenset(flipped), tuple(blocks), frozenset(sites), frozenset(cut), any(raised)
        )

    def other(flipped: Iterable[str], turns: int = TURNS[0]) -> _Attempt | None:
        """An attempt that may fail: then the branch ends the run, or is unknown, which is a reason."""
        nonlocal slowest_s
        before_s = time.monotonic()
        if before_s - start_s + _SPARE * slowest_s > limit_s:
            reasons.append(_TOO_SLOW)
            return None
        try:
            result = attempt(flipped, turns)
            slowest_s = max(slowest_s, time.monotonic() - before_s)
            return result
        except _RunEnded:
            return None
        except PinchpointError as error:
            lines = ", ".join(sorted(shown_path(site) for site in flipped))
            reasons.append(
                f"the branch at {lines} depends on a device value, and its other way {_why(error)}"
            )
            return None

    base = attempt()
    slowest_s = time.monotonic() - start_s
    if not base.sites and not base.cut:
        return base.forecast
    attempts = [base]
    together = other(base.sites) if base.sites else base
    if together is None or together.blocks != base.blocks:
        attempts += [together] if together is not None else []
        alone = sorted(base.sites | (together.sites if together is not None else frozenset()))
        if len(alone) > 1:
            reasons.clear()  # what cannot be run with all lines flipped may run with one
            ways = [[site] for site in alone]
            if len(alone) > _ALONE:
                attempts += filter(None, map(other, [alone[start::_GROUPS] for start in range(_GROUPS)]))
                # Each of many lines is tried alone only if it may raise the peak.
                ways = ways if any(_is_higher(_peak(one), _peak(base)) for one in attempts) else []
            attempts += filter(None, map(other, ways))
    # A way that changes the peak may also let a loop grow that does not grow otherwise.
    for one in [one for one in attempts if one.cut and (one in attempts[:2] or _peak(one) != _peak(base))]:
        known = len(reasons)
        longer = other(one.flipped, TURNS[1])
        if (longer is None and len(reasons) == known) or (longer is not None and _peak(longer) != _peak(one)):
            reasons.append(_growth(one, longer))
        attempts += [longer] if longer is not None else []
    return _widen(attempts, reasons)


def _peak(attempt: _Attempt) -> int:
    return attempt.forecast.peak_allocated_bytes


def _is_higher(one: int, other: int) -> bool:
    """Whether a peak is higher by more than a share that the margin of `fits` covers several times."""
    return one > (1 + _SLIGHT) * other


def _growth(short: _Attempt, longer: _Attempt | None) -> str:
    """The reason that a loop of unknown length gives, with the bytes that one more turn takes."""
    lines = ", ".join(sorted(map(shown_path, short.cut)))
    grown = 0
    if longer is not None:
        grown = _peak(longer) - _peak(short)
    by = f" by {show_bytes(grown // (TURNS[1] - TURNS[0]))}" if grown > 0 else ""
    return f"a device value decides when the loop at {lines} ends, and memory grows{by} with every turn"


def _widen(attempts: list[_Attempt], reasons: list[str]) -> Forecast:
    # A way that raises, as one that never saves the file which is loaded later, is no run that works.
    whole = [one.forecast for one in attempts if not one.has_raised]
    forecasts = [one.forecast for one in attempts]
    base = (whole or forecasts)[0]
    low = min(f.low_bytes or f.peak_allocated_bytes for f in whole or forecasts)
    high = max(f.high_bytes or f.peak_allocated_bytes for f in forecasts)
    if high > low and (low, high) != (base.low_bytes, base.high_bytes):
        changed = [one for one in attempts if one.blocks != attempts[0].blocks]
        alone = [one for one in changed if len(one.flipped) <= 1]
        lines = sorted({shown_path(site) for one in alone or changed for site in one.flipped or one.cut})
        shown = ", ".join(lines[:4]) + (", ..." if len(lines) > 4 else "")
        note = (
            f"branches at {shown} depend on device values: the peak is between {show_bytes(low)} and "
            f"{show_bytes(high)}, depending on which way they go"
        )
        base = replace(base, low_bytes=low, high_bytes=high, notes=(*base.notes, note))
    every = [reason for f in forecasts for reason in f.reasons]
    needs = max((f.needs_bytes or 0 for f in forecasts), default=0)
    widened = replace(
        base,
        fits=assembly.fits_of_all(forecasts),
        needs_bytes=needs or None,
        completes_bytes=assembly.completes_of_all(forecasts),
    )
    return assembly.with_reasons(widened, (*every, *dict.fromkeys(reasons)))


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
