"""The streams of FermiNet: vectors of electrons and of pairs, mixed by means.

They are equivariant under swaps of electrons with equal spin. Letters: n electrons, M nuclei, k electrons of
one spin. The input of a layer for electron i is its own vector, the means of all vectors of each spin, and
the means of its pairs with each spin. The weights of these parts are separate, so that the means over
electrons, which all electrons share, are multiplied once per walker and not n times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.features import Geometry, one_electron
from pinchpoint.systems.vmc.model.folx_rules import register_rules
from pinchpoint.systems.vmc.model.layers import LAUNCH_BOUND, launch_bound, matmul, residual, weights
from pinchpoint.systems.vmc.model.pairs import pair_derivatives, pair_means, spin_means
from pinchpoint.systems.vmc.model.tensor_products import applies, linear, slopes_of_layer, values_of_layer

Array = jax.Array
Params = dict[str, Any]

_PAIR_FEATURES = 4
# folx looks up the rule of a jitted function by its name. The parameters' tree follows from it.
_NAME = "pinchpoint_streams_of_{layers}_layers_{spins}_spins_{up}_up"
_FEW = 4  # up to this many electrons there are few coordinates, so nothing is gained


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
    if "two" not in params:
        for one in params["one"]:
            h = residual(h, jnp.tanh(matmul(h, one["self"]) + one["bias"]))
        return h
    leaves, tree = jax.tree_util.tree_flatten(params)

    def run(*arguments: Array) -> Array:
        *flat, h, x = arguments
        layers = jax.tree_util.tree_unflatten(tree, flat)
        for one, pairs in zip(layers["one"], pair_means(layers["two"], system.up, x), strict=True):
            width = one["bias"].shape[0]
            # Without a rule, folx would trace the kernel.
            few = system.electrons <= _FEW or system.electrons * width <= LAUNCH_BOUND
            if few or not applies(width=width, dtype=jnp.result_type(h, one["self"])):
                h = residual(h, jnp.tanh(_mix(one, system.up, h, pairs)))
                continue
            shift = matmul(spin_means(h, system.up), _both_spins(one, "mean")) + one["bias"]
            h = values_of_layer(h, pairs, shift, one["self"], _both_spins(one, "pairs"))
        return h

    if system.electrons <= _FEW:
        return run(*leaves, h, places.x)
    run.__name__ = _NAME.format(layers=len(params["one"]), spins=len(spins(system)), up=system.up)
    register_rules({run.__name__: _rule(tree, system.up)})
    return jax.jit(run)(*leaves, h, places.x)


def _mix(params: Params, up: int, h: Array, pairs: Array) -> Array:
    """Apply the weights to the electrons' vectors, the means, and the means of pairs (n, s two).

    Returns (n, width).
    """
    means = spin_means(h, up)
    if launch_bound(h):
        side_by_side = [h, jnp.broadcast_to(means, (h.shape[0], means.shape[0])), pairs]
        whole = jnp.concatenate([params["self"], _both_spins(params, "mean"), _both_spins(params, "pairs")])
        return matmul(jnp.concatenate(side_by_side, axis=-1), whole) + params["bias"]
    return (
        matmul(h, params["self"])
        + matmul(pairs, _both_spins(params, "pairs"))
        + (matmul(means, _both_spins(params, "mean")) + params["bias"])
    )


def _new_slopes(
    slopes: Array, slope: Array, by_pairs: Array, by_means: Array, own: Array, of_pairs: Array, *, last: bool
) -> tuple[Array, Array]:
    """Return the derivatives after a layer, and the sum of squares before its tanh: see `slopes_of_layer`."""
    dtype = jnp.result_type(slopes, own)
    if applies(width=slope.shape[-1], dtype=dtype, coordinates=slopes.shape[0]):
        return slopes_of_layer(slopes, by_pairs, by_means, slope, own, of_pairs)
    if slopes.shape[-1] == slope.shape[-1]:
        before = _joined(matmul(by_pairs, of_pairs), matmul(slopes, own))
    else:  # the features of the first layer are few
        rows = jnp.concatenate([slopes, by_pairs], axis=-1)
        before = jax.lax.optimization_barrier(matmul(rows, jnp.concatenate([own, of_pairs])))
    before = before + by_means[:, None]
    slopes, squares = residual(slopes, slope * before), _sum_of_squares(before)
    squares = jax.lax.optimization_barrier(squares)
    # Written once and then read by the next layer: fused, they would be computed again.
    return slopes if last else jax.lax.optimization_barrier(slopes), squares


def _joined(first: Array, second: Array) -> Array:
    """Return the sum, written once: the derivatives of the means, added to it, must not be written out."""
    return jax.lax.optimization_barrier(first + second)


def _sum_of_squares(rows: Array) -> Array:
    """Return the sum over the first axis of the squares.

    Term by term: for a reduction, XLA would store the summed axis last, and transpose all derivatives for it.
    """
    squares = rows * rows
    if rows.shape[0] % 3 == 0:  # first over the coordinates of each electron: fewer operations to compile
        first, second, third = (squares.reshape(-1, 3, *rows.shape[1:])[:, axis] for axis in range(3))
        squares = first + second + third
    return reduce(add, squares)


def _both_spins(params: Params, part: str) -> Array:
    """Return the weights of a part for the spins that occur, one below the other."""
    return jnp.concatenate(
        [params[f"{part}_{spin}"] for spin in ("up", "down") if f"{part}_{spin}" in params]
    )


def _rule(tree: Any, up: int) -> Callable[..., Any]:
    """Return the rule that folx calls instead of the streams.

    Derivatives are (d, n, width): the rows of one product with the weights, beside those of the means of
    pairs. Each layer reads and writes them as few times as XLA's kernels allow.
    """

    def rule(arguments: Sequence[Any], options: dict[str, Any], sparsity_threshold: int) -> Any:
        del options, sparsity_threshold  # there are no options, and the sparsity is known here
        *flat, h, place = arguments
        assert h.x.ndim == 2, "the rule is that of one walker"
        params = jax.tree_util.tree_unflatten(tree, flat)
        both = jnp.stack([h.x, h.laplacian])
        slopes = h.jacobian.dense_array  # (d, n, width)
        layers = params["one"]
        for number, (pairs, by_pairs) in enumerate(pair_derivatives(params["two"], up, place)):
            one = layers[number]
            of_pairs, of_means = _both_spins(one, "pairs"), _both_spins(one, "mean")
            by_means = linear(spin_means(slopes, up), of_means)
            parts = by_pairs, by_means, one["self"], of_pairs
            # XLA joins products with the same weights, and would copy all derivatives for it.
            own, of_pairs, of_means = jax.lax.optimization_barrier((one["self"], of_pairs, of_means))
            value, curve = (
                matmul(both, own) + matmul(pairs, of_pairs) + matmul(spin_means(both, up), of_means)[:, None]
            )
            new = jnp.tanh(value + one["bias"])
            slope = 1 - new * new
            slopes, squares = _new_slopes(slopes, slope, *parts, last=number + 1 == len(layers))
            curve = slope * curve - 2 * new * slope * squares
            both = residual(both, jnp.stack([new, curve]))
        return type(h)(both[0], type(h.jacobian).from_dense(slopes), both[1])

    return rule
