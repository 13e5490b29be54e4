"""Errors that say what is wrong and what to do next.

Every error a user can cause is a `PinchpointError`: a sentence that says what is wrong, a hint with the
next step, and the exit code that the command line returns. Any other exception that escapes is our bug.
"""

from __future__ import annotations

import traceback


class PinchpointError(Exception):
    """An error message with a hint. `exit_code` is what the command line returns."""

    exit_code = 2

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  hint: {self.hint}"


class BadInput(PinchpointError):
    """An argument, file or target that cannot be used."""


class NotConverged(BadInput):
    """An iterative calculation that did not converge for its input."""


class TargetFailed(PinchpointError):
    """The user's own code raised an exception, exited, or never took a step."""


class CannotFake(PinchpointError):
    """A step cannot run on fake tensors; the message names the operation and the line."""


class TimedOut(PinchpointError):
    """A run took longer than its time limit."""


class Missing(PinchpointError):
    """A framework, an optional package or a device is not available."""

    exit_code = 3


class Bug(PinchpointError):
    """A fault of pinchpoint itself, found in a worker process."""

    exit_code = 70


class DoesNotFit(PinchpointError):
    """Nothing fits the requested bytes. need_bytes: what the smallest attempt needs, if known."""

    exit_code = 1

    def __init__(self, what: str, *, hint: str, need_bytes: int | None = None) -> None:
        super().__init__(what, hint=hint)
        self.need_bytes = need_bytes


class Diverged(PinchpointError):
    """While training, the loss, a gradient or a weight became NaN or infinite."""

    exit_code = 1


_KINDS = (
    PinchpointError,
    BadInput,
    NotConverged,
    TargetFailed,
    CannotFake,
    TimedOut,
    Missing,
    Bug,
    DoesNotFit,
    Diverged,
)
_BY_NAME = {kind.__name__: kind for kind in _KINDS}


def to_dict(error: PinchpointError) -> dict[str, str]:
    """Convert an error to the dict that a worker process sends; the parent rebuilds it with `from_dict`."""
    trace = "".join(traceback.format_exception(error))
    return {"error": type(error).__name__, "what": error.what, "hint": error.hint, "trace": trace}


def from_dict(data: dict[str, str]) -> PinchpointError:
    """Rebuild a worker's error, with its traceback as a note that --debug shows."""
    error = _BY_NAME[data["error"]](data["what"], hint=data["hint"])
    if data.get("trace"):
        error.add_note(f"in the worker process:\n{data['trace']}")
    return error


def first_line(error: BaseException, *, length: int = 300) -> str:
    """The first line of an error's text, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:length]
