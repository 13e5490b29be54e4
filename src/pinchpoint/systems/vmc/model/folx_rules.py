"""Rules for folx: how the value, derivatives and Laplacian of a function follow from those of its arguments.

folx looks up the rule of a jitted function by its name in a registry. A rule is registered, once per name,
when its function is first traced with folx loaded: a forward Laplacian always imports folx first, and without
folx there is no registry. Imports no framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

Rule = Callable[..., Any]  # (arguments, options, sparsity threshold) -> arrays of folx's type


def register_rules(rules: Mapping[str, Rule]) -> None:
    """Register each rule under its name if folx is loaded and has no rule of that name.

    A name always stands for the same rule.
    """
    registry = sys.modules.get("folx.wrapped_functions")
    if registry is None:
        return
    for name, rule in rules.items():
        if not registry.is_registered(name):
            registry.register_function(name, rule)
