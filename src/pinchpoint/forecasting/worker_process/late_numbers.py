"""Numbers that a script reads from the device after its training steps: do they decide about sizes?

They are unknown, and a calibration does not get that far. Most of them are metrics. So they are guessed, and
the script is run once more with another guess: if that changes an allocation, it is unknown what fits. The
same holds for arrays of floats, which are never calibrated, and in a script that only infers for all of them.
"""

from __future__ import annotations

from typing import Any

from pinchpoint.core.files import shown_operation
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.worker_process.branches import ENDED, RAISED
from pinchpoint.forecasting.worker_process.calibration import Run

READ = "late_numbers"  # key of an answer: lines that read such numbers
FLOATS = "float_arrays"  # key of an answer: lines that read arrays of floats
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
