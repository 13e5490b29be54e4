"""An image classifier in flax (NNX) with batch normalisation: `python cnn_nnx.py --steps 20`."""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


class Network(nnx.Module):
    def __init__(self, rngs):
        widths = (3, 64, 128, 256)
        self.convs = nnx.List(
            [nnx.Conv(a, b, kernel_size=(3, 3), rngs=rngs) for a, b in itertools.pairwise(widths)]
        )
        self.norms = nnx.List([nnx.BatchNorm(b, rngs=rngs) for b in widths[1:]])
        self.head = nnx.Linear(widths[-1], 10, rngs=rngs)

    def __call__(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.relu(norm(conv(x)))
            x = nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))
        return self.head(x.mean(axis=(1, 2)))


def loss_of(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(loss_of)(model, x, y)
    optimizer.update(model, grads)
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    x = jnp.asarray(rng.normal(size=(args.batch, 64, 64, 3)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, args.batch))
    for step in range(args.steps):
        loss = train_step(model, optimizer, x, y)
        if step % 10 == 0:
            print(step, float(loss))
    jax.block_until_ready(loss)


if __name__ == "__main__":
    main()
