"""How an array of a script was computed, so that values which are read can be computed where that is cheap.

Nothing is computed while the script runs. When it reads a value (a counter, an index, a random
permutation), the operations behind this value alone are run on the CPU, if all of them start from data or
constants and are small. Values behind a matrix product or a large program stay unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.tracing import JITS

_ELEMENTS = 1 << 24  # most elements that one recipe may compute
_DEPTH = 150
_EXPENSIVE = frozenset({"dot_general", "conv_general_dilated", "scan", "while", "custom_call", "eigh", "svd"})


class Call:
    """One operation with the recipes of its inputs; its outputs share it."""

    __slots__ = ("inputs", "params", "primitive")

    def __init__(self, primitive: Any, params: dict[str, Any], inputs: Sequence[Recipe]) -> None:
        self.primitive, self.params, self.inputs = primitive, params, inputs


class Recipe:
    """Output `index` of a call, or a value that is known (`call` is None) or unknown (both are None)."""

    __slots__ = ("call", "index", "value")

    def __init__(self, call: Call | None, index: int = 0, value: Any = None) -> None:
        self.call, self.index, self.value = call, index, value

    def compute(self, depth: int = 0) -> Any:
        """The value, or None if it is unknown or too expensive."""
        if self.value is None and self.call is not None:
            call, self.call = self.call, None  # asked once: unknown stays unknown
            if depth < _DEPTH:
                self.value = _compute(call, self.index, depth)
        return self.value


def constant(value: Any) -> Recipe:
    return Recipe(None, value=None if compat.is_tracer(value) else value)


def of(arg: Any) -> Recipe:
    recipe = getattr(arg, "recipe", None)
    return recipe if isinstance(recipe, Recipe) else constant(arg)


def _compute(call: Call, index: int, depth: int) -> Any:
    primitive, params = call.primitive, call.params
    if primitive.name in JITS:
        part = _part(params["jaxpr"], index)
        if part is None:
            return None
        run, used = part
    elif primitive.name in _EXPENSIVE:
        return None
    else:
        run, used = None, [True] * len(call.inputs)
    inputs = []
    for recipe, needed in zip(call.inputs, used, strict=True):
        value = recipe.compute(depth + 1) if needed else None
        if needed and (value is None or np.size(value) > _ELEMENTS):
            return None
        inputs.append(value)
    with compat.evaluating():
        if run is not None:
            return run(*[value for value, needed in zip(inputs, used, strict=True) if needed])[0]
        result = primitive.bind(*inputs, **params)
    return result[index] if primitive.multiple_results else result


@cache
def _part(closed_jaxpr: Any, index: int) -> tuple[Any, list[bool]] | None:
    """A function for one output of a program, and the inputs it uses; None if it is expensive."""
    jaxpr, used = compat.only_output(closed_jaxpr, index)
    return (jax.jit(jaxpr_as_fun(jaxpr)), used) if _elements(jaxpr.jaxpr) <= _ELEMENTS else None


def _elements(jaxpr: Any) -> float:
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _EXPENSIVE or compat.mesh_size(eqn) > 1:
            return math.inf  # collectives between devices of the CPU wait for each other
        total += sum(math.prod(getattr(var.aval, "shape", ())) for var in eqn.outvars)
        for inner in compat.inner_jaxprs(eqn):
            total += _elements(inner)
    return total
