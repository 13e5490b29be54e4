"""A loop passes its counter to a compiled function as a static argument.

Every new value of a static argument compiles the function again, so that each turn of the loop compiles.
Pass the counter as an array: leave it out of `static_argnums` and `static_argnames`.

Bad:

    import jax
    from functools import partial

    @partial(jax.jit, static_argnames="step")
    def update(weights, step):
        return weights * 0.99**step

    def train(weights):
        for step in range(1000):
            weights = update(weights, step=step)
        return weights

Good:

    import jax

    @jax.jit
    def update(weights, step):
        return weights * 0.99**step

    def train(weights):
        for step in range(1000):
            weights = update(weights, step=step)
        return weights
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument


def check(source: Source) -> Iterator[Match]:
    jitted = {function.function.name: function for function in patterns.jitted_functions(source)}
    if not any(function.static for function in jitted.values()):
        return
    for call in source.calls:
        function = jitted.get(call.func.id) if isinstance(call.func, ast.Name) else None
        loops = patterns.hot_loops(source, call) if function else []
        if function is None or not loops or not patterns.counts(source, loops[0]):
            continue
        for position, parameter in function.static:
            value = argument(call, parameter, position)
            if isinstance(value, ast.Name) and value.id in patterns.loop_names(source, loops[0]):
                yield Match(call, {"name": function.function.name, "argument": parameter})


RULE = Rule(
    number=207,
    name="static-argument-changes",
    message="`{name}` is compiled again in every turn: its static argument `{argument}` changes.",
    hint="Remove `{argument}` from the static arguments.",
    check=check,
)
