"""The plan of a script for several world sizes: the largest size that fits with each number of processes.

The search for one world size begins where that for a smaller one ended, with the bytes per size that were
found there. This only saves runs: every size in the table was itself predicted to fit. A world size with
which the script fails has a row that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinchpoint.core.errors import BadInput, CannotFake, PinchpointError, TargetFailed, TimedOut
from pinchpoint.core.ranks import make_rank
from pinchpoint.core.records import Plan
from pinchpoint.forecasting.forecaster import Forecasts
from pinchpoint.planning.fake_runs import Progress, Trial, Trials
from pinchpoint.planning.search import Sample
from pinchpoint.planning.variant_limits import Choice, notes_of
from pinchpoint.planning.variant_search import Near, Subject, choices_of


@dataclass(frozen=True)
class Job:
    """The world sizes to plan for, and which of the processes to predict."""

    world_sizes: tuple[int, ...]
    rank: int | Literal["all"] = 0
    local_world_size: int | None = None


@dataclass(frozen=True)
class _Row:
    """The answer for one world size. choice: None if the script failed with it, for `error`."""

    world_size: int
    trials: Trials | None
    choice: Choice | None
    error: PinchpointError | None = None

    @property
    def trial(self) -> Trial | None:
        """The run that fits."""
        return None if self.choice is None else self.choice.trial

    @property
    def shown(self) -> Trial | None:
        """The run whose bytes are shown: the one that fits, that may fit, or the smallest."""
        if self.choice is None:
            return None
        return self.choice.trial or self.choice.possible or self.choice.least

    def record(self) -> dict[str, Any]:
        trial, shown, choice = self.trial, self.shown, self.choice
        return {
            "world_size": self.world_size,
            "size": None if trial is None else trial.size,
            "possible_size": None if choice is None or choice.possible is None else choice.possible.size,
            "peak_bytes": None if shown is None else shown.total_bytes,
            "needs_bytes": None if shown is None else shown.need_bytes,
            "rank": None if shown is None else shown.rank,
            "runs": 0 if self.trials is None else len(self.trials.history),
            "why": choice.why if choice is not None else self.error.what if self.error is not None else "",
        }


def plan_world_sizes(
    subject: Subject,
    forecasts: Forecasts,
    job: Job,
    *,
    mode: str | None,
    budget_bytes: int,
    size: int | None,
    multiple: int,
    up_to: int,
    progress: Progress | None,
    on_result: Callable[[Plan], None] | None,
) -> Plan:
    """Plan for each world size. With `size`, answer which of them fit it.

    Raises the first error if the script fails with every world size.
    """
    rows: list[_Row] = []
    near: Near | None = None

    def result(*, complete: bool) -> Plan:
        return _plan(
            subject, rows, budget_bytes=budget_bytes, multiple=multiple, up_to=up_to, complete=complete
        )

    for world_size in job.world_sizes:
        trials: Trials | None = None
        try:
            trials = Trials(
                forecasts,
                mode,
                budget_bytes,
                subject.script,
                progress,
                rank=make_rank(0 if job.rank == "all" else job.rank, world_size, job.local_world_size),
                all_ranks=job.rank == "all",
            )
            (choice,) = choices_of(
                subject,
                (None,),
                trials,
                lambda _: None,
                size=size,
                multiple=multiple,
                up_to=up_to,
                near=near,
            )
        except (BadInput, TargetFailed, CannotFake, TimedOut) as error:
            rows.append(_Row(world_size, trials, None, error))
            continue
        rows.append(_Row(world_size, trials, choice))
        near = _near(choice, multiple) or near
        if on_result is not None:
            on_result(result(complete=False))
    if all(row.choice is None for row in rows):
        raise next(row.error for row in rows if row.error is not None)
    return result(complete=True)


def _near(choice: Choice, multiple: int) -> Near | None:
    """Where the search for the next world size begins, if this one has shown a slope."""
    if choice.search is None or choice.trial is None:
        return None
    # The needs of samples that are unknown, or fit after freeing the cache, are those of the budget.
    samples: list[Sample] = sorted(choice.search.samples, key=lambda s: s.number)
    low, high = samples[0], samples[-1]
    if high.number == low.number or high.need_bytes <= low.need_bytes:
        return None
    slope = (high.need_bytes - low.need_bytes) / (high.number - low.number)
    return Near(choice.trial.size, slope / multiple)


def _plan(
    subject: Subject, rows: Sequence[_Row], *, budget_bytes: int, multiple: int, up_to: int, complete: bool
) -> Plan:
    fitting = [(row.trial.size, -row.world_size, row) for row in rows if row.trial is not None]
    best = max(fitting, key=lambda one: one[:2])[2] if fitting else None
    shown = best.trial if best is not None and best.trial is not None else _least(rows)
    possible = [row.choice.possible.size for row in rows if row.choice and row.choice.possible]
    notes: list[str] = []
    for row in rows:
        about = [row.error.what] if row.error is not None else []
        if row.choice is not None:
            about = notes_of([row.choice], multiple=multiple, up_to=up_to, axis=subject.axis)
        notes += [f"world size {row.world_size}: {note}" for note in about]
    every = [row.trials for row in rows if row.trials is not None]
    return Plan(
        target=subject.text,
        mode=shown.mode,
        budget_bytes=budget_bytes,
        size=None if best is None or best.trial is None else best.trial.size,
        chunk=None,
        variant=None,
        margin_bytes=shown.margin_bytes,
        peak_bytes=shown.total_bytes,
        tried=tuple(row for trials in every for row in trials.rows()),
        world_size=None if best is None else best.world_size,
        world_sizes=tuple(row.record() for row in rows),
        axis=subject.axis,
        possible_size=max(possible, default=None),
        reasons=tuple(dict.fromkeys(reason for trials in every for reason in trials.reasons())),
        complete=complete,
        notes=tuple(notes),
    )


def _least(rows: Sequence[_Row]) -> Trial:
    """The run that needs the fewest bytes, if nothing is known to fit."""
    return min((row.shown for row in rows if row.shown is not None), key=lambda trial: trial.need_bytes)
