"""The limit of each variant of a plan, the best variant, and notes about the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinchpoint.core.errors import DoesNotFit, PinchpointError
from pinchpoint.core.units import show_bytes, show_size
from pinchpoint.planning.fake_runs import Trial, show_trial
from pinchpoint.planning.search import SearchResult


@dataclass(frozen=True)
class Choice:
    """The limit of one variant.

    trial: the fake run that fits; if there is none, `why` says why. least: the smallest run, if nothing fits.
    possible: a larger run that fits by its forecast, which says that the peak may be higher.
    along: what the search varied. remark: for a flat variant that is planned in chunks.
    """

    variant: str | None
    trial: Trial | None
    search: SearchResult | None = None
    why: str = ""
    least: Trial | None = None
    possible: Trial | None = None
    error: PinchpointError | None = None
    along: Literal["size", "chunk"] = "size"
    remark: Literal["", "flat", "held", "not flat"] = ""

    @property
    def is_open(self) -> bool:
        """Whether no size is known that does not fit."""
        return self.remark in ("flat", "held") or (self.search is not None and self.search.fails is None)


def best_of(choices: Sequence[Choice], size: int | None) -> Choice | None:
    """The variant that allows the largest size; for a given size, the first one that fits."""
    fitting = [c for c in choices if c.trial is not None]
    if size is not None or not fitting:
        return fitting[0] if fitting else None
    return max(
        fitting, key=lambda c: (c.trial.size, c.is_open, -c.trial.total_bytes) if c.trial else (0, False, 0)
    )


def best_possible(choices: Sequence[Choice], size: int | None) -> Choice | None:
    """The variant with the largest size that may fit; for a given size, the first one."""
    open_ones = [c for c in choices if c.possible is not None]
    if size is not None or not open_ones:
        return open_ones[0] if open_ones else None
    return max(open_ones, key=lambda c: c.possible.size if c.possible is not None else 0)


def nothing_fits(
    text: str,
    choices: Sequence[Choice],
    budget_bytes: int,
    *,
    arguments: Callable[[int], tuple[str, ...]] | None = None,
) -> PinchpointError:
    """The error that says what the smallest run needs. arguments: maps a size to a script's arguments."""
    choices_tried = [c for c in choices if c.least is not None]
    if not choices_tried:
        return next(c.error for c in choices if c.error is not None)
    least = min((c.least for c in choices_tried if c.least is not None), key=lambda trial: trial.need_bytes)
    at = " ".join(arguments(least.size)) if arguments else show_trial(least, "size")
    by = f" with {least.variant}, its leanest variant" if len(choices_tried) > 1 else ""
    return DoesNotFit(
        f"{text} needs {show_bytes(least.total_bytes)} at {at}{by}, and {show_bytes(least.margin_bytes)} of"
        f" margin, but the budget is {show_bytes(budget_bytes)}.",
        hint=f"Raise --budget by {show_bytes(least.need_bytes - budget_bytes)} or more, or shrink the model.",
    )


def row_of(choice: Choice) -> dict[str, Any]:
    """One row of `Plan.choices`."""
    trial = choice.trial
    return {
        "variant": choice.variant,
        "size": None if trial is None else trial.size,
        "chunk": None if trial is None else trial.chunk,
        "peak_bytes": None if trial is None else trial.total_bytes,
        "possible_size": None if choice.possible is None else choice.possible.size,
        "why": choice.why,
    }


def notes_of(choices: Sequence[Choice], *, multiple: int, up_to: int, axis: str) -> list[str]:
    """Notes on how each answer was found; none for an answer that is accurate to 1 %.

    axis: what the size is called, `batch size` for a script.
    """
    notes = []
    for choice in choices:
        about = [_note(choice, multiple, up_to, axis)]
        if choice.trial is not None and choice.trial.frees:
            about.append(
                f"{show_trial(choice.trial, axis)} fits if the allocator frees cached blocks, as PyTorch does"
                " when memory runs out"
            )
        notes += [f"{choice.variant}: {note}" if choice.variant else note for note in about if note]
    return notes


def _note(choice: Choice, multiple: int, up_to: int, axis: str) -> str:
    search, trial = choice.search, choice.trial
    if choice.error is not None:
        return f"skipped: {choice.error.what}"
    if choice.possible is not None:
        known = "no" if trial is None else f"{show_trial(trial, axis)} is the largest"
        known += f" {axis} known to fit" if trial is None else " known to fit"
        return (
            f"{known}; {show_trial(choice.possible, axis)} fits unless the peak is higher than predicted,"
            " see the reasons"
        )
    if trial is None:
        assert choice.least is not None
        need = show_bytes(choice.least.need_bytes)
        return f"does not fit: it needs {need} with the margin at {show_trial(choice.least, axis)}"
    if choice.remark == "flat":
        at = show_size(trial.size)
        return f"the peak does not grow with the {axis}; {at} is the largest tried, not a limit"
    if choice.remark == "held":
        return (
            "the peak grows only by what the variant stores per point;"
            f" {show_size(trial.size)} is the largest tried, not a limit"
        )
    if choice.remark == "not flat":
        return f"declared flat, but its peak grows with the size; {show_size(trial.size)} was tried and fits"
    if search is None or search.fits is None:
        return ""
    along = axis if choice.along == "size" else choice.along
    at = show_size(search.fits.number * (multiple if choice.along == "size" else 1))
    if search.ending == "flat":
        return f"the peak does not grow with the {along}; {at} is the largest tried, not a limit"
    if search.ending == "up_to" and choice.along == "size":
        return (
            f"fits at {at}, the largest {axis} considered; raise --up-to ({show_size(up_to)}) to go further"
        )
    if search.ending == "timed_out":
        return f"a larger {along} took too long to predict; {at} is the largest predicted to fit"
    if search.ending == "failed":
        return (
            f"{at} is the largest predicted to fit, and a larger {along} could not be tried: {search.reason}"
            " If the target accepts only some sizes, select them with --multiple and --up-to."
        )
    if search.ending == "runs" and search.gap is not None:
        return f"{search.runs} runs were used; the true limit is less than {search.gap:.1%} above {at}"
    if search.ending == "runs":
        return f"{search.runs} runs were used and everything tried fits; {at} is the largest tried"
    return ""
