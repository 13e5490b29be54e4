"""Variational Monte Carlo of a helium-like atom in JAX; the twin of the slow script of this name."""

import jax
import jax.numpy as jnp

SAMPLES, ELECTRONS, STEPS = 16, 2, 2


def init(key: jax.Array) -> dict[str, jax.Array]:
    first, second = jax.random.split(key)
    return {"in": 0.1 * jax.random.normal(first, (6, 16)), "out": 0.1 * jax.random.normal(second, (16,))}


def log_psi(params: dict[str, jax.Array], r: jax.Array) -> jax.Array:
    hidden = jnp.tanh(r.reshape(-1) @ params["in"])
    return hidden @ params["out"] - 2.0 * jnp.linalg.norm(r, axis=1).sum()


def kinetic_energy(params: dict[str, jax.Array], r: jax.Array) -> jax.Array:
    """By forward differentiation of the gradient along each coordinate: the Hessian is never stored."""

    def gradient_of(x: jax.Array) -> jax.Array:
        return jax.grad(log_psi, argnums=1)(params, x.reshape(ELECTRONS, 3)).reshape(-1)

    gradient, push = jax.linearize(gradient_of, r.reshape(-1))

    def add(total: jax.Array, direction: jax.Array) -> tuple[jax.Array, None]:
        return total + direction @ push(direction), None

    laplacian, _ = jax.lax.scan(add, jnp.zeros(()), jnp.eye(ELECTRONS * 3))
    return -0.5 * (laplacian + (gradient**2).sum())


def local_energy(params: dict[str, jax.Array], r: jax.Array) -> jax.Array:
    distances = jnp.linalg.norm(r, axis=1)
    return kinetic_energy(params, r) - 2.0 * (1 / distances).sum() + 1 / jnp.linalg.norm(r[0] - r[1])


@jax.jit
def step(params: dict[str, jax.Array], r: jax.Array, key: jax.Array) -> tuple:
    """Move the walkers, and take one step down the gradient of their mean energy."""
    log_psis = jax.vmap(log_psi, in_axes=(None, 0))
    new = r + 0.3 * jax.random.normal(key, r.shape)
    ratio = log_psis(params, new) - log_psis(params, r)
    r = jnp.where(ratio[:, None, None] > -0.7, new, r)
    energies = jax.vmap(local_energy, in_axes=(None, 0))(params, r)
    weights = energies - energies.mean()
    gradient = jax.grad(lambda params: 2 * (weights * log_psis(params, r)).mean())(params)
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)
    return params, r, energies.mean()


def main() -> None:
    key = jax.random.PRNGKey(0)
    params = init(key)
    r = jax.random.normal(key, (SAMPLES, ELECTRONS, 3))
    energies = []
    for _ in range(STEPS):
        key, moving = jax.random.split(key)
        params, r, energy = step(params, r, moving)
        energies.append(energy)
    for at, energy in enumerate(jax.device_get(energies)):
        print(f"step {at}: energy {energy:.4f}")


if __name__ == "__main__":
    main()
