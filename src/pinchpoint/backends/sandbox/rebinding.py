"""`swap_imported`: replace functions of `os`, `io` and similar in the modules that already imported them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

# Modules that keep the raw functions, which the sandbox itself and the import system call.
_RAW = {"posix", "_io", "builtins", "os", "io"}


def swap_imported(new_for_old: Mapping[int, Any]) -> None:
    """Replace an old function by the new one in every loaded module (keys are ids of the old functions).

    Otherwise a library that ran `from os import listdir` before the sandbox was entered would keep the raw
    function, and one imported inside the sandbox would keep ours afterwards.
    """
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if name in _RAW or not isinstance(names, dict):
            continue
        if new_for_old.keys().isdisjoint(map(id, list(names.values()))):
            continue
        for key, value in list(names.items()):
            if id(value) in new_for_old:
                names[key] = new_for_old[id(value)]
