"""`Program`: a closed jaxpr as one flat list of operations on numbered values.

Calls (jit, remat, custom derivatives) are inlined, as XLA inlines them; bitcasts share their
input's value; operations whose results are unused are dropped. Loops and branches stay single
operations that carry their bodies. A program holds byte counts and source lines only, so `liveness`
needs no JAX.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.primitives import CALLS, LOOPS, SCRATCH, Kind, kind_of
from pinchpoint.backends.jax.tracing import TracedStep

_TRANSFORM = re.compile(r"(transpose|jvp)\(")
_JAXPR_KEYS = ("jaxpr", "call_jaxpr", "fun_jaxpr")

Ref = int | None  # a value's number; None is a scalar constant, which costs nothing


@dataclass(frozen=True)
class Op:
    """One operation. phase: "forward" or "backward", or "" if the name stack does not say."""

    name: str
    kind: Kind
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    file: str = ""
    line: int = 0
    phase: str = ""
    bodies: tuple[Body, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()  # (input, output): the output may take the input's storage


@dataclass(frozen=True)
class Program:
    """Operations on values. sizes[v]: bytes of value v, or 0 if the enclosing program counts them."""

    sizes: tuple[int, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: frozenset[int] = frozenset()
    unknown: tuple[str, ...] = ()  # primitives whose bodies were not examined
    scratch: tuple[str, ...] = ()  # primitives whose library uses memory that this program does not show

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs, each counted once."""
        return sum(self.sizes[value] for value in dict.fromkeys(self.inputs))


@dataclass(frozen=True)
class Body:
    """The program of a loop or branch. The enclosing operation counts `shared_bytes` of its peak."""

    program: Program
    shared_bytes: int


def read_program(traced_step: TracedStep) -> Program:
    """Flatten a traced step. The inputs are the step's captured arrays followed by its arguments."""
    closed_jaxpr = traced_step.closed_jaxpr
    build = _Builder()
    for array in traced_step.captured_arrays:
        build.constant(array)
    consts = [build.constant(value) for value in closed_jaxpr.consts]
    args = [build.value(bytes_of(var.aval)) for var in closed_jaxpr.jaxpr.invars]
    outs = build.inline(closed_jaxpr.jaxpr, consts, args, _Place())
    inputs = (
        *build.constants[: len(traced_step.captured_arrays)],
        *args,
        *build.constants[len(traced_step.captured_arrays) :],
    )
    results = tuple(dict.fromkeys(v for v in outs if v is not None))
    donated = frozenset(inputs[i] for i in traced_step.donated)
    unknown, scratch = tuple(sorted(build.unknown)), tuple(sorted(build.scratch))
    return Program(
        tuple(build.sizes), drop_dead(build.ops, results), inputs, results, donated, unknown, scratch
    )


def assign_phases(program: Program, *, trains: bool) -> Program:
    """Give every operation a phase; a training step's optimizer follows its last backward operation."""
    backward = [i for i, op in enumerate(program.ops) if op.phase == "backward"]
    after = backward[-1] if backward and trains else len(program.ops)
    return _assign_phases(program, lambda i: "optimizer" if i > after else "forward")


def phase_of(name_stack: str) -> str:
    """The phase that JAX's name stack of an operation tells, or ""."""
    match = _TRANSFORM.search(name_stack)
    # The outermost transform decides: a gradient inside a differentiated forward pass is forward.
    return "" if match is None else "backward" if match.group(1) == "transpose" else "forward"


def _assign_phases(program: Program, phase_of: Callable[[int], str]) -> Program:
    ops: list[Op] = []
    for i, op in enumerate(program.ops):
        phase = op.phase or phase_of(i)
        bodies = tuple(
            replace(b, program=_assign_phases(b.program, lambda _, phase=phase: phase)) for b in op.bodies
        )
        ops.append(replace(op, phase=phase, bodies=bodies))
    return replace(program, ops=tuple(ops))


def bytes_of(aval: Any) -> int:
    """Bytes of an array of this type; 0 for tokens and other values without a shape."""
    aval = getattr(aval, "inner_aval", aval)
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        return 0
    return math.prod(aval.shape) * aval.dtype.itemsize


