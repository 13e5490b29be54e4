"""Numbers that a script reads from the device after its training steps: do they decide about sizes?

They are unknown, and a calibration does not get that far. Most of them are metrics. So they are guessed, and
the script is run once more with another guess: if that changes an allocation, it is unknown what fits. The
same holds for arrays of floats, which are never calibrated, and in a script that only infers for all of them;
and for whole numbers that other ranks of a parallel job send, which are taken to be those of this rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import shown_operation, shown_path
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.worker_process.branches import ENDED, RAISED
from pinchpoint.forecasting.worker_process.calibration import Run

READ = "late_numbers"  # key of an answer: lines that read such numbers
FLOATS = "float_arrays"  # key of an answer: lines that read arrays of floats
RECEIVED = (
    "received"  # key of an answer: lines that get whole numbers of other ranks, and the largest of each
)
MISSED = "missed"  # key of an answer: lines that get whole numbers of other ranks, which are unknown
_FLOAT_GUESSES = 1, 2  # beside 0, which are zeros
_GUESSES = 2, 0  # beside 1; the second one if the first raises an error, as an index may


def try_others(forecast: Forecast, run: Run, options: dict[str, Any], answer: dict[str, Any]) -> Forecast:
    """The forecast, of which `fits` is unknown if the numbers matter. options, answer: of a run with 1."""
    from pinchpoint.backends.torch.data_dependent.decisions import Decisions

    for guess in _GUESSES:
        other = run({**options, "decisions": Decisions(), "late_guess": guess})
        has_failed = "blocks" not in other or ENDED in other or other.get(RAISED) != answer.get(RAISED)
        if not has_failed and other["blocks"] == answer["blocks"]:
            return forecast
        if not has_failed:
            break
    lines = ", ".join(map(shown_operation, answer[READ][:4]))
    reason = f"sizes depend on numbers that are read at {lines} after the training steps, which are unknown"
    return assembly.with_reasons(forecast, (reason,))


def try_other_floats(
    forecast: Forecast, run: Run, options: dict[str, Any], answer: dict[str, Any]
) -> Forecast:
    """The forecast, of which `fits` is unknown if arrays of floats matter. answer: of a run with zeros."""
    from pinchpoint.backends.torch.data_dependent.decisions import Decisions

    lines = ", ".join(map(shown_operation, answer[FLOATS][:4]))
    has_run = False
    for guess in _FLOAT_GUESSES:
        other = run({**options, "decisions": Decisions(), "float_guess": guess})
        if "blocks" not in other or ENDED in other or other.get(RAISED) != answer.get(RAISED):
            continue  # a value that is not possible may raise an error
        has_run = True
        if other["blocks"] != answer["blocks"]:
            reason = f"memory depends on the values that are read at {lines}, which are unknown"
            return assembly.with_reasons(forecast, (reason,))
    if not has_run:
        reason = f"the values that are read at {lines} are unknown, and other ones raised an error"
        return assembly.with_reasons(forecast, (reason,))
    return forecast


def try_larger_received(
    forecast: Forecast, run: Run, options: dict[str, Any], answer: dict[str, Any]
) -> Forecast:
    """The forecast, of which `fits` is unknown if larger numbers of other ranks need more memory.

    answer: of a run in which they are those of this rank. A flag, 0 or 1, may end the script: that is no sign
    of more memory.
    """
    from pinchpoint.backends.torch.data_dependent.decisions import Decisions

    lines = ", ".join(map(shown_path, list(answer[RECEIVED])[:4]))
    peak = int(answer["peak_allocated_bytes"])
    try:
        other = run({**options, "decisions": Decisions(), "larger_received": True})
    except PinchpointError:
        other = {}
    if "peak_allocated_bytes" not in other or ENDED in other or other.get(RAISED) != answer.get(RAISED):
        matters = max(answer[RECEIVED].values()) > 1
    else:
        matters = int(other["peak_allocated_bytes"]) > peak
    if not matters:
        note = f"numbers at {lines} have this rank's own values in place of those of other ranks"
        return replace(forecast, notes=(*forecast.notes, note))
    reason = f"sizes depend on the numbers of other ranks at {lines}: those of this rank are assumed"
    return assembly.with_reasons(forecast, (reason,))


def without_others(forecast: Forecast, lines: list[str]) -> Forecast:
    """A forecast with counts of a real run, which does not know the numbers that these lines receive."""
    if not lines:
        return forecast
    where = ", ".join(map(shown_path, lines[:4]))
    reason = f"counts may depend on the numbers of other ranks at {where}, which are unknown"
    return assembly.with_reasons(forecast, (reason,))
