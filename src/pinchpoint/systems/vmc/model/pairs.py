"""The pair stream and its means over each spin, and their derivatives, which exploit its structure.

Letters: n electrons, d coordinates, f features of a pair, w the width of the stream, s spins. The vector of a
pair is a function of the three components of x_i - x_j alone. Its derivatives with respect to these are
carried through the layers, and only the n means are converted to derivatives with respect to coordinates;
those of all n x n pairs with respect to all d coordinates never exist. Where d is 3 n, the position of an
electron must depend on its own three coordinates only, as that of a walker does; otherwise the derivatives
are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.model.features import pair_features
from pinchpoint.systems.vmc.model.layers import einsum, matmul, residual
from pinchpoint.systems.vmc.model.tensor_products import pair_values, pairs_apply

Array = jax.Array
Params = dict[str, Any]


def pair_means(layers: Sequence[Params], up: int, x: Array) -> list[Array]:
    """Return, after each layer, the means of the pairs of each electron over up and down electrons, (n, s w).

    layers: weights (f or w, w) and bias (w,) of each; x: (n, 3), positions. A spin without electrons has no
    columns.
    """
    first = layers[0]["weights"]
    if pairs_apply(electrons=x.shape[-2], width=first.shape[-1], dtype=jnp.result_type(x, first)):
        return pair_values(plain_pair_means, layers, up, x)
    return plain_pair_means(layers, up, x)


def plain_pair_means(layers: Sequence[Params], up: int, x: Array) -> list[Array]:
    """Return the same by ordinary operations."""
    pairs, means = pair_features(x[:, None] - x), []
    for layer in layers:
        pairs = residual(pairs, jnp.tanh(matmul(pairs, layer["weights"]) + layer["bias"]))
        means.append(spin_means(pairs, up))
    return means


def spin_means(rows: Array, up: int) -> Array:
    """Return the means over up and over down electrons, (..., n, w) -> (..., s w).

    A spin without electrons is left out.
    """
    counts = [count for count in (up, rows.shape[-2] - up) if count]
    if len(set(counts)) == 1:  # one reduction, nothing to concatenate
        blocks = rows.reshape(*rows.shape[:-2], len(counts), counts[0], rows.shape[-1])
        return jnp.mean(blocks, axis=-2).reshape(*rows.shape[:-2], -1)
    return jnp.concatenate(
        [jnp.mean(rows[..., :up, :], axis=-2), jnp.mean(rows[..., up:, :], axis=-2)], axis=-1
    )


def pair_derivatives(layers: Sequence[Params], up: int, place: Any) -> Iterator[tuple[Array, Array]]:
    """Yield, for each layer, what `pair_means` returns with its Laplacian, (2, n, s w), and its derivatives.

    place: the positions (n, 3), as folx's array. The derivatives are (d, n, s w).
    """
    by_coordinate = place.jacobian.dense_array  # (d, n, 3)
    # Of the components of every x_i - x_j, which do not depend on the walker.
    difference = by_coordinate[:, :, None] - by_coordinate[:, None]
    metric = einsum("tijc,tije->ijce", difference, difference)
    pairs, slopes, laplacian = _features(place.x, place.laplacian, metric)
    for layer in layers:
        weights = layer["weights"]
        new = jnp.tanh(matmul(pairs, weights) + layer["bias"])
        slope = 1 - new * new
        before = matmul(slopes, weights)
        bent = -2 * new * slope * _square(metric, before)
        pairs, laplacian, slopes = (
            residual(pairs, new),
            residual(laplacian, slope * matmul(laplacian, weights) + bent),
            residual(slopes, slope[..., None, :] * before),
        )
        both = jnp.stack([spin_means(pairs, up), spin_means(laplacian, up)])
        yield both, _mean_slopes(by_coordinate, slopes, up)


def _features(x: Array, laplacian: Array, metric: Array) -> tuple[Array, Array, Array]:
    """Return the features (n, n, f) of all pairs, their slopes (n, n, 3, f) and their Laplacian (n, n, f).

    x: (n, 3), with their Laplacian; metric: (n, n, 3, 3), of the components of x_i - x_j.
    """
    apart, bent = x[:, None] - x, laplacian[:, None] - laplacian
    over_pairs = partial(jax.vmap, in_axes=0)
    slopes, curves = (
        over_pairs(over_pairs(of))(apart) for of in (jax.jacfwd(pair_features), jax.hessian(pair_features))
    )
    curved = jnp.sum(curves * metric[:, :, None], axis=(-2, -1))
    return (
        pair_features(apart),
        jnp.swapaxes(slopes, -1, -2),
        curved + jnp.sum(slopes * bent[:, :, None], axis=-1),
    )


def _square(metric: Array, slopes: Array) -> Array:
    """Return slopes^T metric slopes, (n, n, w). metric: (n, n, 3, 3), symmetric; slopes: (n, n, 3, w)."""
    # Written out, so that one kernel reads each slope once.
    total: Array | float = 0.0
    for f in range(metric.shape[-1]):
        for g in range(f + 1):
            twice = 1.0 if f == g else 2.0
            total = total + twice * metric[..., f, g, None] * (slopes[..., f, :] * slopes[..., g, :])
    return jnp.asarray(total)


def _mean_slopes(by_coordinate: Array, slopes: Array, up: int) -> Array:
    """Return the derivatives of the means, (d, n, s w).

    by_coordinate: (d, n, 3), derivatives of the positions; slopes: (n, n, 3, w), of every pair (i, j) with
    respect to x_i - x_j.
    """
    d, n, _ = by_coordinate.shape
    parts = [part for part in (slice(0, up), slice(up, n)) if part.start < part.stop]
    # Whether an electron has a spin, divided by the electrons of that spin, (n, s).
    shares = np.zeros((n, len(parts)))
    for at, part in enumerate(parts):
        shares[part, at] = 1 / (part.stop - part.start)
    shares = jnp.asarray(shares, slopes.dtype)
    means = jnp.stack([jnp.mean(slopes[:, part], axis=1) for part in parts], axis=2)  # (n, 3, s, w)
    one = jnp.eye(n, dtype=slopes.dtype)
    if d != 3 * n:
        by_position = (
            one[:, :, None, None, None] * means[:, None] - shares[:, None, :, None] * slopes[..., None, :]
        )  # (n, n, 3, s, w): of the means of electron i with respect to the position of electron j
        return einsum("tjc,ijcsw->tisw", by_coordinate, by_position).reshape(d, n, -1)
    own = own_derivatives(by_coordinate)  # (n, 3, 3)
    # Nothing to sum over electrons. Rows are (j, coordinate of j, i).
    swapped = jnp.swapaxes(slopes, 0, 1)
    turned = reduce(add, (own[:, :, None, c, None] * swapped[:, None, :, c] for c in range(3)))
    means = reduce(add, (own[:, :, c, None, None] * means[:, None, c] for c in range(3)))
    rows = (
        one[:, None, :, None, None] * means[:, :, None]
        - shares[:, None, None, :, None] * turned[..., None, :]
    )
    return rows.reshape(d, n, -1)


def own_derivatives(by_coordinate: Array) -> Array:
    """Return derivatives of rows (n, k) with respect to their own three coordinates, (n, 3, k).

    by_coordinate: (3 n, n, k), with respect to all coordinates. NaN if one depends on those of another row.
    """
    n, k = by_coordinate.shape[1:]
    blocks = by_coordinate.reshape(n, 3, n, k)
    own = jnp.eye(n, dtype=bool)[:, None, :, None]
    elsewhere = jnp.any(jnp.where(own, 0, blocks) != 0)
    return jnp.where(elsewhere, jnp.nan, jnp.sum(jnp.where(own, blocks, 0), axis=2))
