"""From a step and its arguments to a closed jaxpr: nothing is computed, nothing is allocated.

A step is a jitted function with arguments (arrays or `jax.ShapeDtypeStruct`s), any function JAX
can trace, or a closure without arguments whose captured arrays then count as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.core.errors import CannotFake
from pinchpoint.core.targets import user_line
from pinchpoint.core.workload import unpack

JITS = ("jit", "pjit")


@dataclass(frozen=True)
class Traced:
    """A step's jaxpr. Its inputs are the captured arrays, each once, then the flat arguments."""

    closed: Any
    captured: tuple[Any, ...]
    names: tuple[str, ...]  # of the arguments, such as "params['w']"; "" where JAX gives none
    donated: tuple[int, ...]  # positions among the inputs


def trace(step: Callable[..., Any], args: Sequence[Any] = ()) -> Traced:
    """Trace a step. A step that reads values while it is traced cannot be predicted: `CannotFake` says where."""
    jitted: Any = step if hasattr(step, "trace") and hasattr(step, "lower") else jax.jit(step)
    try:
        with compat.tracers_wait():
            traced = jitted.trace(*args)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        where = user_line(error)
        raise CannotFake(
            f"the step needs a value that tracing does not have{f' at {where}' if where else ''} ({type(error).__name__})",
            hint="keep float(), bool(), np.asarray() and data-dependent shapes out of the step, or return (jitted, args)",
        ) from error
    closed = compat.without_dead_code(traced.jaxpr)
    captured = tuple(
        {id(array): array for array in _captured(closed) if getattr(array, "shape", ())}.values()
    )
    flags = [info.donated for info in jax.tree_util.tree_leaves(traced.args_info)]
    first = (
        len(captured) + len(closed.in_avals) - len(flags)
    )  # arrays of an outer trace come before the arguments
    donated = {first + i for i, flag in enumerate(flags) if flag} | _donated_inside(closed, captured)
    return Traced(closed, captured, compat.argument_names(closed.jaxpr), tuple(sorted(donated)))


def trace_made(make: Callable[[], Any]) -> tuple[Traced, int | None]:
    """Build and trace at once, inside a trace: arrays the factory makes are shapes too. Also the points it counts."""
    found: list[tuple[Traced, int | None]] = []

    def whole() -> None:
        built = unpack(make())
        found.append((trace(built.step, jax.tree_util.tree_map(_shape, built.args)), built.processed))

    jax.eval_shape(whole)
    return found[0]


def _shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if compat.is_tracer(leaf) else leaf


def _captured(closed: Any) -> Iterator[Any]:
    yield from closed.consts
    for eqn in closed.jaxpr.eqns:
        yield from (atom.val for atom in eqn.invars if compat.is_literal(atom))
        if eqn.primitive.name in JITS:
            yield from _captured(eqn.params["jaxpr"])


def _donated_inside(closed: Any, captured: Sequence[Any]) -> set[int]:
    """Inputs that a jitted function called by the step takes over: donation is then the step's own."""
    place = {id(array): i for i, array in enumerate(captured)}
    position: dict[Any, int | None] = {
        var: place.get(id(array)) for var, array in zip(closed.jaxpr.constvars, closed.consts, strict=True)
    }
    position |= {var: len(captured) + i for i, var in enumerate(closed.jaxpr.invars)}
    found: set[int] = set()
    for eqn in closed.jaxpr.eqns:
        flags = eqn.params.get("donated_invars", ()) if eqn.primitive.name in JITS else ()
        for atom, flag in zip(eqn.invars, flags, strict=False):
            where = place.get(id(atom.val)) if compat.is_literal(atom) else position.get(atom)
            if flag and where is not None:
                found.add(where)
    return found
