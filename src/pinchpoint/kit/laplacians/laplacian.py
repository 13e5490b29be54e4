"""The Laplacian of a scalar function at one point, or at many in chunks, and the kinetic energy it gives (JAX).

Letters: B points, s the shape of a point (a walker: n electrons x 3). Nothing is jitted here: the caller's program takes it in.
How each method works is in `derivatives`, what it takes in `laplace_plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.laplacians.chunk_plan import choose, plan_laplacian, whole
from pinchpoint.kit.laplacians.derivatives import (
    WAYS,
    Asked,
    Function,
    Laplace,
    Method,
    check_method,
    checked,
    fastest,
)


def laplacian(
    f: Function, method: Asked = "auto", *, points: int = 1, budget: str | int | None = None
) -> Callable[[Any], Laplace]:
    """A function of one point that gives f's value, gradient and Laplacian there; `jax.vmap` it for many.

    f: (s) -> a real scalar, written in JAX. method: `auto` takes `forward` (without folx `hessian` for few coordinates,
    else `loop`), and `loop` where `points` at one time are predicted to pass the budget.
    points: how many go through at one time, for `auto` alone. budget: bytes, as 8GiB; left out, a share of the device's.
    """
    check_method(f, method)
    if not whole(points):
        raise BadInput(f"{points!r} points at one time", hint="give points a whole number above 0")

    def found(x: Any) -> Laplace:
        x = checked(f, x)
        if method != "auto":
            way: Method = method
        elif budget is None and points == 1:
            way = fastest(math.prod(x.shape))
        else:
            way = choose(f, jax.ShapeDtypeStruct(x.shape, x.dtype), points=points, budget=budget)
        return WAYS[way](f, x)

    return found


def laplacian_of_batch(
    f: Function,
    xs: Any,
    *,
    method: Asked = "auto",
    chunk: int | Literal["auto"] | None = "auto",
    budget: str | int | None = None,
) -> Laplace:
    """The same at many points, a chunk at a time. xs: (B, s). Gives (B,), (B, s), (B,).

    chunk: points at one time; None: all; `auto`: as many as the budget takes by prediction, where `auto` may also choose
    the method. Inside `jax.jit` the chunks are turns of one loop; the last may be shorter.
    """
    check_method(f, method)
    xs = jnp.asarray(xs)
    if xs.ndim < 1 or 0 in xs.shape:
        raise BadInput(
            f"points of shape {xs.shape}", hint="give an array (points, ...) of at least one point"
        )
    checked(f, jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype))
    way, size = plan_laplacian(f, xs, method=method, chunk=chunk, budget=budget)
    each = laplacian(f, way)
    return jax.vmap(each)(xs) if size >= len(xs) else jax.lax.map(each, xs, batch_size=size)


def kinetic_energy(log_psi: Function, x: Any, *, method: Asked = "auto") -> Any:
    """-(lap log|psi| + |grad log|psi||^2) / 2 at one walker, in hartree. x: (n, 3) in bohr."""
    found = laplacian(log_psi, method)(x)
    return -0.5 * (found.laplacian + jnp.sum(found.gradient**2))
