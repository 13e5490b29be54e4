"""A small neural wave function and its local energy, computed in three ways.

Letters: W walkers, N particles, D = 3 N coordinates, H hidden units.

N electrons in a harmonic trap. log|psi|(r) = -|r|^2 / 2 + MLP(r). The local energy is
E(r) = -(lap log|psi| + |grad log|psi||^2) / 2 + |r|^2 / 2 + sum over pairs of 1 / r_ij, with the
pair term rounded off at short range, as for electrons in a thin layer. Training takes one Adam
step along the energy's gradient, 2 <(E - <E>) grad log|psi|>, in which E is a constant.

With a zero MLP and no pair term the wave function is the exact ground state, E = 3 N / 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Probe

PARTICLES = 4
HIDDEN = (64, 64)
CHUNK = 1024
SOFTENING = 0.1
RATE, DECAY, DECAY_SQUARED, TINY = 1e-3, 0.9, 0.999, 1e-8

Params = dict[str, Any]
Energies = Callable[[Params, Any], Any]


def init(seed: int, *, particles: int = PARTICLES) -> Params:
    """Weights of the MLP, as numpy arrays: w0 (D, H), b0 (H,), w1 (H, H), b1 (H,), w2 (H, 1).

    The last layer has no bias: it would only scale psi, which no energy depends on.
    """
    rng = np.random.default_rng(seed)
    widths = (3 * particles, *HIDDEN, 1)
    params: Params = {}
    for i, (a, b) in enumerate(pairwise(widths)):
        params[f"w{i}"] = (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
        if i < len(HIDDEN):
            params[f"b{i}"] = np.zeros(b, np.float32)
    return params


def sample(size: int, seed: int, *, particles: int = PARTICLES) -> Any:
    """walkers: (W, D), drawn from |psi|^2 of the trap alone."""
    rng = np.random.default_rng(seed + 1)
    return (rng.standard_normal((size, 3 * particles)) / np.sqrt(2)).astype(np.float32)


def log_psi(params: Params, r: Any) -> Any:
    """r: (D,) -> log|psi|, a scalar."""
    h = r
    for i in range(len(HIDDEN)):
        h = jnp.tanh(h @ params[f"w{i}"] + params[f"b{i}"])
    return (h @ params[f"w{len(HIDDEN)}"])[0] - 0.5 * jnp.sum(r**2)


def potential(r: Any, *, repulsion: float = 1.0) -> Any:
    """r: (D,) -> trap and rounded-off pair repulsion, a scalar."""
    places = r.reshape(-1, 3)
    first, second = np.triu_indices(places.shape[0], k=1)
    gaps = places[first] - places[second]
    return 0.5 * jnp.sum(r**2) + repulsion * jnp.sum(1 / jnp.sqrt(jnp.sum(gaps**2, axis=1) + SOFTENING**2))


def laplacian_by_hessian(f: Callable[[Any], Any], r: Any) -> tuple[Any, Any]:
    """Laplacian and gradient of f at r: (D,). Makes all D x D second derivatives to use D of them."""
    return jnp.trace(jax.hessian(f)(r)), jax.grad(f)(r)


def laplacian_by_loop(f: Callable[[Any], Any], r: Any) -> tuple[Any, Any]:
    """Laplacian and gradient of f at r: (D,). One forward derivative of the gradient at a time."""
    gradient, push = jax.linearize(jax.grad(f), r)
    basis = jnp.eye(r.shape[0], dtype=r.dtype)
    total = jax.lax.fori_loop(0, r.shape[0], lambda i, done: done + push(basis[i])[i], jnp.zeros((), r.dtype))
    return total, gradient


def local_energy(
    params: Params, r: Any, *, laplacian: Callable[..., tuple[Any, Any]], repulsion: float = 1.0
) -> Any:
    """r: (D,) -> local energy, a scalar."""
    lap, gradient = laplacian(lambda x: log_psi(params, x), r)
    return -0.5 * (lap + jnp.sum(gradient**2)) + potential(r, repulsion=repulsion)


def energies_at_once(laplacian: Callable[..., tuple[Any, Any]]) -> Energies:
    """(params, walkers (W, D)) -> energies (W,), all walkers together."""
    return lambda params, walkers: jax.vmap(lambda r: local_energy(params, r, laplacian=laplacian))(walkers)


def energies_in_chunks(chunk: int) -> Energies:
    """The same, `chunk` walkers at a time; the last chunk may be shorter."""
    energies = energies_at_once(laplacian_by_loop)

    def run(params: Params, walkers: Any) -> Any:
        _, found = over_chunks(lambda done, part: (done, energies(params, part)), None, walkers, chunk=chunk)
        return found

    return run


def over_chunks(turn: Callable[..., tuple[Any, Any]], done: Any, *arrays: Any, chunk: int) -> tuple[Any, Any]:
    """Carry `done` through turn(done, *parts) over chunks of rows; the rows it gives are put together again.

    Each chunk is cut out of the whole array inside the loop: reshaping it first would copy it.
    """
    size = arrays[0].shape[0]
    whole = size // chunk * chunk

    def at(done: Any, start: Any) -> tuple[Any, Any]:
        return turn(done, *(jax.lax.dynamic_slice_in_dim(array, start, chunk) for array in arrays))

    done, rows = jax.lax.scan(at, done, jnp.arange(0, whole, chunk))
    rows = rows.reshape(whole, *rows.shape[2:])
    if whole == size:
        return done, rows
    done, rest = turn(done, *(array[whole:] for array in arrays))
    return done, jnp.concatenate([rows, rest])


def surrogate(params: Params, walkers: Any, weights: Any) -> Any:
    """sum of weights (W,) times log|psi|: its gradient is the energy's, with weights 2 (E - <E>) / W."""
    return jnp.sum(weights * jax.vmap(lambda r: log_psi(params, r))(walkers))


