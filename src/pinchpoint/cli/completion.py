"""What the shell offers for values of options: cards, and one of several words."""

from __future__ import annotations

from collections.abc import Callable


def complete_card(incomplete: str) -> list[str]:
    """The names of known cards."""
    from pinchpoint.forecasting.cards import cards

    return [name for name in cards() if name.startswith(incomplete)]


def one_of(*words: str) -> Callable[[str], list[str]]:
    """Return the completion of an option that takes one of these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
