"""`Rebinding`: replace functions of `os`, `io` and similar in the modules that already imported them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import compress
from typing import Any

# Modules that keep the raw functions, which the sandbox itself and the import system call.
_RAW = {"posix", "_io", "builtins", "os", "io"}


class Rebinding:
    """Old functions and classes are replaced by new ones in every loaded module, and back.

    Otherwise a library that ran `from os import listdir` before the sandbox was entered would keep the raw
    function, and one imported inside the sandbox would keep ours afterwards.
    """

    def __init__(self, swaps: list[tuple[Any, Any]]) -> None:
        """swaps: (old, new), hashable. What is added after `apply` is only replaced by `undo`."""
        self._swaps = swaps
        self._places: list[tuple[dict[str, Any], str]] = []  # where a function was replaced

    def apply(self) -> None:
        new_for_old = dict(self._swaps)
        kinds = {type(old) for old in new_for_old}
        for names in _namespaces():
            for key in _keys_of(new_for_old, kinds, names):
                names[key] = new_for_old[names[key]]
                self._places.append((names, key))

    def undo(self) -> None:
        old_for_new = {new: old for old, new in self._swaps}
        kinds = {type(new) for new in old_for_new}
        # All modules, because a function of any module may have bound one of its names to ours.
        new_places = [(names, key) for names in _namespaces() for key in _keys_of(old_for_new, kinds, names)]
        for names, key in [*self._places, *new_places]:
            value = names.get(key)
            if type(value) in kinds and value in old_for_new:
                names[key] = old_for_new[value]
        self._places.clear()


def _namespaces() -> Iterator[dict[str, Any]]:
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if name not in _RAW and isinstance(names, dict):
            yield names


def _keys_of(functions: dict[Any, Any], kinds: set[type], names: dict[str, Any]) -> list[str]:
    """The names whose value is one of the functions. kinds: the functions' types."""
    if not functions:
        return []
    # The type is compared first: Python reports every call of `id` to audit hooks, and not every value of a
    # module has a hash.
    values = list(names.values())
    if functions.keys().isdisjoint(compress(values, map(kinds.__contains__, map(type, values)))):
        return []
    return [key for key, value in list(names.items()) if type(value) in kinds and value in functions]
