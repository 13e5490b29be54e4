"""The pair stream and its means over each spin, with a forward Laplacian that exploits its structure.

Letters: n electrons, d coordinates, f features of a pair, w the width of the stream, s spins. The vector of a
pair is a function of its f features alone. By default, folx carries the derivatives of all n x n pairs with
respect to all d coordinates through every layer. The rule defined here carries those with respect to the f
features, and converts only the n means to derivatives with respect to coordinates. It is exact for any
features; without folx, the stream is an ordinary function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.model.folx_rules import register_rules
from pinchpoint.systems.vmc.model.layers import einsum, matmul, residual

Array = jax.Array
Params = dict[str, Any]

_NAME = "pinchpoint_pair_means_of_{up}_up"  # folx looks up the rule of a jitted function by its name
_FEW = 4  # up to this many electrons, there are hardly more coordinates than features, so nothing is gained


def pair_means(layers: Sequence[Params], up: int, features: Array) -> list[Array]:
    """Return, after each layer, the means of the pairs of each electron over up and down electrons, (n, s w).

    layers: weights (f or w, w) and bias (w,) of each; features: (n, n, f). A spin without electrons has no
    columns.
    """

    def run(*arguments: Array) -> list[Array]:
        pairs, means = arguments[-1], []
        for weights, bias in _by_layer(arguments[:-1]):
            pairs = residual(pairs, jnp.tanh(matmul(pairs, weights) + bias))
            means.append(spin_means(pairs, up))
        return means

    flat = [layer[part] for layer in layers for part in ("weights", "bias")]
    if features.shape[0] <= _FEW:
        return run(*flat, features)
    run.__name__ = _NAME.format(up=up)
    register_rules({run.__name__: _rule(up)})
    return jax.jit(run)(*flat, features)


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


def _by_layer(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _rule(up: int) -> Callable[..., Any]:
    """Return the rule that folx calls instead of `run`.

    Its arguments are arrays or, if they depend on the coordinates, folx's own arrays.
    """

    def rule(arguments: Sequence[Any], options: dict[str, Any], sparsity_threshold: int) -> list[Any]:
        del options, sparsity_threshold  # there are no options, and the sparsity is known here
        *flat, features = arguments
        kind, jacobian = type(features), type(features.jacobian)
        by_coordinate = features.jacobian.dense_array  # (d, n, n, f)
        metric = einsum("tijf,tijg->ijfg", by_coordinate, by_coordinate)
        pairs, laplacian = features.x, features.laplacian
        # (n, n, f, w), derivatives with respect to the features; initially those of the features themselves.
        slopes: Array = jnp.eye(pairs.shape[-1], dtype=pairs.dtype)
        means = []
        for weights, bias in _by_layer(flat):
            new = jnp.tanh(matmul(pairs, weights) + bias)
            slope = 1 - new * new
            before = matmul(slopes, weights)
            bent = -2 * new * slope * _square(metric, before)
            pairs, laplacian, slopes = (
                residual(pairs, new),
                residual(laplacian, slope * matmul(laplacian, weights) + bent),
                residual(
                    jnp.broadcast_to(slopes, (*pairs.shape[:2], *slopes.shape[-2:])),
                    slope[..., None, :] * before,
                ),
            )
            jac = _mean_slopes(by_coordinate, slopes, up)
            means.append(kind(spin_means(pairs, up), jacobian.from_dense(jac), spin_means(laplacian, up)))
        return means

    return rule


def _square(metric: Array, slopes: Array) -> Array:
    """Return slopes^T metric slopes, (n, n, w). metric: (n, n, f, f), symmetric; slopes: (..., f, w)."""
    # Written out, so that one kernel reads each slope once.
    total: Array | float = 0.0
    for f in range(metric.shape[-1]):
        for g in range(f + 1):
            twice = 1.0 if f == g else 2.0
            total = total + twice * metric[..., f, g, None] * (slopes[..., f, :] * slopes[..., g, :])
    return jnp.asarray(total)


def _mean_slopes(by_coordinate: Array, slopes: Array, up: int) -> Array:
    """Return the derivatives of the means, (d, n, s w).

    by_coordinate: (d, n, n, f), derivatives of the features; slopes: (n, n, f, w).
    """
    d, n, _, f = by_coordinate.shape
    parts = [part for part in (slice(0, up), slice(up, n)) if part.start < part.stop]
    blocks = []
    for part in parts:
        inner = (part.stop - part.start) * f
        rows, columns = by_coordinate[:, :, part].reshape(d, n, inner), slopes[:, part].reshape(n, inner, -1)
        blocks.append(einsum("tik,ikw->tiw", rows, columns) / (part.stop - part.start))
    return jnp.concatenate(blocks, axis=-1)