def gradient_at_once(params: Params, walkers: Any, weights: Any) -> tuple[Params, Any]:
    return jax.grad(surrogate, argnums=(0, 1))(params, walkers, weights)


def gradient_in_chunks(params: Params, walkers: Any, weights: Any, *, chunk: int) -> tuple[Params, Any]:
    """The same sums, taken chunk by chunk: activations of one chunk are alive at a time."""

    def turn(done: Params, *part: Any) -> tuple[Params, Any]:
        by_params, by_walkers = gradient_at_once(params, *part)
        return jax.tree_util.tree_map(jnp.add, done, by_params), by_walkers

    return over_chunks(turn, jax.tree_util.tree_map(jnp.zeros_like, params), walkers, weights, chunk=chunk)


def build(
    size: int, *, device: str, mode: str, variant: str, seed: int = 0, chunk: int | None = None
) -> Case:
    """One case. Where the asked device is not here the arguments are shapes only: enough to predict."""
    if chunk is not None and chunk < 1:
        raise BadInput(
            f"chunk {chunk} is not a number of walkers", hint="give --chunk a whole number above 0"
        )
    chunk = min(chunk or CHUNK, size)
    energies: Energies = {
        "hessian": energies_at_once(laplacian_by_hessian),
        "loop": energies_at_once(laplacian_by_loop),
        "chunked": energies_in_chunks(chunk),
    }[variant]

    gradient = partial(gradient_in_chunks, chunk=chunk) if variant == "chunked" else gradient_at_once

    def gradients(params: Params, walkers: Any) -> tuple[Any, Params, Any]:
        energy = energies(params, walkers)
        weights = 2 * (energy - energy.mean()) / energy.shape[0]
        return energy, *gradient(params, walkers, weights)

    def train(params: Params, opt_state: dict[str, Any], walkers: Any) -> tuple[Params, dict[str, Any], Any]:
        energy, by_params, _ = gradients(params, walkers)
        params, opt_state = adam(params, opt_state, by_params)
        return params, opt_state, energy.mean()

    place = _device(device)
    params, walkers = _inputs(size, seed, place)
    args = (params, _optimizer(params), walkers) if mode == "train" else (params, walkers)
    step = jax.jit(train if mode == "train" else energies)

    def probe() -> Probe:
        if mode == "infer":
            return Probe({"energy": np.asarray(jax.jit(energies)(params, walkers))})
        energy, by_params, by_walkers = jax.jit(gradients)(params, walkers)
        named = {f"params.{name}": np.asarray(value) for name, value in by_params.items()}
        return Probe({"energy": np.asarray(energy)}, named | {"walkers": np.asarray(by_walkers)})

    processed = jax.eval_shape(energies, params, walkers).shape[0]
    return Case(step, processed, args, probe if place is not None else None)


def adam(params: Params, opt_state: dict[str, Any], gradient: Params) -> tuple[Params, dict[str, Any]]:
    """One step of Adam. opt_state: {"count", "mean", "square"}."""
    tree = jax.tree_util.tree_map
    count = opt_state["count"] + 1
    mean = tree(lambda m, g: DECAY * m + (1 - DECAY) * g, opt_state["mean"], gradient)
    square = tree(lambda s, g: DECAY_SQUARED * s + (1 - DECAY_SQUARED) * g**2, opt_state["square"], gradient)

    def move(p: Any, m: Any, s: Any) -> Any:
        return p - RATE * (m / (1 - DECAY**count)) / (jnp.sqrt(s / (1 - DECAY_SQUARED**count)) + TINY)

    return tree(move, params, mean, square), {"count": count, "mean": mean, "square": square}


def _device(device: str) -> Any:
    """The device asked for, or None where it is not here."""
    try:
        found = jax.local_devices(backend=device)[0]
    except RuntimeError:
        return None
    return found if (found.platform == "cpu") == (device == "cpu") else None  # a CPU may stand in for a card


def _inputs(size: int, seed: int, place: Any) -> tuple[Params, Any]:
    if place is not None:
        return jax.device_put((init(seed), sample(size, seed)), place)
    params = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in init(seed).items()}
    return params, jax.ShapeDtypeStruct((size, 3 * PARTICLES), np.float32)


def _optimizer(params: Params) -> dict[str, Any]:
    def start(params: Params) -> dict[str, Any]:
        zero = jax.tree_util.tree_map(jnp.zeros_like, params)
        return {"count": jnp.zeros((), jnp.float32), "mean": zero, "square": zero}

    abstract = isinstance(next(iter(params.values())), jax.ShapeDtypeStruct)
    return jax.eval_shape(start, params) if abstract else jax.jit(start)(params)
