"""The streams of FermiNet: vectors of electrons and of pairs, mixed by means.

They are equivariant under swaps of electrons with equal spin. Letters: n electrons, M nuclei, k electrons of
one spin. The input of a layer for electron i is its own vector, the means of all vectors of each spin, and
the means of its pairs with each spin. The weights of these parts are separate, so that the means over
electrons, which all electrons share, are multiplied once per walker and not n times.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.features import Geometry, one_electron, two_electrons
from pinchpoint.systems.vmc.model.layers import launch_bound, matmul, residual, weights
from pinchpoint.systems.vmc.model.pairs import pair_means, spin_means

Array = jax.Array
Params = dict[str, Any]

_PAIR_FEATURES = 4


def init_streams(key: Array, system: System, config: NetConfig) -> Params:
    """Return {"one": one dict per layer, "two": the same for pairs; absent for a single electron}."""
    one_keys, two_keys = (jax.random.split(part, config.layers) for part in jax.random.split(key))
    paired = system.electrons > 1
    ones: list[Params] = []
    twos: list[Params] = []
    one, two = 4 * system.nuclei, _PAIR_FEATURES
    for layer in range(config.layers):
        if paired:
            twos.append({"weights": weights(two_keys[layer], two, config.two), "bias": jnp.zeros(config.two)})
            two = config.two
        ones.append(_init_one(one_keys[layer], system, one, two if paired else 0, config.one))
        one = config.one
    return {"one": ones, "two": twos} if paired else {"one": ones}


def _init_one(key: Array, system: System, one: int, two: int, width: int) -> Params:
    rows = {"self": one}
    if two:
        for spin in spins(system):
            rows |= {f"mean_{spin}": one, f"pairs_{spin}": two}
    keys = jax.random.split(key, len(rows))
    fan_in = sum(rows.values())
    parts = {
        name: weights(k, count, width, fan_in=fan_in)
        for k, (name, count) in zip(keys, rows.items(), strict=True)
    }
    return {**parts, "bias": jnp.zeros(width)}


def spins(system: System) -> dict[str, slice]:
    """Return the electrons of each spin that occurs."""
    both = {"up": slice(0, system.up), "down": slice(system.up, system.electrons)}
    return {spin: part for spin, part in both.items() if part.stop > part.start}


def streams(params: Params, system: System, places: Geometry) -> Array:
    """Return the vector of each electron after all layers, (n, one)."""
    h = one_electron(system, places)
    means = (
        pair_means(params["two"], system.up, two_electrons(places))
        if "two" in params
        else [None] * len(params["one"])
    )
    for one, pairs in zip(params["one"], means, strict=True):
        h = residual(h, jnp.tanh(_mix(one, system, h, pairs)))
    return h


def _mix(params: Params, system: System, h: Array, pairs: Array | None) -> Array:
    """Apply the weights to the electrons' vectors, the means, and the means of pairs (n, s two).

    Returns (n, width).
    """
    if pairs is None:
        return matmul(h, params["self"]) + params["bias"]
    means = spin_means(h, system.up)
    of_means, of_pairs = (
        jnp.concatenate([params[f"{part}_{spin}"] for spin in spins(system)]) for part in ("mean", "pairs")
    )
    if launch_bound(h):
        side_by_side = [h, jnp.broadcast_to(means, (h.shape[0], means.shape[0])), pairs]
        whole = jnp.concatenate([params["self"], of_means, of_pairs])
        return matmul(jnp.concatenate(side_by_side, axis=-1), whole) + params["bias"]
    return matmul(h, params["self"]) + matmul(pairs, of_pairs) + (matmul(means, of_means) + params["bias"])
