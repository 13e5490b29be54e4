"""Rules that folx is given: how a function's value, derivatives and Laplacian follow from its arguments'.

folx finds the rule of a jitted function by its name, in a registry of its own. It is written where a function is first traced
with folx at hand, once for each name: whoever takes a forward Laplacian has imported folx before, and where nobody has there is
nothing to tell. Imports no framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

Rule = Callable[..., Any]  # (arguments, named ones, sparsity threshold) -> arrays of folx's kind


def tell_folx(rules: Mapping[str, Rule]) -> None:
    """Give folx the rule of each name, where folx is in use and has none under it. A name stands for one rule for ever."""
    registry = sys.modules.get("folx.wrapped_functions")
    if registry is None:
        return
    for name, rule in rules.items():
        if not registry.is_registered(name):
            registry.register_function(name, rule)
