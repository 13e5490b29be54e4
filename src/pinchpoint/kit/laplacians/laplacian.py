"""The Laplacian of a scalar function at one point or at many in chunks, and the kinetic energy (JAX).

Letters: B points, s the shape of a point (a walker: n electrons x 3). Nothing is jitted here; the caller's
`jax.jit` includes it. The methods are in `derivatives`, their memory in `chunk_plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.laplacians.chunk_plan import choose_method, is_positive_integer, plan_laplacian
from pinchpoint.kit.laplacians.derivatives import (
    FUNCTIONS,
    Function,
    Laplace,
    Method,
    MethodChoice,
    check_method,
    check_point,
    fastest_method,
)


def laplacian(
    f: Function, method: MethodChoice = "auto", *, points: int = 1, budget: str | int | None = None
) -> Callable[[Any], Laplace]:
    """Return a function of one point that gives f's value, gradient and Laplacian; `jax.vmap` it for many.

    f: (s) -> a real scalar, written in JAX. method: `auto` is `forward` (without folx `hessian` for few
    coordinates, else `loop`), and `loop` if `points` together are predicted to exceed the budget. points: how
    many points are processed together, used only by `auto`. budget: bytes, such as 8GiB; the default is a
    share of the device's memory.
    """
    check_method(f, method)
    if not is_positive_integer(points):
        raise BadInput(
            f"`points` is {points!r}, not a positive whole number.",
            hint="Give points a whole number above 0.",
        )

    def evaluate(x: Any) -> Laplace:
        x = check_point(f, x)
        if method != "auto":
            name: Method = method
        elif budget is None and points == 1:
            name = fastest_method(math.prod(x.shape))
        else:
            name = choose_method(f, jax.ShapeDtypeStruct(x.shape, x.dtype), points=points, budget=budget)
        return FUNCTIONS[name](f, x)

    return evaluate


def laplacian_of_batch(
    f: Function,
    xs: Any,
    *,
    method: MethodChoice = "auto",
    chunk: int | Literal["auto"] | None = "auto",
    budget: str | int | None = None,
) -> Laplace:
    """Value, gradient and Laplacian at many points, one chunk at a time.

    xs: (B, s). Returns (B,), (B, s), (B,). chunk: points processed together; None: all; `auto`: as many as
    are predicted to fit the budget. method `auto` depends on the budget too. Inside `jax.jit` the chunks are
    iterations of one loop; the last may be shorter.
    """
    check_method(f, method)
    xs = jnp.asarray(xs)
    if xs.ndim < 1 or 0 in xs.shape:
        raise BadInput(
            f"The points have shape {xs.shape}, which contains no point.",
            hint="Give an array (points, ...) with at least one point.",
        )
    check_point(f, jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype))
    name, size = plan_laplacian(f, xs, method=method, chunk=chunk, budget=budget)
    each = laplacian(f, name)
    return jax.vmap(each)(xs) if size >= len(xs) else jax.lax.map(each, xs, batch_size=size)


def kinetic_energy(log_psi: Function, x: Any, *, method: MethodChoice = "auto") -> Any:
    """-(lap log|psi| + |grad log|psi||^2) / 2 at one walker, in hartree. x: (n, 3) in bohr."""
    result = laplacian(log_psi, method)(x)
    return -0.5 * (result.laplacian + jnp.sum(result.gradient**2))
