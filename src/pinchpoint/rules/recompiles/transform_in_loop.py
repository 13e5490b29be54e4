"""A loop creates a transformed function with jax.grad, jax.jit, jax.vmap, or jax.hessian in every turn.

Each new function is traced again, and compiled again under `jax.jit`: JAX finds earlier work by the
identity of the function. Create it once before the loop. Where the loop is over coordinates or samples,
`jax.vmap` replaces it.

Bad:

    import jax

    def second_derivatives(f, x):
        gradient = jax.grad(f)
        values = []
        for i in range(x.shape[0]):
            values.append(jax.grad(lambda y: gradient(y)[i])(x))
        return values

Good:

    import jax

    def second_derivatives(f, x):
        return jax.jacfwd(jax.grad(f))(x)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import TRANSFORMS

_NAMES = frozenset({f"jax.{name}" for name in TRANSFORMS} | {"equinox.filter_jit", "equinox.filter_grad"})


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        name = source.name(call.func)
        if name not in _NAMES or not patterns.hot_loops(source, call) or patterns.is_jitted(source, call):
            continue
        if name == "jax.jit" and _is_lasting(source, call):
            continue
        if _is_nested(source, call) or _is_built_up(source, call):
            continue
        if not patterns.is_rare(source, call) and not patterns.is_kept(source, call):
            yield Match(call, {"name": name})
    yield from _decorated(source)


def _decorated(source: Source) -> Iterator[Match]:
    """Functions that a loop defines with `@jax.jit` or the like, and that nothing keeps for later."""
    for function in source.functions if source.uses("jax", "equinox") else ():
        names = [name for name in patterns.decorators(source, function) if name in _NAMES]
        if not names or not patterns.hot_loops(source, function) or patterns.is_jitted(source, function):
            continue
        # A call in a decorator, `@jax.jit(...)`, is reported above.
        if any(source.called(decorator) in _NAMES for decorator in function.decorator_list):
            continue
        scope = source.function(function) or source.tree
        reads = [node for node in source.loads(scope, function.name) if not source.inside(node, function)]
        is_only_called = all(
            isinstance(parent := source.parents[node], ast.Call) and parent.func is node for node in reads
        )
        if reads and is_only_called and not patterns.is_rare(source, function):
            yield Match(function, {"name": names[0]})


def _is_lasting(source: Source, call: ast.Call) -> bool:
    """Whether jax.jit gets a function of the module or an import: JAX finds what it compiled before."""
    function = call.args[0] if call.args else None
    if not isinstance(function, ast.Name):
        return False
    return function.id in source.imports or any(
        isinstance(node, ast.FunctionDef) and node.name == function.id for node in source.tree.body
    )


def _is_nested(source: Source, call: ast.Call) -> bool:
    """Whether the function goes into another transform, which is the one to report."""
    parent = source.parents[call]
    return isinstance(parent, ast.Call) and call in parent.args and source.name(parent.func) in _NAMES


def _is_built_up(source: Source, call: ast.Call) -> bool:
    """Whether the loop wraps one function once more in every turn: `f = jax.vmap(f)` for each batch axis."""
    parent = source.parents[call]
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return (
            source.name(call.func) == "jax.linearize" and len(call.args) > 1
        )  # applies the function as well
    name = parent.targets[0].id
    stores = source.stores[source.scope(call), name]
    return len(stores) > 1 or any(isinstance(arg, ast.Name) and arg.id == name for arg in call.args)


RULE = Rule(
    number=201,
    name="transform-in-loop",
    message="`{name}` creates a new function in every turn of the loop, which is traced again each time.",
    hint="Create the function once before the loop, or replace the loop with jax.vmap.",
    check=check,
)
