"""Orbitals of large networks and the sum of their determinants, with a forward Laplacian for both together.

Letters: n electrons, k of them of one spin, M nuclei, D determinants, d coordinates, w the width of the
network. An orbital is a linear function of the electron's vector h times an envelope, sum_m pi_m exp(shift -
sigma_m r_m). The envelope depends on few distances, so its derivatives follow from those of the distances
and are never stored; those of the matrices are written once, in the order in which the product with the
inverse matrices reads them. Without folx, this is an ordinary function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.model.determinants import log_of_sum, sum_of_determinants
from pinchpoint.systems.vmc.model.elimination import inverse_and_logdet
from pinchpoint.systems.vmc.model.envelopes import envelope, nearest
from pinchpoint.systems.vmc.model.folx_rules import register_rules
from pinchpoint.systems.vmc.model.layers import einsum, matmul, positive
from pinchpoint.systems.vmc.model.pairs import own_derivatives
from pinchpoint.systems.vmc.model.tensor_products import linear_of_part, plain_linear_of_part

Array = jax.Array
Params = dict[str, Any]

# folx looks up the rule of a jitted function by its name.
_NAME = "pinchpoint_orbital_determinants_of_{up}_up{kernels}"
_PER_SPIN = ("weights", "bias", "pi", "sigma")


def orbital_determinants(
    orbital: Params, envelopes: Params, up: int, h: Array, radii: Array, *, kernels: bool = False
) -> tuple[Array, Array]:
    """Return sign and logarithm of the sum of the determinants of all orbitals.

    orbital, envelopes: the parameters of each spin that occurs; h: (n, w); radii: (n, M), soft distances.
    kernels: use those of `tensor_products` where they exist.
    """

    def run(*arguments: Array) -> tuple[Array, Array]:
        *flat, h, radii = arguments
        blocks, shifts = [], []
        for part, (weights, bias, pi, raw) in _by_spin(flat, up, h.shape[0]):
            block, shift = orbital_block(
                _product(kernels)((part.start, part.stop), h, weights) + bias,
                pi[None],
                positive(raw)[None],
                radii[part],
            )
            blocks.append(block)
            shifts.append(jnp.sum(shift))
        sign, log = sum_of_determinants([jnp.concatenate(blocks, axis=1)])
        return sign, log - sum(shifts)

    run.__name__ = _NAME.format(up=up, kernels="_by_kernels" if kernels else "")
    register_rules({run.__name__: _rule(up, kernels=kernels)})
    flat = [
        (orbital if name in ("weights", "bias") else envelopes)[spin][name]
        for spin in ("up", "down")  # not the order of the dict: JAX sorts its keys
        if spin in orbital
        for name in _PER_SPIN
    ]
    return jax.jit(run)(*flat, h, radii)


def orbital_block(factors: Array, pi: Array, sigma: Array, radii: Array) -> tuple[Array, Array]:
    """Return the orbitals of k electrons, (D, k, columns), and their shifts (k,).

    factors: (k, D columns); pi, sigma: (k or 1, M, D, columns).
    """
    shift = nearest(sigma, radii)
    shaped = envelope(pi, sigma, radii, shift)
    return jnp.swapaxes(factors.reshape(shaped.shape), 0, 1) * jnp.swapaxes(shaped, 0, 1), shift


def _by_spin(flat: Sequence[Any], up: int, electrons: int) -> list[tuple[slice, Sequence[Any]]]:
    parts = [part for part in (slice(0, up), slice(up, electrons)) if part.start < part.stop]
    count = len(_PER_SPIN)
    return [(part, flat[at * count : (at + 1) * count]) for at, part in enumerate(parts)]


def _product(kernels: bool) -> Callable[[tuple[int, int], Array, Array], Array]:
    return linear_of_part if kernels else plain_linear_of_part


def _rule(up: int, *, kernels: bool) -> Callable[..., Any]:
    """Return the rule that folx calls instead of `run`."""

    def rule(arguments: Sequence[Any], options: dict[str, Any], sparsity_threshold: int) -> tuple[Array, Any]:
        del options, sparsity_threshold
        *flat, h, radii = arguments
        assert h.x.ndim == 2, "the rule is that of one walker"
        by_h, by_radius = h.jacobian.dense_array, radii.jacobian.dense_array  # (d, n, w), (d, n, M)
        squares, mixed = _products(by_radius, by_h)
        rows, slopes, curves, shifts = [], [], [], 0.0
        for part, (weights, bias, pi, raw) in _by_spin(flat, up, h.x.shape[0]):
            sigma = positive(raw)
            r = radii.x[part]
            shift = nearest(sigma[None], r)
            parts = pi * jnp.exp(shift[:, None, None, None] - r[..., None, None] * sigma)  # (k, M, D, n)
            shape, slope, curve = jnp.sum(parts, axis=1), -sigma * parts, sigma**2 * parts
            by_network = _product(kernels)((part.start, part.stop), by_h, weights)
            # XLA joins products with the same weights, and would copy all derivatives for it.
            weights = jax.lax.optimization_barrier(weights)
            of, by_network, curved, bent = (
                value.reshape(*value.shape[:-1], *shape.shape[1:])
                for value in (
                    matmul(h.x[part], weights) + bias,
                    jax.lax.optimization_barrier(by_network),
                    matmul(h.laplacian[part], weights),
                    matmul(mixed[part], weights),
                )
            )
            by_envelope = sum(
                slope[:, m] * by_radius[:, part, m, None, None] for m in range(by_radius.shape[-1])
            )
            laplacians, lengths = (value[part][..., None, None] for value in (radii.laplacian, squares))
            of_envelope = jnp.sum(slope * laplacians + curve * lengths, axis=1)
            rows.append(of * shape)
            slopes.append(by_network * shape + of * by_envelope)
            curves.append(curved * shape + of * of_envelope + 2 * jnp.sum(slope * bent, axis=1))
            shifts = shifts + jnp.sum(shift)
        matrices, laplacian = (jnp.swapaxes(jnp.concatenate(blocks), 0, 1) for blocks in (rows, curves))
        # (D, d, n, n): each determinant's rows are one matrix, which the product reads as it is.
        derivatives = jnp.concatenate([jnp.transpose(block, (2, 0, 1, 3)) for block in slopes], axis=2)
        inverse, sign, log = inverse_and_logdet(matrices)
        products = einsum("mtik,mkj->mtij", derivatives, inverse)
        slope = jnp.trace(products, axis1=-2, axis2=-1).T  # (d, D)
        # Row times column, one by one: XLA would write the transpose of all products first.
        rows = range(products.shape[-1])
        squares = reduce(add, (products[..., row, :] * products[..., row] for row in rows))
        curve = jnp.sum(jnp.swapaxes(inverse, -1, -2) * laplacian, axis=(-2, -1))
        curve = curve - jnp.sum(squares, axis=(1, 2))
        total, log, slope, curve = log_of_sum(sign, log, slope, curve)
        return total, type(h)(log - shifts, type(h.jacobian).from_dense(slope), curve)

    return rule


def _products(by_radius: Array, by_h: Array) -> tuple[Array, Array]:
    """Return sums over coordinates: of the squares of (d, n, M), and of the products with (d, n, w).

    They are (n, M) and (n, M, w). In a walker, the distances of an electron depend on its coordinates only.
    """
    d, n, _ = by_radius.shape
    if d != 3 * n:
        return jnp.sum(by_radius**2, axis=0), einsum("tim,tiw->imw", by_radius, by_h)
    own = own_derivatives(by_radius)
    # Slices: for a gather, XLA would store all derivatives in another order.
    by_own = jnp.stack([by_h[3 * at : 3 * at + 3, at] for at in range(n)])
    return jnp.sum(own**2, axis=1), jnp.sum(own[..., None] * by_own[:, :, None], axis=1)
