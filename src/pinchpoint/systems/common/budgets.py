"""Budgets of a step: what is asked for, and what it allows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import parse_bytes
from pinchpoint.forecasting.cards import Card, card, cards, nameless

_NOT_ABOVE_0 = re.compile(r"-\s*\.?[0-9].*|0*\.?0+\s*[a-z]*", re.IGNORECASE)


@dataclass(frozen=True)
class Chosen:
    """What a budget allows. chunk: points at one time; None where a step is not cut into chunks."""

    chunk: int | None
    predicted_bytes: int
    budget_bytes: int


def budget_of(budget: str | int) -> Card:
    """The card of that name, or for bytes a nameless one that has so many."""
    if _NOT_ABOVE_0.fullmatch(str(budget).strip()):
        raise BadInput(
            f"--budget {budget}: a budget must be above 0", hint="give bytes, such as 8GiB, or a card's name"
        )
    if isinstance(budget, int) or budget.strip()[:1].isdigit():
        wanted = parse_bytes(budget)
        return nameless(f"{wanted}B", wanted, like=cards()["h200"])
    return card(budget)
