"""Memory budgets of a training step: parsing them, what they allow, and the error where nothing fits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.units import parse_bytes, show_bytes
from pinchpoint.forecasting.cards import Card, card, cards, nameless

_NOT_ABOVE_0 = re.compile(r"-\s*\.?[0-9].*|0*\.?0+\s*[a-z]*", re.IGNORECASE)


@dataclass(frozen=True)
class BudgetChoice:
    """What a budget allows. chunk: points processed together; None where a step is not split into chunks."""

    chunk: int | None
    predicted_bytes: int
    budget_bytes: int


def budget_of(budget: str | int) -> Card:
    """The card of that name; for a number of bytes, a nameless card with that much memory."""
    if _NOT_ABOVE_0.fullmatch(str(budget).strip()):
        raise BadInput(
            f"--budget {budget} is not possible: a budget must be above 0.",
            hint="Give bytes, such as 8GiB, or the name of a card.",
        )
    if isinstance(budget, int) or budget.strip()[:1].isdigit():
        memory_bytes = parse_bytes(budget)
        return nameless(f"{memory_bytes}B", memory_bytes, like=cards()["h200"])
    return card(budget)


def does_not_fit(
    need_bytes: int, budget_bytes: int, *, how: str, otherwise: str = "", hint: str = ""
) -> DoesNotFit:
    """The error where the smallest step exceeds the budget.

    how: what needs that much, such as " in chunks of 64 edges"; otherwise: what to do instead of raising the
    budget; hint: for another hint than to raise it.
    """
    short = show_bytes(need_bytes - budget_bytes)
    return DoesNotFit(
        f"A step needs {show_bytes(need_bytes)}{how}, but the budget is {show_bytes(budget_bytes)}.",
        hint=hint or f"Raise --budget by at least {short}, or {otherwise}.",
        need_bytes=need_bytes,
    )
