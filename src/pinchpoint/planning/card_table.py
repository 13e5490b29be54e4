"""The largest size for each card of a table, from the fake runs of one plan.

A forecast of one card is another's but for the context, which is exchanged; the workspace stays
that of the modelled card. The runs already made draw a curve, a few more are made where they tell
most; each answer says whether that very size was predicted or lies on the curve between two runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pinchpoint.forecasting.cards import Card, card, cards
from pinchpoint.planning import need_curve
from pinchpoint.planning.fake_runs import CHUNKS, Trial, Trials
from pinchpoint.planning.search import RUNS, Found

_NOTE = (
    "cards: the chosen variant's runs are used for every card, with that card's context in place of the modelled one;"
    f" an interpolated size lies between two runs, with {need_curve.RESERVE:.0%} taken off"
)
_Answer = tuple[int | None, int | None, str]  # size, chunk, how


def chosen(names: str | Sequence[str] | None) -> list[Card]:
    """`all`, or the named cards; none for None. Smallest first."""
    if names is None:
        return []
    if names == "all":
        return list(cards().values())
    listed = names.split(",") if isinstance(names, str) else names
    return sorted((card(name.strip()) for name in listed), key=lambda c: c.memory_bytes)


def rows(
    wanted: Sequence[Card],
    trials: Trials,
    trial: Trial,
    found: Found | None,
    *,
    multiple: int,
    up_to: int,
    along: Literal["size", "chunk"],
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """One row a card for the variant of `trial`, and remarks. `size` is None where nothing fits.

    up_to: the largest size, or with along="chunk" the largest chunk, that is looked at.
    """
    if not wanted:
        return (), ()
    # The budget each card would have with the modelled card's context.
    budgets = {c.name: c.memory_bytes - c.context_bytes + trial.context_bytes for c in wanted}
    answers: dict[str, _Answer] = {}
    if found is None:
        for name, budget in budgets.items():
            fits = trial.need_bytes <= budget
            answers[name] = (trial.size if fits else None, trial.chunk if fits else None, "predicted")
        return _rows(wanted, trial, answers), (_NOTE,)
    if along == "size":
        sample = trials.at_sizes(trial.variant, multiple=multiple, chunk=trial.chunk)
        floor, limit = 1, max(1, up_to // multiple)
    else:
        sample, limit = trials.at_chunks(trial.variant, trial.size), min(up_to, trial.size)
        floor = min(limit, max(1, trial.size // CHUNKS))
    known = {s.number: s for s in found.samples}
    stopped = need_curve.refine(known, sample, budgets.values(), floor=floor, up_to=limit, runs=RUNS)
    for name, budget in budgets.items():
        reading = need_curve.read(known.values(), budget, floor=floor, up_to=limit)
        how = "predicted" if reading.sampled else "interpolated"
        if reading.number is None:
            answers[name] = (None, None, "predicted" if reading.sampled else "unknown")
        else:
            answers[name] = (
                (reading.number * multiple, trial.chunk, how)
                if along == "size"
                else (trial.size, reading.number, how)
            )
    ended = (
        (f"cards: {stopped.what}; the cards beyond it show the largest {along} predicted",)
        if stopped is not None
        else ()
    )
    return _rows(wanted, trial, answers), (_NOTE, *ended)


def _rows(wanted: Sequence[Card], trial: Trial, answers: dict[str, _Answer]) -> tuple[dict[str, Any], ...]:
    made = []
    for one in wanted:
        size, chunk, how = answers[one.name]
        row = {
            "card": one.name,
            "budget_bytes": one.memory_bytes,
            "variant": trial.variant,
            "size": size,
            "chunk": chunk,
        }
        made.append({**row, "how": how})
    return tuple(made)
