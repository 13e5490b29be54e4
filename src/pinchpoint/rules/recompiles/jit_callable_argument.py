"""A function under jax.jit takes a function as an argument and calls it.

JAX traces arguments as arrays: a call with a function raises a TypeError. As a static argument it works,
but every new function (a lambda, a closure) compiles again. Pass the parameters as an array tree, and name
the function in `static_argnames` if it never changes.

Bad:

    import jax

    @jax.jit
    def kinetic_energy(log_psi, position):
        return -0.5 * (jax.grad(log_psi)(position) ** 2).sum()

Good:

    import jax
    from functools import partial

    @partial(jax.jit, static_argnames="log_psi")
    def kinetic_energy(log_psi, position):
        return -0.5 * (jax.grad(log_psi)(position) ** 2).sum()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.engine.values import TRANSFORMS


def check(source: Source) -> Iterator[Match]:
    for jitted in patterns.jitted_functions(source):
        for argument in jitted.traced:
            if _is_called(source, jitted.function, argument.arg):
                yield Match(argument, {"name": argument.arg, "function": jitted.function.name})


def _is_called(source: Source, function: ast.AST, name: str) -> bool:
    """Whether a parameter is called or transformed: `f(x)`, `jax.grad(f)`."""
    for read in source.loads(function, name):
        if isinstance(source.binding(read), ast.Name):
            return False
        parent = source.parents[read]
        if isinstance(parent, ast.Call):
            if parent.func is read:
                return True
            called = source.name(parent.func)
            if (
                called.startswith("jax.")
                and called.rpartition(".")[2] in TRANSFORMS
                and parent.args[:1] == [read]
            ):
                return True
    return False


RULE = Rule(
    number=203,
    name="jit-callable-argument",
    message="`{function}` is compiled, and its argument `{name}` is a function, which JAX cannot trace.",
    hint="Name `{name}` in static_argnames, or close over it outside the compiled function.",
    check=check,
)
