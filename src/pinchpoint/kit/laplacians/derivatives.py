"""Value, gradient and Laplacian of a scalar function at one point, in four equal ways (JAX).

Letters: s the shape of a point (a walker: n electrons x 3), d = prod(s) coordinates.

- `nested`: a gradient of a component of a gradient, built anew for every coordinate; what people write first
- `hessian`: all d x d second derivatives, of which d are used
- `loop`: the gradient is linearised once, then pushed along one coordinate after another
- `forward`: value, gradient and Laplacian go through the function together (folx's forward Laplacian)

They differ in time and memory, never in what they give.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, util
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput, Missing

Method = Literal["nested", "hessian", "loop", "forward"]
Asked = Literal["auto", "nested", "hessian", "loop", "forward"]
Function = Callable[[Any], Any]  # one point (s) -> a real scalar

METHODS: tuple[Method, ...] = get_args(Method)
HESSIAN_MOST = 12  # coordinates up to which a full Hessian beats the loop


class Laplace(NamedTuple):
    """What is found at one point: scalar, (s), scalar; of a batch (B,), (B, s), (B,)."""

    value: Any
    gradient: Any
    laplacian: Any


def fastest(coordinates: int) -> Method:
    """The quickest way where memory is no question."""
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
        # A gradient of a gradient for each coordinate, as the original builds it: d programs of their own.
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
    total = jax.lax.fori_loop(0, wide.shape[0], lambda i, done: done + push(basis[i])[1][i], zero)
    return Laplace(value, gradient.reshape(x.shape), total)


def _forward(f: Function, x: Any) -> Laplace:
    try:
        folx = import_module("folx")
    except ModuleNotFoundError as error:
        raise Missing(
            "the forward Laplacian is folx's, which is not installed",
            hint='pip install "pinchpoint[vmc]", or choose the method "loop"',
        ) from error
    # folx pushes derivatives through products of its own, which a GPU would take with the ten bits of TF32.
    with jax.default_matmul_precision("highest"):
        # Dense: following which entries are zero costs minutes of compilation and saves little beyond ten electrons.
        found = cast(Any, folx.forward_laplacian(_flat(f, x), sparsity_threshold=0)(x.reshape(-1)))
    if not hasattr(found, "jacobian"):  # f does not depend on x: folx hands the plain value through
        return Laplace(found, jnp.zeros_like(x), jnp.zeros((), x.dtype))
    return Laplace(found.x, found.jacobian.dense_array.reshape(x.shape), found.laplacian)


WAYS: dict[Method, Callable[[Function, Any], Laplace]] = {
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
            f"f is a {type(f).__name__}, not a function", hint="give a function of one point, written in JAX"
        )
    if method != "auto" and method not in METHODS:
        raise BadInput(
            f"there is no Laplacian method {method!r}", hint=f"use one of: auto, {', '.join(METHODS)}"
        )


def checked(f: Function, x: Any) -> Any:
    """x as an array of floats, at which f gives one real number."""
    given = x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)
    if not jnp.issubdtype(given.dtype, jnp.floating):
        raise BadInput(
            f"points of type {given.dtype}",
            hint="give real floating-point coordinates, as float32 or float64",
        )
    if 0 in given.shape:
        raise BadInput(
            f"a point of shape {given.shape} has no coordinates", hint="give at least one coordinate"
        )
    made = jax.eval_shape(f, given)
    if getattr(made, "shape", None) != () or not jnp.issubdtype(made.dtype, jnp.floating):
        shape = (
            f"{made.dtype} of shape {made.shape}" if hasattr(made, "shape") else f"a {type(made).__name__}"
        )
        raise BadInput(
            f"f of one point gives {shape}, not one real number",
            hint="give a function of one point (of many: jax.vmap what laplacian returns), such as log|psi|",
        )
    return given
