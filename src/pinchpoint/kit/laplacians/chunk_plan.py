"""Which Laplacian and how many points at one time, by the bytes they are predicted to take.

The prediction is the engine's: the program of the method is traced for a few points, nothing is computed, and its peak found
by the last use of each value. What grows with the points is the slope between two such traces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from pinchpoint.backends.jax.liveness import walk
from pinchpoint.backends.jax.program import read_program
from pinchpoint.backends.jax.tracing import trace
from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import GIB, parse_bytes
from pinchpoint.kit.laplacians.derivatives import METHODS, WAYS, Asked, Function, Method, fastest
from pinchpoint.planning.chunk_size import largest_chunk

TRACED = (8, 16)  # points of the two traces
LEAST = (
    32  # points at one time below which the quicker method loses its advantage: `auto` then takes the loop
)
SHARE = (
    0.25  # of the device's memory, where no budget is given: walkers, weights and the optimizer need theirs
)
ELSEWHERE = GIB  # where the device does not say what it has, as a CPU


@dataclass(frozen=True)
class Cost:
    """Predicted peak of a method: fixed_bytes + bytes_per_point x points."""

    method: Method
    fixed_bytes: int
    bytes_per_point: int

    def bytes(self, points: int) -> int:
        return self.fixed_bytes + self.bytes_per_point * points


def predicted_cost(f: Function, point: Any, method: Method) -> Cost:
    """Bytes of a method by points. point: anything with the shape and dtype of one; nothing is computed."""
    if method not in METHODS:
        raise BadInput(f"there is no Laplacian method {method!r}", hint=f"use one of: {', '.join(METHODS)}")
    few, more = (_peak(f, point, method, count) for count in TRACED)
    slope = max(1, math.ceil((more - few) / (TRACED[1] - TRACED[0])))
    return Cost(method, max(0, few - slope * TRACED[0]), slope)


def choose(f: Function, point: Any, *, points: int, budget: str | int | None) -> Method:
    """The quickest method whose peak for `points` at one time stays inside the budget; else the one that takes least."""
    allowed = budget_bytes(budget)
    first = fastest(math.prod(point.shape))
    if first == "loop" or predicted_cost(f, point, first).bytes(points) <= allowed:
        return first
    return "loop"


def plan_laplacian(
    f: Function,
    xs: Any,
    *,
    method: Asked = "auto",
    chunk: int | Literal["auto"] | None = "auto",
    budget: str | int | None = None,
) -> tuple[Method, int]:
    """The method and the points at one time for xs: (B, s). Raises `DoesNotFit` where the budget is below one point."""
    count, point = xs.shape[0], jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
    if chunk != "auto":
        if chunk is not None and not whole(chunk):
            raise BadInput(
                f"a chunk of {chunk!r} points",
                hint='give chunk a whole number above 0, "auto", or None for all at once',
            )
        size = count if chunk is None else min(int(chunk), count)
        return (choose(f, point, points=size, budget=budget) if method == "auto" else method), size
    allowed = budget_bytes(budget)
    if method != "auto":
        return method, min(count, _largest(predicted_cost(f, point, method), allowed))
    first = predicted_cost(f, point, fastest(math.prod(point.shape)))
    fits = (allowed - first.fixed_bytes) // first.bytes_per_point
    if fits >= min(count, LEAST) or first.method == "loop":
        return first.method, min(count, _largest(first, allowed))
    return "loop", min(count, _largest(predicted_cost(f, point, "loop"), allowed))


def budget_bytes(budget: str | int | None) -> int:
    """The bytes that may be used: as given, or a share of what the device says it has."""
    if budget is not None:
        return parse_bytes(budget)
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(SHARE * stats["bytes_limit"]) if "bytes_limit" in stats else ELSEWHERE


def _largest(cost: Cost, allowed: int) -> int:
    return largest_chunk(
        fixed_bytes=cost.fixed_bytes, bytes_per_point=cost.bytes_per_point, budget_bytes=allowed
    )


def _peak(f: Function, point: Any, method: Method, count: int) -> int:
    many = jax.ShapeDtypeStruct((count, *point.shape), point.dtype)
    return walk(read_program(trace(jax.vmap(lambda x: WAYS[method](f, x)), (many,)))).peak_bytes


def whole(value: Any) -> bool:
    """A number of points: a whole number above 0, numpy's too."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)
