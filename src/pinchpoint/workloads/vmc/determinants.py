"""Sign and logarithm of a sum of determinants, safe from overflow.

Letters: D determinants of n by n. Up to three electrons the determinants are written out: a factorisation of so small matrices
costs a GPU many kernels and more time than all the rest of a small network.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

Array = jax.Array

WRITTEN_OUT = 3


def sum_of_determinants(matrices: Sequence[Array]) -> tuple[Array, Array]:
    """Sign and log|sum_d prod_s det(matrices[s][d])|. matrices: of each spin block (D, k, k), k of at least 1."""
    factor: Array | float = 1.0
    signs: Array | float = 1.0
    logs: Array | float = 0.0
    for block in matrices:
        if block.shape[-1] <= WRITTEN_OUT:
            factor = factor * _written_out(block)
        else:
            sign, log = jnp.linalg.slogdet(block)
            signs, logs = signs * sign, logs + log
    if isinstance(logs, float):
        total = jnp.sum(jnp.asarray(factor))
        return jnp.sign(total), jnp.log(jnp.abs(total))
    # The largest is taken out, so that the others may vanish but nothing overflows; it cancels, so no derivative is needed.
    largest = jax.lax.stop_gradient(jnp.max(logs))
    total = jnp.sum(factor * signs * jnp.exp(logs - largest))
    return jnp.sign(total), jnp.log(jnp.abs(total)) + largest


def _written_out(block: Array) -> Array:
    """(D,) determinants of (D, k, k), k up to 3."""
    if block.shape[-1] == 1:
        return block[:, 0, 0]
    if block.shape[-1] == 2:
        return block[:, 0, 0] * block[:, 1, 1] - block[:, 0, 1] * block[:, 1, 0]
    first, second, third = block[:, 0], block[:, 1], block[:, 2]
    return (
        first[:, 0] * (second[:, 1] * third[:, 2] - second[:, 2] * third[:, 1])
        - first[:, 1] * (second[:, 0] * third[:, 2] - second[:, 2] * third[:, 0])
        + first[:, 2] * (second[:, 0] * third[:, 1] - second[:, 1] * third[:, 0])
    )
