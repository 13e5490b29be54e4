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
from pinchpoint.backends.jax.script.ledger import FIRST, Buffer
from pinchpoint.backends.jax.sharded.placement import (
    device_numbers,
    shard_bytes,
    sharding_for,
    single_program,
)
from pinchpoint.backends.jax.tracing import JITS

# Operations whose result has the storage of their input.
_SAME_STORAGE = frozenset({"device_put", "stage", "optimization_barrier", "sharding_constraint"})
_HOST = "pinned_host"


class ScriptTrace(compat.Trace):
    """Current while a script runs. session: books calls and answers reads; see `session.ScriptSession`."""

    is_script = True

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session

    def stage_value(self, value: Any) -> Any:
        if isinstance(value, (ScriptArray, jax.Array)):
            return value
        return self.array(compat.aval_of(value), recipes.constant(value))

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
            return self._moved(primitive, args, params, out_avals)
        session = self.session
        is_jit = primitive.name in JITS
        if session.placement is not None and not is_jit and _is_divided(args):
            return self._compiled(primitive, args, params)
        partition = (
            session.placement.partition(args, params) if session.placement is not None and is_jit else None
        )
        buffers = [self._storage(arg) for arg in args]
        entry = session.call(primitive, args, params, out_avals, buffers, partition)
        forwarded = compat.forwarded_inputs(params["jaxpr"]) if is_jit else {}
        donated = params.get("donated_invars", ()) if is_jit else ()
        for buffer, flag in zip(buffers, donated, strict=False):
            if flag and isinstance(buffer, Buffer):
                buffer.free()
        call = recipes.Call(primitive, params, [recipes.of(arg) for arg in args])
        sharding, committed = single_program(args) if session.placement is not None else (None, False)
        results = []
        for i, aval in enumerate(out_avals):
            source = forwarded.get(i)
            where = (partition.out_shardings[i], True) if partition is not None else (sharding, committed)
            if source is not None and isinstance(args[source], ScriptArray) and not donated[source]:
                is_same = where[0] is None or args[source].sharding.is_equivalent_to(
                    where[0], len(aval.shape)
                )
            else:
                is_same = False
            if source is not None and is_same:
                results.append(self._alias(args[source], aval))
            else:
                results.append(self.array(aval, recipes.Recipe(call, i), *where))
        session.returned(entry, results)
        return results

    def _moved(
        self, primitive: Any, args: list[Any], params: dict[str, Any], out_avals: Sequence[Any]
    ) -> list[Any]:
        """The same values, on the devices that the script asks for."""
        places: Sequence[Any] = (None,) * len(args)
        if self.session.placement is not None:
            places = params.get("devices", (params.get("sharding"),) * len(args))
        copies = params.get("copy_semantics", (None,) * len(args))
        results = []
        for arg, aval, place, copy in zip(args, out_avals, places, copies, strict=True):
            sharding = sharding_for(place)
            if not isinstance(arg, ScriptArray):
                results.append(self.array(aval, recipes.constant(arg), sharding, sharding is not None))
            elif sharding is None or arg.sharding.is_equivalent_to(sharding, len(aval.shape)):
                results.append(self._alias(arg, aval))
                results[-1].committed |= sharding is not None
            else:
                results.append(self.array(aval, arg.recipe, sharding, True))
                if getattr(copy, "name", "") == "DONATE_INPUT":
                    arg.buffer.free()
        if self.session.placement is not None:
            self.session.rest(primitive.name, results)
        return results

    def _compiled(self, primitive: Any, args: list[Any], params: dict[str, Any]) -> list[Any]:
        """An operation on arrays over several devices is compiled alone, as in JAX."""
        jitted = self.session.placement.jitted(primitive, params)
        with compat.set_current_trace(self):
            result = jitted(*args)
        return list(result) if primitive.multiple_results else [result]

    def _storage(self, arg: Any) -> Buffer | int:
        """The buffer of an argument, or the bytes of a host array that is copied for one call."""
        if isinstance(arg, ScriptArray):
            if arg.buffer.deleted:
                raise RuntimeError("Array has been deleted or donated.")  # as JAX does
            return arg.buffer
        if isinstance(arg, jax.Array) and not compat.is_tracer(arg):
            return self.session.real_array(arg)
        return bytes_of(compat.aval_of(arg))

    def array(self, aval: Any, recipe: recipes.Recipe, sharding: Any = None, committed: bool = False) -> Any:
        """A new array. sharding: where it is, by default on the first device."""
        placement = self.session.placement
        if sharding is None:
            sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            if placement is not None:
                sharding = placement.default()
        size = 0 if compat.on_host(aval) or sharding.memory_kind == _HOST else bytes_of(aval)
        if size and placement is not None:
            aval = compat.on_mesh(aval, sharding)
            size = shard_bytes(aval, sharding)
        buffer = self.session.buffer(size, FIRST if placement is None else device_numbers(sharding))
        return ScriptArray(self, aval, buffer, recipe, sharding, committed)

    def _alias(self, array: ScriptArray, aval: Any) -> ScriptArray:
        return ScriptArray(self, aval, array.buffer, array.recipe, array.sharding, array.committed)

    def shard(self, array: ScriptArray, device: Any) -> ScriptArray:
        """The part of an array on one device; it shares the array's storage."""
        aval = compat.aval_of(jax.ShapeDtypeStruct(array.sharding.shard_shape(array.shape), array.dtype))
        sharding = jax.sharding.SingleDeviceSharding(device)
        return ScriptArray(self, aval, array.buffer, recipes.constant(None), sharding, True)

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


def _is_divided(args: Sequence[Any]) -> bool:
    """Whether an argument is on several devices, or two are on different ones."""
    devices = {
        d for arg in args if isinstance(arg, ScriptArray) and arg.committed for d in arg.buffer.devices
    }
    return len(devices) > 1
