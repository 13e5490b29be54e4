"""The largest size for each card of a table, from the fake runs of one plan.

A forecast of one card is another's but for the context, which is exchanged; the workspace stays
that of the modelled card. Runs already made are used again, one more a card confirms its answer,
and cards within 1 % of each other share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pinchpoint.core.errors import TimedOut
from pinchpoint.flow.search import Found, Sample, largest_that_fits
from pinchpoint.flow.trials import CHUNKS, Trial, Trials
from pinchpoint.memory.cards import Card, card, cards

NOTES = (
    "cards: the chosen variant's runs are used for every card, with that card's context in place of the modelled one;"
    " each size was itself predicted to fit; cards within 1 % of each other share one answer",
)
_TRIES = 3
_ALIKE = 0.01


def chosen(names: str | Sequence[str] | None) -> list[Card]:
    """`all`, or the named cards; none for None. Smallest first."""
    if names is None:
        return []
    if names == "all":
        return list(cards().values())
    listed = names.split(",") if isinstance(names, str) else names
    return sorted((card(name.strip()) for name in listed), key=lambda c: c.usable_bytes)


def rows(
    wanted: Sequence[Card], trials: Trials, trial: Trial, found: Found | None, *,
    multiple: int, up_to: int, along: Literal["size", "chunk"],
) -> tuple[dict[str, Any], ...]:  # fmt: skip
    """One row a card for the variant of `trial`; `size` is None where nothing fits."""

    def answer(number: int | None) -> dict[str, int | None]:
        if number is None:
            return {"size": None, "chunk": None}
        if found is None:
            return {"size": trial.size, "chunk": trial.chunk}
        return {"size": number * multiple, "chunk": None} if along == "size" else {"size": trial.size, "chunk": number}

    known = {s.number: s for s in found.samples} if found is not None else {}
    checked: list[int] = []
    made = []
    # The budget each card would have with the modelled card's context. Smallest first: alike cards share the safe answer.
    budgets = {c.name: c.usable_bytes - c.context_bytes + trial.context_bytes for c in wanted}
    for one in sorted(wanted, key=lambda c: budgets[c.name]):
        budget = budgets[one.name]
        if found is None:
            number = 1 if trial.need_bytes <= budget else None
        else:
            alike = any(other <= budget <= other * (1 + _ALIKE) for other in checked)
            if not alike:
                _confirm(known, trials, trial, budget, multiple=multiple, up_to=up_to, along=along)
                checked.append(budget)
            number = max((s.number for s in known.values() if s.need_bytes <= budget), default=None)
        made.append({"card": one.name, "budget_bytes": one.usable_bytes, "variant": trial.variant, **answer(number)})
    return tuple(made)


def _confirm(
    known: dict[int, Sample], trials: Trials, trial: Trial, budget_bytes: int, *, multiple: int, up_to: int, along: str
) -> None:  # fmt: skip
    """Add runs to `known` until one that fits lies near the limit for this budget."""
    if along == "size":
        sample, limit, floor = trials.at_sizes(trial.variant, multiple=multiple), max(1, up_to // multiple), 1
    else:
        sample, limit, floor = trials.at_chunks(trial.variant, trial.size), trial.size, max(1, trial.size // CHUNKS)
    for _ in range(_TRIES):
        before = set(known)
        try:
            found = largest_that_fits(
                sample, budget_bytes=budget_bytes, start=1, floor=floor, up_to=limit, known=known.values(), runs=1
            )
        except TimedOut:
            return
        known.update({s.number: s for s in found.samples})
        if set(known) == before or _is_near(known, budget_bytes):
            return


def _is_near(known: dict[int, Sample], budget_bytes: int) -> bool:
    """The largest need that fits leaves at most 2 % of what the smallest one leaves."""
    needs = [s.need_bytes for s in known.values() if s.need_bytes <= budget_bytes]
    return bool(needs) and budget_bytes - max(needs) <= 0.02 * (budget_bytes - min(s.need_bytes for s in known.values()))
