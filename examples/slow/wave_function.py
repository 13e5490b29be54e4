"""Variational Monte Carlo of a helium-like atom in JAX, the slow way.

The lines that cost time or memory, or give wrong answers, end with the name of the rule that finds them.
"""

import contextlib
import os
import sys

if "--fast" in sys.argv:
    os.environ["XLA_FLAGS"] = "--xla_enable_fast_min_max_math"  # fault: unknown-xla-flag

import jax
import jax.numpy as jnp

with contextlib.suppress(AttributeError):
    jax.config.update("jax_enable_x64x", False)  # fault: unknown-jax-option

SAMPLES, ELECTRONS, STEPS = 16, 2, 2


def init(key: jax.Array) -> dict[str, jax.Array]:
    first, second = jax.random.split(key)
    return {"in": 0.1 * jax.random.normal(first, (6, 16)), "out": 0.1 * jax.random.normal(second, (16,))}


def log_psi(params: dict[str, jax.Array], r: jax.Array) -> jax.Array:
    hidden = jnp.tanh(r.reshape(-1) @ params["in"])
    return hidden @ params["out"] - 2.0 * jnp.linalg.norm(r, axis=1).sum()


def kinetic_energy(params: dict[str, jax.Array], r: jax.Array) -> jax.Array:
    gradient = jax.grad(log_psi, argnums=1)
    laplacian = 0.0
    for i in range(ELECTRONS):
        for j in range(3):

            def component(r: jax.Array, i: int = i, j: int = j) -> jax.Array:
                return gradient(params, r)[i, j]

            laplacian = laplacian + jax.grad(component)(r)[i, j]  # fault: transform-in-loop
    return -0.5 * (laplacian + (gradient(params, r) ** 2).sum())


def laplacian_by_hessian(params: dict[str, jax.Array], r: jax.Array) -> jax.Array:
    hessian = jax.hessian(lambda x: log_psi(params, x.reshape(ELECTRONS, 3)))(r.reshape(-1))
    return jnp.trace(hessian)  # fault: full-hessian


def local_energy(params: dict[str, jax.Array], r: jax.Array) -> jax.Array:
    distances = jnp.linalg.norm(r, axis=1)
    return kinetic_energy(params, r) - 2.0 * (1 / distances).sum() + 1 / jnp.linalg.norm(r[0] - r[1])


def walk(params: dict[str, jax.Array], r: jax.Array, key: jax.Array) -> jax.Array:
    move = jax.jit(lambda r, key: r + 0.3 * jax.random.normal(key, r.shape))  # fault: jit-per-call
    new = move(r, key)
    moved = []
    for i in range(SAMPLES):
        ratio = float(log_psi(params, new[i]) - log_psi(params, r[i]))  # fault: sync-in-loop
        moved.append(new[i] if ratio > -0.7 else r[i])
    return jnp.stack(moved)


def main() -> None:
    key = jax.random.PRNGKey(0)
    params = init(key)
    r = jax.random.normal(key, (SAMPLES, ELECTRONS, 3))
    for step in range(STEPS):
        key, moving = jax.random.split(key)
        r = walk(params, r, moving)
        energies = []
        for i in range(SAMPLES):
            energies.append(float(local_energy(params, r[i])))  # fault: sync-in-loop
        mean = sum(energies) / SAMPLES
        weights = jnp.array(energies) - mean

        def loss(params: dict[str, jax.Array], weights: jax.Array, r: jax.Array) -> jax.Array:
            return 2 * (weights * jax.vmap(log_psi, in_axes=(None, 0))(params, r)).mean()

        gradient = jax.grad(loss)(params, weights, r)  # fault: transform-in-loop
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)
        print(f"step {step}: energy {mean:.4f}, Laplacian {laplacian_by_hessian(params, r[0]):.3f}")


if __name__ == "__main__":
    main()
