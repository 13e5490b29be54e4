"""An image classifier in flax (linen) with batch normalisation: `python cnn_flax.py --steps 20`."""

import argparse
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState


class Network(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for width in (64, 128, 256):
            x = nn.Conv(width, (3, 3))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(10)(x.mean(axis=(1, 2)))


class State(TrainState):
    batch_stats: Any


@jax.jit
def train_step(state, x, y):
    def loss_of(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, changes = state.apply_fn(variables, x, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), changes

    (loss, changes), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=changes["batch_stats"]), loss


@jax.jit
def predict(state, x):
    return state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, x, train=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(args.batch, 64, 64, 3)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, args.batch))
    model = Network()
    variables = model.init(jax.random.key(0), x[:1], train=False)
    state = State.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.sgd(0.1, momentum=0.9),
    )
    for step in range(args.steps):
        state, loss = train_step(state, x, y)
        if step % 10 == 0:
            right = np.asarray(predict(state, x)).argmax(axis=-1) == np.asarray(y)
            print(step, float(loss), right.mean())


if __name__ == "__main__":
    main()
