"""What of a script was not run, as notes and reasons of its Forecast."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pinchpoint.backends.sandbox.run_script import ScriptEnd, last_lines
from pinchpoint.core.files import shown_path
from pinchpoint.core.targets import user_line

SILENT = "silent"  # in the answer of a process that ended without one
_SHOWN = 3  # last lines of a script whose process ended
_MESSAGE = 120  # most characters shown of an error's message
# Share of the peak of training: a function of a package that used less so far is not expected to pass it.
_MUCH = 0.5


def with_last_output(answer: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """The answer; if the script's process ended without one, its error with what the script printed last."""
    if not answer.pop(SILENT, None):
        return answer
    logs = [log for log in (scratch / "stdout.txt", scratch / "stderr.txt") if log.is_file()]
    lines = [line for log in logs for line in last_lines(log)[-_SHOWN:]]
    text = f"Its last output is: {' | '.join(lines)}" if lines else "It has printed nothing."
    return answer | {"what": f"{answer['what']} {text}"}


def explain_cut(observation: Any, progress: Any, end: ScriptEnd) -> None:
    """Say that an inference script was not followed to its end, and what that means for its peak."""
    calls = f"{progress.calls:,} inference calls"
    if end.error is not None:
        observation.reasons.append(
            f"the script raised {_describe(end.error)} after {calls}, and what follows was not run"
        )
    elif progress.grows():
        observation.reasons.append(f"memory grows from call to call, and only {calls} were run")
    else:
        observation.notes.append(f"the script was stopped after {calls}, when its peak no longer grew")


def explain_following(observation: Any, progress: Any, end: ScriptEnd, *, is_likely: bool) -> None:
    """Say what a training script would have done after its training steps that was not observed.

    is_likely: whether every branch went the likely way. Another way may raise an error because it is never
    taken.
    """
    if end.error is not None and progress.is_late:
        _explain_error(observation, progress, end.error, is_likely=is_likely)
    observation.notes += progress.loops.notes()
    if end.kind == "stopped" or progress.loops.ended:
        observation.reasons += progress.loops.draws.reasons()
    left = progress.remainder
    if end.kind == "stopped" and not progress.is_cut and left is not None and left.line is not None:
        observation.reasons.append(
            "the script was stopped after these training steps, "
            f"and what is left from {shown_path(left.line)} on was not run"
        )
    elif end.kind == "stopped" and not progress.is_cut:
        later = "larger batches" + ("" if progress.has_evaluated() else " or an evaluation")
        observation.notes.append(
            "the script was stopped after these training steps; what it does later was not run, and "
            f"{later} may need more memory (--steps N runs more)"
        )
    if end.kind == "stopped" and progress.is_cut:
        _explain_late_cut(observation, progress)
    larger = progress.loaders.larger_evaluation()
    if larger is not None and not progress.has_evaluated():
        observation.reasons.append(
            f"an evaluation with batches of {larger:,}, larger than those of training, was not reached"
        )


def _explain_error(observation: Any, progress: Any, error: BaseException, *, is_likely: bool) -> None:
    """Say that a script raised an error after its training steps, as may happen where values are not real."""
    where = _where(error)
    if isinstance(error, StopIteration):  # a generator whose loader or loop was ended
        observation.reasons.append(f"the script's data was ended{where}, and what follows was not run")
        return
    note = f"after its training steps, the script was run until it raised {_describe(error)}"
    left = progress.loops.left_after_error(error)
    if not is_likely:
        observation.notes.append(note)
    elif left.line is not None:
        observation.reasons.append(f"{note}, and {shown_path(left.line)} and what follows it were not run")
    elif left.package and progress.late_share() > _MUCH:
        observation.reasons.append(f"{note}, in a function of a package that was not run to its end")
    else:
        observation.notes.append(note)


def _explain_late_cut(observation: Any, progress: Any) -> None:
    """Say what was left of a script that was stopped after its training steps, and what that means."""
    left = progress.remainder
    if left.line is not None:
        observation.reasons.append(
            "the script was stopped because what follows its training steps takes too long, "
            f"and {shown_path(left.line)} and what follows it were not run"
        )
        return
    observation.notes.append("what follows the training steps was not run to its end")
    if progress.late_growth():
        observation.reasons.append(
            "memory grows from call to call after the training steps, and the script was not run to its end"
        )
    elif left.package and progress.late_share() > _MUCH:
        observation.reasons.append("a function of a package that follows the training steps did not end")


def _describe(error: BaseException) -> str:
    """The kind of an error, its line of the script, and the first line of its message."""
    # Addresses differ from run to run, and would make two reasons of one.
    message = re.sub(r"\b0x[0-9a-f]+\b", "0x...", str(error).strip().partition("\n")[0])
    if len(message) > _MESSAGE:
        message = f"{message[:_MESSAGE].rstrip()}..."
    return f"{type(error).__name__}{_where(error)}" + (f" ({message})" if message else "")


def _where(error: BaseException) -> str:
    """` at file:line`, the line of the script that raised an error, if it is known."""
    line = user_line(error)
    return f" at {shown_path(line)}" if line else ""
