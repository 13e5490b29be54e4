"""`ScriptTrace`: what JAX does with every operation of a script: shapes are computed, values are not.

Every operation of JAX that is not inside a compiled function, and every compiled function as a whole, reaches
`process_primitive`. Its results are `ScriptArray`s, and the call is booked in the session's ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.program import bytes_of
from pinchpoint.backends.jax.script import recipes
from pinchpoint.backends.jax.script.arrays import ScriptArray
from pinchpoint.backends.jax.script.ledger import Buffer
from pinchpoint.backends.jax.tracing import JITS

# Operations whose result has the storage of their input.
_SAME_STORAGE = frozenset({"device_put", "stage", "optimization_barrier", "sharding_constraint"})


class ScriptTrace(compat.Trace):
    """Current while a script runs. session: books calls and answers reads; see `session.ScriptSession`."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session

    def stage_value(self, value: Any) -> Any:
        if isinstance(value, (ScriptArray, jax.Array)):
            return value
        return self._array(compat.aval_of(value), recipes.constant(value))

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        avals = [compat.aval_of(arg) for arg in args]
        outs, _ = primitive.abstract_eval(*avals, **params)
        out_avals = list(outs) if primitive.multiple_results else [outs]
        with compat.evaluating():
            results = self._run(primitive, list(args), params, out_avals)
        return results if primitive.multiple_results else results[0]

    def _run(
        self, primitive: Any, args: list[Any], params: dict[str, Any], out_avals: Sequence[Any]
    ) -> list[Any]:
        if primitive.name in _SAME_STORAGE and len(args) == len(out_avals):
            return [
                self._alias(arg, aval)
                if isinstance(arg, ScriptArray)
                else self._array(aval, recipes.constant(arg))
                for arg, aval in zip(args, out_avals, strict=True)
            ]
        buffers = [self._storage(arg) for arg in args]
        session = self.session
        is_jit = primitive.name in JITS
        entry = session.call(primitive, args, params, out_avals, buffers)
        forwarded = compat.forwarded_inputs(params["jaxpr"]) if is_jit else {}
        donated = params.get("donated_invars", ()) if is_jit else ()
        for buffer, flag in zip(buffers, donated, strict=False):
            if flag and isinstance(buffer, Buffer):
                buffer.free()
        call = recipes.Call(primitive, params, [recipes.of(arg) for arg in args])
        results = []
        for i, aval in enumerate(out_avals):
            source = forwarded.get(i)
            if source is not None and isinstance(args[source], ScriptArray) and not donated[source]:
                results.append(self._alias(args[source], aval))
            else:
                results.append(self._array(aval, recipes.Recipe(call, i)))
        session.returned(entry, results)
        return results

    def _storage(self, arg: Any) -> Buffer | int:
        """The buffer of an argument, or the bytes of a host array that is copied for one call."""
        if isinstance(arg, ScriptArray):
            if arg.buffer.deleted:
                raise RuntimeError("Array has been deleted or donated.")  # as JAX does
            return arg.buffer
        if isinstance(arg, jax.Array) and not compat.is_tracer(arg):
            return self.session.real_array(arg)
        return bytes_of(compat.aval_of(arg))

    def _array(self, aval: Any, recipe: recipes.Recipe) -> Any:
        size = 0 if compat.on_host(aval) else bytes_of(aval)
        return ScriptArray(self, aval, self.session.buffer(size), recipe)

    def _alias(self, array: ScriptArray, aval: Any) -> ScriptArray:
        return ScriptArray(self, aval, array.buffer, array.recipe)

    def process_call(self, primitive: Any, f: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        with compat.set_current_trace(self):
            return f.call_wrapped(*args)

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, args: Any, **_: Any) -> Any:
        with compat.set_current_trace(self):
            return fun.call_wrapped(*args)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, **_: Any
    ) -> Any:
        with compat.set_current_trace(self):
            return fun.call_wrapped(*args)

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, **params: Any) -> Any:
        """Outside a compiled function: compile it alone, which JAX does operation by operation."""
        trees: list[Any] = []

        def mapped(*inner: Any) -> list[Any]:
            result = primitive.bind(*inner, subfuns=(fun,), **params)
            trees.append(result)
            return list(result)

        with compat.set_current_trace(self):
            outs = jax.jit(mapped)(*args)
        return trees[0].update(outs) if hasattr(trees[0], "update") else outs

    def cur_qdd(self, x: Any) -> Any:
        return x.cur_qdd()
