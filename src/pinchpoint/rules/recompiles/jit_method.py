"""A method is compiled with jax.jit, and `self` is an ordinary object.

JAX cannot trace `self` and raises a TypeError. As a static argument it works, but later changes of its
attributes are not seen, and every new object compiles again. Compile a function of the values that it
needs.

Bad:

    import jax

    class Sampler:
        def __init__(self, width):
            self.width = width

        @jax.jit
        def move(self, walkers, noise):
            return walkers + self.width * noise

Good:

    import jax

    @jax.jit
    def move(width, walkers, noise):
        return walkers + width * noise
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source


def check(source: Source) -> Iterator[Match]:
    for jitted in patterns.jitted_functions(source):
        owner = source.parents.get(jitted.function)
        if not isinstance(owner, ast.ClassDef) or owner.decorator_list or owner.bases or owner.keywords:
            continue
        registered = any(
            owner.name in ast.unparse(c) for c in source.calls if "register_pytree" in source.called(c)
        )
        if jitted.traced and jitted.traced[0].arg == "self" and not registered:
            yield Match(jitted.function, {"name": jitted.function.name})


RULE = Rule(
    number=206,
    name="jit-method",
    message="The method `{name}` is compiled, and `self` is not something that JAX can trace.",
    hint="Compile a function outside the class that takes the values `{name}` needs.",
    check=check,
)
