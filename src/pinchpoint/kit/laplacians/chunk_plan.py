"""Choice of the Laplacian method and the chunk of points, from the predicted bytes.

The program of a method is traced for a few points without computing anything, and its peak follows from the
last use of each value. The bytes per point are the slope between two such traces.
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
from pinchpoint.kit.laplacians.derivatives import (
    FUNCTIONS,
    METHODS,
    Function,
    Method,
    MethodChoice,
    fastest_method,
)
from pinchpoint.planning.chunk_size import largest_chunk

TRACE_SIZES = (8, 16)  # points of the two traces
# Points in a chunk below which the faster method loses its advantage: `auto` then uses the loop.
MIN_FAST_CHUNK = 32
# The default budget as a share of the device's memory; walkers, weights and the optimizer need the rest.
DEFAULT_SHARE = 0.25
DEFAULT_BUDGET_BYTES = GIB  # used if the device, such as a CPU, does not report its memory


@dataclass(frozen=True)
class Cost:
    """The predicted peak of a method: fixed_bytes + bytes_per_point x points."""

    method: Method
    fixed_bytes: int
    bytes_per_point: int

    def bytes(self, points: int) -> int:
        return self.fixed_bytes + self.bytes_per_point * points


def predicted_cost(f: Function, point: Any, method: Method) -> Cost:
    """Predict the bytes of a method.

    point: anything with the shape and dtype of one point; nothing is computed.
    """
    if method not in METHODS:
        raise BadInput(
            f"The Laplacian method {method!r} does not exist.", hint=f"Use one of: {', '.join(METHODS)}."
        )
    few, more = (_peak(f, point, method, count) for count in TRACE_SIZES)
    slope = max(1, math.ceil((more - few) / (TRACE_SIZES[1] - TRACE_SIZES[0])))
    return Cost(method, max(0, few - slope * TRACE_SIZES[0]), slope)


def choose_method(f: Function, point: Any, *, points: int, budget: str | int | None) -> Method:
    """The fastest method if its peak for `points` fits the budget; else `loop`, which needs the least."""
    limit_bytes = budget_bytes(budget)
    first = fastest_method(math.prod(point.shape))
    if first == "loop" or predicted_cost(f, point, first).bytes(points) <= limit_bytes:
        return first
    return "loop"


def plan_laplacian(
    f: Function,
    xs: Any,
    *,
    method: MethodChoice = "auto",
    chunk: int | Literal["auto"] | None = "auto",
    budget: str | int | None = None,
) -> tuple[Method, int]:
    """The method and the chunk for xs: (B, s). Raises `DoesNotFit` if one point exceeds the budget."""
    count, point = xs.shape[0], jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
    if chunk != "auto":
        if chunk is not None and not is_positive_integer(chunk):
            raise BadInput(
                f"The chunk is {chunk!r}, not a positive whole number of points.",
                hint='Give chunk a whole number above 0, "auto", or None for all points at once.',
            )
        size = count if chunk is None else min(int(chunk), count)
        return (choose_method(f, point, points=size, budget=budget) if method == "auto" else method), size
    limit_bytes = budget_bytes(budget)
    if method != "auto":
        return method, min(count, _largest(predicted_cost(f, point, method), limit_bytes))
    first = predicted_cost(f, point, fastest_method(math.prod(point.shape)))
    fits = (limit_bytes - first.fixed_bytes) // first.bytes_per_point
    if fits >= min(count, MIN_FAST_CHUNK) or first.method == "loop":
        return first.method, min(count, _largest(first, limit_bytes))
    return "loop", min(count, _largest(predicted_cost(f, point, "loop"), limit_bytes))


def budget_bytes(budget: str | int | None) -> int:
    """The budget in bytes; None means a share of the memory that the device reports."""
    if budget is not None:
        return parse_bytes(budget)
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(DEFAULT_SHARE * stats["bytes_limit"]) if "bytes_limit" in stats else DEFAULT_BUDGET_BYTES


def _largest(cost: Cost, limit_bytes: int) -> int:
    return largest_chunk(
        fixed_bytes=cost.fixed_bytes, bytes_per_point=cost.bytes_per_point, budget_bytes=limit_bytes
    )


def _peak(f: Function, point: Any, method: Method, count: int) -> int:
    many = jax.ShapeDtypeStruct((count, *point.shape), point.dtype)
    return walk(read_program(trace(jax.vmap(lambda x: FUNCTIONS[method](f, x)), (many,)))).peak_bytes


def is_positive_integer(value: Any) -> bool:
    """Whether the value is a positive integer, NumPy integers included."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value > 0)
