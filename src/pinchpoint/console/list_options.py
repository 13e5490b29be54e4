"""Options that take several words, `--from A B C`, up to the next option: what a shell makes of `--from runs/*/CHGCAR`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand


def listing(*names: str) -> type[TyperCommand]:
    """A kind of command whose options of these names take all words up to the next option; they must be lists."""

    class Listing(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, spread(args, names))

    return Listing


def spread(args: Iterable[str], names: tuple[str, ...]) -> list[str]:
    """`--from A B -o C` -> `--from A --from B -o C`."""
    made: list[str] = []
    option, named = None, False  # the list that words belong to; whether its name was the word before
    for word in args:
        if word.startswith("-"):
            option = next((name for name in names if word == name or word.startswith(f"{name}=")), None)
            named = word == option
        else:
            if option is not None and not named:
                made.append(option)
            named = False
        made.append(word)
    return made
