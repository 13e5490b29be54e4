"""A neural wave function of N2 with folx's forward Laplacian: `python folx_n2.py --steps 10`."""

import argparse

import folx
import jax
import jax.numpy as jnp
import numpy as np
import optax

ATOMS = np.array([[0.0, 0.0, -1.04], [0.0, 0.0, 1.04]])
CHARGES = np.array([7.0, 7.0])
ELECTRONS, WIDTH, LAYERS = 14, 64, 3


def start(key):
    keys = jax.random.split(key, LAYERS + 2)
    first = 4 * len(ATOMS)
    widths = [first] + [WIDTH] * LAYERS
    layers = [
        {"w": jax.random.normal(k, (2 * a, b)) / np.sqrt(2 * a), "b": jnp.zeros(b)}
        for k, a, b in zip(keys[:LAYERS], widths[:-1], widths[1:], strict=True)
    ]
    orbitals = jax.random.normal(keys[-1], (WIDTH, ELECTRONS)) / np.sqrt(WIDTH)
    return {"layers": layers, "orbitals": orbitals, "decay": jnp.ones((len(ATOMS), ELECTRONS))}


def log_psi(params, flat):
    x = flat.reshape(ELECTRONS, 3)
    offsets = x[:, None] - ATOMS
    distances = jnp.sqrt(jnp.sum(offsets**2, axis=-1) + 1e-6)
    h = jnp.concatenate([offsets.reshape(ELECTRONS, -1), distances], axis=-1)
    for layer in params["layers"]:
        mean = jnp.broadcast_to(jnp.mean(h, axis=0), h.shape)
        h = jnp.tanh(jnp.concatenate([h, mean], axis=-1) @ layer["w"] + layer["b"])
    envelope = jnp.exp(-distances @ params["decay"])
    return jnp.linalg.slogdet(h @ params["orbitals"] * envelope)[1]


def local_energy(params, flat):
    result = folx.forward_laplacian(lambda x: log_psi(params, x))(flat)
    kinetic = -0.5 * (result.laplacian + jnp.sum(result.jacobian.dense_array**2))
    x = flat.reshape(ELECTRONS, 3)
    pairs = x[:, None] - x[None] + 1e-6 * jnp.ones((ELECTRONS, ELECTRONS, 3))
    repulsion = jnp.sum(jnp.triu(1 / jnp.sqrt(jnp.sum(pairs**2, axis=-1)), 1))
    attraction = -jnp.sum(CHARGES / jnp.sqrt(jnp.sum((x[:, None] - ATOMS) ** 2, axis=-1)))
    return kinetic + repulsion + attraction


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--walkers", type=int, default=1024)
    args = parser.parse_args()
    key = jax.random.key(0)
    params = start(key)
    walkers = jax.random.normal(key, (args.walkers, 3 * ELECTRONS))
    rule = optax.adam(1e-3)
    opt_state = rule.init(params)

    @jax.jit
    def train_step(params, opt_state, walkers, key):
        k1, k2 = jax.random.split(key)
        moved = walkers + 0.05 * jax.random.normal(k1, walkers.shape)
        wave = jax.vmap(log_psi, (None, 0))
        chance = jnp.exp(2 * (wave(params, moved) - wave(params, walkers)))
        walkers = jnp.where((chance > jax.random.uniform(k2, chance.shape))[:, None], moved, walkers)
        energies = jax.vmap(local_energy, (None, 0))(params, walkers)
        energy = jnp.mean(energies)

        def loss_of(params):
            return 2 * jnp.mean(jax.lax.stop_gradient(energies - energy) * wave(params, walkers))

        updates, opt_state = rule.update(jax.grad(loss_of)(params), opt_state)
        return optax.apply_updates(params, updates), opt_state, walkers, energy

    for step in range(args.steps):
        key, now = jax.random.split(key)
        params, opt_state, walkers, energy = train_step(params, opt_state, walkers, now)
        if step % 5 == 0:
            print(step, float(energy))


if __name__ == "__main__":
    main()
