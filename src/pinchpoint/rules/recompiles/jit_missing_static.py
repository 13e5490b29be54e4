"""A function under jax.jit uses an argument as a Python number: a size, a loop count, or a flag.

Under `jax.jit` the argument is an array without a value, so that `range(n)`, `jnp.zeros(n)`, and `if flag`
raise an error. Name it in `static_argnames`; a new value then compiles once more.

Bad:

    import jax
    import jax.numpy as jnp

    @jax.jit
    def histogram(values, bins):
        return jnp.zeros(bins).at[values].add(1)

Good:

    import jax
    import jax.numpy as jnp
    from functools import partial

    @partial(jax.jit, static_argnames="bins")
    def histogram(values, bins):
        return jnp.zeros(bins).at[values].add(1)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method

_SIZED = {"zeros": "shape", "ones": "shape", "empty": "shape", "full": "shape", "arange": "start", "eye": "N"}


def check(source: Source) -> Iterator[Match]:
    for jitted in patterns.jitted_functions(source):
        for parameter in jitted.traced:
            use = _python_use(source, jitted.function, parameter.arg)
            if use:
                yield Match(parameter, {"name": parameter.arg, "function": jitted.function.name, "use": use})


def _python_use(source: Source, function: ast.AST, name: str) -> str:
    for read in source.loads(function, name):
        if not isinstance(source.binding(read), ast.arg) or source.function(read) is not function:
            continue
        parent = source.parents[read]
        if isinstance(parent, ast.Call) and source.called(parent) == "range" and read in parent.args:
            return "the count of range"
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and parent.test is read:
            return "the test of a branch"
        if isinstance(parent, ast.Compare) and not any(
            isinstance(op, ast.Is | ast.IsNot) for op in parent.ops
        ):
            branch = source.parents[parent]
            if isinstance(branch, ast.If | ast.IfExp | ast.While) and branch.test is parent:
                return "the test of a branch"
        if method(parent) == "reshape" and isinstance(parent, ast.Call) and read in parent.args:
            return "a size in reshape"
        call = source.parents.get(parent) if isinstance(parent, ast.Tuple) else parent
        if isinstance(call, ast.Call):
            package, _, last = source.called(call).rpartition(".")
            if package == "jax.numpy" and last in _SIZED:
                size = argument(call, _SIZED[last], 0)
                if size is read or (size is parent and isinstance(parent, ast.Tuple)):
                    return f"a size in jnp.{last}"
    return ""


RULE = Rule(
    number=204,
    name="jit-missing-static",
    message="`{function}` is compiled and uses `{name}` as {use}, but `{name}` is traced.",
    hint="Name `{name}` in static_argnames.",
    check=check,
)
