"""Sign, logarithm and inverse of small matrices from one factorisation.

It has derivatives of any order and makes no blocking call. Letters: k the size of a matrix; leading axes
(...) are a batch. On a CPU, the matrices are eliminated with plain operations: JAX's batched LAPACK calls
hand the batch to the thread pool they are called from and wait for it, so that two concurrent calls in a
program with two threads deadlock. On other devices, the library of the device factors them. Each pivot is the
largest of its column.

A matrix that is exactly singular has the sign 0, the logarithm -inf, and a finite but meaningless inverse: in
a sum with others it contributes nothing, neither to the value nor to the derivatives.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.model.layers import einsum

Array = jax.Array


@jax.custom_jvp
def sign_and_logdet(a: Array) -> tuple[Array, Array]:
    """Return sign and log|det|, (...) each, of a: (..., k, k)."""
    on_cpu, elsewhere = (partial(way, inverse=False) for way in (eliminate, factor))
    sign, log = jax.lax.platform_dependent(a, cpu=on_cpu, default=elsewhere)
    return sign, log


@jax.custom_jvp
def inverse_and_logdet(a: Array) -> tuple[Array, Array, Array]:
    """Return the inverse (..., k, k), sign and log|det|, (...) each, of a: (..., k, k)."""
    sign, log, inverse = jax.lax.platform_dependent(a, cpu=eliminate, default=factor)
    return inverse, sign, log


@sign_and_logdet.defjvp
def _(at: tuple[Array], towards: tuple[Array]) -> Any:
    inverse, sign, log = inverse_and_logdet(*at)
    return (sign, log), (jnp.zeros_like(sign), einsum("...ij,...ji->...", inverse, towards[0]))


@inverse_and_logdet.defjvp
def _(at: tuple[Array], towards: tuple[Array]) -> Any:
    inverse, sign, log = inverse_and_logdet(*at)
    product = einsum("...ij,...jk->...ik", inverse, towards[0])
    slope = jnp.trace(product, axis1=-2, axis2=-1)
    return (inverse, sign, log), (
        -einsum("...ij,...jk->...ik", product, inverse),
        jnp.zeros_like(sign),
        slope,
    )


def eliminate(a: Array, *, inverse: bool = True) -> tuple[Array, ...]:
    """Return sign, log|det| and optionally the inverse, by in-place Gauss-Jordan elimination in k turns.

    Rows are not swapped: each remembers the turn in which it was the pivot, and the inverse is reordered at
    the end.
    """
    size = a.shape[-1]
    rows, columns = jnp.arange(size, dtype=jnp.int32)[:, None], jnp.arange(size, dtype=jnp.int32)

    def turn(number: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
        a, turns, sign, log = state
        column = jax.lax.dynamic_slice_in_dim(a, number, 1, axis=-1)
        remaining = turns == size
        sizes = jnp.where(remaining, jnp.abs(column), -1)
        largest = jnp.max(sizes, axis=-2, keepdims=True)
        pivot_row = jnp.min(jnp.where(sizes == largest, rows, size), axis=-2, keepdims=True)
        row = jnp.take_along_axis(a, pivot_row, axis=-2, mode="clip")
        pivot = jax.lax.dynamic_slice_in_dim(row, number, 1, axis=-1)
        over = jnp.where(pivot == 0, 0, 1 / pivot)
        if inverse:
            # The column that becomes a unit vector stores a column of the inverse instead.
            here, is_pivot = columns == number, rows == pivot_row
            row = jnp.where(here, 1, row) * over
            a = jnp.where(is_pivot, row, jnp.where(here, 0, a) - column * row)
        else:
            is_pivot = rows == pivot_row
            a = a - jnp.where(remaining, column * over, 0) * row
        above = jnp.sum(remaining & (rows < pivot_row), axis=-2, keepdims=True, dtype=jnp.int32)
        sign = sign * jnp.sign(pivot) * jnp.where(above % 2 == 0, 1, -1)
        return a, jnp.where(is_pivot, number, turns), sign, log + jnp.log(largest)

    # Derived from `a`, so that they have the same sharding.
    one = jnp.zeros_like(a[..., :1, :1])
    first = a, jnp.full_like(a[..., :1], size, dtype=jnp.int32), one + 1, one
    a, turns, sign, log = jax.lax.fori_loop(0, size, turn, first)
    result = sign[..., 0, 0], log[..., 0, 0]
    if not inverse:
        return result
    # The pivot row of each turn.
    order = jnp.sum(jnp.where(turns == columns, rows, 0), axis=-2, dtype=jnp.int32)[..., None]
    a = jnp.take_along_axis(a, jnp.swapaxes(turns, -1, -2), axis=-1, mode="clip")
    return *result, jnp.take_along_axis(a, order, axis=-2, mode="clip")


def factor(a: Array, *, inverse: bool = True) -> tuple[Array, ...]:
    """Return the same as `eliminate`, from the LU factorisation of the device's library."""
    size = a.shape[-1]
    both, pivots, order = jax.lax.linalg.lu(a)
    diagonal = jnp.diagonal(both, axis1=-2, axis2=-1)
    swapped = jnp.sum(pivots != jnp.arange(size, dtype=pivots.dtype), axis=-1)
    sign = jnp.prod(jnp.sign(diagonal), axis=-1) * jnp.where(swapped % 2 == 0, 1, -1)
    log = jnp.sum(jnp.log(jnp.abs(diagonal)), axis=-1)
    if not inverse:
        return sign, log
    both = both + jnp.eye(size, dtype=a.dtype) * (diagonal == 0)[..., None]
    right = (order[..., None] == jnp.arange(size, dtype=order.dtype)).astype(a.dtype)
    right = jax.lax.linalg.triangular_solve(both, right, left_side=True, lower=True, unit_diagonal=True)
    return sign, log, jax.lax.linalg.triangular_solve(both, right, left_side=True, lower=False)
