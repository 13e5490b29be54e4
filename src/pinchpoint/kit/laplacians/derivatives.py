"""Four methods for the value, gradient and Laplacian of a scalar function at one point (JAX).

Letters: s the shape of a point (a walker: n electrons x 3), d = prod(s) coordinates.

- `nested`: the gradient of a component of the gradient, built separately for every coordinate (naive)
- `hessian`: all d x d second derivatives, of which d are used
- `loop`: the gradient is linearised once, then applied to one coordinate after another
- `forward`: value, gradient and Laplacian are propagated together (folx's forward Laplacian)

They differ in time and memory, not in their results.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, util
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput, Missing

Method = Literal["nested", "hessian", "loop", "forward"]
MethodChoice = Literal["auto", "nested", "hessian", "loop", "forward"]
Function = Callable[[Any], Any]  # one point (s) -> a real scalar

METHODS: tuple[Method, ...] = get_args(Method)
HESSIAN_MOST = 12  # coordinates up to which a full Hessian is faster than the loop


class Laplace(NamedTuple):
    """The results at one point: scalar, (s), scalar; for a batch (B,), (B, s), (B,)."""

    value: Any
    gradient: Any
    laplacian: Any


def fastest_method(coordinates: int) -> Method:
    """The fastest method if memory is not limited."""
    if has_folx():
        return "forward"
    return "hessian" if coordinates <= HESSIAN_MOST else "loop"


def has_folx() -> bool:
    try:
        return util.find_spec("folx") is not None
    except ModuleNotFoundError:
        return False


def _nested(f: Function, x: Any) -> Laplace:
    flat, wide = _flat(f, x), x.reshape(-1)
    total = jnp.zeros((), x.dtype)
    for i in range(wide.shape[0]):
        # A gradient of a gradient for each coordinate, as FermiNeuT builds it: d separate programs.
        total = total + jax.grad(lambda y, i=i: jax.grad(flat)(y)[i])(wide)[i]
    return Laplace(f(x), jax.grad(f)(x), total)


def _hessian(f: Function, x: Any) -> Laplace:
    value, gradient = jax.value_and_grad(f)(x)
    return Laplace(value, gradient, jnp.trace(jax.hessian(_flat(f, x))(x.reshape(-1))))


def _loop(f: Function, x: Any) -> Laplace:
    wide = x.reshape(-1)
    (value, gradient), push = jax.linearize(jax.value_and_grad(_flat(f, x)), wide)
    basis = jnp.eye(wide.shape[0], dtype=x.dtype)
    zero = jnp.zeros((), gradient.dtype)
    total = jax.lax.fori_loop(0, wide.shape[0], lambda i, total: total + push(basis[i])[1][i], zero)
    return Laplace(value, gradient.reshape(x.shape), total)


def _forward(f: Function, x: Any) -> Laplace:
    try:
        folx = import_module("folx")
    except ModuleNotFoundError as error:
        raise Missing(
            "The forward Laplacian needs folx, which is not installed.",
            hint='Run pip install "pinchpoint[vmc]", or choose the method "loop".',
        ) from error
    # folx propagates derivatives through its own matrix products, which a GPU would compute in TF32, with a
    # 10-bit mantissa.
    with jax.default_matmul_precision("highest"):
        # Dense: tracking which entries are zero costs minutes of compilation and saves little beyond ten
        # electrons.
        result = cast(Any, folx.forward_laplacian(_flat(f, x), sparsity_threshold=0)(x.reshape(-1)))
    if not hasattr(result, "jacobian"):  # f does not depend on x: folx returns the plain value
        return Laplace(result, jnp.zeros_like(x), jnp.zeros((), x.dtype))
    return Laplace(result.x, result.jacobian.dense_array.reshape(x.shape), result.laplacian)


FUNCTIONS: dict[Method, Callable[[Function, Any], Laplace]] = {
    "nested": _nested,
    "hessian": _hessian,
    "loop": _loop,
    "forward": _forward,
}


def _flat(f: Function, x: Any) -> Function:
    return lambda y: f(y.reshape(x.shape))


def check_method(f: object, method: object) -> None:
    if not callable(f):
        raise BadInput(
            f"`f` is a {type(f).__name__}, not a function.",
            hint="Give a function of one point, written in JAX.",
        )
    if method != "auto" and method not in METHODS:
        raise BadInput(
            f"The Laplacian method {method!r} does not exist.",
            hint=f"Use one of: auto, {', '.join(METHODS)}.",
        )


def check_point(f: Function, x: Any) -> Any:
    """x as an array of floats. Raises `BadInput` if it is not one, or if f(x) is not one real number."""
    point = x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)
    if not jnp.issubdtype(point.dtype, jnp.floating):
        raise BadInput(
            f"The points are {point.dtype}, not real floating-point numbers.",
            hint="Give the coordinates as float32 or float64.",
        )
    if 0 in point.shape:
        raise BadInput(
            f"A point of shape {point.shape} has no coordinates.", hint="Give at least one coordinate."
        )
    result = jax.eval_shape(f, point)
    if getattr(result, "shape", None) != () or not jnp.issubdtype(result.dtype, jnp.floating):
        shape = (
            f"{result.dtype} of shape {result.shape}"
            if hasattr(result, "shape")
            else f"a {type(result).__name__}"
        )
        raise BadInput(
            f"`f` returns {shape} for one point, not one real number.",
            hint="Give a function of one point, such as log|psi|; jax.vmap the result of laplacian for many.",
        )
    return point
