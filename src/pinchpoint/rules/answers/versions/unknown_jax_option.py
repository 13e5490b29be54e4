"""jax.config is given an option that does not exist.

JAX raises an AttributeError for an unknown name, so that the line after it never runs; where the error is
caught, the option is silently off.

Bad:

    import jax

    jax.config.update("jax_enable_x64x", True)

Good:

    import jax

    jax.config.update("jax_enable_x64", True)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pinchpoint.rules.answers.versions.known_names import JAX_OPTIONS
from pinchpoint.rules.engine.rule import Fix, Match, Rule
from pinchpoint.rules.engine.source import Source

if TYPE_CHECKING:
    import libcst as cst


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if not source.name(call.func).endswith("config.update") or not source.name(call.func).startswith(
            "jax"
        ):
            continue
        option = call.args[0] if call.args else None
        name = option.value if isinstance(option, ast.Constant) else None
        if option is None or not isinstance(name, str) or name in JAX_OPTIONS:
            continue
        # Other versions have other options; a name close to a known one is a slip.
        near = get_close_matches(name, JAX_OPTIONS, n=1, cutoff=0.85)
        if near or not name.startswith("jax_"):
            known = near[0] if near else f"jax_{name}"
            yield Match(option, {"name": name, "known": known}, fixable=known in JAX_OPTIONS)


def _correct(node: cst.CSTNode, match: Match) -> cst.CSTNode:
    import libcst as cst

    text = cst.ensure_type(node, cst.SimpleString)
    return text.with_changes(value=f"{text.quote}{match.values['known']}{text.quote}")


RULE = Rule(
    number=544,
    name="unknown-jax-option",
    message="JAX has no option `{name}`.",
    hint="Did you mean `{known}`? jax.config.values lists all options.",
    check=check,
    fix=Fix(_correct, safe=False),
)
