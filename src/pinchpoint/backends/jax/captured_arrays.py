"""A traced step as a plain function whose captured arrays are arguments.

XLA would bake a captured array into the program as a constant, on the device it happens to live
on: slow to compile, and missing from XLA's own count of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.tracing import JITS, Traced


@dataclass(frozen=True)
class Hoisted:
    """run(*captured, *args) gives the step's flat outputs; `donated` are positions in that list."""

    run: Callable[..., Sequence[Any]]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...]

    def lower(self, sharding: Any) -> Any:
        """Lower for the device of `sharding`; arguments nobody reads are kept, since they take memory too."""
        structs = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in self.inputs]
        return jax.jit(self.run, donate_argnums=self.donated, keep_unused=True).lower(*structs)


def hoist(traced: Traced) -> Hoisted:
    """The traced step as a function of its captured arrays, then its arguments."""
    count = len(traced.captured)

    def run(*flat: Any) -> Sequence[Any]:
        known = {id(array): value for array, value in zip(traced.captured, flat[:count], strict=True)}
        return _evaluate(traced.closed, flat[count:], known)

    inputs = (*traced.captured, *traced.closed.in_avals)
    return Hoisted(run, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs), traced.donated)


def _evaluate(closed: Any, args: Sequence[Any], known: dict[int, Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(
        zip(jaxpr.constvars, [known.get(id(c), c) for c in closed.consts], strict=True)
    )
    env.update(zip(jaxpr.invars, args, strict=True))

    def value(atom: Any) -> Any:
        return known.get(id(atom.val), atom.val) if compat.is_literal(atom) else env[atom]

    for eqn in jaxpr.eqns:
        ins = [value(atom) for atom in eqn.invars]
        outs = (
            _evaluate(eqn.params["jaxpr"], ins, known)
            if eqn.primitive.name in JITS
            else compat.bind(eqn, ins)
        )
        env.update(zip(eqn.outvars, outs, strict=True))
    return [value(atom) for atom in jaxpr.outvars]
