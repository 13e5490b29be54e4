"""A small language model in equinox: `python transformer_equinox.py --steps 20`."""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, width, heads, key):
        k1, k2 = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(heads, width, key=k1)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, activation=jax.nn.gelu, key=k2)

    def __call__(self, x, mask):
        h = jax.vmap(self.norm1)(x)
        x = x + self.attention(h, h, h, mask=mask)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norm2)(x))


class LanguageModel(eqx.Module):
    tokens: eqx.nn.Embedding
    positions: jax.Array
    blocks: list
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, vocabulary, length, width, depth, heads, key):
        keys = jax.random.split(key, depth + 3)
        self.tokens = eqx.nn.Embedding(vocabulary, width, key=keys[0])
        self.positions = 0.02 * jax.random.normal(keys[1], (length, width))
        self.blocks = [Block(width, heads, k) for k in keys[3:]]
        self.norm = eqx.nn.LayerNorm(width)
        self.head = eqx.nn.Linear(width, vocabulary, key=keys[2])

    def __call__(self, ids):
        x = jax.vmap(self.tokens)(ids) + self.positions[: len(ids)]
        mask = jnp.tril(jnp.ones((len(ids), len(ids)), bool))
        for block in self.blocks:
            x = block(x, mask)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


@eqx.filter_value_and_grad
def loss_of(model, ids):
    logits = jax.vmap(model)(ids[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    model = LanguageModel(8192, 256, 512, 6, 8, jax.random.key(0))
    rule = optax.adamw(3e-4)
    opt_state = rule.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all-except-first")
    def train_step(ids, model, opt_state):
        loss, grads = loss_of(model, ids)
        updates, opt_state = rule.update(grads, opt_state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), opt_state, loss

    for step in range(args.steps):
        ids = jnp.asarray(rng.integers(0, 8192, (args.batch, 257)))
        model, opt_state, loss = train_step(ids, model, opt_state)
        if step % 10 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
