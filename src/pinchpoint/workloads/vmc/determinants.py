"""Sign and logarithm of a sum of determinants, safe from overflow, with a forward Laplacian in full precision.

Letters: D determinants of k by k, d coordinates. Up to three electrons the determinants are written out: a factorisation of so
small matrices costs a GPU many kernels and more time than all the rest of a small network. For larger ones folx is given the
Laplacian of the sum: its own rule for a determinant takes products as the device likes them, on GPUs with ten bits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.workloads.vmc.layers import einsum

Array = jax.Array

WRITTEN_OUT = 3


def sum_of_determinants(matrices: Sequence[Array]) -> tuple[Array, Array]:
    """Sign and log|sum_d prod_s det(matrices[s][d])|. matrices: of each spin block (D, k, k), k of at least 1."""
    if min(block.shape[-1] for block in matrices) <= WRITTEN_OUT:
        return _summed(*matrices)
    if "folx" in sys.modules:  # whoever takes a forward Laplacian has imported it
        sys.modules["folx"].register_function(_factorised.__name__, _rule)
    return jax.jit(_factorised)(*matrices)


def _summed(*matrices: Array) -> tuple[Array, Array]:
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


def _factorised(*matrices: Array) -> tuple[Array, Array]:
    return _summed(*matrices)


_factorised.__name__ = "pinchpoint_sum_of_determinants"  # folx finds the rule of a jitted function by its name


def _rule(given: Sequence[Any], named: dict[str, Any], sparsity_threshold: int) -> tuple[Array, Any]:
    """What folx calls in place of `_factorised`: each block is its own kind of array, of value, derivatives and Laplacian.

    With M = A^-1 dA of a coordinate, log det A has the derivative tr M and, over all coordinates, the Laplacian
    tr(A^-1 lap A) - sum tr(M M). A sum of determinants has the means of these with the shares of the determinants as weights.
    """
    del named, sparsity_threshold
    kind, jacobian = type(given[0]), type(given[0].jacobian)
    signs, logs, slopes, curves = 1.0, 0.0, 0.0, 0.0
    for block in given:
        sign, log = jnp.linalg.slogdet(block.x)
        inverse = jnp.linalg.inv(block.x)
        turned = einsum("mij,tmjk->tmik", inverse, block.jacobian.dense_array)
        diagonal = np.arange(block.x.shape[-1])
        signs, logs = signs * sign, logs + log
        slopes = slopes + jnp.sum(turned[..., diagonal, diagonal], axis=-1)
        curves = curves + jnp.sum(jnp.swapaxes(inverse, -1, -2) * block.laplacian, axis=(-2, -1))
        curves = curves - jnp.sum(turned * jnp.swapaxes(turned, -1, -2), axis=(0, -2, -1))
    largest = jnp.max(logs)
    terms = signs * jnp.exp(logs - largest)
    total = jnp.sum(terms)
    shares = terms / total
    slope = jnp.sum(shares * slopes, axis=-1)
    curve = jnp.sum(shares * (curves + jnp.sum(slopes**2, axis=0))) - jnp.sum(slope**2)
    log = jnp.log(jnp.abs(total)) + largest
    return jnp.sign(total), kind(log, jacobian.from_dense(slope), curve)


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
