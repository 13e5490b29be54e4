"""A denoising diffusion model with a small U-Net: `python diffusion.py --steps 20`."""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

TIMES = 1000
ALPHAS = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, TIMES))


class Residual(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, time):
        h = nn.Conv(self.width, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))
        h = h + nn.Dense(self.width)(nn.swish(time))[:, None, None]
        h = nn.Conv(self.width, (3, 3))(nn.swish(nn.GroupNorm(8)(h)))
        return h + (x if x.shape[-1] == self.width else nn.Conv(self.width, (1, 1))(x))


class UNet(nn.Module):
    widths: tuple = (64, 128, 256)

    @nn.compact
    def __call__(self, x, times):
        angles = times[:, None] * jnp.exp(-jnp.arange(32) * 0.25)
        time = nn.Dense(256)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1))
        x = nn.Conv(self.widths[0], (3, 3))(x)
        skips = []
        for width in self.widths:
            x = Residual(width)(x, time)
            skips.append(x)
            x = nn.avg_pool(x, (2, 2), (2, 2))
        x = Residual(self.widths[-1])(x, time)
        for width in reversed(self.widths):
            shape = (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
            x = jnp.concatenate([jax.image.resize(x, shape, "nearest"), skips.pop()], axis=-1)
            x = Residual(width)(x, time)
        return nn.Conv(3, (3, 3))(nn.swish(nn.GroupNorm(8)(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    model = UNet()
    key = jax.random.key(0)
    params = jax.jit(model.init)(key, jnp.zeros((1, 32, 32, 3)), jnp.zeros(1))
    rule = optax.adam(2e-4)
    opt_state = rule.init(params)
    average = params

    @jax.jit
    def train_step(params, average, opt_state, images, key):
        k1, k2 = jax.random.split(key)
        times = jax.random.randint(k1, (len(images),), 0, TIMES)
        noise = jax.random.normal(k2, images.shape)
        level = ALPHAS[times][:, None, None, None]

        def loss_of(params):
            noisy = jnp.sqrt(level) * images + jnp.sqrt(1 - level) * noise
            return jnp.mean((model.apply(params, noisy, times.astype(jnp.float32)) - noise) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = rule.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, average, 0.01), opt_state, loss

    @jax.jit
    def sample(params, key):
        def denoise(x, t):
            guess = model.apply(params, x, jnp.full(len(x), t, jnp.float32))
            return x - 0.02 * guess, None

        return jax.lax.scan(denoise, jax.random.normal(key, (64, 32, 32, 3)), jnp.arange(20)[::-1])[0]

    for step in range(args.steps):
        images = rng.normal(size=(args.batch, 32, 32, 3)).astype(np.float32)
        key, now = jax.random.split(key)
        params, average, opt_state, loss = train_step(params, average, opt_state, images, now)
        if step % 10 == 0:
            print(step, float(loss))
    print(np.asarray(sample(average, key)).shape)


if __name__ == "__main__":
    main()
