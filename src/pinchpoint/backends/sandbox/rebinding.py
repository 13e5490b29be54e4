"""`swap_imported`: replace functions of `os`, `io` and similar in the modules that already imported them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

# Modules that keep the raw functions, which the sandbox itself and the import system call.
_RAW = {"posix", "_io", "builtins", "os", "io"}


def swap_imported(swaps: Iterable[tuple[Any, Any]]) -> None:
    """Replace old functions and classes by new ones in every loaded module. swaps: (old, new), hashable.

    Otherwise a library that ran `from os import listdir` before the sandbox was entered would keep the raw
    function, and one imported inside the sandbox would keep ours afterwards.
    """
    new_for_old = dict(swaps)
    if not new_for_old:
        return
    kinds = {type(old) for old in new_for_old}
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if name in _RAW or not isinstance(names, dict):
            continue
        # The type is compared first: Python reports every call of `id` to audit hooks, and not every value
        # of a module has a hash.
        for key, value in list(names.items()):
            if type(value) in kinds and value in new_for_old:
                names[key] = new_for_old[value]
