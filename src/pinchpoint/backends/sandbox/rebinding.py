"""Names that modules have already taken from `os`, `io` and their like, replaced with them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

# Where the raw functions live: the sandbox itself and the import system keep calling those.
_RAW = {"posix", "_io", "builtins", "os", "io"}


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
