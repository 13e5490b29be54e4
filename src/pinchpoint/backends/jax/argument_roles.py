"""Roles of a step's arguments (weights, optimizer, inputs), guessed from their names.

JAX passes weights, optimizer state and data alike as arguments, so only the names distinguish them:
`params`, `weights` and similar names, or an attribute of that name (`state.params`), are weights;
`opt_state` and similar names are optimizer state; the rest, and every captured array, are inputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from pinchpoint.backends.jax.program import Op, Program
from pinchpoint.backends.jax.tracing import TracedStep

Role = Literal["weights", "optimizer", "inputs"]

WEIGHTS = frozenset({"params", "parameters", "weights", "variables", "theta", "model"})
OPTIMIZER = frozenset({"opt_state", "optimizer_state", "optim_state", "optimizer", "opt", "momentum"})
_WORD = re.compile(r"[A-Za-z_]\w*")


def role_of(name: str) -> Role:
    """The role named by the first word of a path (`state.opt_state[0].mu['w']`) that names one."""
    for word in _WORD.findall(name):
        if word in WEIGHTS:
            return "weights"
        if word in OPTIMIZER:
            return "optimizer"
    return "inputs"


def roles(traced_step: TracedStep) -> tuple[Role, ...]:
    """One role for each input of the step."""
    return (*("inputs" for _ in traced_step.captured_arrays), *(role_of(name) for name in traced_step.names))


def trains(traced_step: TracedStep, program: Program) -> bool:
    """Whether the step runs a backward pass and returns a gradient or a new value for each weight.

    Outputs are matched with weights by shape and dtype. If no argument is named as weights, one
    floating-point input that matches an output is enough.
    """
    if not any(op.phase == "backward" for op in _operations(program)):
        return False
    outputs = Counter(_type(aval) for aval in traced_step.closed_jaxpr.out_avals)
    kinds = roles(traced_step)
    avals = (*traced_step.captured_arrays, *traced_step.closed_jaxpr.in_avals)
    weights = [_type(aval) for aval, kind in zip(avals, kinds, strict=True) if kind == "weights"]
    if weights:
        return not Counter(weights) - outputs
    return any(_type(aval) in outputs for aval in avals if aval.shape and aval.dtype.kind not in "iub")


def _operations(program: Program) -> Iterable[Op]:
    for op in program.ops:
        yield op
        for body in op.bodies:
            yield from _operations(body.program)


def _type(aval: Any) -> tuple[tuple[int, ...], str]:
    return tuple(aval.shape), str(aval.dtype)