@dataclass(frozen=True)
class _Place:
    """Source line and phase of an inlined equation, for equations that carry none themselves."""

    file: str = ""
    line: int = 0
    phase: str = ""

    def of(self, eqn: Any) -> _Place:
        file, line = compat.user_line(eqn.source_info)
        phase = phase_of(str(eqn.source_info.name_stack))
        return _Place(file or self.file, line or self.line, self.phase or phase)


@dataclass
class _Builder:
    sizes: list[int] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    scratch: set[str] = field(default_factory=set)
    # id -> (value, array); the reference to the array keeps its id from being reused
    _values: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def value(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def constant(self, array: Any) -> Ref:
        """The value of a captured array; an array that is captured several times is one value."""
        if not getattr(array, "shape", ()):
            return None
        if id(array) not in self._values:
            number = self.value(bytes_of(array))
            self.constants.append(number)
            self._values[id(array)] = (number, array)
        return self._values[id(array)][0]

    def inline(self, jaxpr: Any, consts: Sequence[Ref], args: Sequence[Ref], place: _Place) -> list[Ref]:
        env: dict[Any, Ref] = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(
            zip(jaxpr.invars, args, strict=True)
        )

        def ref(atom: Any) -> Ref:
            return self.constant(atom.val) if compat.is_literal(atom) else env[atom]

        for eqn in jaxpr.eqns:
            env.update(
                zip(
                    eqn.outvars, self._equation(eqn, [ref(a) for a in eqn.invars], place.of(eqn)), strict=True
                )
            )
        return [ref(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, ins: list[Ref], place: _Place) -> list[Ref]:
        name = eqn.primitive.name
        if name in CALLS and (callee := _callee(eqn)) is not None:
            jaxpr, consts = callee
            return self.inline(jaxpr, [self.constant(c) for c in consts], ins, place)
        sizes = [bytes_of(var.aval) for var in eqn.outvars]
        kind = kind_of(name)
        if kind == "alias" or (kind == "cheap" and len(sizes) == 1 and _keeps_layout(eqn)):
            same = all(ref is None or self.sizes[ref] == size for ref, size in zip(ins, sizes, strict=False))
            if same and len(ins) >= len(sizes):
                return ins[: len(sizes)]
            kind = "cheap"  # not an alias, because the element size changes
        if name in SCRATCH:
            self.scratch.add(name)
        outs = [self.value(size) for size in sizes]
        inputs = tuple(dict.fromkeys(v for v in ins if v is not None))
        op = Op(name, kind, inputs, tuple(outs), place.file, place.line, place.phase)
        if name in LOOPS:
            op = _LOOP[name](self, eqn, ins, outs, op, place)
        elif kind == "update":
            op = replace(op, in_place=_pairs(ins[:1], outs))
        elif kind == "opaque" and any(_jaxprs(eqn)):
            self.unknown.add(name)
        self.ops.append(op)
        return list(outs)

    def body(
        self,
        closed_jaxpr: Any,
        *,
        outer: Sequence[int],
        carry: Sequence[int],
        slices: Sequence[int],
        stacked: int,
        place: _Place,
    ) -> Program:
        """The program of a body.

        outer, carry, slices: positions of its inputs that belong to the caller, that may be overwritten,
        and that are sliced from the caller's arrays in each iteration
        stacked: how many of its last outputs are written into the caller's arrays
        """
        build = _Builder(unknown=self.unknown, scratch=self.scratch)
        jaxpr = closed_jaxpr.jaxpr
        args = [build.value(0 if i in outer else bytes_of(var.aval)) for i, var in enumerate(jaxpr.invars)]
        consts = [build.constant(value) for value in closed_jaxpr.consts]
        if slices:
            whole = build.value(0)
            build.ops.append(
                Op(
                    "slice",
                    "costly",
                    (whole,),
                    tuple(args[i] for i in slices),
                    place.file,
                    place.line,
                    place.phase,
                )
            )
        outs = build.inline(jaxpr, consts, args, place)
        results = [v for v in outs[: len(outs) - stacked] if v is not None]
        stacked_results = [v for v in outs[len(outs) - stacked :] if v is not None]
        stores = {value: build.value(0) for value in stacked_results}
        build.ops = _store(build.ops, stores, place)
        results += stores.values()
        for constant in build.constants:
            build.sizes[constant] = 0
        return Program(
            tuple(build.sizes),
            drop_dead(build.ops, results),
            tuple(args[i] for i in carry),
            tuple(dict.fromkeys(results)),
            donated=frozenset(args[i] for i in carry),
        )


def _scan(build: _Builder, eqn: Any, ins: list[Ref], outs: list[int], op: Op, place: _Place) -> Op:
    consts, carry_count = compat.scan_counts(eqn.params, len(ins))
    carry = range(consts, consts + carry_count)
    program = build.body(
        eqn.params["jaxpr"],
        outer=range(consts),
        carry=carry,
        slices=range(consts + carry_count, len(ins)),
        stacked=len(outs) - carry_count,
        place=place,
    )
    shared_bytes = sum(build.sizes[v] for v in outs[:carry_count])
    return replace(
        op, bodies=(Body(program, shared_bytes),), in_place=_pairs(ins[consts : consts + carry_count], outs)
    )


def _while(build: _Builder, eqn: Any, ins: list[Ref], outs: list[int], op: Op, place: _Place) -> Op:
    params = eqn.params
    carry_count, shared_bytes = len(outs), sum(build.sizes[v] for v in outs)
    programs = []
    for key in ("cond", "body"):
        consts = params[f"{key}_nconsts"]
        carry = range(consts, consts + carry_count)
        programs.append(
            build.body(
                params[f"{key}_jaxpr"], outer=range(consts), carry=carry, slices=(), stacked=0, place=place
            )
        )
    first = params["cond_nconsts"] + params["body_nconsts"]
    return replace(
        op, bodies=tuple(Body(p, shared_bytes) for p in programs), in_place=_pairs(ins[first:], outs)
    )


def _cond(build: _Builder, eqn: Any, ins: list[Ref], outs: list[int], op: Op, place: _Place) -> Op:
    programs = [
        build.body(branch, outer=range(len(ins) - 1), carry=(), slices=(), stacked=0, place=place)
        for branch in eqn.params["branches"]
    ]
    shared_bytes = sum(build.sizes[v] for v in outs)
    return replace(op, bodies=tuple(Body(p, shared_bytes) for p in programs))


_LOOP = {"scan": _scan, "while": _while, "cond": _cond}


def _store(ops: Sequence[Op], stores: dict[int, int], place: _Place) -> list[Op]:
    """Write each value of `stores` into its array as soon as it exists."""

    def store_ops(values: Iterable[int]) -> list[Op]:
        return [
            Op("store", "update", (v,), (stores[v],), place.file, place.line, place.phase)
            for v in values
            if v in stores
        ]

    outputs = {value for op in ops for value in op.outs}
    first = store_ops(value for value in stores if value not in outputs)
    return first + [step for op in ops for step in (op, *store_ops(op.outs))]


def _pairs(ins: Sequence[Ref], outs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a, b in zip(ins, outs, strict=False) if a is not None)


def _callee(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    for key in _JAXPR_KEYS:
        param = eqn.params.get(key)
        inner = getattr(param, "jaxpr", param)
        if hasattr(inner, "eqns") and len(inner.invars) == len(eqn.invars):
            return inner, getattr(param, "consts", ())
    return None


def _jaxprs(eqn: Any) -> Iterable[Any]:
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def _keeps_layout(eqn: Any) -> bool:
    """Whether no data moves: a broadcast that only adds axes of length one, or a cast to the same dtype."""
    if eqn.primitive.name == "convert_element_type":
        return eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    return eqn.primitive.name == "broadcast_in_dim" and math.prod(eqn.invars[0].aval.shape) == math.prod(
        eqn.outvars[0].aval.shape
    )


def drop_dead(ops: Sequence[Op], outputs: Sequence[int]) -> tuple[Op, ...]:
    """Drop operations that no output needs, as XLA does."""
    live_values = set(outputs)
    alive: list[Op] = []
    for op in reversed(ops):
        if live_values.intersection(op.outs) or not op.outs:
            live_values.update(op.ins)
            alive.append(op)
    return tuple(reversed(alive))
