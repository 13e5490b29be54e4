"""Small parts of the networks: products in full precision, residual layers, and initialisation of weights.

Weights have the default float type of the run. Products request full precision: the ten-bit precision of
TF32, which a GPU would use for float32, is visible in a Laplacian.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array

LAUNCH_BOUND = 256  # numbers per walker: two electrons with vectors of 128, or four with 64


def matmul(x: Array, weights: Array) -> Array:
    """Return x @ weights in full precision. x: (..., a); weights: (a, b)."""
    return jnp.matmul(x, weights, precision=jax.lax.Precision.HIGHEST)


def launch_bound(rows: Array) -> bool:
    """Return whether a product with rows (n, width) takes a GPU less time than its launch.

    One large product is then faster than several small ones.
    """
    return rows.shape[0] * rows.shape[-1] <= LAUNCH_BOUND


def einsum(sum_of: str, a: Array, b: Array) -> Array:
    """Return jnp.einsum of two arrays in full precision."""
    return jnp.einsum(sum_of, a, b, precision=jax.lax.Precision.HIGHEST)


def residual(old: Array, new: Array) -> Array:
    """Return old + new if the layer keeps the width, else new."""
    return old + new if old.shape == new.shape else new


def weights(key: Array, rows: int, columns: int, *, fan_in: int | None = None, scale: float = 1.0) -> Array:
    """Return normal random weights (rows, columns).

    They are scaled so that `fan_in` (default: rows) inputs of size one give outputs of size `scale`.
    """
    return jax.random.normal(key, (rows, columns)) * (scale / (fan_in or rows) ** 0.5)


def positive(raw: Array) -> Array:
    """Map any number to a positive one: log(1 + e^raw)."""
    return jax.nn.softplus(raw)


def raw_of(value: Array) -> Array:
    """Return the inverse of `positive`. value: above zero."""
    return value + jnp.log(-jnp.expm1(-value))
