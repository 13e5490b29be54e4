"""Attention over a sequence that is divided over the devices: keys and values go around by `ppermute`."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from models import HEADS, WIDTH, adam, start_adam

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--sequence", type=int, default=16384)
args = parser.parse_args()

count = jax.device_count()
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("sequence",))
divided, everywhere = NamedSharding(mesh, P(None, "sequence")), NamedSharding(mesh, P())
NEXT = [(i, (i + 1) % count) for i in range(count)]


def attend(q, k, v):
    """Sum over all parts of the keys, each of which is here for one turn."""

    def turn(state, _):
        k, v, total, weight = state
        scores = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / 8)
        total = total + jnp.einsum("bhqk,bkhd->bqhd", scores.astype(q.dtype), v)
        weight = weight + scores.sum(-1)
        k, v = (jax.lax.ppermute(y, "sequence", NEXT) for y in (k, v))
        return (k, v, total, weight), None

    weight = jnp.zeros((q.shape[0], HEADS, q.shape[1]))
    body = jax.checkpoint(turn)
    (_, _, total, weight), _ = jax.lax.scan(body, (k, v, jnp.zeros_like(q), weight), length=count)
    return total / weight.transpose(0, 2, 1)[..., None].astype(q.dtype)


def loss_of(params, x):
    for w in params:
        qkv = (x @ w["qkv"].astype(x.dtype)).reshape(*x.shape[:2], 3, HEADS, -1)
        y = attend(*(qkv[:, :, i] for i in range(3)))
        x = x + y.reshape(x.shape) @ w["out"].astype(x.dtype)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def local_step(params, opt_state, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    params, opt_state = adam(params, opt_state, jax.lax.pmean(grads, "sequence"))
    return params, opt_state, jax.lax.pmean(loss, "sequence")


specs = (P(), P(), P(None, "sequence"))
step = jax.jit(
    jax.shard_map(local_step, mesh=mesh, in_specs=specs, out_specs=(P(), P(), P()), check_vma=False),
    donate_argnums=(0, 1),
)


def init(key):
    keys = jax.random.split(key, args.layers)
    return [
        {
            "qkv": 0.02 * jax.random.normal(key, (WIDTH, 3 * WIDTH)),
            "out": 0.02 * jax.random.normal(key, (WIDTH, WIDTH)),
        }
        for key in keys
    ]


params = jax.jit(init, out_shardings=everywhere)(jax.random.key(0))
opt_state = start_adam(params)
shape = (args.batch, args.sequence, WIDTH)
x = jax.jit(lambda: jnp.ones(shape, jnp.bfloat16), out_shardings=divided)()
for _ in range(3):
    params, opt_state, loss = step(params, opt_state, x)
    loss.block_until_ready()
