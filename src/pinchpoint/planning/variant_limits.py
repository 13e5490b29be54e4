"""How far each variant of a plan goes: which is best, and what must be said of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinchpoint.core.errors import DoesNotFit, PinchpointError
from pinchpoint.core.units import show_bytes, show_size
from pinchpoint.planning.fake_runs import Trial, show_trial
from pinchpoint.planning.search import Found


@dataclass(frozen=True)
class Choice:
    """How far one variant goes. `trial` is the fake run that fits; without one, `why` says why not."""

    variant: str | None
    trial: Trial | None
    found: Found | None = None
    why: str = ""
    least: Trial | None = None  # the smallest run made, when nothing fits
    error: PinchpointError | None = None
    along: Literal["size", "chunk"] = "size"  # what `found` was looked for in
    remark: Literal["", "flat", "held", "not flat"] = (
        ""  # of a variant that declares itself flat, planned in chunks
    )

    @property
    def is_open(self) -> bool:
        """No size was found that does not fit."""
        return self.remark in ("flat", "held") or (self.found is not None and self.found.fails is None)


def best_of(choices: Sequence[Choice], size: int | None) -> Choice | None:
    """The variant that allows the largest size; for a given size, the first in the workload's order that fits."""
    fitting = [c for c in choices if c.trial is not None]
    if size is not None or not fitting:
        return fitting[0] if fitting else None
    return max(
        fitting, key=lambda c: (c.trial.size, c.is_open, -c.trial.total_bytes) if c.trial else (0, False, 0)
    )


def nothing_fits(
    text: str,
    choices: Sequence[Choice],
    budget_bytes: int,
    *,
    arguments: Callable[[int], tuple[str, ...]] | None = None,
) -> PinchpointError:
    """The error that says what the leanest run needs; `arguments`: a script's, for a size."""
    tried = [c for c in choices if c.least is not None]
    if not tried:
        return next(c.error for c in choices if c.error is not None)
    least = min((c.least for c in tried if c.least is not None), key=lambda trial: trial.need_bytes)
    at = " ".join(arguments(least.size)) if arguments else show_trial(least)
    by = f" with {least.variant}, its leanest variant" if len(tried) > 1 else ""
    return DoesNotFit(
        f"{text} needs {show_bytes(least.total_bytes)} at {at}{by}, and {show_bytes(least.margin_bytes)} of margin;"
        f" the budget is {show_bytes(budget_bytes)}",
        hint=f"raise --budget by at least {show_bytes(least.need_bytes - budget_bytes)}, or make the model smaller",
    )


def row_of(choice: Choice) -> dict[str, Any]:
    """One row of `Plan.choices`."""
    trial = choice.trial
    return {
        "variant": choice.variant,
        "size": None if trial is None else trial.size,
        "chunk": None if trial is None else trial.chunk,
        "peak_bytes": None if trial is None else trial.total_bytes,
        "why": choice.why,
    }


def notes_of(choices: Sequence[Choice], multiple: int, up_to: int) -> list[str]:
    """What a reader must know of how each answer was found; nothing for one bracketed to 1 %."""
    made = []
    for choice in choices:
        said = _note(choice, multiple, up_to)
        if said:
            made.append(f"{choice.variant}: {said}" if choice.variant else said)
    return made


def _note(choice: Choice, multiple: int, up_to: int) -> str:
    found, trial = choice.found, choice.trial
    if choice.error is not None:
        return f"left out: {choice.error.what}"
    if trial is None:
        assert choice.least is not None
        return f"does not fit: {show_bytes(choice.least.need_bytes)} with the margin at {show_trial(choice.least)}"
    if choice.remark == "flat":
        return (
            f"the peak does not grow with the size; {show_size(trial.size)} is the largest tried, not a limit"
        )
    if choice.remark == "held":
        return f"the peak grows only by what is held of each point; {show_size(trial.size)} is the largest tried, not a limit"
    if choice.remark == "not flat":
        return f"declared flat, yet its peak grows with the size; {show_size(trial.size)} was tried and fits"
    if found is None or found.fits is None:
        return ""
    along = choice.along
    at = show_size(found.fits.number * (multiple if along == "size" else 1))
    if found.ending == "flat":
        return f"the peak does not grow with the {along}; {at} is the largest tried, not a limit"
    if found.ending == "up_to" and along == "size":
        return f"fits at {at}, the largest size looked at; raise --up-to ({show_size(up_to)}) to look farther"
    if found.ending == "timed_out":
        return f"a larger {along} took too long to predict; {at} is the largest predicted to fit"
    if found.ending == "failed":
        return (
            f"{at} is the largest predicted to fit, and a larger {along} could not be tried: {found.reason};"
            " where the target takes only some sizes, say which with --multiple and --up-to"
        )
    if found.ending == "runs" and found.gap is not None:
        return f"{found.runs} runs were spent; the true limit is less than {found.gap:.1%} above {at}"
    if found.ending == "runs":
        return f"{found.runs} runs were spent and everything tried fits; {at} is the largest tried"
    return ""
