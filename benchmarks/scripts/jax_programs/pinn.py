"""A physics-informed network for the heat equation: `python pinn.py --steps 20`."""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import optax

WIDTHS = (3, 256, 256, 256, 256, 1)


def start(key):
    keys = jax.random.split(key, len(WIDTHS) - 1)
    return [
        {"w": jax.random.normal(k, (a, b)) / a**0.5, "b": jnp.zeros(b)}
        for k, a, b in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=True)
    ]


def temperature(params, point):
    x = point
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ params[-1]["w"] + params[-1]["b"])[0]


def residual(params, point):
    """The heat equation u_t = u_xx + u_yy at one point (x, y, t)."""
    slope = jax.grad(temperature, argnums=1)(params, point)
    curvature = jax.hessian(temperature, argnums=1)(params, point)
    return slope[2] - curvature[0, 0] - curvature[1, 1]


def loss_of(params, inside, edge, values):
    fit = jax.vmap(partial(temperature, params))(edge) - values
    return jnp.mean(jax.vmap(partial(residual, params))(inside) ** 2) + jnp.mean(fit**2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--points", type=int, default=65_536)
    args = parser.parse_args()
    key = jax.random.PRNGKey(0)
    params = start(key)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-3, 1000)))
    opt_state = rule.init(params)

    @partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, key):
        k1, k2 = jax.random.split(key)
        inside = jax.random.uniform(k1, (args.points, 3))
        edge = jax.random.uniform(k2, (args.points // 8, 3)).at[:, 2].set(0.0)
        values = jnp.sin(jnp.pi * edge[:, 0]) * jnp.sin(jnp.pi * edge[:, 1])
        loss, grads = jax.value_and_grad(loss_of)(params, inside, edge, values)
        updates, opt_state = rule.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    for step in range(args.steps):
        key, now = jax.random.split(key)
        params, opt_state, loss = train_step(params, opt_state, now)
        if step % 10 == 0:
            print(f"{step} {loss:.3e}")


if __name__ == "__main__":
    main()
