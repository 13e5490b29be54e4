"""A classifier in flax (linen) with optax: `python mlp_flax.py --steps 20`."""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState


class Classifier(nn.Module):
    width: int = 4096
    depth: int = 4

    @nn.compact
    def __call__(self, x):
        for _ in range(self.depth):
            x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(10)(x)


@jax.jit
def train_step(state, x, y):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


@jax.jit
def accuracy(state, x, y):
    return jnp.mean(jnp.argmax(state.apply_fn({"params": state.params}, x), axis=-1) == y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8192)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    model = Classifier()
    params = model.init(jax.random.key(0), jnp.ones((1, 784)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))
    for step in range(args.steps):
        x = rng.normal(size=(args.batch, 784)).astype(np.float32)
        y = rng.integers(0, 10, args.batch)
        state, loss = train_step(state, x, y)
        if step % 10 == 0:
            print(int(state.step), float(loss))
    print("accuracy", float(accuracy(state, x, y)))


if __name__ == "__main__":
    main()
