"""The table of cards: the largest size for each card, from the fake runs of one plan.

The forecast for one card is used for the others with their own context; the workspace remains that of the
modelled card. The runs of the plan form a curve, and a few more runs are added where they reduce the
uncertainty most. Each answer says whether its size was itself predicted or is interpolated between two runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pinchpoint.forecasting.cards import Card
from pinchpoint.planning import need_curve
from pinchpoint.planning.fake_runs import CHUNKS, Trial, Trials
from pinchpoint.planning.search import RUNS, SearchResult

_NOTE = (
    "cards: the runs of the chosen variant are used for every card, with the context of that card;"
    f" an interpolated size lies between two runs, reduced by {need_curve.RESERVE:.0%}"
)
_Answer = tuple[int | None, int | None, str]  # size, chunk, how


def rows(
    table_cards: Sequence[Card],
    trials: Trials,
    trial: Trial,
    search: SearchResult | None,
    *,
    multiple: int,
    up_to: int,
    along: Literal["size", "chunk"],
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """One row per card for the variant of `trial`, and notes. `size` is None where nothing fits.

    up_to: the largest size to consider, or, with along="chunk", the largest chunk.
    """
    if not table_cards:
        return (), ()
    # The budget that each card would have with the context of the modelled card.
    budgets = {c.name: c.memory_bytes - c.context_bytes + trial.context_bytes for c in table_cards}
    answers: dict[str, _Answer] = {}
    if search is None:
        for name, budget in budgets.items():
            fits = trial.need_bytes <= budget
            answers[name] = (trial.size if fits else None, trial.chunk if fits else None, "predicted")
        return _rows(table_cards, trial, answers), (_NOTE,)
    if along == "size":
        sample = trials.at_sizes(trial.variant, multiple=multiple, chunk=trial.chunk)
        floor, limit = 1, max(1, up_to // multiple)
    else:
        sample, limit = trials.at_chunks(trial.variant, trial.size), min(up_to, trial.size)
        floor = min(limit, max(1, trial.size // CHUNKS))
    samples = {s.number: s for s in search.samples}
    error = need_curve.refine(samples, sample, budgets.values(), floor=floor, up_to=limit, runs=RUNS)
    for name, budget in budgets.items():
        reading = need_curve.read(samples.values(), budget, floor=floor, up_to=limit)
        how = "predicted" if reading.sampled else "interpolated"
        if reading.number is None:
            answers[name] = (None, None, "predicted" if reading.sampled else "unknown")
        else:
            answers[name] = (
                (reading.number * multiple, trial.chunk, how)
                if along == "size"
                else (trial.size, reading.number, how)
            )
    ending_notes = (
        (f"cards: {error.what} Larger cards show the largest {along} that was predicted.",)
        if error is not None
        else ()
    )
    return _rows(table_cards, trial, answers), (_NOTE, *ending_notes)


def _rows(
    table_cards: Sequence[Card], trial: Trial, answers: dict[str, _Answer]
) -> tuple[dict[str, Any], ...]:
    rows_of_cards = []
    for one in table_cards:
        size, chunk, how = answers[one.name]
        row = {
            "card": one.name,
            "budget_bytes": one.memory_bytes,
            "variant": trial.variant,
            "size": size,
            "chunk": chunk,
        }
        rows_of_cards.append({**row, "how": how})
    return tuple(rows_of_cards)
