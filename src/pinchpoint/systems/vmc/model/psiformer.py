"""The stream of a Psiformer: electrons mixed by attention, equivariant under swaps of equal spins.

Letters: n electrons, H heads. There are no pair features: electrons interact by attention, and their cusps
come from the Jastrow factor. The softmax is written out, because a forward Laplacian computes a full Hessian
of functions with custom derivatives.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.features import Geometry, one_electron
from pinchpoint.systems.vmc.model.layers import matmul, weights

Array = jax.Array
Params = dict[str, Any]


def init_attention(key: Array, system: System, config: NetConfig) -> Params:
    """Return {"embed", "spin", "layers"}; a single electron has no attention."""
    first, second, *rest = jax.random.split(key, 2 + config.layers)
    return {
        "embed": weights(first, 4 * system.nuclei, config.one),
        "spin": weights(second, 1, config.one)[0],
        "layers": [_init_layer(part, system, config.one) for part in rest],
    }


def _init_layer(key: Array, system: System, width: int) -> Params:
    names = ("query", "key", "value", "merge", "hidden") if system.electrons > 1 else ("hidden",)
    keys = jax.random.split(key, len(names))
    return {
        **{name: weights(k, width, width) for k, name in zip(keys, names, strict=True)},
        "bias": jnp.zeros(width),
    }


def attention_stream(params: Params, system: System, config: NetConfig, places: Geometry) -> Array:
    """Return the vector of each electron after all layers, (n, one)."""
    features = one_electron(system, places)
    spin = jnp.asarray(np.where(np.arange(system.electrons) < system.up, 1.0, -1.0), dtype=features.dtype)
    h = matmul(features, params["embed"]) + spin[:, None] * params["spin"]
    for layer in params["layers"]:
        if "query" in layer:
            h = h + matmul(_attend(layer, config.heads, h), layer["merge"])
        h = h + jnp.tanh(matmul(h, layer["hidden"]) + layer["bias"])
    return h


def _attend(layer: Params, heads: int, h: Array) -> Array:
    """Return the attention-weighted mean of all values for every electron, heads side by side, (n, width)."""
    query, key, value = (_by_head(matmul(h, layer[name]), heads) for name in ("query", "key", "value"))
    scores = matmul(query, jnp.swapaxes(key, 1, 2)) * (key.shape[-1] ** -0.5)
    largest = jnp.max(jax.lax.stop_gradient(scores), axis=-1, keepdims=True)
    shares = jnp.exp(scores - largest)
    means = matmul(shares, value) / jnp.sum(shares, axis=-1, keepdims=True)
    return jnp.swapaxes(means, 0, 1).reshape(h.shape)


def _by_head(rows: Array, heads: int) -> Array:
    """Split (n, width) into heads, (H, n, width / H)."""
    return jnp.swapaxes(rows.reshape(rows.shape[0], heads, -1), 0, 1)
