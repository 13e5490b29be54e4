"""Sign and logarithm of a sum of determinants, with a forward Laplacian in full precision.

The logarithm does not overflow. Letters: D determinants of size k x k, d coordinates. Determinants of up to
four electrons are written out: factoring such small matrices takes many GPU kernels, and more time than the
rest of a small network. Larger ones are factored (`elimination`), and folx gets a rule for the Laplacian of
each, or of their sum if all are large. The rule that folx has for determinants uses the default precision of
the device for products, ten bits on GPUs, and factors a matrix twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.model.elimination import inverse_and_logdet, sign_and_logdet
from pinchpoint.systems.vmc.model.folx_rules import register_rules
from pinchpoint.systems.vmc.model.layers import einsum

Array = jax.Array

WRITTEN_OUT = 4


def sum_of_determinants(matrices: Sequence[Array]) -> tuple[Array, Array]:
    """Return sign and log|sum_d prod_s det(matrices[s][d])|. matrices: (D, k, k) per spin block, k >= 1."""
    register_rules({_large.__name__: _large_rule, _factored.__name__: _factored_rule})
    if min(block.shape[-1] for block in matrices) <= WRITTEN_OUT:
        return _summed(*matrices)
    return jax.jit(_large)(*matrices)


def _summed(*matrices: Array) -> tuple[Array, Array]:
    factor: Array | float = 1.0
    signs: Array | float = 1.0
    logs: Array | float = 0.0
    for block in matrices:
        if block.shape[-1] <= WRITTEN_OUT:
            factor = factor * _written_out(block)
        else:
            sign, log = jax.jit(_factored)(block)
            signs, logs = signs * sign, logs + log
    if isinstance(logs, float):
        total = jnp.sum(jnp.asarray(factor))
        return jnp.sign(total), jnp.log(jnp.abs(total))
    # It cancels out, so it needs no derivative.
    largest = jax.lax.stop_gradient(_largest(jnp.asarray(logs)))
    total = jnp.sum(factor * signs * jnp.exp(logs - largest))
    return jnp.sign(total), jnp.log(jnp.abs(total)) + largest


def _largest(logs: Array) -> Array:
    """Return the factor to take out of a sum to avoid overflow; finite even if all terms are zero."""
    return jnp.maximum(jnp.max(logs), jnp.finfo(logs.dtype).min)


def _large(*matrices: Array) -> tuple[Array, Array]:
    return _summed(*matrices)


def _factored(block: Array) -> tuple[Array, Array]:
    return sign_and_logdet(block)


# folx looks up the rule of a jitted function by its name.
_large.__name__ = "pinchpoint_sum_of_determinants"
_factored.__name__ = "pinchpoint_factored_determinants"


def _derivatives(block: Any) -> tuple[Array, Array, Array, Array]:
    """Return sign (D,) and log|det| (D,) with its derivatives (d, D) and Laplacian (D,).

    block: folx's array with its derivatives. With M = A^-1 dA for a coordinate, the derivative of log det A
    is tr M. Its Laplacian, over all coordinates, is tr(A^-1 lap A) - sum tr(M M).
    """
    inverse, sign, log = inverse_and_logdet(block.x)
    products = einsum("mij,tmjk->tmik", inverse, block.jacobian.dense_array)
    diagonal = np.arange(block.x.shape[-1])
    slopes = jnp.sum(products[..., diagonal, diagonal], axis=-1)
    curves = jnp.sum(jnp.swapaxes(inverse, -1, -2) * block.laplacian, axis=(-2, -1))
    return sign, log, slopes, curves - jnp.sum(products * jnp.swapaxes(products, -1, -2), axis=(0, -2, -1))


def _factored_rule(
    arguments: Sequence[Any], options: dict[str, Any], sparsity_threshold: int
) -> tuple[Array, Any]:
    """The rule that folx calls instead of `_factored`."""
    del options, sparsity_threshold
    (block,) = arguments
    sign, log, slopes, curves = _derivatives(block)
    return sign, type(block)(log, type(block.jacobian).from_dense(slopes), curves)


def _large_rule(
    arguments: Sequence[Any], options: dict[str, Any], sparsity_threshold: int
) -> tuple[Array, Any]:
    """The rule that folx calls instead of `_large`.

    The derivatives of the logarithm of a sum are the means of those of the determinants, weighted by their
    shares; its Laplacian is the mean Laplacian plus the spread of the derivatives.
    """
    del options, sparsity_threshold
    kind, jacobian = type(arguments[0]), type(arguments[0].jacobian)
    signs, logs, slopes, curves = 1.0, 0.0, 0.0, 0.0
    for block in arguments:
        sign, log, slope, curve = _derivatives(block)
        signs, logs, slopes, curves = signs * sign, logs + log, slopes + slope, curves + curve
    sign, log, slope, curve = log_of_sum(*(jnp.asarray(value) for value in (signs, logs, slopes, curves)))
    return sign, kind(log, jacobian.from_dense(slope), curve)


def log_of_sum(signs: Array, logs: Array, slopes: Array, curves: Array) -> tuple[Array, ...]:
    """Return sign, logarithm, its derivatives (d,) and its Laplacian, of a sum of D terms.

    Each has a sign and a logarithm, (D,), with derivatives (d, D) and a Laplacian (D,).
    """
    largest = _largest(logs)
    terms = signs * jnp.exp(logs - largest)
    total = jnp.sum(terms)
    shares = terms / total
    slope = jnp.sum(shares * slopes, axis=-1)
    curve = jnp.sum(shares * (curves + jnp.sum(slopes**2, axis=0))) - jnp.sum(slope**2)
    return jnp.sign(total), jnp.log(jnp.abs(total)) + largest, slope, curve


def _written_out(block: Array) -> Array:
    """Return the determinants (D,) of matrices (D, k, k), k up to 4."""
    if block.shape[-1] == 1:
        return block[:, 0, 0]
    if block.shape[-1] == 2:
        return block[:, 0, 0] * block[:, 1, 1] - block[:, 0, 1] * block[:, 1, 0]
    if block.shape[-1] == 4:
        # Minors of the upper two rows times those of the lower two in the other columns: 30 products instead
        # of 40.
        upper, lower = (_minors(block[:, row], block[:, row + 1]) for row in (0, 2))
        terms = [here * there for here, there in zip(upper, reversed(lower), strict=True)]
        return terms[0] - terms[1] + terms[2] + terms[3] - terms[4] + terms[5]
    first, second, third = block[:, 0], block[:, 1], block[:, 2]
    return (
        first[:, 0] * (second[:, 1] * third[:, 2] - second[:, 2] * third[:, 1])
        - first[:, 1] * (second[:, 0] * third[:, 2] - second[:, 2] * third[:, 0])
        + first[:, 2] * (second[:, 0] * third[:, 1] - second[:, 1] * third[:, 0])
    )


# Pairs of four columns; in reverse order, the remaining columns of each.
_PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def _minors(first: Array, second: Array) -> list[Array]:
    """Return the determinants (D,) of every two columns of two rows, (D, 4) each."""
    return [first[:, a] * second[:, b] - first[:, b] * second[:, a] for a, b in _PAIRS]
