"""The orbital workload in JAX: a small neural wave function and its local energy, in three variants.

Letters: W walkers, N particles, D = 3 N coordinates, H hidden units.

N electrons move in a harmonic trap, with log|psi|(r) = -|r|^2 / 2 + MLP(r). The local energy is
E(r) = -(lap log|psi| + |grad log|psi||^2) / 2 + |r|^2 / 2 + sum over pairs of 1 / r_ij, where the
pair term is softened at short range, as for electrons in a thin layer. Training takes one Adam step
along the energy's gradient, 2 <(E - <E>) grad log|psi|>, in which E is a constant.

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
    """Return the weights of the MLP as numpy arrays: w0 (D, H), b0 (H,), w1 (H, H), b1 (H,), w2 (H, 1).

    The last layer has no bias, because it would only scale psi, and energies do not depend on that scale.
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
    """Draw walkers, (W, D), from |psi|^2 of the trap alone."""
    rng = np.random.default_rng(seed + 1)
    return (rng.standard_normal((size, 3 * particles)) / np.sqrt(2)).astype(np.float32)


def log_psi(params: Params, r: Any) -> Any:
    """Return log|psi|, a scalar, at r: (D,)."""
    h = r
    for i in range(len(HIDDEN)):
        h = jnp.tanh(h @ params[f"w{i}"] + params[f"b{i}"])
    return (h @ params[f"w{len(HIDDEN)}"])[0] - 0.5 * jnp.sum(r**2)


def potential(r: Any, *, repulsion: float = 1.0) -> Any:
    """Return the trap and the softened pair repulsion, a scalar, at r: (D,)."""
    places = r.reshape(-1, 3)
    first, second = np.triu_indices(places.shape[0], k=1)
    gaps = places[first] - places[second]
    return 0.5 * jnp.sum(r**2) + repulsion * jnp.sum(1 / jnp.sqrt(jnp.sum(gaps**2, axis=1) + SOFTENING**2))


def laplacian_by_hessian(f: Callable[[Any], Any], r: Any) -> tuple[Any, Any]:
    """Return Laplacian and gradient of f at r: (D,).

    Computes all D x D second derivatives and uses D of them.
    """
    return jnp.trace(jax.hessian(f)(r)), jax.grad(f)(r)


def laplacian_by_loop(f: Callable[[Any], Any], r: Any) -> tuple[Any, Any]:
    """Return Laplacian and gradient of f at r: (D,).

    Computes one forward derivative of the gradient at a time.
    """
    gradient, push = jax.linearize(jax.grad(f), r)
    basis = jnp.eye(r.shape[0], dtype=r.dtype)
    total = jax.lax.fori_loop(
        0, r.shape[0], lambda i, partial: partial + push(basis[i])[i], jnp.zeros((), r.dtype)
    )
    return total, gradient


def local_energy(
    params: Params, r: Any, *, laplacian: Callable[..., tuple[Any, Any]], repulsion: float = 1.0
) -> Any:
    """Return the local energy, a scalar, at r: (D,)."""
    lap, gradient = laplacian(lambda x: log_psi(params, x), r)
    return -0.5 * (lap + jnp.sum(gradient**2)) + potential(r, repulsion=repulsion)


def energies_at_once(laplacian: Callable[..., tuple[Any, Any]]) -> Energies:
    """Return a function (params, walkers (W, D)) -> energies (W,) that processes all walkers together."""
    return lambda params, walkers: jax.vmap(lambda r: local_energy(params, r, laplacian=laplacian))(walkers)


def energies_in_chunks(chunk: int) -> Energies:
    """Return the same function, `chunk` walkers at a time; the last chunk may be shorter."""
    energies = energies_at_once(laplacian_by_loop)

    def run(params: Params, walkers: Any) -> Any:
        _, rows = over_chunks(lambda carry, part: (carry, energies(params, part)), None, walkers, chunk=chunk)
        return rows

    return run


