"""Small parts of the networks: products in full precision, layers that add to their input, and how weights start.

Weights have the default float type of the run. Products ask for full precision: the ten bits of tf32 that a GPU would take
for float32 show in a Laplacian.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array

_LAUNCH_BOUND = 256  # numbers of one walker: two electrons with vectors of 64 and 128, four with 64


def matmul(x: Array, weights: Array) -> Array:
    """x: (..., a) and weights: (a, b) -> (..., b)."""
    return jnp.matmul(x, weights, precision=jax.lax.Precision.HIGHEST)


def launch_bound(rows: Array) -> bool:
    """Whether a product with so few rows as (n, width) takes a GPU less time than its launch: then one large is best."""
    return rows.shape[0] * rows.shape[-1] <= _LAUNCH_BOUND


def einsum(sum_of: str, a: Array, b: Array) -> Array:
    """jnp.einsum of two arrays."""
    return jnp.einsum(sum_of, a, b, precision=jax.lax.Precision.HIGHEST)


def residual(old: Array, new: Array) -> Array:
    """old + new where a layer keeps the width, else what is new."""
    return old + new if old.shape == new.shape else new


def weights(key: Array, rows: int, columns: int, *, fan_in: int | None = None, scale: float = 1.0) -> Array:
    """(rows, columns) of normal numbers, so that a sum over `fan_in` (rows) inputs of size one has the size `scale`."""
    return jax.random.normal(key, (rows, columns)) * (scale / (fan_in or rows) ** 0.5)


def positive(raw: Array) -> Array:
    """Numbers above zero from any: log(1 + e^raw)."""
    return jax.nn.softplus(raw)


def raw_of(value: Array) -> Array:
    """What `positive` makes `value` of: its inverse. value: above zero."""
    return value + jnp.log(-jnp.expm1(-value))
