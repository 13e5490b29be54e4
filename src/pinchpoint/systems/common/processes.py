"""The number of processes that torchrun started, as it sets it in the environment. Imports no framework."""

from __future__ import annotations

import os

from pinchpoint.core.errors import BadInput


def environment_number(name: str, default: int) -> int:
    """Return the number in an environment variable of torchrun; `default` if it is not set."""
    text = os.environ.get(name, str(default))
    if not text.isdigit():
        raise BadInput(
            f"The environment variable {name} is {text!r}, which is not a number.",
            hint="Start the command with torchrun, which sets it, or unset it.",
        )
    return int(text)


def is_first_process() -> bool:
    """Return whether this process is the only one, or the first of those that torchrun started."""
    return environment_number("WORLD_SIZE", 1) == 1 or environment_number("RANK", 0) == 0


def refuse_several_processes() -> None:
    """Refuse to run as one of several processes, which would all write to the same files."""
    count = environment_number("WORLD_SIZE", 1)
    if count > 1:
        raise BadInput(
            f"This command runs in one process, but WORLD_SIZE is {count}.",
            hint="Start it without torchrun, or unset WORLD_SIZE.",
        )
