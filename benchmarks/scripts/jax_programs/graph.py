"""A message-passing network on one large graph, as pure functions: `python graph.py --steps 20`."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH, ROUNDS = 128, 4


def dense(key, a, b):
    return {"w": jax.random.normal(key, (a, b)) / np.sqrt(a), "b": jnp.zeros(b)}


def init(key, features):
    keys = jax.random.split(key, 3 * ROUNDS + 2)
    rounds = [
        {
            "message": dense(keys[3 * i], 2 * WIDTH + 1, WIDTH),
            "gate": dense(keys[3 * i + 1], WIDTH, 1),
            "update": dense(keys[3 * i + 2], 2 * WIDTH, WIDTH),
        }
        for i in range(ROUNDS)
    ]
    return {"embed": dense(keys[-1], features, WIDTH), "rounds": rounds, "readout": dense(keys[-2], WIDTH, 1)}


def linear(layer, x):
    return x @ layer["w"] + layer["b"]


def apply(params, nodes, edges, lengths):
    senders, receivers = edges
    h = linear(params["embed"], nodes)
    for turn in params["rounds"]:
        pairs = jnp.concatenate([h[senders], h[receivers], lengths], axis=-1)
        messages = jax.nn.silu(linear(turn["message"], pairs))
        messages = messages * jax.nn.sigmoid(linear(turn["gate"], messages))
        total = jax.ops.segment_sum(messages, receivers, num_segments=len(nodes))
        h = h + jax.nn.silu(linear(turn["update"], jnp.concatenate([h, total], axis=-1)))
    return linear(params["readout"], h)[:, 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--degree", type=int, default=16)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    count = args.nodes * args.degree
    nodes = jax.device_put(rng.normal(size=(args.nodes, 16)).astype(np.float32))
    edges = jax.device_put(rng.integers(0, args.nodes, (2, count)).astype(np.int32))
    lengths = jax.device_put(rng.random((count, 1)).astype(np.float32))
    targets = jax.device_put(rng.normal(size=args.nodes).astype(np.float32))
    params = init(jax.random.key(0), 16)
    rule = optax.adam(1e-3)
    opt_state = rule.init(params)

    def loss_of(params):
        return jnp.mean((apply(params, nodes, edges, lengths) - targets) ** 2)

    @jax.jit
    def train_step(params, opt_state):
        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = rule.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    best = np.inf
    for step in range(args.steps):
        params, opt_state, loss = train_step(params, opt_state)
        if step % 10 == 0:
            print(step, float(loss))
            best = min(best, float(loss))
    print("best", best)


if __name__ == "__main__":
    main()
