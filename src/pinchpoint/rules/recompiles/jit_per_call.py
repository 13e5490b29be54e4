"""A function creates a compiled function, calls it, and forgets it.

`jax.jit` of a lambda or of a function defined inside another one is a new function at every call, so that
JAX traces and compiles it again each time. Compile at module level, or pass what changes as an argument.

Bad:

    import jax

    def energies(network, walkers):
        def one(walker):
            return network(walker)

        compiled = jax.jit(jax.vmap(one))
        return compiled(walkers)

Good:

    import jax
    from functools import partial

    @partial(jax.jit, static_argnames="network")
    def energies(network, walkers):
        def one(walker):
            return network(walker)

        return jax.vmap(one)(walkers)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import FUNCTIONS, Function, Source

_JIT = frozenset({"jax.jit", "jax.pmap", "equinox.filter_jit"})
_RUNS_ONCE = (
    "main",
    "test",
    "run",
    "setup",
    "bench",
    "train",
    "fit",
    "demo",
    "make",
    "build",
    "init",
    "_init",
)


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        if name not in _JIT or not call.args or source.loops(call):
            continue
        function = source.function(call)
        if (
            function is None
            or function.name.lower().startswith(_RUNS_ONCE)
            or patterns.is_jitted(source, call)
        ):
            continue
        if any("cache" in d or "fixture" in d for d in patterns.decorators(source, function)):
            continue
        if _is_fresh(source, call.args[0], function) and _is_forgotten(source, call, function):
            yield Match(call, {"name": name, "function": function.name})


def _is_fresh(source: Source, value: ast.expr, function: Function) -> bool:
    """Whether each call of the function makes a new object of this value: a lambda, an inner function, a
    transform."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return bool(value.args) and _is_fresh(source, value.args[0], function)
    if isinstance(value, ast.Name):
        if any(isinstance(node, FUNCTIONS) and node.name == value.id for node in source.walk(function)):
            return value.id != function.name
        store = source.binding(value)
        assigned = source.assigned_value(store) if isinstance(store, ast.Name) else None
        return (
            assigned is not None
            and source.inside(assigned, function)
            and _is_fresh(source, assigned, function)
        )
    return False


def _is_forgotten(source: Source, call: ast.Call, function: Function) -> bool:
    """Whether the compiled function is called once here and kept nowhere."""
    parent = source.parents[call]
    if isinstance(parent, ast.Call) and parent.func is call:
        return not source.loops(parent)
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return False
    reads = source.loads(function, parent.targets[0].id)
    calls = [n for n in reads if isinstance(p := source.parents[n], ast.Call) and p.func is n]
    once = len(calls) == 1 and len(reads) == 1 and source.scope(calls[0]) is function
    return once and not source.loops(calls[0])


RULE = Rule(
    number=202,
    name="jit-per-call",
    message="Every call of `{function}` compiles a new function with `{name}` and forgets it.",
    hint="Create the compiled function once, outside `{function}`, or decorate `{function}` itself.",
    check=check,
)
