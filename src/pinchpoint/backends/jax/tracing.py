"""`trace`: turn a step and its arguments into a closed jaxpr, without computing or allocating anything.

A step is a jitted function with arguments (arrays or `jax.ShapeDtypeStruct`s), any function that JAX
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
class TracedStep:
    """A step's jaxpr. Its inputs are the captured arrays, each once, followed by the flat arguments."""

    closed_jaxpr: Any
    captured_arrays: tuple[Any, ...]
    names: tuple[str, ...]  # names of the arguments, such as "params['w']"; "" if JAX has none
    donated: tuple[int, ...]  # positions among the inputs


def trace(step: Callable[..., Any], args: Sequence[Any] = ()) -> TracedStep:
    """Trace a step; raises `CannotFake` with the line if the step reads values while it is traced."""
    jitted: Any = step if hasattr(step, "trace") and hasattr(step, "lower") else jax.jit(step)
    try:
        with compat.allow_waiting_on_tracers():
            jax_trace = jitted.trace(*args)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        where = user_line(error)
        raise CannotFake(
            f"The step reads a value{f' at {where}' if where else ''}, "
            f"which pinchpoint does not support yet for JAX ({type(error).__name__}).",
            hint="Predict only the jitted part: return (jitted, args) from the target, so that float(), "
            "bool(), np.asarray() and data-dependent shapes stay outside it.",
        ) from error
    closed_jaxpr = compat.without_dead_code(jax_trace.jaxpr)
    captured_arrays = _captured(closed_jaxpr)
    flags = [info.donated for info in jax.tree_util.tree_leaves(jax_trace.args_info)]
    # Arrays of an outer trace come before the arguments.
    first = len(captured_arrays) + len(closed_jaxpr.in_avals) - len(flags)
    donated = {first + i for i, flag in enumerate(flags) if flag} | _donated_inside(
        closed_jaxpr, captured_arrays
    )
    return TracedStep(
        closed_jaxpr, captured_arrays, compat.argument_names(closed_jaxpr.jaxpr), tuple(sorted(donated))
    )


def traced_program(closed_jaxpr: Any, donated: Sequence[bool]) -> TracedStep:
    """A compiled function of a script, from its jaxpr and the arguments that it donates."""
    closed_jaxpr = compat.without_dead_code(closed_jaxpr)
    captured_arrays = _captured(closed_jaxpr)
    first = len(captured_arrays)
    positions = {first + i for i, flag in enumerate(donated) if flag}
    positions |= _donated_inside(closed_jaxpr, captured_arrays)
    names = compat.argument_names(closed_jaxpr.jaxpr)
    return TracedStep(closed_jaxpr, captured_arrays, names, tuple(sorted(positions)))


def trace_factory(make: Callable[[], Any]) -> tuple[TracedStep, int | None]:
    """Build a step inside a trace, so that its arrays are shapes too, and trace it.

    Also returns the number of points the step processes.
    """
    results: list[tuple[TracedStep, int | None]] = []

    def build_and_trace() -> None:
        case = unpack(make())
        results.append((trace(case.step, jax.tree_util.tree_map(_shape, case.args)), case.processed))

    jax.eval_shape(build_and_trace)
    return results[0]


def _shape(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if compat.is_tracer(leaf) else leaf


def _captured(closed_jaxpr: Any) -> tuple[Any, ...]:
    arrays = {id(array): array for array in _arrays_in(closed_jaxpr) if getattr(array, "shape", ())}
    return tuple(arrays.values())


def _arrays_in(closed_jaxpr: Any) -> Iterator[Any]:
    yield from closed_jaxpr.consts
    for eqn in closed_jaxpr.jaxpr.eqns:
        yield from (atom.val for atom in eqn.invars if compat.is_literal(atom))
        if eqn.primitive.name in JITS:
            yield from _arrays_in(eqn.params["jaxpr"])


def _donated_inside(closed_jaxpr: Any, captured_arrays: Sequence[Any]) -> set[int]:
    """Inputs that the step donates to a jitted function it calls; they count as donated by the step."""
    place = {id(array): i for i, array in enumerate(captured_arrays)}
    position: dict[Any, int | None] = {
        var: place.get(id(array))
        for var, array in zip(closed_jaxpr.jaxpr.constvars, closed_jaxpr.consts, strict=True)
    }
    position |= {var: len(captured_arrays) + i for i, var in enumerate(closed_jaxpr.jaxpr.invars)}
    positions: set[int] = set()
    for eqn in closed_jaxpr.jaxpr.eqns:
        flags = eqn.params.get("donated_invars", ()) if eqn.primitive.name in JITS else ()
        for atom, flag in zip(eqn.invars, flags, strict=False):
            where = place.get(id(atom.val)) if compat.is_literal(atom) else position.get(atom)
            if flag and where is not None:
                positions.add(where)
    return positions
