"""Options that take several words up to the next option, such as `--from A B C`.

A shell expands `--from runs/*/CHGCAR` to this form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand


def command_with_lists(*names: str) -> type[TyperCommand]:
    """A command class whose list options of these names take all words up to the next option."""

    class CommandWithLists(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, repeat_options(args, names))

    return CommandWithLists


def repeat_options(args: Iterable[str], names: tuple[str, ...]) -> list[str]:
    """`--from A B -o C` -> `--from A --from B -o C`."""
    words: list[str] = []
    option, after_name = None, False  # the list that words belong to; whether its name was the word before
    for word in args:
        if word.startswith("-"):
            option = next((name for name in names if word == name or word.startswith(f"{name}=")), None)
            after_name = word == option
        else:
            if option is not None and not after_name:
                words.append(option)
            after_name = False
        words.append(word)
    return words
