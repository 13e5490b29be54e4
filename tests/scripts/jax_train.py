"""A JAX script as people write it: jit, optax, and the loss every ten steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(8192, 512)), jnp.float32)
y = jnp.asarray(rng.integers(0, 10, 8192))
k1, k2 = jax.random.split(jax.random.key(0))
params = {"hidden": jax.random.normal(k1, (512, 2048)), "out": jax.random.normal(k2, (2048, 10))}
rule = optax.adam(1e-3)
opt_state = rule.init(params)


@jax.jit
def train_step(params, opt_state, x, y):
    def loss_of(params):
        logits = jax.nn.relu(x @ params["hidden"]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, opt_state = rule.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


for step in range(10_000):
    params, opt_state, loss = train_step(params, opt_state, x, y)
    if step % 10 == 0:
        print(step, int(opt_state[0].count), float(loss))
