"""Replacements of attributes and environment variables that can all be taken back.

The sandbox changes functions of `os`, `io` and `subprocess` while a user's script runs. Every change
goes through one `Patches`, so that leaving the sandbox restores exactly what was there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

_ABSENT = object()
# Where the raw functions live: the sandbox itself and the import system keep calling those.
_RAW = {"posix", "_io", "builtins", "os", "io"}


class Patches:
    """A list of changes, undone in reverse order."""

    def __init__(self) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._environment: list[tuple[str, str | None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`; an attribute that was inherited or absent is deleted again by `undo`."""
        self._attributes.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def set_defaults(self, function: Any, values: tuple[Any, ...]) -> None:
        """Set the values of a function's own arguments that a caller leaves out."""
        self._attributes.append((function, "__defaults__", function.__defaults__))
        function.__defaults__ = values

    def set_environment(self, name: str, value: str) -> None:
        self._environment.append((name, os.environ.get(name)))
        os.environ[name] = value

    def undo(self) -> None:
        while self._attributes:
            owner, name, value = self._attributes.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        while self._environment:
            name, text = self._environment.pop()
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def swap_imported(new_for_old: Mapping[int, Any]) -> None:
    """Replace, in every loaded module, names bound to an old function by the new one (keys are ids of the old).

    A library that said `from os import listdir` before the sandbox was entered would otherwise keep the
    raw function, and one loaded inside it would keep ours afterwards.
    """
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if name in _RAW or not isinstance(names, dict):
            continue
        for key, value in list(names.items()):
            if id(value) in new_for_old:
                names[key] = new_for_old[id(value)]
