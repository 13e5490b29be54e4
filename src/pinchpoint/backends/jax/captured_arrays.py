"""`hoist`: turn a traced step into a plain function whose captured arrays are arguments.

Otherwise XLA compiles a captured array into the program as a constant, on the device where the array
is stored: compilation is slow, and the array is missing from XLA's own count of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.tracing import JITS, TracedStep


@dataclass(frozen=True)
class HoistedStep:
    """run(*captured_arrays, *args) returns the step's flat outputs; `donated`: positions among the inputs."""

    run: Callable[..., Sequence[Any]]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...]

    def lower(self, sharding: Any) -> Any:
        """Lower for the device of `sharding`; unused arguments are kept, because they take memory too."""
        structs = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for s in self.inputs]
        return jax.jit(self.run, donate_argnums=self.donated, keep_unused=True).lower(*structs)


def hoist(traced_step: TracedStep) -> HoistedStep:
    """The traced step as a function of its captured arrays followed by its arguments."""
    count = len(traced_step.captured_arrays)

    def run(*flat: Any) -> Sequence[Any]:
        replacements = {
            id(array): value for array, value in zip(traced_step.captured_arrays, flat[:count], strict=True)
        }
        return _evaluate(traced_step.closed_jaxpr, flat[count:], replacements)

    inputs = (*traced_step.captured_arrays, *traced_step.closed_jaxpr.in_avals)
    return HoistedStep(
        run, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs), traced_step.donated
    )


def _evaluate(closed_jaxpr: Any, args: Sequence[Any], replacements: dict[int, Any]) -> list[Any]:
    jaxpr = closed_jaxpr.jaxpr
    env: dict[Any, Any] = dict(
        zip(jaxpr.constvars, [replacements.get(id(c), c) for c in closed_jaxpr.consts], strict=True)
    )
    env.update(zip(jaxpr.invars, args, strict=True))

    def value(atom: Any) -> Any:
        return replacements.get(id(atom.val), atom.val) if compat.is_literal(atom) else env[atom]

    for eqn in jaxpr.eqns:
        ins = [value(atom) for atom in eqn.invars]
        outs = (
            _evaluate(eqn.params["jaxpr"], ins, replacements)
            if eqn.primitive.name in JITS
            else compat.bind(eqn, ins)
        )
        env.update(zip(eqn.outvars, outs, strict=True))
    return [value(atom) for atom in jaxpr.outvars]
