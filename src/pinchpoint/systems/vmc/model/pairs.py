"""The stream of electron pairs and its means over each spin, with a forward Laplacian that knows what a pair depends on.

Letters: n electrons, d coordinates, f features of a pair, w the width of the stream, s spins. A pair's vector is a function of
its f features alone. Of itself folx carries the derivatives of all n x n pairs by all d coordinates through every layer; the rule
here carries those by the f features, and turns the means, of which there are n, into derivatives by coordinates. It is exact for
any features; where folx does not know it the stream is a function like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.model.folx_rules import tell_folx
from pinchpoint.systems.vmc.model.layers import einsum, matmul, residual

Array = jax.Array
Params = dict[str, Any]

_NAME = "pinchpoint_pair_means_of_{up}_up"  # folx finds the rule of a jitted function by its name
_FEW = 4  # electrons, up to which the coordinates are not many more than a pair's features: nothing to gain


def pair_means(layers: Sequence[Params], up: int, features: Array) -> list[Array]:
    """(n, s w) after each layer: each electron's pairs averaged over the up electrons, beside those over the down ones.

    layers: weights (f or w, w) and bias (w,) of each; features: (n, n, f). A spin without electrons has no columns.
    """

    def run(*given: Array) -> list[Array]:
        pairs, found = given[-1], []
        for weights, bias in _by_layer(given[:-1]):
            pairs = residual(pairs, jnp.tanh(matmul(pairs, weights) + bias))
            found.append(spin_means(pairs, up))
        return found

    flat = [layer[part] for layer in layers for part in ("weights", "bias")]
    if features.shape[0] <= _FEW:
        return run(*flat, features)
    run.__name__ = _NAME.format(up=up)
    tell_folx({run.__name__: _rule(up)})
    return jax.jit(run)(*flat, features)


def spin_means(rows: Array, up: int) -> Array:
    """(..., n, w) -> (..., s w): the mean over the up electrons beside that over the down ones, of the spins there are."""
    counts = [count for count in (up, rows.shape[-2] - up) if count]
    if len(set(counts)) == 1:  # one reduction, nothing to put together
        blocks = rows.reshape(*rows.shape[:-2], len(counts), counts[0], rows.shape[-1])
        return jnp.mean(blocks, axis=-2).reshape(*rows.shape[:-2], -1)
    return jnp.concatenate(
        [jnp.mean(rows[..., :up, :], axis=-2), jnp.mean(rows[..., up:, :], axis=-2)], axis=-1
    )


def _by_layer(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _rule(up: int) -> Callable[..., Any]:
    """What folx calls in place of `run`: arguments are arrays or, of what depends on the coordinates, its own kind of array."""

    def rule(given: Sequence[Any], named: dict[str, Any], sparsity_threshold: int) -> list[Any]:
        del named, sparsity_threshold  # nothing is named, and what is zero is known here
        *flat, features = given
        kind, jacobian = type(features), type(features.jacobian)
        by_coordinate = features.jacobian.dense_array  # (d, n, n, f)
        metric = einsum("tijf,tijg->ijfg", by_coordinate, by_coordinate)
        pairs, laplacian = features.x, features.laplacian
        slopes: Array = jnp.eye(
            pairs.shape[-1], dtype=pairs.dtype
        )  # (n, n, f, w) by feature: at first of the features themselves
        found = []
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
            found.append(kind(spin_means(pairs, up), jacobian.from_dense(jac), spin_means(laplacian, up)))
        return found

    return rule


def _square(metric: Array, slopes: Array) -> Array:
    """(n, n, w): slopes metric slopes. metric: (n, n, f, f), symmetric; slopes: (..., f, w)."""
    # Written out: one kernel that reads each slope once.
    total: Array | float = 0.0
    for f in range(metric.shape[-1]):
        for g in range(f + 1):
            twice = 1.0 if f == g else 2.0
            total = total + twice * metric[..., f, g, None] * (slopes[..., f, :] * slopes[..., g, :])
    return jnp.asarray(total)


def _mean_slopes(by_coordinate: Array, slopes: Array, up: int) -> Array:
    """(d, n, s w): derivatives of the means. by_coordinate: (d, n, n, f) of the features; slopes: (n, n, f, w)."""
    d, n, _, f = by_coordinate.shape
    parts = [part for part in (slice(0, up), slice(up, n)) if part.start < part.stop]
    found = []
    for part in parts:
        inner = (part.stop - part.start) * f
        rows, columns = by_coordinate[:, :, part].reshape(d, n, inner), slopes[:, part].reshape(n, inner, -1)
        found.append(einsum("tik,ikw->tiw", rows, columns) / (part.stop - part.start))
    return jnp.concatenate(found, axis=-1)