def over_chunks(
    step: Callable[..., tuple[Any, Any]], carry: Any, *arrays: Any, chunk: int
) -> tuple[Any, Any]:
    """Carry `carry` through step(carry, *parts) over chunks of rows, and join the rows it returns.

    Each chunk is sliced out of the whole array inside the loop, because reshaping it first would copy it.
    """
    size = arrays[0].shape[0]
    whole = size // chunk * chunk

    def at(carry: Any, start: Any) -> tuple[Any, Any]:
        return step(carry, *(jax.lax.dynamic_slice_in_dim(array, start, chunk) for array in arrays))

    carry, rows = jax.lax.scan(at, carry, jnp.arange(0, whole, chunk))
    rows = rows.reshape(whole, *rows.shape[2:])
    if whole == size:
        return carry, rows
    carry, rest = step(carry, *(array[whole:] for array in arrays))
    return carry, jnp.concatenate([rows, rest])


def surrogate(params: Params, walkers: Any, weights: Any) -> Any:
    """Return the sum of weights (W,) times log|psi|.

    Its gradient is that of the energy for weights 2 (E - <E>) / W.
    """
    return jnp.sum(weights * jax.vmap(lambda r: log_psi(params, r))(walkers))


def gradient_at_once(params: Params, walkers: Any, weights: Any) -> tuple[Params, Any]:
    return jax.grad(surrogate, argnums=(0, 1))(params, walkers, weights)


def gradient_in_chunks(params: Params, walkers: Any, weights: Any, *, chunk: int) -> tuple[Params, Any]:
    """Return the same sums, taken chunk by chunk, so that only one chunk's activations are alive."""

    def step(carry: Params, *part: Any) -> tuple[Params, Any]:
        by_params, by_walkers = gradient_at_once(params, *part)
        return jax.tree_util.tree_map(jnp.add, carry, by_params), by_walkers

    return over_chunks(step, jax.tree_util.tree_map(jnp.zeros_like, params), walkers, weights, chunk=chunk)


def build(
    size: int, *, device: str, mode: str, variant: str, seed: int = 0, chunk: int | None = None
) -> Case:
    """Build one case. If the device is absent the arguments are shapes only, which is enough to predict."""
    if chunk is not None and chunk < 1:
        raise BadInput(
            f"The chunk is {chunk} walkers, but must be at least 1.", hint="Give --chunk a number above 0."
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
        by_name = {f"params.{name}": np.asarray(value) for name, value in by_params.items()}
        return Probe({"energy": np.asarray(energy)}, by_name | {"walkers": np.asarray(by_walkers)})

    processed = jax.eval_shape(energies, params, walkers).shape[0]
    return Case(step, processed, args, probe if place is not None else None)


def adam(params: Params, opt_state: dict[str, Any], gradient: Params) -> tuple[Params, dict[str, Any]]:
    """Take one step of Adam. opt_state: {"count", "mean", "square"}."""
    tree = jax.tree_util.tree_map
    count = opt_state["count"] + 1
    mean = tree(lambda m, g: DECAY * m + (1 - DECAY) * g, opt_state["mean"], gradient)
    square = tree(lambda s, g: DECAY_SQUARED * s + (1 - DECAY_SQUARED) * g**2, opt_state["square"], gradient)

    def move(p: Any, m: Any, s: Any) -> Any:
        return p - RATE * (m / (1 - DECAY**count)) / (jnp.sqrt(s / (1 - DECAY_SQUARED**count)) + TINY)

    return tree(move, params, mean, square), {"count": count, "mean": mean, "square": square}


def _device(device: str) -> Any:
    """Return the device, or None if this machine has none."""
    try:
        local = jax.local_devices(backend=device)[0]
    except RuntimeError:
        return None
    # JAX may return a CPU in place of a missing GPU.
    return local if (local.platform == "cpu") == (device == "cpu") else None


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
