"""A loop passes a compiled function an array whose size grows with the loop's counter.

XLA compiles for fixed shapes: `f(x[:i])` compiles again in every turn. Keep the shape and pass a mask or
the length.

Bad:

    import jax
    import jax.numpy as jnp

    total = jax.jit(lambda values: values.sum())

    def running_sums(values):
        sums = []
        for i in range(len(values)):
            sums.append(total(values[:i]))
        return jnp.stack(sums)

Good:

    import jax.numpy as jnp

    def running_sums(values):
        return jnp.cumsum(values)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import kind


def check(source: Source) -> Iterator[Match]:
    jitted = {function.function.name for function in patterns.jitted_functions(source)}
    for call in source.calls:
        if not isinstance(call.func, ast.Name):
            continue
        if call.func.id not in jitted and not _is_compiled(source, call.func):
            continue
        loops = patterns.hot_loops(source, call)
        names = patterns.loop_names(source, loops[0]) if loops else set()
        for arg in call.args:
            if isinstance(arg, ast.Subscript) and _grows(source, arg.slice, names):
                yield Match(call, {"name": call.func.id, "array": ast.unparse(arg)})
                break


def _is_compiled(source: Source, name: ast.Name) -> bool:
    if kind(source, name) != "transformed":
        return False
    store = source.binding(name)
    value = source.assigned_value(store) if isinstance(store, ast.Name) else None
    return source.called(value) == "jax.jit"


def _grows(source: Source, index: ast.expr, names: set[str]) -> bool:
    """`[:i]` or `[i:]` with the loop's counter; `[i : i + n]` keeps its size."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    if not isinstance(first, ast.Slice) or (first.lower is None) == (first.upper is None):
        return False
    bound = first.lower or first.upper
    return bound is not None and bool(names & {n.id for n in source.walk(bound) if isinstance(n, ast.Name)})


RULE = Rule(
    number=208,
    name="shape-changes-in-loop",
    message="`{name}` is compiled again in every turn: the size of `{array}` changes.",
    hint="Keep the shape of the argument and pass a mask or the length.",
    check=check,
)
