"""`ProgramSizes`: what one program of a script adds to the arrays around it, by a liveness walk.

A program is a compiled function, or a single operation outside one, which JAX compiles alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.argument_roles import Role, roles, trains
from pinchpoint.backends.jax.library_memory import (
    divided_scratch_bytes,
    divided_tuning_bytes,
    scratch_bytes,
    tuning_bytes,
)
from pinchpoint.backends.jax.liveness import Walk, walk
from pinchpoint.backends.jax.primitives import FUSED, SCRATCH, kind_of
from pinchpoint.backends.jax.program import assign_phases, bytes_of, read_program
from pinchpoint.backends.jax.sharded.partitioning import GpuLowering, Partition
from pinchpoint.backends.jax.sharded.schedule import best_order
from pinchpoint.backends.jax.tracing import JITS, TracedStep, traced_program


@dataclass(frozen=True)
class ProgramSizes:
    """Bytes that a program needs beside its arguments.

    traced: for XLA's analysis; None for an operation without temporaries.
    added_bytes, most_added_bytes: outputs and temporaries, with XLA's fusions and without any.
    tuning: scratch while XLA compiles and tries kernels: usual and most.
    scratch_bytes: the most that library calls may take while they run, beside the products' workspace.
    captured_bytes: arrays that were compiled into the program and stay on the device.
    unknown: functions of other libraries that it calls.
    products: whether it has matrix products or convolutions, as a model has.
    lowering, sorts: of a program over several devices, for XLA's analysis; and the scratch of its sorts.
    """

    traced: TracedStep | None
    argument_bytes: int
    output_bytes: int
    added_bytes: int
    most_added_bytes: int
    walk: Walk | None = None
    roles: tuple[Role, ...] = ()
    state: tuple[int, ...] = ()  # positions of arguments that have an output of the same type
    trains: bool = False
    products: bool = False
    tuning: tuple[int, int] = (0, 0)
    captured_bytes: int = 0
    scratch_bytes: int = 0
    unknown: tuple[str, ...] = ()
    lowering: GpuLowering | None = None
    sorts: int | None = None


def sizes_of(
    primitive: Any,
    args: Sequence[Any],
    params: dict[str, Any],
    out_avals: Sequence[Any],
    workspace_bytes: int,
) -> ProgramSizes:
    in_avals = [compat.aval_of(arg) for arg in args]
    arguments, outputs = sum(map(bytes_of, in_avals)), sum(map(bytes_of, out_avals))
    name = primitive.name
    is_simple = kind_of(name) in (*FUSED, "alias", "reduce", "update") and name not in SCRATCH
    on_reference = any(hasattr(aval, "inner_aval") for aval in (*in_avals, *out_avals))
    if name not in JITS and (is_simple or on_reference or not out_avals):
        return ProgramSizes(None, arguments, outputs, outputs, outputs)
    if name in JITS:
        closed_jaxpr, donated = params["jaxpr"], params.get("donated_invars", ())
    else:
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) if hasattr(a, "shape") else a for a in in_avals]
        closed_jaxpr, donated = jax.make_jaxpr(lambda *xs: primitive.bind(*xs, **params))(*structs), ()
    traced = traced_program(closed_jaxpr, donated)
    program = read_program(traced)
    training = name in JITS and trains(traced, program)
    program = assign_phases(program, trains=training)
    fused = walk(program, workspace_bytes=workspace_bytes)
    plain = walk(program, fused=False, workspace_bytes=workspace_bytes)
    captured = sum(_bytes(array) for array in traced.captured_arrays)
    return ProgramSizes(
        traced,
        arguments,
        outputs,
        fused.peak_bytes - program.input_bytes,
        max(fused.peak_bytes, plain.peak_bytes) - program.input_bytes,
        fused,
        roles(traced)[len(traced.captured_arrays) :],
        _state(traced),
        training,
        _has_products(closed_jaxpr.jaxpr),
        tuning_bytes(closed_jaxpr.jaxpr),
        captured,
        scratch_bytes(closed_jaxpr.jaxpr),
        tuple(sorted(_foreign_calls(closed_jaxpr.jaxpr))),
    )


def sizes_of_partition(partition: Partition, params: dict[str, Any], workspace_bytes: int) -> ProgramSizes:
    """The same for a program over several devices, on each of them."""
    closed_jaxpr = params["jaxpr"]
    traced = traced_program(closed_jaxpr, params.get("donated_invars", ()))
    hlo = partition.hlo
    program = best_order(hlo.program)
    training = trains(traced, program)
    program = assign_phases(program, trains=training)
    fused = walk(program, workspace_bytes=workspace_bytes)
    plain = walk(program, fused=False, workspace_bytes=workspace_bytes)
    outputs = sum(program.sizes[v] for v in program.outputs)
    return ProgramSizes(
        traced,
        program.input_bytes,
        outputs,
        fused.peak_bytes - program.input_bytes,
        max(fused.peak_bytes, plain.peak_bytes) - program.input_bytes,
        fused,
        roles(traced)[len(traced.captured_arrays) :],
        _state(traced),
        training,
        bool(hlo.products or hlo.convolutions),
        divided_tuning_bytes(hlo.products, hlo.convolutions),
        sum(_bytes(array) for array in traced.captured_arrays),
        divided_scratch_bytes(hlo.convolutions, hlo.sorts, hlo.library_bytes),
        tuple(sorted(_foreign_calls(closed_jaxpr.jaxpr))),
        partition.lowering,
        hlo.sorts,
    )


def _bytes(array: Any) -> int:
    return int(getattr(array, "nbytes", 0))


def _state(traced: TracedStep) -> tuple[int, ...]:
    free: dict[Any, int] = {}
    for aval in traced.closed_jaxpr.out_avals:
        key = (getattr(aval, "shape", ()), str(getattr(aval, "dtype", "")))
        free[key] = free.get(key, 0) + 1
    positions = []
    for i, aval in enumerate(traced.closed_jaxpr.in_avals):
        key = (getattr(aval, "shape", ()), str(getattr(aval, "dtype", "")))
        if free.get(key, 0) > 0:
            free[key] -= 1
            positions.append(i)
    return tuple(positions)


def _foreign_calls(jaxpr: Any) -> set[str]:
    """Functions of other libraries that a program calls, which may allocate on their own."""
    names = {str(eqn.params.get("target_name", "")) for eqn in jaxpr.eqns if eqn.primitive.name == "ffi_call"}
    return names.union(*(_foreign_calls(inner) for eqn in jaxpr.eqns for inner in compat.inner_jaxprs(eqn)))


def _has_products(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in ("dot_general", "conv_general_dilated")
        or any(_has_products(inner) for inner in compat.inner_jaxprs(eqn))
        for eqn in jaxpr.eqns
    )
